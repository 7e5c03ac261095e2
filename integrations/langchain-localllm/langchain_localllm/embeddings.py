"""LocalLLMEmbeddings: vectors of texts by a GGUF model."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from langchain_core.embeddings import Embeddings
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from typing_extensions import Self

from langchain_localllm.errors import model_errors
from langchain_localllm.handles import ApiKey, Handles
from langchain_localllm.options import LOADING, dealt
from localllm import EmbedOptions, LocalModel


class LocalLLMEmbeddings(BaseModel, Embeddings):
    """Vectors by a GGUF model inside this Python process.

    Setup:
        Install `langchain-localllm`, and name a model: a GGUF file, a repository of the Hugging Face Hub
        (`"org/repo:Q8_0"`, fetched when it is first used), or a name of the catalog, such as `"qwen3-embedding-0.6b"`.

        ```bash
        pip install -U langchain-localllm
        ```

    Key init args - embedding params:
        query_instruction, document_instruction: str
            Put before a query, or before each document, as it is. `None`: what the family of the model was trained with, if it
            is known (nomic-embed-text, E5, BGE, mxbai, Arctic, Qwen3-Embedding, EmbeddingGemma), else nothing. `""`: nothing.
        normalize: bool
            Make every vector's length 1, so that a dot product is a cosine.
        pooling: "mean", "cls" or "last"
            How one vector is made of a text's tokens; `None`: as the file says.
        dimensions: int
            Only so many of the first ones, for models that were trained for it (Matryoshka).
        truncate: bool
            Cut texts that are too long. Otherwise they are an error that names the text.

    Key init args - client params:
        model: str
            The model.
        model_options: dict
            How it is loaded: fields of `localllm.ModelConfig` and `localllm.ContextConfig`, `keep_alive` (seconds), `pinned`,
            `offline`. They may also be given by themselves: `n_ctx=8192`. `n_ctx` is the most that a text may have.
        api_key: str
            Token of the Hugging Face Hub, for private and gated models; `None`: what HF_TOKEN says, or `hf auth login` has kept.
            No text of the object shows it, and no dump has it, but pickles do.

    Instantiate:
        ```python
        from langchain_localllm import LocalLLMEmbeddings

        embeddings = LocalLLMEmbeddings(model="nomic-embed-text-v1.5")
        ```

        That loads nothing. Weights are loaded by the first call, once per process: a chat model of the same file shares them.

    Embed single text:
        ```python
        vector = embeddings.embed_query("What is the capital of France?")
        ```

    Embed multiple texts:
        ```python
        vectors = embeddings.embed_documents(["Paris is the capital of France.", "Foxes are quick."])
        ```

        All texts share batches, whatever their lengths, also with what others embed at the same time.

    Async:
        ```python
        await embeddings.aembed_documents(["Paris is the capital of France."])
        ```

        Native: no thread waits for the vectors, and cancelling the task stops the work.
    """

    # Errors would show all that was given, the token, too.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    model: str
    query_instruction: str | None = None
    document_instruction: str | None = None
    normalize: bool = True
    pooling: Literal["mean", "cls", "last"] | None = None
    dimensions: int | None = Field(default=None, ge=1)
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

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents, in their order.

        Args:
            texts: The documents.

        Returns:
            A vector for each of them.

        Raises:
            ContextOverflowError: A text is too long, and `truncate` is off; the message names it, e.g. "texts[3]".
            InvalidRequestError: A text is none, or is empty and the model has no tokens to put around it.
            UnsupportedModelError: The model gives no vectors.
            ModelError: The model cannot be loaded.
        """
        with model_errors():
            return self.local_model.embed(texts, **self._options(self._document_instruction())).vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of what is searched with.

        Args:
            text: The query.

        Returns:
            A vector.

        Raises:
            As `embed_documents`.
        """
        with model_errors():
            return self.local_model.embed([text], **self._options(self._query_instruction())).vectors[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Like `embed_documents`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        with model_errors():
            # The model may have to be fetched to know what it wants, and many vectors take a while to become lists.
            options = self._options(await asyncio.to_thread(self._document_instruction))
            found = await self.local_model.aembed(texts, **options)
            return await asyncio.to_thread(lambda: found.vectors)

    async def aembed_query(self, text: str) -> list[float]:
        """Like `embed_query`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        with model_errors():
            options = self._options(await asyncio.to_thread(self._query_instruction))
            return (await self.local_model.aembed([text], **options)).vectors[0]

    def _query_instruction(self) -> str:
        return self.local_model.instructions.query if self.query_instruction is None else self.query_instruction

    def _document_instruction(self) -> str:
        return self.local_model.instructions.document if self.document_instruction is None else self.document_instruction

    def _options(self, instruction: str) -> dict[str, Any]:
        options = EmbedOptions(
            pooling=self.pooling,
            normalize=self.normalize,
            instruction=instruction,
            dimensions=self.dimensions,
            truncate=self.truncate,
        )
        return vars(options)
