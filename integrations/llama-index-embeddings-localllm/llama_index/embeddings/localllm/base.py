"""LocalLLMEmbedding: LlamaIndex's embeddings over localllm."""

from __future__ import annotations

import os
from typing import Any, Literal

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from localllm import EmbedOptions, LocalModel
from localllm.engine import checks
from localllm.errors import InvalidRequestError, LocalLLMError
from localllm.options import identifying, unknown, with_key

# Of LlamaIndex's own options those that vectors do not depend on.
_RUNNING = ("embed_batch_size", "num_workers", "callback_manager", "embeddings_cache", "rate_limiter")


class LocalLLMEmbedding(BaseEmbedding):
    """Vectors of texts, by a GGUF file that runs inside this Python process.

    Constructing it is cheap: weights are loaded at the first call, once per process for all instances with the same file and
    `model_options`, and shared with a LocalLLM of the same file. Texts of one call and of several at the same time share
    batches; async calls never block the loop, and cancelling a task stops the work.

    Args:
        model_name: a path of a GGUF file, a name, or a model of the Hub ("org/repo:Q8_0").
        query_instruction, text_instruction: str, put before each query or text as it is, e.g. "search_query: " and
            "search_document: "; what fits is on the model's card.
        pooling: "mean", "cls" or "last"; None: what the file names.
        normalize: bool, make every vector's length 1.
        dimensions: int, keep so many of the first dimensions (the model must have been trained for it); None: all.
        truncate: bool, cut texts that are too long; false: they are errors.
        context_window: int, localllm's `n_ctx`; None: localllm's default.
        model_options: further options of localllm.LocalModel, e.g. {"n_threads": 4, "keep_alive": 300}.
        api_key: token of the Hugging Face Hub, for private and gated models (`token` in `model_options` as well); None: HF_TOKEN.
        embed_batch_size: int in [1, 2048], texts that LlamaIndex gives at a time. They are cut into batches of tokens here, so
            more is better than less.
        embeddings_cache, num_workers, callback_manager, rate_limiter: as LlamaIndex's BaseEmbedding has them.

    Raises:
        InvalidRequestError: An option is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid")

    embed_batch_size: int = Field(default=256, gt=0, le=2048)
    query_instruction: str = ""
    text_instruction: str = ""
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool = True
    dimensions: int | None = None
    truncate: bool = False
    context_window: int | None = None
    model_options: dict[str, Any] = Field(default_factory=dict)
    # Of no part of what describes it: that is shown, logged and kept.
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)

    _local: LocalModel | None = PrivateAttr(default=None)
    _local_made_with: tuple[Any, ...] = PrivateAttr(default=())

    def __init__(self, model_name: str | os.PathLike[str], **options: Any) -> None:
        known = type(self).model_fields
        for name in options:
            if name not in known:
                raise unknown(name, set(known))
        super().__init__(model_name=checks.path("model_name", model_name), **with_key(options))
        # Wrong values are errors here, and not at the first call.
        EmbedOptions(**self._options(""))
        if self.embeddings_cache is not None and self.query_instruction != self.text_instruction:
            raise InvalidRequestError(
                "embeddings_cache: LlamaIndex keeps vectors by their texts alone, and would take a text's vector for a query's; "
                "leave it out, or give both the same instruction"
            )
        self._make_local()

    @classmethod
    def class_name(cls) -> str:
        return "LocalLLMEmbedding"

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """All that the vectors depend on: the options, and a fingerprint of the file, if it is on this machine.

        An ingestion cache finds vectors by it. How a model is run (`n_threads`, `keep_alive`, `embed_batch_size` and the like) is
        no part of it, nor is the length of a context that no text is cut to.
        """
        data = {name: value for name, value in super().custom_model_dump(handler, info).items() if name not in _RUNNING}
        if "model_options" in data:
            data["model_options"] = identifying(self.model_options)
        if not self.truncate:
            data.pop("context_window", None)
            data.get("model_options", {}).pop("n_ctx", None)
        return {**data, "fingerprint": self._fingerprint()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> LocalLLMEmbedding:
        """What `to_dict` has described, with options that it leaves open; of the file it reads what is there now."""
        made: LocalLLMEmbedding = super().from_dict(
            {name: value for name, value in data.items() if name != "fingerprint"}, **kwargs
        )
        return made

    # ---- the model

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that makes the vectors."""
        # A copy with other fields (model_copy) must not use the model of the original.
        made_with = (self.model_name, self.context_window, repr(self.model_options), self.api_key)
        local = self._local
        if local is None or self._local_made_with != made_with:
            local = self._make_local()
            self._local, self._local_made_with = local, made_with
        return local

    def _make_local(self) -> LocalModel:
        options = dict(self.model_options)
        if self.context_window is not None and options.setdefault("n_ctx", self.context_window) != self.context_window:
            raise InvalidRequestError("context_window: model_options has another n_ctx; give one of them")
        return LocalModel(self.model_name, token=self.api_key.get_secret_value() if self.api_key else None, **options)

    def close(self) -> None:
        """Lets go of what was loaded, as `LocalModel.close`; the next call loads again."""
        if self._local is not None:
            self._local.close()

    def _fingerprint(self) -> str:
        from localllm.hub.locate import locate

        try:
            # Nothing is fetched for a description, and one has to be possible without the file.
            locate(self.model_name, download=False)
            return self.local_model.fingerprint
        except LocalLLMError:
            return ""

    def _options(self, instruction: str) -> dict[str, Any]:
        return {
            "instruction": instruction,
            "pooling": self.pooling,
            "normalize": self.normalize,
            "dimensions": self.dimensions,
            "truncate": self.truncate,
        }

    # ---- vectors

    def _embed(self, texts: list[str], instruction: str) -> list[list[float]]:
        return self.local_model.embed(texts, **self._options(instruction)).vectors

    async def _aembed(self, texts: list[str], instruction: str) -> list[list[float]]:
        return (await self.local_model.aembed(texts, **self._options(instruction))).vectors

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], self.query_instruction)[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._aembed([query], self.query_instruction))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], self.text_instruction)[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aembed([text], self.text_instruction))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, self.text_instruction)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._aembed(texts, self.text_instruction)
