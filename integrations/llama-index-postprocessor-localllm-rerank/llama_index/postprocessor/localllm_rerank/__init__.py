"""LlamaIndex's reranker over localllm: GGUF models inside your own Python process."""

from llama_index.postprocessor.localllm_rerank.base import LocalLLMRerank

__all__ = ["LocalLLMRerank"]
