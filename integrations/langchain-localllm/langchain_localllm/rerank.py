"""Documents by their relevance to a query: LocalLLMReranker for retrievers, LocalLLMCrossEncoder for single pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from typing_extensions import Self

from langchain_localllm.errors import model_errors
from langchain_localllm.handles import ApiKey, Handles
from langchain_localllm.options import LOADING, dealt
from localllm import LocalModel, Ranked
from localllm.errors import InvalidRequestError


class LocalLLMReranker(BaseDocumentCompressor):
    """Puts documents in the order of their relevance to a query, by a reranker inside this Python process.

    Setup:
        Install `langchain-localllm`, and name a reranker (a model with a classification head): a GGUF file, or a repository of
        the Hugging Face Hub, such as `"gpustack/bge-reranker-v2-m3-GGUF:Q8_0"`, which is fetched when it is first used.

        ```bash
        pip install -U langchain-localllm
        ```

    Key init args:
        model: str
            The model.
        top_n: int
            Only so many of the best, 3 unless given; `None`: all.
        score_threshold: float
            Only documents of at least this score, in [0, 1]; `None`: whatever their score.
        truncate: bool
            Cut documents that are too long together with the query. Otherwise they are an error that names the document.
        model_options, api_key: dict, str
            How the model is loaded, and the Hub's token, as of `LocalLLMEmbeddings`.

    Instantiate:
        ```python
        from langchain_localllm import LocalLLMReranker

        reranker = LocalLLMReranker(model="gpustack/bge-reranker-v2-m3-GGUF:Q8_0", top_n=3)
        ```

    Use:
        ```python
        reranker.compress_documents(documents, "What is the capital of France?")
        ```

        The documents are copies; `metadata["relevance_score"]` is the probability that the document answers the query.

        In a retriever:

        ```python
        from langchain_classic.retrievers import ContextualCompressionRetriever

        many = store.as_retriever(search_kwargs={"k": 20})
        retriever = ContextualCompressionRetriever(base_compressor=reranker, base_retriever=many)
        ```
    """

    # Errors would show all that was given, the token, too.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    model: str
    top_n: int | None = Field(default=3, ge=1)
    score_threshold: float | None = Field(default=None, ge=0, le=1)
    truncate: bool = False
    model_options: dict[str, Any] = Field(default_factory=dict)
    api_key: ApiKey = None

    _handles: Handles = PrivateAttr(default_factory=Handles)

    @model_validator(mode="before")
    @classmethod
    def _sort_options(cls, values: Any) -> Any:
        return dealt(values, cls.model_fields, {"model_options": LOADING})

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        """Wrong values are errors here and not at the first call."""
        _ = self.local_model
        return self

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        return self._handles.get(self.model, self.model_options, self.api_key)

    def close(self) -> None:
        """Frees what was loaded, unless others use it. The next call loads it again."""
        self._handles.close()

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The most relevant documents, best first.

        Args:
            documents: The documents, which stay as they are.
            query: What is searched with.
            callbacks: Not called: there is nothing to tell them.

        Returns:
            Copies with `metadata["relevance_score"]`.

        Raises:
            InvalidRequestError: One of them is no Document; the message names it, e.g. "documents[3]".
            ContextOverflowError: A document is too long, and `truncate` is off; the message names it, too.
            UnsupportedModelError: The model is no reranker.
            ModelError: The model cannot be loaded.
        """
        with model_errors():
            given, texts = _texts(documents)
            ranked = self.local_model.rerank(query, texts, top_n=self.top_n, truncate=self.truncate)
        return self._chosen(given, ranked)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Like `compress_documents`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        with model_errors():
            given, texts = _texts(documents)
            ranked = await self.local_model.arerank(query, texts, top_n=self.top_n, truncate=self.truncate)
        return self._chosen(given, ranked)

    def _chosen(self, documents: Sequence[Document], ranked: Sequence[Ranked]) -> list[Document]:
        return [
            documents[each.index].model_copy(
                update={"metadata": {**documents[each.index].metadata, "relevance_score": each.probability}}
            )
            for each in ranked
            if self.score_threshold is None or each.probability >= self.score_threshold
        ]


class LocalLLMCrossEncoder(BaseModel, BaseCrossEncoder):
    """Scores pairs of a query and a document, by a reranker inside this Python process.

    Setup:
        As of `LocalLLMReranker`.

    Key init args:
        model: str
            The model, a reranker.
        truncate: bool
            Cut documents that are too long together with their query. Otherwise they are an error that names the pair.
        model_options, api_key: dict, str
            How the model is loaded, and the Hub's token, as of `LocalLLMEmbeddings`.

    Instantiate:
        ```python
        from langchain_localllm import LocalLLMCrossEncoder

        encoder = LocalLLMCrossEncoder(model="gpustack/bge-reranker-v2-m3-GGUF:Q8_0")
        ```

    Use:
        ```python
        encoder.score([("What is the capital of France?", "Paris is the capital of France.")])
        ```

        In a compressor: `langchain_classic.retrievers.document_compressors.CrossEncoderReranker(model=encoder, top_n=3)`.
    """

    # Errors would show all that was given, the token, too.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    model: str
    truncate: bool = False
    model_options: dict[str, Any] = Field(default_factory=dict)
    api_key: ApiKey = None

    _handles: Handles = PrivateAttr(default_factory=Handles)

    @model_validator(mode="before")
    @classmethod
    def _sort_options(cls, values: Any) -> Any:
        return dealt(values, cls.model_fields, {"model_options": LOADING})

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        """Wrong values are errors here and not at the first call."""
        _ = self.local_model
        return self

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        return self._handles.get(self.model, self.model_options, self.api_key)

    def close(self) -> None:
        """Frees what was loaded, unless others use it. The next call loads it again."""
        self._handles.close()

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """How relevant each document is to its query; all pairs share batches.

        Args:
            text_pairs: Pairs of a query and a document.

        Returns:
            Probabilities, in the order of the pairs.

        Raises:
            As `LocalLLMReranker.compress_documents`; messages name the pair, e.g. "pairs[3]".
        """
        with model_errors():
            return [each.probability for each in self.local_model.score(text_pairs, truncate=self.truncate)]

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Like `score`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        with model_errors():
            return [each.probability for each in await self.local_model.ascore(text_pairs, truncate=self.truncate)]


def _texts(documents: Iterable[Document]) -> tuple[list[Document], list[str]]:
    """Documents, which may come only once, and their texts."""
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise InvalidRequestError(f"documents: must be a list of documents, not {type(documents).__name__}")
    given = list(documents)
    for at, document in enumerate(given):
        if not isinstance(document, Document):
            raise InvalidRequestError(f"documents[{at}]: must be a Document, not {type(document).__name__}")
    return given, [document.page_content for document in given]
