"""Vectors and scores, as a user asks for them."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm import LocalModel
from localllm.errors import (
    ClosedError,
    ContextOverflowError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
    UnsupportedModelError,
)
from localllm.vectors import EmbedOptions, finished, fit, relevance

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "one", "two", "three"]
TEXTS = [" ".join(WORDS[at % 7 : at % 7 + 1 + at % 4]) for at in range(40)]


@pytest.fixture(scope="module")
def bert(models):
    with LocalModel(models["bert"], n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def reranker(models):
    with LocalModel(models["bert-reranker"], n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def generator(models):
    """A text generator that takes in a text in parts of 32 tokens."""
    with LocalModel(models["qwen3"], n_ctx=512, n_ubatch=32, n_threads=1) as model:
        yield model


def close(one, other, tolerance=1e-3):
    return len(one) == len(other) and max(abs(a - b) for a, b in zip(one, other, strict=True)) < tolerance


def by_hand(path, tokens) -> numpy.ndarray:
    """BERT's hidden states (Devlin et al., arXiv:1810.04805) by numpy, from the tensors of the file."""
    reader = gguf.GGUFReader(path)
    t = {tensor.name: numpy.array(tensor.data, dtype=numpy.float32) for tensor in reader.tensors}

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * t[f"{name}.weight"] + t[f"{name}.bias"]

    def linear(x, name):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    n, heads = len(tokens), 4
    x = norm(t["token_embd.weight"][tokens] + t["token_types.weight"][0] + t["position_embd.weight"][:n], "token_embd_norm")
    for layer in range(2):
        b = f"blk.{layer}"
        q, k, v = (linear(x, f"{b}.attn_{part}").reshape(n, heads, -1).transpose(1, 0, 2) for part in "qkv")
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1)
        x = norm(x + linear(mixed, f"{b}.attn_output"), f"{b}.attn_output_norm")
        up = linear(x, f"{b}.ffn_up")
        up = 0.5 * up * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = norm(x + linear(up, f"{b}.ffn_down"), f"{b}.layer_output_norm")
    return x


def test_vectors_are_those_of_the_papers_formulas(models, bert):
    for text in ("the quick brown fox", "one", "jumps over the lazy dog"):
        states = by_hand(models["bert"], bert.tokenize(text, add_special=True))
        for pooling, expected in (("mean", states.mean(0)), ("cls", states[0]), ("last", states[-1])):
            assert close(bert.embed(text, pooling=pooling, normalize=False)[0], expected, 0.02), pooling
        assert all(close(*pair, 0.02) for pair in zip(bert.embed(text, pooling="none", normalize=False)[0], states, strict=True))


def test_many_texts_share_batches_and_come_in_their_order(bert):
    before = bert.embedder.n_batches
    together = bert.embed(TEXTS)
    n_tokens = sum(together.n_tokens)
    assert bert.embedder.n_batches - before == -(-n_tokens // bert.embedder._core.n_batch) or n_tokens < 512
    alone = [bert.embed(text)[0] for text in TEXTS]
    assert len(together) == len(TEXTS) and together.prompt_tokens == n_tokens
    assert all(close(one, other) for one, other in zip(together, alone, strict=True))
    assert together.tolist()[3] == list(together[3])


def test_an_empty_text_among_others_keeps_its_place(bert):
    vectors = bert.embed(["one", "", "two", ""])
    assert vectors.n_tokens[1] == 2, "the special tokens"
    assert close(vectors[1], vectors[3]) and close(vectors[0], bert.embed("one")[0]) and close(vectors[2], bert.embed("two")[0])


def test_an_empty_text_is_an_error_where_nothing_stands_for_it(generator):
    with pytest.raises(InvalidRequestError, match=r"^texts\[1\]: empty"):
        generator.embed(["one", ""])


def test_no_texts_are_no_vectors(bert, reranker):
    assert bert.embed([]).vectors == () and reranker.rerank("fox", []) == []


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
def test_a_text_in_several_parts_is_one_text(models, generator, pooling):
    """40 tokens and more are taken in by 32; a model that takes them at once gives the same."""
    text = "one two three four five six seven eight nine ten " * 9
    with LocalModel(models["qwen3"], n_ctx=512, n_ubatch=256, n_threads=1) as whole:
        expected, given = whole.embed(text, pooling=pooling), generator.embed(text, pooling=pooling)
        assert given.n_tokens[0] > 64 and given.pooling == pooling
        pairs = zip(given[0], expected[0], strict=True) if pooling == "none" else [(given[0], expected[0])]
        assert all(close(one, other, 0.01) for one, other in pairs)


def test_a_pooled_vector_is_made_of_those_of_the_tokens(generator):
    text = "the quick brown fox jumps over the lazy dog"
    rows = generator.embed(text, pooling="none", normalize=False)[0]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    for pooling, expected in (("mean", means), ("cls", rows[0]), ("last", rows[-1])):
        assert close(generator.embed(text, pooling=pooling, normalize=False)[0], expected, 0.01)


@pytest.mark.parametrize("name", ["qwen35", "mamba2", "gemma3"])
def test_other_memories_give_the_same_alone_and_among_others(models, name):
    with LocalModel(models[name], n_ctx=256, n_threads=1) as model:
        together = model.embed(TEXTS[:6], pooling="mean")
        assert all(
            close(vector, model.embed(text, pooling="mean")[0], 0.01) for text, vector in zip(TEXTS, together, strict=False)
        )


def test_vectors_have_length_one_unless_they_are_not_to(bert):
    assert math.isclose(math.hypot(*bert.embed("one two")[0]), 1, abs_tol=1e-6)
    assert not math.isclose(math.hypot(*bert.embed("one two", normalize=False)[0]), 1, abs_tol=1e-2)


def test_dimensions_are_cut_before_the_scaling(bert):
    whole, cut = bert.embed("one two", normalize=False)[0], bert.embed("one two", dimensions=16)[0]
    length = math.hypot(*whole[:16])
    assert close(cut, [x / length for x in whole[:16]])
    with pytest.raises(InvalidRequestError, match="^dimensions: 65, the model's vectors have 64"):
        bert.embed("one", dimensions=65)


def test_an_instruction_stands_before_each_text(bert):
    assert close(bert.embed("fox", instruction="the quick brown ")[0], bert.embed("the quick brown fox")[0])


def test_a_text_that_is_too_long_is_named_or_cut(bert):
    long = "fox " * 400
    with pytest.raises(ContextOverflowError, match=r"^texts\[1\]: 402 tokens, the model takes 256") as caught:
        bert.embed(["one", long])
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (402, 256)
    cut = bert.embed(["one", long], truncate=True)
    assert cut.n_tokens[1] == 256 and close(cut[1], bert.embed("fox " * 254)[0]), "the closing token stays"


def test_documents_are_ranked_by_what_the_head_says(models, reranker):
    documents = ["a fox is an animal", "the dog", "paris", "the quick brown fox"]
    ranking = reranker.rerank("what is a fox", documents)
    assert sorted(entry.index for entry in ranking) == [0, 1, 2, 3]
    assert [entry.logit for entry in ranking] == sorted((entry.logit for entry in ranking), reverse=True)
    for entry in ranking:
        assert entry.document == documents[entry.index]
        assert math.isclose(entry.probability, 1 / (1 + math.exp(-entry.logit)))
    assert reranker.rerank("what is a fox", documents, top_n=2) == ranking[:2]
    alone = {index: reranker.rerank("what is a fox", [text])[0].logit for index, text in enumerate(documents)}
    assert all(abs(alone[entry.index] - entry.logit) < 1e-3 for entry in ranking)
    # tanh(W h + b) of the first token's state, then the output layer.
    t = {
        tensor.name: numpy.array(tensor.data, dtype=numpy.float32) for tensor in gguf.GGUFReader(models["bert-reranker"]).tensors
    }
    tokens = [
        *reranker.tokenize("what is a fox", add_special=True),
        *reranker.tokenize("paris"),
        3,
    ]  # [CLS] query [SEP] document [SEP]
    if "cls.weight" not in t:
        state = by_hand(models["bert-reranker"], tokens)[0]
        assert abs(float((t["cls.output.weight"] @ state + t["cls.output.bias"]).item()) - alone[2]) < 0.02


def test_a_document_that_is_too_long_is_named_or_cut(reranker):
    with pytest.raises(ContextOverflowError, match=r"^documents\[1\]"):
        reranker.rerank("fox", ["one", "fox " * 400])
    assert len(reranker.rerank("fox", ["one", "fox " * 400], truncate=True)) == 2


def test_a_model_without_a_head_does_not_rank_and_a_reranker_does_not_embed_unasked(bert, generator, reranker):
    for model in (bert, generator):
        with pytest.raises(UnsupportedModelError, match="no head that ranks"):
            model.rerank("fox", ["one"])
    with pytest.raises(UnsupportedModelError, match="this model ranks"):
        reranker.embed("one")
    assert len(reranker.embed("one", pooling="cls")[0]) == 64


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"pooling": "rank"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"instruction": None}, "instruction"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"truncate": "yes"}, "truncate"),
        ({"colour": 1}, "colour"),
        ({"normalise": True}, "normalise"),
    ],
)
def test_wrong_options_are_named(bert, options, name):
    with pytest.raises(InvalidRequestError, match=f"^{name}"):
        bert.embed("one", **options)


@pytest.mark.parametrize("texts", [None, 3, b"one", ["one", None], ["one", 2], {"a": 1}])
def test_what_is_no_text_is_named(bert, texts):
    with pytest.raises(InvalidRequestError, match="^texts"):
        bert.embed(texts)


def test_what_is_no_query_or_document_is_named(reranker):
    for arguments, name in (((None, ["one"]), "query"), (("fox", "one"), "documents"), (("fox", ["one", 2]), r"documents\[1\]")):
        with pytest.raises(InvalidRequestError, match=f"^{name}"):
            reranker.rerank(*arguments)
    for top_n in (0, -1, 1.5, True):
        with pytest.raises(InvalidRequestError, match="^top_n"):
            reranker.rerank("fox", ["one"], top_n=top_n)


def test_threads_and_coroutines_share_batches(bert):
    expected = bert.embed(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda text: bert.embed(text)[0], TEXTS[:8]))
    assert all(close(one, other) for one, other in zip(given, expected, strict=False))
    before = bert.embedder.n_batches
    with bert.embedder._core._wake:  # the thread waits meanwhile
        futures = [future for text in TEXTS for future in bert.embedder._core.submit([bert.tokenize(text)], "mean")]
    assert all(future.result(timeout=30) for future in futures)
    assert bert.embedder.n_batches - before <= 2, "forty calls, two batches at most"

    async def many():
        return await asyncio.gather(*(bert.aembed(text) for text in TEXTS))

    assert all(close(one[0], other) for one, other in zip(asyncio.run(many()), expected, strict=True))


def test_a_cancelled_task_takes_its_texts_back(bert):
    embedder = bert.embedder
    before = embedder.n_batches

    async def cancel():
        with embedder._core._wake:  # the thread waits meanwhile
            task = asyncio.ensure_future(embedder.arows([[5, 6, 7]] * 500, "mean"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert len(bert.embed("one")) == 1
    assert embedder.n_batches == before + 1


def test_weights_are_loaded_once_for_chat_and_vectors(models):
    model = LocalModel(models["qwen3moe"], n_ctx=256, n_threads=1)
    weights = model.embedder.model
    assert model.engine.model is weights
    engine = model.engine
    engine.close()
    assert not weights.closed and len(model.embed("one two", pooling="last")[0]) == 64
    del engine
    model.close()
    gc.collect()
    assert weights.closed


def test_a_closed_embedder_says_so_and_the_model_makes_another(models):
    model = LocalModel(models["bert"], n_ctx=128, n_threads=1)
    embedder = model.embedder
    embedder.close()
    embedder.close()
    with pytest.raises(ClosedError):
        embedder.rows([[5]], "mean")
    assert len(model.embed("one")) == 1
    assert len(pickle.loads(pickle.dumps(model)).embed("one")) == 1


def test_texts_that_wait_when_it_closes_fail(models):
    embedder = LocalModel(models["bert"], n_ctx=200, n_threads=1).embedder
    errors = []
    with embedder._core._wake:
        futures = embedder._core.submit([[5, 6]] * 300, "mean")
        threading.Thread(target=embedder.close).start()
        embedder._core.closing = True
    for future in futures:
        errors.append(future.exception(timeout=30))
    assert all(isinstance(error, ClosedError) for error in errors)


def test_a_full_queue_is_an_error(models):
    model = LocalModel(models["bert"], n_threads=1, max_queue=4)
    core = model.embedder._core
    with core._wake:
        futures = core.submit([[5, 6]] * 6, "mean")
        with pytest.raises(QueueFullError, match="6 texts"):
            model.embed("one")
    assert all(future.result(timeout=30) for future in futures)
    assert len(model.embed("one")) == 1


def test_a_failed_batch_fails_its_texts_and_nothing_else(bert, monkeypatch):
    core = bert.embedder._core
    call = core.native.lm_embed
    monkeypatch.setattr(
        core.native, "lm_embed", lambda *arguments: 8 if arguments[3] is not None else call(*arguments), raising=False
    )
    with pytest.raises(Exception, match="bert"):
        bert.embed("one")
    monkeypatch.undo()
    assert len(bert.embed("one")) == 1


def test_damaged_heads_and_weights_are_typed_errors(builder):
    wrong = builder.build("bert", overrides={"bert.attention.head_count": 3})
    with pytest.raises(ModelLoadError):
        LocalModel(wrong).embed("one")


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=1))
def test_one_output_is_a_logit(row):
    from array import array

    logit, probability = relevance(None, array("f", row))
    assert 0 <= probability <= 1 and logit == pytest.approx(row[0], rel=1e-6, abs=1e-6)


def test_a_vector_of_zeros_stays_as_it_is():
    from array import array

    (row,) = finished([array("f", [0.0, 0.0])], EmbedOptions())
    assert list(row) == [0.0, 0.0]


def test_cutting_keeps_the_closing_token_only_where_there_is_one():
    assert fit("x", [1, 2, 3, 4, 9], 3, {9}, True) == [1, 2, 9]
    assert fit("x", [1, 2, 3, 4, 5], 3, {9}, True) == [1, 2, 3]
    assert fit("x", [1, 2], 3, {9}, False) == [1, 2]
