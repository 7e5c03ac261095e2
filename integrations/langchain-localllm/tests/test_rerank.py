"""LocalLLMReranker and LocalLLMCrossEncoder over tiny models."""

from __future__ import annotations

import asyncio
import pickle
import shutil

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core import exceptions as kinds
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import LocalLLMCrossEncoder, LocalLLMEmbeddings, LocalLLMReranker

from localllm import loaded_models
from localllm.errors import ContextOverflowError, InvalidRequestError, ModelNotFoundError, UnsupportedModelError

QUERY = "what is the capital of france"
TEXTS = ["paris is the capital of france", "the fox is quick", "one", "paris " * 20, "two three"]
DOCUMENTS = [Document(text, id=f"id-{place}", metadata={"source": place}) for place, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def reranker(models):
    reranker = LocalLLMReranker(model=str(models["bert-reranker"]), n_threads=1, top_n=None)
    yield reranker
    reranker.close()


@pytest.fixture(scope="module")
def encoder(models):
    encoder = LocalLLMCrossEncoder(model=str(models["bert-reranker"]), n_threads=1)
    yield encoder
    encoder.close()


def n_batches(thing):
    return thing.local_model.ranker.stats().n_batches


def test_documents_come_best_first_with_their_scores(reranker):
    ranked = reranker.compress_documents(DOCUMENTS, QUERY)
    expected = reranker.local_model.rerank(QUERY, TEXTS)
    assert [document.page_content for document in ranked] == [TEXTS[each.index] for each in expected]
    assert [document.metadata["relevance_score"] for document in ranked] == [each.probability for each in expected]
    assert all(document.id == f"id-{document.metadata['source']}" for document in ranked) and len(ranked) == 5
    scores = [document.metadata["relevance_score"] for document in ranked]
    assert scores == sorted(scores, reverse=True) and 0 < scores[-1] < scores[0] < 1 and type(scores[0]) is float
    assert asyncio.run(reranker.acompress_documents(DOCUMENTS, QUERY)) == ranked


def test_what_was_given_stays_as_it_is(reranker):
    reranker.compress_documents(DOCUMENTS, QUERY)
    assert all(document.metadata == {"source": place} for place, document in enumerate(DOCUMENTS))
    assert reranker.compress_documents([], QUERY) == []


def test_only_the_best_and_only_the_good(reranker):
    everything = reranker.compress_documents(DOCUMENTS, QUERY)
    assert reranker.model_copy(update={"top_n": 2}).compress_documents(DOCUMENTS, QUERY) == everything[:2]
    scores = [document.metadata["relevance_score"] for document in everything]
    good = reranker.model_copy(update={"score_threshold": scores[2]})
    assert good.compress_documents(DOCUMENTS, QUERY) == everything[:3]
    assert good.model_copy(update={"top_n": 1}).compress_documents(DOCUMENTS, QUERY) == everything[:1]
    assert asyncio.run(good.model_copy(update={"score_threshold": 1}).acompress_documents(DOCUMENTS, QUERY)) == []
    assert len(LocalLLMReranker(model=reranker.model, n_threads=1).compress_documents(DOCUMENTS, QUERY)) == 3


def test_documents_share_batches(reranker, encoder):
    before = n_batches(reranker)
    assert len(reranker.compress_documents([Document(f"word {n}") for n in range(20)], QUERY)) == 20
    assert n_batches(reranker) - before == 1
    before = n_batches(encoder)
    assert len(encoder.score([(f"query {n % 5}", f"word {n}") for n in range(30)])) == 30
    assert n_batches(encoder) - before == 1


def test_calls_at_the_same_time_share_batches(reranker):
    async def main():
        documents = [Document(f"word {n}") for n in range(20)]
        return await asyncio.gather(*(reranker.acompress_documents(documents, f"query {n}") for n in range(40)))

    before = n_batches(reranker)
    assert [len(answer) for answer in asyncio.run(main())] == [20] * 40
    assert n_batches(reranker) - before < 40


def test_scores_of_pairs_come_in_their_order(encoder, reranker):
    pairs = [(query, text) for query in (QUERY, "quick") for text in TEXTS]
    scores = encoder.score(pairs)
    assert len(scores) == 10 and all(type(score) is float and 0 < score < 1 for score in scores)
    for first, query in ((0, QUERY), (5, "quick")):
        ranked = {each.index: each.probability for each in reranker.local_model.rerank(query, TEXTS)}
        assert scores[first : first + 5] == pytest.approx([ranked[place] for place in range(5)], abs=1e-3)
    assert encoder.score([]) == [] and asyncio.run(encoder.ascore(pairs)) == scores


def test_documents_that_are_too_long_are_named_or_cut(reranker, encoder):
    documents = [Document("one"), Document("paris " * 2000)]
    with pytest.raises(ContextOverflowError, match=r"documents\[1\]: .* truncate=True"):
        reranker.compress_documents(documents, QUERY)
    assert len(reranker.model_copy(update={"truncate": True}).compress_documents(documents, QUERY)) == 2
    with pytest.raises(ContextOverflowError, match=r"pairs\[1\]: .* truncate=True"):
        encoder.score([(QUERY, document.page_content) for document in documents])
    assert len(encoder.model_copy(update={"truncate": True}).score([(QUERY, "paris " * 2000)])) == 1


def test_what_is_no_reranker_or_no_text_is_an_error(models, reranker, encoder):
    for kind in (LocalLLMReranker, LocalLLMCrossEncoder):
        with pytest.raises(ModelNotFoundError):
            kind(model="nothing").local_model.rerank("a", ["b"])
    with pytest.raises(UnsupportedModelError):
        LocalLLMReranker(model=str(models["bert"]), n_threads=1).compress_documents(DOCUMENTS, QUERY)
    with pytest.raises(InvalidRequestError, match=r"pairs\[0\]"):
        encoder.score([("one",)])


def both(compressor, documents):
    """What the two ways to ask are."""
    return [
        lambda: compressor.compress_documents(documents(), QUERY),
        lambda: asyncio.run(compressor.acompress_documents(documents(), QUERY)),
    ]


@pytest.mark.parametrize(
    ("documents", "kind", "message"),
    [
        ([Document("paris " * 2000)], kinds.ContextOverflowError, r"documents\[0\]"),
        ([Document("one"), "two"], kinds.ModelInvalidRequestError, r"documents\[1\]: must be a Document, not str"),
        ("one", kinds.ModelInvalidRequestError, "documents: must be a list of documents, not str"),
        (None, kinds.ModelInvalidRequestError, "documents: must be a list of documents, not NoneType"),
        ({"a": 1}, kinds.ModelInvalidRequestError, "documents: must be a list of documents, not dict"),
    ],
)
def test_errors_are_langchains_kinds_whichever_way_it_is_asked(reranker, documents, kind, message):
    for asked in both(reranker, lambda: documents):
        with pytest.raises(kind, match=message):
            asked()


def test_a_model_that_is_not_there_is_one_of_langchains_kinds():
    for asked in both(LocalLLMReranker(model="nothing"), lambda: DOCUMENTS):
        with pytest.raises(kinds.ModelNotFoundError):
            asked()


def test_documents_may_come_from_a_generator(reranker):
    expected = reranker.compress_documents(DOCUMENTS, QUERY)
    for asked in both(reranker, lambda: (document for document in DOCUMENTS)):
        assert asked() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 3}, "top_k: unknown option"),
        ({"top_n": 0}, "top_n"),
        ({"score_threshold": 2}, "score_threshold"),
        ({"n_ctx": -1}, "n_ctx: -1 is outside"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        LocalLLMReranker(model="smollm2", **options)
    with pytest.raises(ValueError, match="top_n"):
        LocalLLMCrossEncoder(model="smollm2", top_n=3)


def test_weights_are_shared(models, tmp_path):
    path = shutil.copy(models["bert-reranker"], tmp_path)
    reranker, encoder = LocalLLMReranker(model=path, n_threads=1), LocalLLMCrossEncoder(model_name=path, n_threads=1)
    assert reranker.compress_documents(DOCUMENTS, QUERY) and encoder.score([("a", "b")])
    assert len([entry for entry in loaded_models() if entry.path == path and entry.purpose == "weights"]) == 1
    again = pickle.loads(pickle.dumps(reranker))
    assert again.local_model.ranker is reranker.local_model.ranker is encoder.local_model.ranker
    for thing in (reranker, encoder, again):
        thing.close()


def test_retrievers_take_them(models, reranker, encoder):
    embeddings = LocalLLMEmbeddings(model=str(models["bert"]), n_threads=1)
    store = InMemoryVectorStore.from_documents(DOCUMENTS, embeddings)
    everything = store.as_retriever(search_kwargs={"k": 5})
    best = [document.page_content for document in reranker.compress_documents(DOCUMENTS, QUERY)][:2]
    compressors = (reranker.model_copy(update={"top_n": 2}), CrossEncoderReranker(model=encoder, top_n=2))
    for compressor in compressors:
        retriever = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=everything)
        assert [document.page_content for document in retriever.invoke(QUERY)] == best
        assert [document.page_content for document in asyncio.run(retriever.ainvoke(QUERY))] == best
    embeddings.close()
