"""The embedder: right vectors whatever the batches, shared batches, and a life that ends well."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from localllm import ContextConfig, Embedder, EmbedRequest
from localllm.engine.pooler import Pooler
from localllm.errors import (
    ClosedError,
    ContextOverflowError,
    InvalidRequestError,
    ModelLoadError,
    NativeError,
    QueueFullError,
    UnsupportedModelError,
)

LENGTHS = (3, 40, 150, 1, 17, 9, 64, 65)


def text(n: int, seed: int = 0) -> list[int]:
    return [(7 * seed * at + at * at + seed) % 100 + 5 for at in range(n)]


TEXTS = [text(n, seed) for seed, n in enumerate(LENGTHS)]
DECODERS = ["qwen3", "qwen3moe", "gemma3", "qwen35", "mamba2", "lfm2"]


def rows(embedder: Embedder, texts, pooling="mean") -> np.ndarray:
    result = embedder.run(EmbedRequest(tuple(texts), pooling))
    return np.asarray(result.values).reshape(-1, result.row)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# ---- right vectors


def test_vectors_of_bert_are_those_of_an_independent_computation(embedder_for, models, numpy_bert):
    embedder, bert = embedder_for("bert"), numpy_bert(models["bert"])
    wanted = [bert(tokens) for tokens in TEXTS]
    np.testing.assert_allclose(rows(embedder, TEXTS, "none"), np.concatenate(wanted), atol=0.02)
    for pooling, pooled in (("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])):
        expected = np.array([pooled(vectors) for vectors in wanted])
        np.testing.assert_allclose(unit(rows(embedder, TEXTS, pooling)), unit(expected), atol=1e-3)


@pytest.mark.parametrize("name", ["bert-reranker", "bert-classifier"])
def test_scores_of_bert_are_those_of_an_independent_computation(embedder_for, models, numpy_bert, name):
    embedder, bert = embedder_for(name, rank=True), numpy_bert(models[name])
    scores = rows(embedder, TEXTS, "rank")
    np.testing.assert_allclose(scores, [bert.outputs(tokens) for tokens in TEXTS], atol=0.01)
    assert scores.shape == (len(TEXTS), embedder.head.n_outputs) and len({round(float(s), 3) for s in scores[:, 0]}) > 4


@pytest.mark.parametrize("name", ["bert", *DECODERS])
def test_pooled_vectors_are_made_of_those_of_the_tokens(embedder_for, name):
    embedder = embedder_for(name)
    tokens = rows(embedder, TEXTS, "none")
    ends = np.cumsum(LENGTHS)
    parts = [tokens[end - n : end] for end, n in zip(ends, LENGTHS, strict=True)]
    for pooling, pooled in (("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])):
        expected = np.array([pooled(part) for part in parts])
        np.testing.assert_allclose(unit(rows(embedder, TEXTS, pooling)), unit(expected), atol=1e-5)


@pytest.mark.parametrize("name", ["bert", *DECODERS])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
@pytest.mark.parametrize(("flash_attention", "tolerance"), [("auto", 1e-3), ("off", 1e-4)])
def test_a_text_alone_and_among_others_gives_the_same_vector(embedder_for, name, pooling, flash_attention, tolerance):
    embedder = embedder_for(name, flash_attention=flash_attention)
    together = rows(embedder, TEXTS, pooling)
    alone = np.concatenate([rows(embedder, [tokens], pooling) for tokens in TEXTS])
    # Random weights of gemma3 make much of little: its numbers reach 40 on the way.
    np.testing.assert_allclose(unit(together), unit(alone), atol=tolerance * (5 if name == "gemma3" else 1))
    assert (rows(embedder, TEXTS, pooling) == together).all(), "the same batch twice"


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
def test_a_long_text_in_many_batches_gives_the_vector_of_one(embedder_for, name, pooling):
    whole, chunked = embedder_for(name), embedder_for(name, n_ubatch=16)
    one, many = rows(whole, TEXTS, pooling), rows(chunked, TEXTS, pooling)
    np.testing.assert_allclose(unit(many), unit(one), atol=3e-3)
    assert chunked.stats().n_batches >= sum(LENGTHS) // 16 and whole.stats().n_batches <= 4


def test_scores_of_a_decoder_do_not_depend_on_the_batches(embedder_for):
    whole, chunked = (embedder_for("qwen3-reranker", rank=True, n_ubatch=n) for n in (512, 16))
    one = rows(whole, TEXTS, "rank")
    np.testing.assert_allclose(one.sum(1), 1, atol=1e-5)  # llama.cpp has made probabilities of them
    np.testing.assert_allclose(rows(chunked, TEXTS, "rank"), one, atol=1e-3)
    np.testing.assert_allclose(np.concatenate([rows(whole, [tokens], "rank") for tokens in TEXTS]), one, atol=1e-3)


def test_different_poolings_share_a_batch(embedder_for):
    embedder = embedder_for("bert", flash_attention="off")
    wanted = {pooling: rows(embedder, [TEXTS[1]], pooling) for pooling in ("mean", "cls", "last", "none")}
    blocker = embedder.submit(EmbedRequest((text(200),) * 40, "mean"))
    futures = {pooling: embedder.submit(EmbedRequest((TEXTS[1],), pooling)) for pooling in wanted}
    for pooling, future in futures.items():
        result = future.result(60)
        np.testing.assert_allclose(np.asarray(result.values).reshape(-1, result.row), wanted[pooling], atol=1e-4)
    blocker.result(60)


# ---- batches


def test_many_texts_share_a_batch(embedder_for):
    embedder = embedder_for("bert")
    embedder.run(EmbedRequest(tuple(text(8, seed) for seed in range(32)), "mean"))
    assert embedder.stats().n_batches == 1 and embedder.stats().n_tokens == 256 and embedder.stats().n_texts == 32
    embedder.run(EmbedRequest(tuple(text(16, seed) for seed in range(160)), "mean"))
    assert embedder.stats().n_batches == 1 + 160 * 16 // 512, "a batch may be longer than the longest text"


def test_requests_of_threads_and_coroutines_share_batches(embedder_for):
    embedder = embedder_for("bert", flash_attention="off")
    requests = [EmbedRequest((text(4, seed), text(4, seed + 1)), "mean") for seed in range(40)]
    wanted = [np.asarray(embedder.run(request).values) for request in requests]
    before = embedder.stats().n_batches
    results: dict[int, np.ndarray] = {}
    blocker = embedder.submit(EmbedRequest((text(250),) * 20, "mean"))

    def ask(place: int) -> None:
        results[place] = np.asarray(embedder.run(requests[place]).values)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(20)]
    for thread in threads:
        thread.start()

    async def others():
        return await asyncio.gather(*(embedder.arun(request) for request in requests[20:]))

    awaited = asyncio.run(others())
    for thread in threads:
        thread.join(60)
    blocker.result(60)
    results.update({20 + place: np.asarray(result.values) for place, result in enumerate(awaited)})
    assert all(np.allclose(results[place], wanted[place], atol=1e-3) for place in range(40))
    assert embedder.stats().n_batches - before < 20 + 40


def test_a_context_grows_with_the_longest_text_and_no_further(embedder_for, builder):
    embedder = embedder_for("bert", n_ubatch=32)
    capacities = []
    for n in (10, 32, 33, 100, 20, 256):
        vector = rows(embedder, [text(n)])
        capacities.append(embedder._core.pooler._capacity)
        assert np.isfinite(vector).all()
    assert capacities == [32, 32, 64, 128, 128, 256]
    assert embedder.limit == 256
    with pytest.raises(ContextOverflowError, match=r"^texts\[1\]: 257 tokens, the limit is 256") as caught:
        embedder.run(EmbedRequest((text(3), text(257)), "mean"))
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (257, 256)
    assert embedder_for("bert", n_ctx=100).limit == 100


def test_the_limit_is_what_the_model_was_trained_for_unless_rope_is_stretched(embedder_for):
    assert embedder_for("qwen3", n_ctx=5000).limit == 4096
    assert embedder_for("qwen3", n_ctx=5000, rope_freq_scale=0.5).limit == 5000
    assert embedder_for("bert", n_ctx=5000, rope_freq_scale=0.5).limit == 256  # its table of positions ends there


def test_more_tokens_than_cells_are_done_in_turn(embedder_for):
    embedder = embedder_for("qwen3", n_ctx=256, n_ubatch=64)
    texts = [text(200, seed) for seed in range(6)]
    np.testing.assert_allclose(
        rows(embedder, texts), np.concatenate([rows(embedder, [tokens]) for tokens in texts]), rtol=1e-2, atol=1e-2
    )
    assert rows(embedder, [text(256)]).shape == (1, 64)


def test_the_sequences_are_empty_when_the_work_is_done(embedder_for):
    embedder = embedder_for("qwen3", n_ubatch=32)
    rows(embedder, TEXTS, "last")
    native, memory = embedder.model.native, embedder._core.pooler.context.memory
    assert [native.llama_memory_seq_pos_max(memory, slot) for slot in range(32)] == [-1] * 32


# ---- requests that are wrong, fail, or are not wanted any more


@pytest.mark.parametrize(
    ("texts", "pooling", "message"),
    [
        ((), "mean", "^texts: empty"),
        (([5], []), "mean", r"^texts\[1\]: no tokens"),
        (([5], [6, "7"]), "mean", r"^texts\[1\]: must be token ids"),
        (([5], [2**40]), "mean", r"^texts\[1\]: must be token ids"),
        (([5], 7), "mean", r"^texts\[1\]: must be token ids"),
        (([5],), "median", "^pooling: 'median' is not one of"),
        (([5],), "rank", "^pooling: 'rank' is not what this context"),
        (([5], [-1]), "mean", r"^texts\[1\]: token -1 is not in the vocabulary"),
        (([5], [6, 151]), "mean", r"^texts\[1\]: token 151 is not in the vocabulary"),
    ],
)
def test_wrong_requests_are_errors_before_they_are_queued(embedder_for, texts, pooling, message):
    embedder = embedder_for("bert")
    with pytest.raises(InvalidRequestError, match=message):
        embedder.submit(EmbedRequest(texts, pooling))
    assert rows(embedder, [[5]]).shape == (1, 64)


def test_a_failed_batch_ends_its_requests_and_the_others_go_on(embedder_for, monkeypatch):
    embedder = embedder_for("qwen3", n_ubatch=32)
    wanted = rows(embedder, [text(200)])
    run, seen = Pooler.run, []

    def fail_for_the_victim(pooler, works):
        seen.append({work.piece.job for work in works})
        if any(work.tokens[0] == 42 for work in works):
            raise NativeError("made to fail")
        return run(pooler, works)

    monkeypatch.setattr(Pooler, "run", fail_for_the_victim)
    victim = embedder.submit(EmbedRequest(([42] * 20,), "mean"))
    with pytest.raises(NativeError, match="made to fail"):
        victim.result(60)
    np.testing.assert_allclose(rows(embedder, [text(200)]), wanted, atol=1e-2)
    assert embedder.stats().n_running == 0 and not embedder._core._jobs


def test_a_text_under_way_begins_again_when_the_context_was_lost(embedder_for, monkeypatch):
    embedder = embedder_for("qwen3", n_ubatch=32)
    wanted = rows(embedder, [text(300)])
    run, begun, go_on = Pooler.run, threading.Event(), threading.Event()

    def step(pooler, works):
        if any(work.tokens[0] == 42 for work in works):
            # Of the long text nothing is in this batch; what it has computed is lost with the context all the same.
            raise NativeError("made to fail")
        result = run(pooler, works)
        begun.set()
        go_on.wait(30)
        return result

    plan = embedder._core.packer.plan
    monkeypatch.setattr(Pooler, "run", step)
    long = embedder.submit(EmbedRequest((text(300),), "mean"))
    assert begun.wait(30)
    victim = embedder.submit(EmbedRequest(([42] * 20,), "mean"))

    def only_the_victim():
        pieces = plan()
        return [piece for piece in pieces if piece.job != 1] or pieces

    monkeypatch.setattr(embedder._core.packer, "plan", only_the_victim)
    go_on.set()
    with pytest.raises(NativeError):
        victim.result(60)
    np.testing.assert_allclose(np.asarray(long.result(60).values)[None], wanted, atol=1e-2)


def test_output_that_is_no_number_is_an_error_and_never_a_vector(builder, embedder_for):
    embedder = embedder_for(builder.hostile(groups=("odd",))["weights-nan"], n_ctx=256)
    with pytest.raises(NativeError, match=r"^texts\[0\]: the model's output is not a number"):
        embedder.run(EmbedRequest(([5, 6], [7]), "mean"))


def test_a_cancelled_future_stops_the_work(embedder_for):
    embedder = embedder_for("qwen3", n_ubatch=16)
    future = embedder.submit(EmbedRequest((text(500),) * 2000, "mean"))
    while not embedder._core.worker._in_batch:
        pass
    assert future.cancel()
    assert rows(embedder, [text(5)]).shape == (1, 64)
    assert embedder.stats().n_tokens < 100_000 and not embedder._core._jobs


def test_a_batch_that_nobody_waits_for_any_more_is_broken_off(embedder_for):
    embedder = embedder_for("qwen3", n_ctx=2048, n_ubatch=2048)
    future = embedder.submit(EmbedRequest((text(2000),), "mean"))
    while not embedder._core.worker._in_batch:
        pass
    assert future.cancel()
    assert rows(embedder, [text(5)]).shape == (1, 64)
    assert (embedder.stats().n_batches, embedder.stats().n_requests) == (1, 2)


def test_a_cancelled_task_stops_the_work_and_the_loop_goes_on(embedder_for):
    embedder = embedder_for("bert")
    many = EmbedRequest((text(250),) * 4000, "mean")

    async def main():
        task = asyncio.create_task(embedder.arun(many))
        turns = 0
        while not embedder._core.worker._in_batch:
            await asyncio.sleep(0)
            turns += 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await embedder.arun(EmbedRequest(([5],), "mean"))

    assert asyncio.run(main()).counts == (1,)
    assert embedder.stats().n_texts < 4000 and not embedder._core._jobs


def test_a_full_queue_is_a_typed_error(embedder_for):
    embedder = embedder_for("qwen3", n_ubatch=16, max_queue=1)
    running = embedder.submit(EmbedRequest((text(500),) * 500, "mean"))
    while not embedder.stats().n_running:
        pass
    with embedder._core._wake:  # the thread cannot take the next one in
        waiting = embedder.submit(EmbedRequest(([5],), "mean"))
        with pytest.raises(QueueFullError, match="max_queue=1"):
            embedder.submit(EmbedRequest(([6],), "mean"))
    running.cancel()
    assert waiting.result(60).counts == (1,)


# ---- models


@pytest.mark.parametrize("name", ["bert", "qwen3", "gemma3"])
def test_models_without_a_head_do_not_rank(models, name):
    with pytest.raises(UnsupportedModelError, match="no classification head"):
        Embedder(str(models[name]), rank=True)


def test_heads_that_say_nothing_about_relevance_are_refused(builder):
    labels = {"bert.classifier.output_labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}
    with pytest.raises(UnsupportedModelError, match="LABEL_0.*yes, true or relevant"):
        Embedder(str(builder.build("bert-classifier", overrides=labels)), rank=True)
    head = {"cls.output.weight": ["f16", [64, 1], {"normal": [0.0, 0.125]}]}
    single = builder.build("qwen3-reranker", overrides={"qwen3.classifier.output_labels": ["yes"]}, tensors=head)
    with pytest.raises(UnsupportedModelError, match="always 1"):
        Embedder(str(single), rank=True)
    wide = {"cls.weight": ["f16", [64, 64], {"normal": [0.0, 0.125]}]}
    headless = builder.build("bert-reranker", drop=["cls.output.*"], tensors=wide)
    with pytest.raises(UnsupportedModelError, match="64 values, llama.cpp reads 1"):
        Embedder(str(headless), rank=True)


@pytest.mark.parametrize(
    ("name", "overrides", "pooling"),
    [
        ("bert", {}, "mean"),
        ("bert", {"bert.pooling_type": 2}, "cls"),
        ("bert", {"bert.pooling_type": 0}, "mean"),
        ("qwen3", {}, "mean"),
        ("qwen3-embedding", {}, "last"),
        ("qwen3-reranker", {}, "rank"),
        ("bert-reranker", {}, "rank"),
    ],
)
def test_the_pooling_of_the_file_is_known(builder, embedder_for, name, overrides, pooling):
    assert embedder_for(builder.build(name, overrides=overrides)).pooling == pooling


def test_a_context_that_cannot_be_made_is_a_typed_error(models):
    with pytest.raises(ModelLoadError):
        Embedder(str(models["qwen3"]), context=ContextConfig(n_ctx=256, type_k="q8_0"))


@pytest.mark.parametrize(
    "options",
    [
        {"n_batch": 4, "parallel": 4},
        {"n_ubatch": 1},
        {"n_ctx": 1},
        {"flash_attention": "on"},
        {"flash_attention": "off"},
        {"n_ctx": 0},
    ],
)
@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_odd_sizes_work(embedder_for, name, options):
    embedder = embedder_for(name, **options)
    texts = [text(min(n, embedder.limit), seed) for seed, n in enumerate(LENGTHS)]
    np.testing.assert_allclose(unit(rows(embedder, texts)), unit(rows(embedder_for(name), texts)), atol=5e-3)


# ---- life


def test_closing_ends_requests_under_way_with_an_error(embedder_for):
    embedder = embedder_for("qwen3", n_ubatch=16)
    future = embedder.submit(EmbedRequest((text(500),) * 2000, "mean"))
    embedder.close()
    with pytest.raises(ClosedError):
        future.result(60)
    with pytest.raises(ClosedError):
        embedder.submit(EmbedRequest(([5],), "mean"))
    assert embedder.closed and embedder.model.closed
    embedder.close()


def test_an_embedder_nobody_holds_is_collected(models):
    embedder = Embedder(str(models["bert"]), context=ContextConfig(n_threads=1))
    thread, dead = embedder._thread, weakref.ref(embedder)
    rows(embedder, TEXTS)
    del embedder
    gc.collect()
    thread.join(30)
    assert dead() is None and not thread.is_alive()


def test_a_mistake_of_ours_leaves_nobody_waiting(embedder_for, monkeypatch):
    embedder = embedder_for("bert")
    monkeypatch.setattr(embedder._core.packer, "plan", lambda: 1 // 0)
    with pytest.raises(ClosedError, match="ZeroDivisionError") as caught:
        embedder.run(EmbedRequest(([5],), "mean"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ClosedError):
        embedder.run(EmbedRequest(([5],), "mean"))


def test_a_thousand_requests_and_cancellations_leave_nothing(embedder_for):
    embedder = embedder_for("bert")
    futures = [embedder.submit(EmbedRequest((text(5, seed),), "mean")) for seed in range(1000)]
    for future in futures[1::2]:
        future.cancel()
    for future in futures[::2]:
        future.result(60)
    rows(embedder, [text(5)])
    core = embedder._core
    assert not core._jobs and not core._started and core.packer.idle and len(core.packer._free) == core.pooler.n_slots
    assert embedder.stats().n_requests == 1001
