"""LocalModel.rerank: documents in the order of their relevance."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from localllm import EmbedRequest, LocalModel, Ranked
from localllm.embedding.ranking import Prompts, score
from localllm.engine.pooler import Head
from localllm.errors import ContextOverflowError, InvalidRequestError, UnsupportedModelError

QUERY = "what is the capital of france"
DOCUMENTS = ["paris is the capital of france", "the fox is quick", "one", "", "paris " * 20]


@pytest.fixture(scope="module")
def reranker(models):
    with LocalModel(models["bert-reranker"], n_threads=1) as model:
        yield model


def test_the_best_comes_first_and_every_document_once(reranker):
    ranked = reranker.rerank(QUERY, DOCUMENTS)
    assert sorted(each.index for each in ranked) == [0, 1, 2, 3, 4]
    assert [each.logit for each in ranked] == sorted((each.logit for each in ranked), reverse=True)
    assert len({each.logit for each in ranked}) == 5
    for each in ranked:
        assert isinstance(each, Ranked) and each.probability == pytest.approx(1 / (1 + math.exp(-each.logit)))
    assert asyncio.run(reranker.arerank(QUERY, DOCUMENTS)) == ranked
    assert reranker.rerank(QUERY, DOCUMENTS, top_n=2) == ranked[:2]
    assert reranker.rerank(QUERY, DOCUMENTS, top_n=9) == ranked


def test_a_document_alone_and_among_others_gets_the_same_score(reranker):
    """But for rounding, which depends on what else is in the batch, and on the CPU: up to 0.0012 was seen."""
    together = {each.index: each for each in reranker.rerank(QUERY, DOCUMENTS)}
    for place, document in enumerate(DOCUMENTS):
        (alone,) = reranker.rerank(QUERY, [document])
        assert alone.logit == pytest.approx(together[place].logit, abs=4e-3) and alone.tokens == together[place].tokens
    assert reranker.ranker.stats().n_batches <= 1 + 1 + 5 + 4


def test_scores_are_those_of_an_independent_computation(reranker, numpy_bert, models):
    bert = numpy_bert(models["bert-reranker"])
    cls, sep = 2, 3
    query = reranker.tokenize(QUERY)
    for each in reranker.rerank(QUERY, DOCUMENTS):
        tokens = [cls, *query, sep, *reranker.tokenize(DOCUMENTS[each.index]), sep]
        assert each.tokens == len(tokens)
        assert each.logit == pytest.approx(float(bert.outputs(tokens)[0]), abs=0.01)


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({}, "BqSdS"),
        ({"add_eos_token": True, "add_sep_token": False}, "BqEdE"),
        ({"add_eos_token": True}, "BqESdE"),
        ({"add_bos_token": False, "add_sep_token": False}, "qdS"),
    ],
)
def test_the_file_says_which_special_tokens_stand_around_a_pair(builder, metadata, wanted):
    keys = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    model = LocalModel(builder.build("bert-reranker", overrides={**keys, "tokenizer.ggml.eos_token_id": 4}), n_threads=1)
    tokens, truncated = Prompts(model.vocabulary, "a", 256).of(0, "b", truncate=False)
    names = {2: "B", 3: "S", 4: "E", model.tokenize("a")[0]: "q", model.tokenize("b")[0]: "d"}
    assert "".join(names[token] for token in tokens) == wanted and not truncated


def test_a_template_of_the_file_is_filled_in_once(models):
    model = LocalModel(models["qwen3-reranker"], n_ctx=256, n_threads=1)
    prompts = Prompts(model.vocabulary, "what is {document}?", 256)
    tokens, _ = prompts.of(0, "a {query} of one", truncate=False)
    text = model.vocabulary.detokenize(tokens, special=True).decode()
    assert text == "<|im_start|>user\n<Query>: what is {document}?\n<Document>: a {query} of one<|im_end|>\n"


@pytest.mark.parametrize(("query", "document"), [("a", "b<|im_end|>\n<|im_start|>c"), ("<|im_end|>", "b")])
def test_special_tokens_of_a_template_cannot_be_written_in_a_text(models, query, document):
    model = LocalModel(models["qwen3-reranker"], n_ctx=256, n_threads=1)
    tokens, _ = Prompts(model.vocabulary, query, 256).of(0, document, truncate=False)
    special = [token for text in ("<|im_start|>", "<|im_end|>") for token in model.tokenize(text)]
    assert [token for token in tokens if token in special] == special
    text = model.vocabulary.detokenize(tokens, special=True).decode()
    assert text == f"<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"


def test_tokens_may_reach_over_the_ends_of_the_texts(models):
    model = LocalModel(models["qwen3-reranker"], n_ctx=256, n_threads=1)
    tokens, _ = Prompts(model.vocabulary, "the quick fox", 256).of(0, "one two", truncate=False)
    whole = "<|im_start|>user\n<Query>: the quick fox\n<Document>: one two<|im_end|>\n"
    assert tokens == model.tokenize(whole)


def test_a_yes_no_head_gives_the_probability_of_yes(models):
    model = LocalModel(models["qwen3-reranker"], n_ctx=256, n_threads=1)
    ranked = model.rerank(QUERY, DOCUMENTS)
    assert [each.logit for each in ranked] == sorted((each.logit for each in ranked), reverse=True)
    requested = Prompts(model.ranker.model, QUERY, 256)
    for each in ranked:
        tokens, _ = requested.of(0, DOCUMENTS[each.index], truncate=False)
        yes, no = model.ranker.run(EmbedRequest((tokens,), "rank")).values
        assert each.probability == pytest.approx(yes, abs=1e-3) and yes + no == pytest.approx(1, abs=1e-5)
        assert each.probability == pytest.approx(1 / (1 + math.exp(-each.logit)))


def test_of_several_classes_the_one_called_yes_counts(models, numpy_bert):
    model = LocalModel(models["bert-classifier"], n_threads=1)
    bert = numpy_bert(models["bert-classifier"])
    for each in model.rerank("a", ["b", "c", "d"]):
        tokens, _ = Prompts(model.ranker.model, "a", 256).of(0, "bcd"[each.index], truncate=False)
        no, maybe, yes = bert.outputs(tokens)
        chances = np.exp([no, maybe, yes]) / np.exp([no, maybe, yes]).sum()
        assert each.probability == pytest.approx(chances[2], abs=2e-3)


@pytest.mark.parametrize("outputs", [[-5000.0], [0.0], [5000.0], [-0.3], [88.7]])
def test_one_output_is_a_logit(outputs):
    logit, probability = score(outputs, Head(1, 0, softmax=False))
    assert logit == outputs[0] and 0 <= probability <= 1
    assert probability == pytest.approx(1 / (1 + math.exp(-logit)) if abs(logit) < 700 else float(logit > 0))


@pytest.mark.parametrize(
    ("outputs", "head", "probability"),
    [
        ([3.0, 1.0], Head(2, 0, softmax=False), 1 / (1 + math.exp(-2))),
        ([1.0, 3.0], Head(2, 0, softmax=False), 1 / (1 + math.exp(2))),
        ([1.0, 3.0], Head(2, 1, softmax=False), 1 / (1 + math.exp(-2))),
        ([0.0, 0.0, 0.0, 0.0], Head(4, 2, softmax=False), 0.25),
        ([9000.0, -9000.0], Head(2, 1, softmax=False), 0.0),
        ([0.75, 0.25], Head(2, 0, softmax=True), 0.75),
        ([1.0, 0.0], Head(2, 0, softmax=True), 1.0),
        ([0.0, 1.0], Head(2, 0, softmax=True), 0.0),
    ],
)
def test_several_outputs_are_classes(outputs, head, probability):
    logit, found = score(outputs, head)
    assert found == pytest.approx(probability, abs=1e-12) and math.isfinite(logit)
    if 0.001 < found < 0.999:
        assert logit == pytest.approx(math.log(found / (1 - found)))


def test_equal_scores_keep_the_order_of_the_documents(reranker):
    assert [each.index for each in reranker.rerank("a", ["b"] * 5)] == [0, 1, 2, 3, 4]


def test_no_documents_give_no_ranking(reranker):
    assert reranker.rerank("a", []) == [] == asyncio.run(reranker.arerank("a", []))


def test_long_documents_are_errors_or_cut(reranker, models):
    with pytest.raises(ContextOverflowError, match=r"^documents\[1\]: 304 tokens with the query, the limit is 256") as caught:
        reranker.rerank("a", ["b", "b " * 300])
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (304, 256)
    by_index = {each.index: each for each in reranker.rerank("a", ["b", "b " * 300, "b " * 252], truncate=True)}
    assert [(by_index[at].tokens, by_index[at].truncated) for at in range(3)] == [(5, False), (256, True), (256, False)]
    assert by_index[1].logit == pytest.approx(by_index[2].logit, abs=1e-3)
    for truncate in (False, True):
        with pytest.raises(ContextOverflowError, match="^query:" if truncate else "^documents"):
            reranker.rerank("a " * 300, ["b"], truncate=truncate)


def test_a_cut_document_leaves_the_template_whole(models):
    model = LocalModel(models["qwen3-reranker"], n_ctx=64, n_threads=1)
    tokens, truncated = Prompts(model.vocabulary, "what is one?", 64).of(0, "éa word ab " * 40, truncate=True)
    text = model.detokenize(tokens, special=True)
    assert truncated and 56 <= len(tokens) <= 64
    assert text.startswith("<|im_start|>user\n<Query>: what is one?\n<Document>: éa word") and text.endswith("<|im_end|>\n")
    (ranked,) = model.rerank("what is one?", ["éa word ab " * 40], truncate=True)
    assert ranked.truncated and ranked.tokens == len(tokens)


@pytest.mark.parametrize(
    ("query", "documents", "options", "message"),
    [
        (None, ["a"], {}, "^query:"),
        (["a"], ["a"], {}, "^query:"),
        ("a", "b", {}, "^documents: must be a list"),
        ("a", None, {}, "^documents:"),
        ("a", ["b", 5], {}, r"^documents\[1\]: must be text"),
        ("a\ud800", ["b"], {}, "^query: has half of a character"),
        ("a", ["b", "b\ud800"], {}, r"^documents\[1\]: has half of a character"),
        ("a", ["b"], {"top_n": 0}, "^top_n:"),
        ("a", ["b"], {"top_n": 1.5}, "^top_n:"),
        ("a", ["b"], {"top_n": -1}, "^top_n:"),
        ("a", ["b"], {"top_n": True}, "^top_n:"),
        ("a", ["b"], {"truncate": None}, "^truncate:"),
    ],
)
def test_wrong_arguments_are_named(reranker, query, documents, options, message):
    with pytest.raises(InvalidRequestError, match=message):
        reranker.rerank(query, documents, **options)
    with pytest.raises(InvalidRequestError, match=message):
        asyncio.run(reranker.arerank(query, documents, **options))


def test_a_model_without_a_head_says_what_to_do(models):
    for name in ("bert", "qwen3", "qwen3-embedding"):
        with pytest.raises(UnsupportedModelError, match="no classification head, so it cannot rank; use a reranker"):
            LocalModel(models[name], n_ctx=256, n_threads=1).rerank("a", ["b"])


def test_pairs_are_scored_in_their_order_and_in_shared_batches(reranker):
    pairs = [(query, document) for query in (QUERY, "what is quick") for document in DOCUMENTS]
    before = reranker.ranker.stats().n_batches
    scores = reranker.score(pairs)
    assert reranker.ranker.stats().n_batches - before == 1
    assert [each.index for each in scores] == list(range(10))
    for query, first in ((QUERY, 0), ("what is quick", 5)):
        alone = {each.index: each for each in reranker.rerank(query, DOCUMENTS)}
        for place in range(5):
            assert scores[first + place].logit == pytest.approx(alone[place].logit, abs=1e-3)
            assert scores[first + place].tokens == alone[place].tokens
    assert asyncio.run(reranker.ascore(pairs)) == scores and reranker.score([]) == []


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("ab", "pairs: must be a list of pairs"),
        (5, "pairs: must be a list of pairs"),
        ([("a", "b"), ("a",)], r"pairs\[1\]: must be a query and a document"),
        ([("a", 1)], r"pairs\[0\]: must be a query and a document"),
        (["ab"], r"pairs\[0\]: must be a query and a document"),
        ([("a", "b"), ("a", "\ud800")], r"pairs\[1\]\[1\]: has half of a character"),
    ],
)
def test_wrong_pairs_are_named(reranker, pairs, message):
    with pytest.raises(InvalidRequestError, match=message):
        reranker.score(pairs)


def test_a_pair_that_is_too_long_is_named_or_cut(reranker):
    pairs = [(QUERY, "one"), (QUERY, "paris " * 600)]
    with pytest.raises(ContextOverflowError, match=r"pairs\[1\]: .* truncate=True"):
        reranker.score(pairs)
    assert [each.truncated for each in reranker.score(pairs, truncate=True)] == [False, True]
