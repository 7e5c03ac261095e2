"""LlamaIndex's LLM over localllm: GGUF models inside your own Python process."""

from llama_index.llms.localllm.base import LocalLLM
from llama_index.llms.localllm.errors import CutAnswerError, NoToolCallError
from llama_index.llms.localllm.multi_modal import LocalMultiModal

__all__ = ["CutAnswerError", "LocalLLM", "LocalMultiModal", "NoToolCallError"]
