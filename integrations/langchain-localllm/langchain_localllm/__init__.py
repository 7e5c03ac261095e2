"""LangChain classes over localllm."""

from langchain_localllm.chat_models import ChatLocalLLM
from langchain_localllm.embeddings import LocalLLMEmbeddings
from langchain_localllm.llms import LocalLLM
from langchain_localllm.rerank import LocalLLMCrossEncoder, LocalLLMReranker
from langchain_localllm.version import __version__

__all__ = [
    "ChatLocalLLM",
    "LocalLLM",
    "LocalLLMCrossEncoder",
    "LocalLLMEmbeddings",
    "LocalLLMReranker",
    "__version__",
]
