"""LangChain's own tests of embeddings, none of them changed or left out."""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_localllm import LocalLLMEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests


class TestUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LocalLLMEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2"}


class TestIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LocalLLMEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2", "n_ctx": 512}
