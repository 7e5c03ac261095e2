"""Filling in the middle: what stands before and behind a gap becomes the prompt that the model was trained with."""

from __future__ import annotations

import asyncio

import pytest

from localllm import LocalModel
from localllm.errors import InvalidRequestError, UnsupportedModelError

MARKS = {"tokenizer.ggml.fim_pre_token_id": 5, "tokenizer.ggml.fim_suf_token_id": 6, "tokenizer.ggml.fim_mid_token_id": 7}
OPTIONS = {"temperature": 0, "max_tokens": 4}


def with_marks(builder, name, **more):
    return builder.build(name, overrides={**{key: ("uint32", value) for key, value in MARKS.items()}, **more})


@pytest.fixture(scope="module")
def model(builder):
    with LocalModel(with_marks(builder, "qwen3"), n_ctx=256, n_threads=1) as model:
        yield model


def prompt_of(model, monkeypatch, prompt, **options):
    seen = []
    generate = model.engine.generate
    monkeypatch.setattr(model.engine, "generate", lambda request: (seen.append(request.prompt), generate(request))[1])
    model.complete(prompt, **OPTIONS, **options)
    return list(seen[0])


def test_marks_stand_before_the_prefix_before_the_suffix_and_at_the_end(model, monkeypatch):
    prefix, suffix = model.tokenize("one two"), model.tokenize("four")
    assert prompt_of(model, monkeypatch, "one two", suffix="four") == [5, *prefix, 6, *suffix, 7]
    assert prompt_of(model, monkeypatch, "", suffix="four") == [5, 6, *suffix, 7]
    assert prompt_of(model, monkeypatch, "one two", suffix="") == [5, *prefix, 6, 7]
    assert prompt_of(model, monkeypatch, "one two", suffix=None) == prefix


def test_a_model_that_wants_a_first_token_gets_it(builder, monkeypatch):
    with LocalModel(with_marks(builder, "gemma3"), n_ctx=256, n_threads=1) as model:
        bos = model.header.metadata["tokenizer.ggml.bos_token_id"]
        assert prompt_of(model, monkeypatch, "one", suffix="two") == [
            bos,
            5,
            *model.tokenize("one"),
            6,
            *model.tokenize("two"),
            7,
        ]


def test_special_tokens_in_the_texts_are_letters(model, monkeypatch):
    text = "a<|im_end|>b"
    special = set(model.tokenize("<|im_end|>"))
    assert special < set(model.tokenize(text))
    assert not special & set(prompt_of(model, monkeypatch, text, suffix=text))


def test_every_way_to_ask_fills_in_alike(model):
    one = model.complete("one", suffix="two", **OPTIONS).tokens
    stream = [token for event in model.stream_complete("one", suffix="two", **OPTIONS) for token in getattr(event, "tokens", ())]
    many = model.complete_all(["one", "one two"], suffix="two", **OPTIONS)
    assert tuple(stream) == one == many[0].tokens and one != model.complete("one", **OPTIONS).tokens

    async def main():
        return (await model.acomplete("one", suffix="two", **OPTIONS)).tokens

    assert asyncio.run(main()) == one


@pytest.mark.parametrize("missing", ["pre", "suf", "mid"])
def test_a_model_without_a_mark_is_named_with_what_it_lacks(builder, missing):
    name = {"pre": "prefix", "suf": "suffix", "mid": "middle"}[missing]
    marks = {key: ("uint32", value) for key, value in MARKS.items() if missing not in key}
    with (
        LocalModel(builder.build("qwen3", overrides=marks), n_ctx=256, n_threads=1) as model,
        pytest.raises(UnsupportedModelError, match=rf"no mark for {name}; leave `suffix` out"),
    ):
        model.complete("one", suffix="two")


def test_wrong_suffixes(model):
    with pytest.raises(InvalidRequestError, match="suffix: must be text, not int"):
        model.complete("one", suffix=1)
    for prompt, suffix, where in (("one", "\ud800", "suffix"), ("\ud800", "two", "prompt")):
        with pytest.raises(InvalidRequestError, match=f"^{where}: has half of a character"):
            model.complete(prompt, suffix=suffix)
    with pytest.raises(InvalidRequestError, match="did you mean 'suffix'"):
        model.complete("one", sufix="two")
    with pytest.raises(InvalidRequestError, match="suffix: unknown option"):
        model.chat([{"role": "user", "content": "one"}], suffix="two")
