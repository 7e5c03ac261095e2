"""LocalLLMEmbedding over tiny models."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.node_parser import SemanticSplitterNodeParser
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.localllm import LocalLLMEmbedding

from localllm import LocalModel
from localllm.errors import ContextOverflowError, InvalidRequestError, ModelNotFoundError

TEXTS = [f"The text number {n} is about {word}." for n, word in enumerate(("rain", "rivers", "bread", "stars", "ships") * 4)]


@pytest.fixture(scope="session")
def path(builder) -> Path:
    return builder.build("bert")


@pytest.fixture(scope="module")
def embedding(path) -> LocalLLMEmbedding:
    # Without flash attention vectors do not depend on what else is in their batch, but for the last digits.
    options = {"n_threads": 1, "flash_attention": "off"}
    return LocalLLMEmbedding(path, query_instruction="query: ", text_instruction="text: ", model_options=options)


def close(one, other):
    return all(a == pytest.approx(b, abs=1e-4) for a, b in zip(one, other, strict=True))


def test_it_is_an_embedding_that_costs_nothing(path):
    embedding = LocalLLMEmbedding(path)
    assert isinstance(embedding, BaseEmbedding) and embedding.class_name() == "LocalLLMEmbedding"
    assert embedding.embed_batch_size == 256 and not embedding.local_model.loaded
    with pytest.raises(ModelNotFoundError):
        LocalLLMEmbedding("/no/such.gguf").get_text_embedding("x")


async def test_sync_and_async_agree(embedding):
    text = embedding.get_text_embedding(TEXTS[0])
    assert type(text) is list and all(type(value) is float for value in text)
    assert sum(value * value for value in text) == pytest.approx(1, abs=1e-5)
    query = embedding.get_query_embedding(TEXTS[0])
    assert not close(text, query)
    assert close(await embedding.aget_text_embedding(TEXTS[0]), text)
    assert close(await embedding.aget_query_embedding(TEXTS[0]), query)
    assert close(query, LocalModel(embedding.model_name, n_threads=1).embed("query: " + TEXTS[0]).vectors[0])


async def test_batches_are_batches(embedding):
    embedding.get_text_embedding("x")
    embedder = embedding.local_model.embedder
    before = embedder.stats()
    vectors = embedding.get_text_embedding_batch(TEXTS)
    middle = embedder.stats()
    assert middle.n_requests - before.n_requests == 1 and middle.n_batches - before.n_batches < len(TEXTS) // 4
    others = await embedding.aget_text_embedding_batch(TEXTS)
    assert embedder.stats().n_requests - middle.n_requests == 1
    for one, other in zip(vectors, others, strict=True):
        assert close(one, other)
    assert close(vectors[3], embedding.get_text_embedding(TEXTS[3]))
    assert embedding.get_text_embedding_batch([]) == []


async def test_the_loop_goes_on_meanwhile(embedding):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.0005)

    task = asyncio.ensure_future(tick())
    await asyncio.gather(*(embedding.aget_text_embedding(text) for text in TEXTS))
    task.cancel()
    assert ticks > 3


async def test_a_cancelled_task_stops_the_work(embedding):
    await embedding.aget_text_embedding("x")
    embedder = embedding.local_model.embedder
    before = embedder.stats().n_texts
    task = asyncio.create_task(embedding.aget_text_embedding_batch([text * 8 for text in TEXTS * 12]))
    while not embedder.stats().n_running:
        await asyncio.sleep(0.0005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while embedder.stats().n_running:
        await asyncio.sleep(0.001)
    assert embedder.stats().n_texts - before < len(TEXTS) * 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_instuction": "x"}, "did you mean 'query_instruction'"),
        ({"dimensions": "x"}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
        ({"context_window": 64, "model_options": {"n_ctx": 32}}, "context_window"),
        ({"embed_batch_size": 0}, "embed_batch_size"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(path, options, message):
    with pytest.raises(ValueError, match=message):
        LocalLLMEmbedding(path, **options)


def test_options(path):
    short = LocalLLMEmbedding(path, dimensions=8, model_options={"n_threads": 1})
    assert len(short.get_text_embedding("x")) == 8
    with pytest.raises(ContextOverflowError, match=r"texts\[1\]"):
        short.get_text_embedding_batch(["x", "word " * 5000])
    cut = LocalLLMEmbedding(path, truncate=True, normalize=False, model_options={"n_threads": 1})
    assert cut.get_text_embedding("word " * 5000)
    with pytest.raises(InvalidRequestError, match="dimensions"):
        LocalLLMEmbedding(path, dimensions=10**6).get_text_embedding("x")


def test_what_it_is_made_with_says_what_it_does(path, embedding, tmp_path):
    data = embedding.to_dict()
    assert data == json.loads(embedding.to_json()) == embedding.to_dict() == pickle.loads(pickle.dumps(embedding)).to_dict()
    assert LocalLLMEmbedding.from_dict(data).to_dict() == data and len(data["fingerprint"]) == 64
    for change in ({"text_instruction": ""}, {"normalize": False}, {"dimensions": 4}, {"pooling": "cls"}):
        assert embedding.model_copy(update=change).to_dict() != data
    other = tmp_path / path.name
    other.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert LocalLLMEmbedding(other).to_dict()["fingerprint"] != data["fingerprint"]
    assert LocalLLMEmbedding("someone/something-GGUF").to_dict()["fingerprint"] == ""


def test_an_ingestion_cache_finds_its_vectors(embedding):
    nodes = [TextNode(text=text, id_=str(n)) for n, text in enumerate(TEXTS)]
    cache = IngestionCache()
    first = IngestionPipeline(transformations=[embedding], cache=cache).run(nodes=nodes)
    before = embedding.local_model.embedder.stats().n_texts
    again = pickle.loads(pickle.dumps(embedding))
    second = IngestionPipeline(transformations=[again], cache=cache).run(nodes=[node.model_copy() for node in nodes])
    assert embedding.local_model.embedder.stats().n_texts == before
    assert [node.embedding for node in first] == [node.embedding for node in second]
    changed = embedding.model_copy(update={"text_instruction": "other: "})
    IngestionPipeline(transformations=[changed], cache=cache).run(nodes=[TextNode(text=text) for text in TEXTS])
    assert embedding.local_model.embedder.stats().n_texts == before + len(TEXTS)


def test_a_cache_of_vectors_and_callbacks(path):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    embedding = LocalLLMEmbedding(
        path,
        embeddings_cache=SimpleKVStore(),
        callback_manager=CallbackManager([debug]),
        model_options={"n_threads": 1},
    )
    first = embedding.get_text_embedding_batch(TEXTS[:3])
    n_texts = embedding.local_model.embedder.stats().n_texts
    assert embedding.get_text_embedding_batch(TEXTS[:3]) == first
    assert embedding.local_model.embedder.stats().n_texts == n_texts
    assert debug.get_event_pairs()


def test_a_file_in_the_place_of_a_loaded_one_answers_from_then_on(builder, path, tmp_path):
    """An ingestion cache would keep vectors of the old file under the fingerprint of the new one."""
    place = tmp_path / "model.gguf"
    shutil.copy(path, place)
    embedding = LocalLLMEmbedding(place, model_options={"n_threads": 1})
    old, was = embedding.get_text_embedding("hello"), embedding.to_dict()["fingerprint"]
    other = tmp_path / "other.gguf"
    shutil.copy(builder.build("qwen3"), other)
    other.replace(place)
    now = embedding.to_dict()["fingerprint"]
    expected = LocalLLMEmbedding(builder.build("qwen3"), model_options={"n_threads": 1}).get_text_embedding("hello")
    assert now != was and embedding.get_text_embedding("hello") == expected != old


def test_a_cache_of_vectors_needs_one_instruction_for_both(path):
    cache = SimpleKVStore()
    with pytest.raises(InvalidRequestError, match="embeddings_cache: "):
        LocalLLMEmbedding(path, embeddings_cache=cache, query_instruction="query: ")
    assert LocalLLMEmbedding(path, embeddings_cache=cache, query_instruction="x: ", text_instruction="x: ")


def test_the_token_of_the_hub_is_not_shown(path):
    embedding = LocalLLMEmbedding(path, model_options={"token": "hf_secret"})
    assert embedding.local_model.token == "hf_secret" == pickle.loads(pickle.dumps(embedding)).local_model.token
    assert all("hf_secret" not in shown for shown in (repr(embedding), str(embedding.to_dict()), embedding.to_json()))


RUNNING: list[dict[str, Any]] = [
    {"embed_batch_size": 8},
    {"num_workers": 2},
    {"embeddings_cache": SimpleKVStore()},
    {"api_key": "hf_secret"},
    {"context_window": 64},
    *({"model_options": {name: value}} for name, value in {
        "n_threads": 1, "n_threads_batch": 2, "keep_alive": 60, "pinned": True, "check_memory": False, "parallel": 2,
        "n_batch": 64, "n_ubatch": 64, "flash_attention": "off", "max_queue": 9, "offline": True, "n_gpu_layers": 0,
        "load_mode": "none", "n_ctx": 64,
    }.items()),
]  # fmt: skip


def test_what_does_not_change_vectors_does_not_make_them_anew(path):
    node = [TextNode(text="x")]
    plain = get_transformation_hash(node, LocalLLMEmbedding(path))
    for options in RUNNING:
        assert get_transformation_hash(node, LocalLLMEmbedding(path, **options)) == plain, options
    for change in (
        {"text_instruction": "x"},
        {"query_instruction": "x"},
        {"pooling": "cls"},
        {"dimensions": 4},
        {"normalize": False},
        {"truncate": True},
        {"model_options": {"type_k": "f32"}},
        {"model_options": {"rope_freq_base": 1e4}},
        {"model_options": {"metadata_overrides": {"tokenizer.ggml.add_bos_token": False}}},
    ):
        assert get_transformation_hash(node, LocalLLMEmbedding(path, **change)) != plain, change
    cut = [LocalLLMEmbedding(path, truncate=True, context_window=length) for length in (16, 32)]
    assert get_transformation_hash(node, cut[0]) != get_transformation_hash(node, cut[1])


def test_a_splitter_that_has_it_is_told_apart_by_it_too(path, tmp_path, builder):
    place = tmp_path / "model.gguf"
    shutil.copy(path, place)
    node = [TextNode(text="x")]

    def key(**options: Any) -> str:
        splitter = SemanticSplitterNodeParser(embed_model=LocalLLMEmbedding(place, **options))
        return get_transformation_hash(node, splitter)

    before = key()
    assert key(model_options={"n_threads": 1}) == before != key(text_instruction="x")
    shutil.copy(builder.build("qwen3"), place)
    assert key() != before


@pytest.mark.parametrize("model", [None, 5, b"x.gguf", ["x.gguf"], "a\0b"])
def test_what_is_no_model(model):
    with pytest.raises(InvalidRequestError, match=r"^model_name: "):
        LocalLLMEmbedding(model)
