"""LocalLLMRerank: LlamaIndex's reranker over localllm."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from localllm import LocalModel, Ranked
from localllm.engine import checks
from localllm.errors import InvalidRequestError
from localllm.options import unknown, with_key

dispatcher = get_dispatcher(__name__)


class LocalLLMRerank(BaseNodePostprocessor):
    """Nodes in the order of their relevance to the query, by a reranking GGUF file that runs inside this Python process.

    Constructing it is cheap: weights are loaded at the first call, once per process for all instances with the same file and
    `model_options`. All nodes of a call are scored in shared batches; async calls never block the loop, and cancelling a task
    stops the work.

    Args:
        model: a path of a GGUF file with a classification head, a name, or a model of the Hub ("org/repo:Q8_0").
        top_n: int, only so many of the best.
        score: "probability" in [0, 1], or "logit", which is not bounded.
        keep_retrieval_score: bool, keep the score that a node had in its metadata, as "retrieval_score".
        truncate: bool, cut nodes that are too long together with the query; false: they are errors.
        context_window: int, localllm's `n_ctx`; None: localllm's default.
        model_options: further options of localllm.LocalModel, e.g. {"n_threads": 4, "keep_alive": 300}.
        api_key: token of the Hugging Face Hub, for private and gated models (`token` in `model_options` as well); None: HF_TOKEN.
        callback_manager: as LlamaIndex's postprocessors have it.

    Raises:
        InvalidRequestError: An option is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    top_n: int = Field(default=2, ge=1)
    score: Literal["probability", "logit"] = "probability"
    keep_retrieval_score: bool = False
    truncate: bool = False
    context_window: int | None = None
    model_options: dict[str, Any] = Field(default_factory=dict)
    # Of no part of what describes it: that is shown, logged and kept.
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)

    _local: LocalModel | None = PrivateAttr(default=None)
    _local_made_with: tuple[Any, ...] = PrivateAttr(default=())

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        known = type(self).model_fields
        for name in options:
            if name not in known:
                raise unknown(name, set(known))
        super().__init__(**{"model": checks.path("model", model), **with_key(options)})
        self._make_local()

    @classmethod
    def class_name(cls) -> str:
        return "LocalLLMRerank"

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that scores."""
        # A copy with other fields (model_copy) must not use the model of the original.
        made_with = (self.model, self.context_window, repr(self.model_options), self.api_key)
        local = self._local
        if local is None or self._local_made_with != made_with:
            local = self._make_local()
            self._local, self._local_made_with = local, made_with
        return local

    def _make_local(self) -> LocalModel:
        options = dict(self.model_options)
        if self.context_window is not None and options.setdefault("n_ctx", self.context_window) != self.context_window:
            raise InvalidRequestError("context_window: model_options has another n_ctx; give one of them")
        return LocalModel(self.model, token=self.api_key.get_secret_value() if self.api_key else None, **options)

    def close(self) -> None:
        """Lets go of what was loaded, as `LocalModel.close`; the next call loads again."""
        if self._local is not None:
            self._local.close()

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> list[NodeWithScore]:
        query, nodes = _query(query_bundle), list(nodes)
        if not nodes:
            return []
        with self._told(nodes, query) as result:
            result += self._ranked(nodes, self.local_model.rerank(query, _texts(nodes), **self._options()))
        return result

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _query(query_bundle), list(nodes)
        if not nodes:
            return []
        with self._told(nodes, query) as result:
            result += self._ranked(nodes, await self.local_model.arerank(query, _texts(nodes), **self._options()))
        return result

    def _options(self) -> dict[str, Any]:
        return {"top_n": self.top_n, "truncate": self.truncate}

    def _ranked(self, nodes: list[NodeWithScore], ranking: Sequence[Ranked]) -> list[NodeWithScore]:
        found = []
        for place in ranking:
            node = nodes[place.index]
            kept = _with_retrieval_score(node) if self.keep_retrieval_score else node.node
            found.append(NodeWithScore(node=kept, score=getattr(place, self.score)))
        return found

    @contextmanager
    def _told(self, nodes: list[NodeWithScore], query: str) -> Generator[list[NodeWithScore], None, None]:
        """Tells those that listen of a ranking; what it gives is put into the list."""
        found: list[NodeWithScore] = []
        dispatcher.event(ReRankStartEvent(query=query, nodes=nodes, top_n=self.top_n, model_name=self.model))
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.model,
            EventPayload.QUERY_STR: query,
            EventPayload.TOP_K: self.top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield found
            event.on_end(payload={EventPayload.NODES: found})
        dispatcher.event(ReRankEndEvent(nodes=found))


def _query(bundle: QueryBundle | None) -> str:
    if bundle is None:
        raise InvalidRequestError("query_bundle: missing; nodes are ranked by their relevance to a query")
    if not isinstance(bundle, QueryBundle):
        raise InvalidRequestError(f"query_bundle: must be a QueryBundle, not {type(bundle).__name__}; query_str takes a text")
    return bundle.query_str


def _texts(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def _with_retrieval_score(node: NodeWithScore) -> BaseNode:
    """A copy of a node with its score in the metadata, though not in the texts that are made of them."""
    names = ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys")
    hidden = {name: list(dict.fromkeys([*getattr(node.node, name), "retrieval_score"])) for name in names}
    return node.node.model_copy(update={"metadata": {**node.node.metadata, "retrieval_score": node.score}, **hidden})
