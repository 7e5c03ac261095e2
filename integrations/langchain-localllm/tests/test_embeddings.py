"""LocalLLMEmbeddings over tiny models."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import pickle
import shutil
import threading

import pytest
from langchain_core import exceptions
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import ChatLocalLLM, LocalLLMEmbeddings

from localllm import loaded_models
from localllm.errors import ContextOverflowError, InvalidRequestError, ModelNotFoundError, UnsupportedModelError

TEXTS = ["hello world", "the quick brown fox", "a", "one two three four five six seven"]


@pytest.fixture(scope="module")
def bert(models):
    embeddings = LocalLLMEmbeddings(model=str(models["bert"]), n_threads=1)
    yield embeddings
    embeddings.close()


def n_batches(embeddings):
    return embeddings.local_model.embedder.stats().n_batches


def test_documents_and_queries_are_lists_of_floats_in_order(bert):
    vectors = bert.embed_documents(TEXTS)
    assert len(vectors) == 4 and {len(vector) for vector in vectors} == {64}
    assert type(vectors) is list and type(vectors[0]) is list and type(vectors[0][0]) is float
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert bert.embed_query(text) == pytest.approx(vector, abs=1e-3)
    assert bert.embed_documents([]) == []


def test_coroutines_say_the_same(bert):
    async def main():
        return await bert.aembed_documents(TEXTS), await bert.aembed_query(TEXTS[0]), await bert.aembed_documents([])

    documents, query, nothing = asyncio.run(main())
    assert documents == bert.embed_documents(TEXTS) and query == bert.embed_query(TEXTS[0]) and nothing == []


def test_texts_share_batches(bert):
    before = n_batches(bert)
    assert len(bert.embed_documents([f"word {n}" for n in range(64)])) == 64
    assert n_batches(bert) - before == 1


def test_calls_at_the_same_time_share_batches_and_no_thread_waits_for_each(bert):
    most = 0

    async def main():
        nonlocal most
        bert.local_model.embedder  # noqa: B018
        tasks = [asyncio.create_task(bert.aembed_documents([f"word {n}"] * 50)) for n in range(40)]
        while not all(task.done() for task in tasks):
            most = max(most, bert.local_model.embedder.stats().n_running + bert.local_model.embedder.stats().n_waiting)
            await asyncio.sleep(0)
        return [task.result() for task in tasks]

    before = n_batches(bert)
    answers = asyncio.run(main())
    assert [len(answer) for answer in answers] == [50] * 40
    assert n_batches(bert) - before < 40
    assert most > 12, "no more were under way than a pool of threads has places"


def test_vectors_have_length_one_unless_told_otherwise(bert):
    raw = bert.model_copy(update={"normalize": False})
    assert [math.hypot(*vector) for vector in bert.embed_documents(TEXTS)] == pytest.approx([1] * 4, abs=1e-6)
    assert all(math.hypot(*vector) > 2 for vector in raw.embed_documents(TEXTS)) and math.hypot(*raw.embed_query("a")) > 2


def test_pooling_and_dimensions(bert):
    assert bert.model_copy(update={"pooling": "cls"}).embed_query("one two") != bert.embed_query("one two")
    short = bert.model_copy(update={"dimensions": 8})
    whole = bert.embed_query("one two")
    assert short.embed_query("one two") == pytest.approx([value / math.hypot(*whole[:8]) for value in whole[:8]], abs=1e-6)
    assert {len(vector) for vector in short.embed_documents(TEXTS)} == {8}
    with pytest.raises(InvalidRequestError, match="dimensions: 65 is outside the range 1 to 64"):
        bert.model_copy(update={"dimensions": 65}).embed_query("one")


def test_instructions_stand_before_queries_and_documents(bert):
    told = bert.model_copy(update={"query_instruction": "query: ", "document_instruction": "passage: "})
    plain = bert.embed_documents(["query: one", "passage: one", "one"])
    assert told.embed_query("one") == pytest.approx(plain[0], abs=1e-3)
    assert told.embed_documents(["one"])[0] == pytest.approx(plain[1], abs=1e-3)
    assert bert.embed_query("one") == pytest.approx(plain[2], abs=1e-3)


def test_instructions_of_known_families_are_used_unless_told_otherwise(builder):
    path = str(builder.build("bert", overrides={"general.name": "nomic-embed-text-v1.5"}))
    embeddings = LocalLLMEmbeddings(model=path, n_threads=1)
    plain = LocalLLMEmbeddings(model=path, n_threads=1, query_instruction="", document_instruction="")
    expected = plain.embed_documents(["search_query: one", "search_document: one"])
    assert embeddings.embed_query("one") == pytest.approx(expected[0], abs=1e-3)
    assert embeddings.embed_documents(["one"])[0] == pytest.approx(expected[1], abs=1e-3)
    assert plain.embed_query("one") == plain.embed_documents(["one"])[0] != embeddings.embed_query("one")

    async def main():
        return await embeddings.aembed_query("one"), (await embeddings.aembed_documents(["one"]))[0]

    assert asyncio.run(main()) == (embeddings.embed_query("one"), embeddings.embed_documents(["one"])[0])


def test_texts_that_are_too_long_are_named_or_cut(bert):
    texts = ["one", "two " * 2000]
    with pytest.raises(ContextOverflowError, match=r"texts\[1\]: \d+ tokens, the limit is 256; .* truncate=True"):
        bert.embed_documents(texts)
    cut = bert.model_copy(update={"truncate": True}).embed_documents(texts)
    assert cut[0] == pytest.approx(bert.embed_query("one"), abs=1e-3)
    assert cut[1] == pytest.approx(bert.embed_query("two " * 254), abs=1e-3)


def test_what_cannot_be_embedded_is_an_error(bert, models):
    with pytest.raises(InvalidRequestError, match=r"texts\[1\]: must be text, not int"):
        bert.embed_documents(["one", 2])
    with pytest.raises(InvalidRequestError, match=r"texts\[1\]: has half of a character"):
        bert.embed_documents(["one", "a\ud800"])
    with pytest.raises(UnsupportedModelError, match="use rerank"):
        LocalLLMEmbeddings(model=str(models["bert-reranker"]), n_threads=1).embed_query("one")
    for error in (exceptions.ModelInvalidRequestError, InvalidRequestError):
        with pytest.raises(error):
            asyncio.run(bert.aembed_documents([2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "cls"}, "pool: unknown option; did you mean 'pooling'"),
        ({"pooling": "none"}, "pooling"),
        ({"dimensions": 0}, "dimensions"),
        ({"n_ctx": -1}, "n_ctx: -1 is outside"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        LocalLLMEmbeddings(model="smollm2", **options)


def test_names_of_other_packages_are_understood():
    community = LocalLLMEmbeddings(model_path="smollm2", n_ctx=512, n_gpu_layers=-1)
    assert community.model == "smollm2" and community.model_options == {"n_ctx": 512, "n_gpu_layers": "all"}
    assert LocalLLMEmbeddings(model_name="smollm2", num_ctx=64, keep_alive="1m").model_options == {"n_ctx": 64, "keep_alive": 60}


def test_constructing_loads_nothing():
    embeddings = LocalLLMEmbeddings(model="nothing")
    assert not embeddings.local_model.loaded
    with pytest.raises(ModelNotFoundError):
        embeddings.embed_query("x")


def weights_of(path):
    return [entry for entry in loaded_models() if entry.purpose == "weights" and entry.path == path]


def test_a_chat_model_of_the_same_file_shares_the_weights(models, tmp_path):
    path = shutil.copy(models["qwen3"], tmp_path)
    options = {"n_ctx": 256, "n_threads": 1}
    embeddings = LocalLLMEmbeddings(model=path, **options)
    chat = ChatLocalLLM(model=path, max_tokens=2, model_options=options)
    assert embeddings.embed_query("one") and chat.invoke("one") and len(weights_of(path)) == 1
    del chat
    embeddings.close()
    gc.collect()
    assert weights_of(path) == []
    assert embeddings.embed_query("one")


def test_copies_and_pickles(bert):
    again = pickle.loads(pickle.dumps(bert))
    assert again.local_model.embedder is bert.local_model.embedder
    assert again.embed_query("one") == bert.embed_query("one") == bert.model_copy(deep=True).embed_query("one")
    with pytest.raises(ModelNotFoundError):
        bert.model_copy(update={"model": "/nope.gguf"}).embed_query("x")


def test_cancelling_a_task_stops_the_work(models):
    embeddings = LocalLLMEmbeddings(model=str(models["bert"]), n_threads=1, n_ubatch=512)
    embedder = embeddings.local_model.embedder
    n_before = embedder.stats().n_texts

    async def main():
        task = asyncio.create_task(embeddings.aembed_documents(["one " * 200] * 400))
        while not embedder.stats().n_running and not task.done():
            await asyncio.sleep(0.002)
        assert task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
    while embedder.activity.busy:
        pass
    assert embedder.stats().n_texts - n_before < 400
    embeddings.close()


def test_threads_may_share_one(bert):
    expected = bert.embed_query("one two three")
    found = []
    threads = [threading.Thread(target=lambda: found.append(bert.embed_query("one two three"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(vector == pytest.approx(expected, abs=1e-3) for vector in found)


def test_a_vector_store_finds_what_was_put_into_it(bert):
    store = InMemoryVectorStore.from_texts(TEXTS, bert)
    assert [document.page_content for document in store.similarity_search(TEXTS[3], k=1)] == [TEXTS[3]]
    found = asyncio.run(store.asimilarity_search_with_score(TEXTS[1], k=2))
    assert found[0][0].page_content == TEXTS[1] and found[0][1] == pytest.approx(1, abs=1e-3) and found[1][1] < 0.999
