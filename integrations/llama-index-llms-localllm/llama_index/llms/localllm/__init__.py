"""LlamaIndex's LLM over localllm: GGUF models inside your own Python process."""

from llama_index.llms.localllm.base import LocalLLM
from llama_index.llms.localllm.errors import CutAnswerError, NoToolCallError

__all__ = ["CutAnswerError", "LocalLLM", "NoToolCallError"]
