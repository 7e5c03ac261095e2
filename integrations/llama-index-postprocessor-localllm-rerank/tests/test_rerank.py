"""LocalLLMRerank over tiny models."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.localllm_rerank import LocalLLMRerank
from pydantic import Field

from localllm import LocalModel
from localllm.errors import ContextOverflowError, InvalidRequestError, UnsupportedModelError

TEXTS = ["Rain falls in the mountains.", "Bread is made of flour.", "Ships sail to the islands.", "Stars are far away."]
QUERY = "Where does it rain?"


@pytest.fixture(scope="session")
def path(builder) -> Path:
    return builder.build("bert-reranker")


@pytest.fixture(scope="module")
def rerank(path) -> LocalLLMRerank:
    return LocalLLMRerank(path, top_n=3, model_options={"n_threads": 1})


def nodes() -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text, metadata={"place": n}), score=0.5) for n, text in enumerate(TEXTS)]


class Recorder(BaseEventHandler):
    """Keeps the events of instrumentation."""

    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event)


async def test_nodes_are_ranked(path, rerank):
    given = nodes()
    ranked = rerank.postprocess_nodes(given, query_str=QUERY)
    contents = [node.node.get_content(metadata_mode="embed") for node in given]
    expected = LocalModel(path, n_threads=1).rerank(QUERY, contents, top_n=3)
    assert [node.node.metadata["place"] for node in ranked] == [place.index for place in expected]
    assert [node.score for node in ranked] == pytest.approx([place.probability for place in expected], abs=1e-3)
    assert all(type(node.score) is float for node in ranked) and [node.score for node in given] == [0.5] * 4
    again = await rerank.apostprocess_nodes(given, query_bundle=QueryBundle(QUERY))
    assert [node.node.node_id for node in again] == [node.node.node_id for node in ranked]


def test_other_scores_and_more(path, rerank):
    logits = rerank.model_copy(update={"score": "logit", "top_n": 99, "keep_retrieval_score": True})
    ranked = logits.postprocess_nodes(nodes(), query_str=QUERY)
    assert len(ranked) == 4 and [node.score for node in ranked] == sorted((node.score for node in ranked), reverse=True)
    assert all(node.node.metadata["retrieval_score"] == 0.5 for node in ranked)
    assert rerank.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(InvalidRequestError, match="query_bundle"):
        rerank.postprocess_nodes(nodes())


def test_errors_name_what_is_wrong(builder, path, rerank):
    long = [*nodes(), NodeWithScore(node=TextNode(text="word " * 5000))]
    with pytest.raises(ContextOverflowError, match=r"documents\[4\]"):
        rerank.postprocess_nodes(long, query_str=QUERY)
    assert len(rerank.model_copy(update={"truncate": True}).postprocess_nodes(long, query_str=QUERY)) == 3
    with pytest.raises(UnsupportedModelError):
        LocalLLMRerank(builder.build("qwen3")).postprocess_nodes(nodes(), query_str=QUERY)
    for options, message in (
        ({"top": 1}, "did you mean 'top_n'"),
        ({"top_n": 0}, "top_n"),
        ({"score": "x"}, "score"),
        ({"model_options": {"n_ctxx": 1}}, "n_ctx"),
        ({"context_window": 64, "model_options": {"n_ctx": 32}}, "context_window"),
    ):
        with pytest.raises(ValueError, match=message):
            LocalLLMRerank(path, **options)


def test_it_can_be_written_down(rerank):
    assert not LocalLLMRerank("nothing").local_model.loaded
    data = rerank.to_dict()
    assert json.loads(rerank.to_json()) == data == pickle.loads(pickle.dumps(rerank)).to_dict()
    assert LocalLLMRerank.from_dict(data).to_dict() == data
    assert isinstance(rerank, BaseNodePostprocessor) and rerank.class_name() == "LocalLLMRerank"


def test_those_that_listen_are_told(path):
    recorder, dispatcher, debug = Recorder(), get_dispatcher(), LlamaDebugHandler(print_trace_on_end=False)
    dispatcher.add_event_handler(recorder)
    rerank = LocalLLMRerank(path, callback_manager=CallbackManager([debug]), model_options={"n_threads": 1})
    try:
        rerank.postprocess_nodes(nodes(), query_str=QUERY)
    finally:
        dispatcher.event_handlers.remove(recorder)
    assert [type(event).__name__ for event in recorder.seen] == ["ReRankStartEvent", "ReRankEndEvent"]
    assert len(recorder.seen[1].nodes) == 2 and len(debug.get_event_pairs(CBEventType.RERANKING)) == 1


async def test_many_at_once_and_the_loop_goes_on(rerank):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.0005)

    task = asyncio.ensure_future(tick())
    found = await asyncio.gather(*(rerank.apostprocess_nodes(nodes(), query_str=f"Question {n}?") for n in range(8)))
    task.cancel()
    assert all(len(ranked) == 3 for ranked in found) and ticks > 3


def test_a_kept_score_is_in_no_text_and_not_in_the_nodes_that_were_given(path):
    rerank = LocalLLMRerank(path, top_n=2, keep_retrieval_score=True, model_options={"n_threads": 1})
    nodes = [NodeWithScore(node=TextNode(text=text), score=score) for text, score in (("hello there", 0.5), ("river", 0.25))]
    first = rerank.postprocess_nodes(nodes, query_str="hello")
    assert {node.node.metadata["retrieval_score"] for node in first} == {0.5, 0.25}
    assert all(node.node.metadata == {} for node in nodes)
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        assert all("retrieval_score" not in node.node.get_content(mode) for node in first)
    assert [node.score for node in rerank.postprocess_nodes(first, query_str="hello")] == [node.score for node in first]


def test_the_token_of_the_hub_is_not_shown(path):
    rerank = LocalLLMRerank(path, model_options={"token": "hf_secret"})
    assert rerank.local_model.token == "hf_secret"
    assert all("hf_secret" not in shown for shown in (repr(rerank), str(rerank.to_dict()), rerank.to_json()))


@pytest.mark.parametrize("model", [None, 5, b"x.gguf", ["x.gguf"], "a\0b"])
def test_what_is_no_model(model):
    with pytest.raises(InvalidRequestError, match=r"^model: "):
        LocalLLMRerank(model)


async def test_nodes_may_come_one_by_one(rerank):
    ranked = rerank.postprocess_nodes(nodes(), query_str=QUERY)
    for again in (
        rerank.postprocess_nodes((node for node in nodes()), query_str=QUERY),
        await rerank.apostprocess_nodes((node for node in nodes()), query_str=QUERY),
    ):
        assert [node.score for node in again] == [node.score for node in ranked] and len(again) == 3


async def test_a_text_in_the_place_of_a_query_bundle_is_told_where_it_belongs(rerank):
    with pytest.raises(InvalidRequestError, match="query_bundle: must be a QueryBundle, not str; query_str takes a text"):
        rerank.postprocess_nodes(nodes(), QUERY)
    with pytest.raises(InvalidRequestError, match="query_bundle: must be a QueryBundle, not str"):
        await rerank.apostprocess_nodes(nodes(), QUERY)


def test_a_score_that_is_kept_again_is_hidden_once(path):
    rerank = LocalLLMRerank(path, keep_retrieval_score=True, model_options={"n_threads": 1})
    (first, *_) = rerank.postprocess_nodes(rerank.postprocess_nodes(nodes(), query_str=QUERY), query_str=QUERY)
    assert first.node.excluded_embed_metadata_keys == first.node.excluded_llm_metadata_keys == ["retrieval_score"]
