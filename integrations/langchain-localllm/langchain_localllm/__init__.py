"""LangChain classes over localllm."""

from langchain_localllm.chat_models import ChatLocalLLM

__all__ = ["ChatLocalLLM"]
