"""LocalModel.embed: what a user writes, from texts to vectors."""

from __future__ import annotations

import array
import asyncio
import copy
import gc
import math
import pickle
import threading
import weakref

import numpy as np
import pytest

from localllm import Embeddings, EmbedRequest, LocalModel
from localllm.errors import (
    ContextOverflowError,
    InvalidRequestError,
    LocalLLMError,
    ModelLoadError,
    QueueFullError,
    UnsupportedModelError,
)

TEXTS = ["hello world", "the quick brown fox", "a", "one two three four five six seven"]


@pytest.fixture(scope="module")
def bert(models):
    with LocalModel(models["bert"], n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def qwen3(models):
    with LocalModel(models["qwen3"], n_ctx=256, n_threads=1) as model:
        yield model


def test_one_text_gives_one_vector_and_a_list_one_each_in_order(bert):
    result = bert.embed(TEXTS)
    assert len(result) == len(result.vectors) == 4 and {len(vector) for vector in result.vectors} == {64}
    assert all(type(value) is float for value in result.vectors[0])
    for place, text in enumerate(TEXTS):
        alone = bert.embed(text)
        assert len(alone.vectors) == 1
        assert alone.vectors[0] == pytest.approx(result.vectors[place], abs=1e-3)
    assert result.tokens == tuple(len(bert.tokenize(text, add_special=True)) for text in TEXTS)
    assert result.usage.prompt_tokens == sum(result.tokens) and result.usage.completion_tokens == 0
    assert result.pooling == "mean" and result.truncated == (False,) * 4


def test_the_order_stays_whatever_the_lengths_and_the_batches(bert):
    texts = [("word " * (1 + 7 * at % 60)).strip() for at in range(120)]
    texts[17] = texts[90] = ""
    result = bert.embed(texts)
    for place in (0, 17, 18, 59, 90, 91, 119):
        assert bert.embed(texts[place]).vectors[0] == pytest.approx(result.vectors[place], abs=1e-3)


def test_vectors_have_length_one_or_as_the_model_gave_them(bert):
    assert [math.hypot(*vector) for vector in bert.embed(TEXTS).vectors] == pytest.approx([1] * 4, abs=1e-6)
    raw = bert.embed(TEXTS, normalize=False).vectors
    assert all(math.hypot(*vector) > 2 for vector in raw)
    assert bert.embed(TEXTS).vectors[1] == pytest.approx([value / math.hypot(*raw[1]) for value in raw[1]], abs=1e-6)


def test_fewer_dimensions_are_the_first_ones_made_unit_length_again(bert):
    whole, short = bert.embed(TEXTS), bert.embed(TEXTS, dimensions=8)
    assert short.dimensions == 8 and len(short.values) == 32
    for vector, cut in zip(whole.vectors, short.vectors, strict=True):
        assert cut == pytest.approx([value / math.hypot(*vector[:8]) for value in vector[:8]], abs=1e-6)
    assert bert.embed(TEXTS, dimensions=64) == whole and bert.embed(TEXTS, dimensions=np.int64(8)) == short
    raw = bert.embed(TEXTS, dimensions=8, normalize=False).vectors
    assert raw == [vector[:8] for vector in bert.embed(TEXTS, normalize=False).vectors]


def test_an_instruction_stands_before_each_text(bert):
    assert bert.embed(["fox", "dog"], instruction="the quick ") == bert.embed(["the quick fox", "the quick dog"])


def test_poolings_agree_with_the_vectors_of_the_tokens(bert):
    tokens = bert.embed(TEXTS, pooling="none", normalize=False)
    assert len(tokens) == 4 and len(tokens.vectors) == sum(tokens.tokens)
    parts = [np.asarray(part) for part in tokens]
    assert [part.shape for part in parts] == [(n, 64) for n in tokens.tokens]
    for pooling, pooled in (("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])):
        vectors = bert.embed(TEXTS, pooling=pooling, normalize=False)
        np.testing.assert_allclose(vectors.vectors, [pooled(part) for part in parts], atol=1e-5)
    unit = bert.embed(TEXTS, pooling="none", dimensions=8)
    np.testing.assert_allclose(np.linalg.norm(unit.vectors, axis=1), 1, atol=1e-6)


def test_the_files_pooling_and_its_closing_token_are_used(models):
    model = LocalModel(models["qwen3-embedding"], n_ctx=256, n_threads=1)
    result = model.embed("one two")
    assert result.pooling == "last" and result == model.embed("one two", pooling="last")
    assert result.tokens == (len(model.tokenize("one two")) + 1,)


def test_views_share_the_memory_of_the_result(bert):
    result = bert.embed(TEXTS)
    assert np.shares_memory(np.asarray(result[1]), np.asarray(result.values))
    assert result[1].tolist() == result[-3].tolist() == result.vectors[1]
    assert [view.tolist() for view in result] == result.vectors
    with pytest.raises(IndexError):
        result[4]
    tokens = bert.embed(TEXTS, pooling="none")
    assert tokens[1].tolist() == tokens.vectors[tokens.tokens[0] :][: tokens.tokens[1]]
    assert [view.tolist() for view in tokens][-1] == tokens[-1].tolist()


def test_a_result_can_be_copied_and_pickled(bert):
    result = bert.embed(TEXTS)
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result


def test_no_texts_give_no_vectors(bert):
    result = bert.embed([])
    assert (len(result), result.vectors, result.usage.prompt_tokens, list(result)) == (0, [], 0, [])
    assert asyncio.run(bert.aembed([])) == result


def test_an_empty_text_is_embedded_where_special_tokens_make_something_of_it(bert, qwen3, models):
    assert bert.embed(["", "a"]).tokens == (2, 3)
    with pytest.raises(InvalidRequestError, match=r"^texts\[1\]: empty"):
        qwen3.embed(["a", "", "b"])
    assert qwen3.embed(["a", ""], instruction="x").tokens[1] == 1
    assert LocalModel(models["qwen3-embedding"], n_ctx=256, n_threads=1).embed("").tokens == (1,)


# ---- long texts


def test_a_text_that_is_too_long_is_an_error_with_its_place_and_the_limit(bert):
    with pytest.raises(ContextOverflowError, match=r"^texts\[2\]: 302 tokens, the limit is 256; .*truncate=True") as caught:
        bert.embed(["a", "b", "a " * 300, "c"])
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (302, 256)


def test_a_text_that_is_cut_keeps_its_closing_token(bert, models):
    result = bert.embed(["a " * 300, "a " * 254, "b"], truncate=True)
    assert result.tokens == (256, 256, 3) and result.truncated == (True, False, False)
    assert result.vectors[0] == pytest.approx(result.vectors[1], abs=1e-3), "254 words between [CLS] and [SEP]"
    model = LocalModel(models["qwen3-embedding"], n_ctx=20, n_threads=1)
    long, short = "one two three " * 20, model.detokenize(model.tokenize("one two three " * 20)[:19])
    assert model.embed(long, truncate=True).vectors[0] == pytest.approx(model.embed(short).vectors[0], abs=1e-3)
    assert LocalModel(models["bert"], n_ctx=1, n_threads=1).embed("hello", truncate=True).tokens == (1,)


def test_512_tokens_are_no_limit(models):
    model = LocalModel(models["qwen3"], n_ctx=2048, n_threads=1, n_batch=512)
    result = model.embed("word " * 400)
    assert result.tokens[0] > 1000 and model.embedder.stats().n_batches >= 2
    whole = LocalModel(models["qwen3"], n_ctx=2048, n_threads=1, n_batch=2048, n_ubatch=2048).embed("word " * 400)
    assert result.vectors[0] == pytest.approx(whole.vectors[0], abs=1e-3)


# ---- careless callers


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (None, {}, "^texts: must be a text or a list"),
        (5, {}, "^texts:"),
        (b"bytes", {}, "^texts:"),
        ({"a": 1}, {}, "^texts:"),
        (["a", None], {}, r"^texts\[1\]: must be text, not NoneType"),
        (["a", ["b"]], {}, r"^texts\[1\]: must be text"),
        ("a\ud800", {}, r"^texts\[0\]: has half of a character"),
        (["a", "a\udfff"], {}, r"^texts\[1\]: has half of a character"),
        ("a", {"instruction": "\ud800"}, "^instruction: has half of a character"),
        ("a", {"pooling": "median"}, "^pooling: 'median' is not one of"),
        ("a", {"pooling": "rank"}, "^pooling:"),
        ("a", {"pooling": ["mean"]}, "^pooling:"),
        ("a", {"dimensions": 0}, "^dimensions: 0 is outside the range 1 to 64"),
        ("a", {"dimensions": 65}, "^dimensions:"),
        ("a", {"dimensions": True}, "^dimensions:"),
        ("a", {"dimensions": 8.0}, "^dimensions:"),
        ("a", {"colour": 1}, "^colour: unknown option; there are dimensions, instruction"),
        ("a", {"normalize": 1}, "^normalize:"),
        ("a", {"truncate": "yes"}, "^truncate:"),
        ("a", {"instruction": None}, "^instruction:"),
    ],
)
def test_wrong_arguments_are_named(bert, texts, options, message):
    with pytest.raises(InvalidRequestError, match=message):
        bert.embed(texts, **options)
    with pytest.raises(InvalidRequestError, match=message):
        asyncio.run(bert.aembed(texts, **options))


@pytest.mark.parametrize("text", ["\0", "a\0b", "😀" * 50, "[CLS][SEP]", "\n\t ", "x" * 10_000])
def test_any_text_is_embedded(bert, qwen3, text):
    for model in (bert, qwen3):
        assert math.hypot(*model.embed(text, truncate=True).vectors[0]) == pytest.approx(1, abs=1e-6)


def test_an_unknown_option_is_an_error(bert):
    with pytest.raises(InvalidRequestError, match="^normalise: unknown option; did you mean 'normalize'"):
        bert.embed("a", normalise=True)


def test_models_that_are_not_made_for_vectors_say_so(models):
    reranker = LocalModel(models["bert-reranker"], n_threads=1)
    with pytest.raises(UnsupportedModelError, match="use rerank, or name a pooling"):
        reranker.embed("a")
    assert len(reranker.embed("a", pooling="cls").vectors[0]) == 64
    with pytest.raises(UnsupportedModelError, match="projector"):
        LocalModel(models["gemma3-mmproj"]).embed("a")
    with pytest.raises(UnsupportedModelError, match="use embed or rerank"):
        reranker.complete("a")
    with pytest.raises(LocalLLMError):
        LocalModel(models["qwen3-vocab-only"]).embed("a")


# ---- coroutines, sharing, closing


def test_coroutines_get_what_threads_get_and_share_batches(bert):
    async def main():
        return await asyncio.gather(*(bert.aembed(text) for text in TEXTS), bert.aembed(TEXTS))

    before = bert.embedder.stats()
    *single, together = asyncio.run(main())
    assert together.vectors == [pytest.approx(vector, abs=1e-3) for vector in bert.embed(TEXTS).vectors]
    assert [each.vectors[0] for each in single] == [pytest.approx(vector, abs=1e-3) for vector in together.vectors]
    after = bert.embedder.stats()
    assert after.n_texts - before.n_texts == 12 and after.n_batches - before.n_batches <= 6


def test_cancelling_a_task_stops_the_work_and_never_blocks_the_loop(models):
    model = LocalModel(models["bert"], n_threads=1)
    long = ["word " * 120] * 3000

    async def main():
        task = asyncio.create_task(model.aembed(long, truncate=True))
        while not model.loaded or not model.embedder.stats().n_batches:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await model.aembed("a")

    assert len(asyncio.run(main()).vectors) == 1
    assert model.embedder.stats().n_texts < 3000 and model.embedder.stats().n_running == 0


def test_chat_vectors_and_tokens_of_a_file_share_its_weights(models):
    model = LocalModel(models["qwen3"], n_ctx=256, n_threads=1)
    result = model.embed("one two")
    weights = model.embedder.model
    assert model.vocabulary is weights and model.engine.model is weights
    assert model.complete("one", max_tokens=2, temperature=0).tokens and model.embed("one two") == result
    other = LocalModel(models["qwen3"], n_ctx=256, n_threads=1)
    assert other.embedder is model.embedder
    assert LocalModel(models["qwen3"], n_ctx=512, n_threads=1).embedder.model is weights


def test_weights_go_when_the_last_use_of_them_does(models):
    model = LocalModel(models["qwen3moe"], n_ctx=192, n_threads=1)
    model.complete("one", max_tokens=1)
    model.embed("one")
    weights = weakref.ref(model.engine.model)
    finalizer = model.engine.model._owned._finalizer
    model.close()
    gc.collect()
    assert weights() is None and not finalizer.alive and not model.loaded
    assert model.embed("one").tokens


def test_an_engine_closed_by_hand_leaves_the_embedder_its_weights(models):
    model = LocalModel(models["qwen3"], n_ctx=192, n_threads=1)
    wanted = model.embed("one")
    model.engine.close()
    assert model.embed("one") == wanted
    assert model.complete("one", max_tokens=1).tokens
    model.embedder.close()
    assert model.embed("one") == wanted
    assert pickle.loads(pickle.dumps(model)).embed("one") == wanted


def test_a_full_queue_is_an_error_that_says_what_is_full(models):
    model = LocalModel(models["bert"], n_threads=1, max_queue=1)
    with model.embedder._core._wake:  # its thread takes nothing in meanwhile
        waiting = model.embedder.submit(EmbedRequest(([5, 6],), "mean"))
        with pytest.raises(QueueFullError, match="max_queue=1"):
            model.embed("one")
    assert waiting.result(60).counts == (1,) and len(model.embed("one")) == 1


def test_one_text_does_not_wait_for_the_many_of_another_thread(models, monkeypatch):
    model = LocalModel(models["qwen3"], n_ctx=256, n_threads=1)
    model.embed("one")
    pooler, begun = model.embedder._core.pooler, threading.Event()
    run = pooler.run
    monkeypatch.setattr(pooler, "run", lambda works: (begun.set(), run(works))[1])
    many = threading.Thread(target=model.embed, args=(["word " * 20] * 200,))
    many.start()
    assert begun.wait(60)
    before = model.embedder.stats().n_texts
    model.embed("two")
    assert many.is_alive() and model.embedder.stats().n_texts < before + 50
    many.join(60)


def test_weights_that_cannot_be_used_are_a_typed_error(builder):
    with pytest.raises(ModelLoadError):
        LocalModel(builder.build("bert", overrides={"bert.attention.head_count": 3})).embed("one")


def test_adapters_are_not_passed_over(models, builder, makers):
    path = builder.save("sound-lora", makers.lora(builder.load("qwen3")))
    control = builder.save("sound-control", makers.control(builder.load("qwen3")))
    for options, name in (({"loras": [path]}, "loras"), ({"control_vectors": [control]}, "control_vectors")):
        model = LocalModel(models["qwen3"], n_ctx=256, n_threads=1, **options)
        for call in (model.embed, lambda text, model=model: model.rerank(text, ["b"])):
            with pytest.raises(InvalidRequestError, match=f"^{name}: vectors and scores are computed without adapters"):
                call("a")
    none = LocalModel(models["qwen3"], n_ctx=256, n_threads=1, loras=[(path, 0.0)])
    assert none.embed("a") == LocalModel(models["qwen3"], n_ctx=256, n_threads=1).embed("a")


def test_embeddings_can_be_made_by_hand():
    result = Embeddings(array.array("f", [1, 2, 3, 4]), 2, (3, 5), (False, False), "mean")
    assert result.vectors == [[1, 2], [3, 4]] and result.usage.prompt_tokens == 8
