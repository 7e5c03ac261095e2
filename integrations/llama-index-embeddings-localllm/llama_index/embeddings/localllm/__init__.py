"""LlamaIndex's embeddings over localllm: GGUF models inside your own Python process."""

from llama_index.embeddings.localllm.base import LocalLLMEmbedding

__all__ = ["LocalLLMEmbedding"]
