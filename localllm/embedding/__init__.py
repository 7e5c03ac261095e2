"""Vectors of texts, and documents ranked by relevance: what goes before the embedder, and what comes after it."""
