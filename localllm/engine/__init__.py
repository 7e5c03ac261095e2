"""Tokens in, tokens out: one thread per model, continuous batching. Knows nothing of chat, frameworks or the Hub."""
