"""Answers that LangChain's cache keeps are of the files, adapters, schemas and forms that they are given for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from langchain_core.caches import InMemoryCache
from langchain_localllm import ChatLocalLLM, LocalLLM
from pydantic import BaseModel, create_model

CLASSES = [ChatLocalLLM, LocalLLM]
OPTIONS = {"temperature": 0, "max_tokens": 6, "n_threads": 1, "n_ctx": 256}


def text(answer):
    return getattr(answer, "content", answer)


def put(source, path):
    """Another file under the same name, as a download does it."""
    shutil.copy(source, f"{path}.part")
    Path(f"{path}.part").replace(path)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", ["model", "model_name", "model_path"])
def test_the_weights_that_are_loaded_count_and_not_the_file_that_has_taken_their_place(kind, name, models, tmp_path):
    path = tmp_path / "model.gguf"
    put(models["qwen3"], path)
    cache = InMemoryCache()
    llm = kind(model="elsewhere.gguf", cache=cache, **OPTIONS)
    call = {name: str(path)}
    llm.invoke("x", **call)
    put(models["qwen3-one-layer"], path)
    of_the_first = text(llm.invoke("one two", **call))
    llm.close()
    of_the_second = text(llm.invoke("one two", **call))
    llm.close()
    fresh = kind(model=str(path), cache=False, **OPTIONS)
    assert of_the_second == text(fresh.invoke("one two")) != of_the_first
    fresh.close()


@pytest.mark.parametrize("name", ["model", "model_name", "model_path"])
def test_a_call_may_name_another_model_by_all_names(name, models):
    for kind in CLASSES:
        llm, other = kind(model=str(models["qwen3"]), **OPTIONS), kind(model=str(models["qwen3-one-layer"]), **OPTIONS)
        told = Path(models["qwen3-one-layer"]) if name == "model_path" else str(models["qwen3-one-layer"])
        assert text(llm.invoke("one two", **{name: told})) == text(other.invoke("one two")) != text(llm.invoke("one two"))
        llm.close()
        other.close()


@pytest.fixture(scope="module")
def loras(builder, makers, tmp_path_factory):
    """Two adapters of the tiny Qwen3."""
    base = builder.load("qwen3")
    folder = tmp_path_factory.mktemp("loras")
    return [builder.save("lora", makers.lora(base, seed=seed, deviation=0.5), folder) for seed in (1, 2)]


@pytest.mark.parametrize(
    ("kind", "made", "call"),
    [
        (LocalLLM, True, None),
        (LocalLLM, False, "loras"),
        (LocalLLM, False, "options"),
        (ChatLocalLLM, True, None),
        (ChatLocalLLM, False, "loras"),
        (ChatLocalLLM, False, "options"),
        (ChatLocalLLM, False, "sampling"),
    ],
)
def test_another_adapter_under_the_same_name_is_another_one(kind, made, call, models, loras, tmp_path):
    path = str(tmp_path / "lora.gguf")
    given = {} if call is None else {"loras": [path]} if call == "loras" else {call: {"loras": [path]}}
    cache = InMemoryCache()
    answers = []
    for lora in loras:
        put(lora, path)
        for kept in (cache, False):
            llm = kind(model=str(models["qwen3"]), cache=kept, **OPTIONS, **({"loras": [path]} if made else {}))
            answers.append(text(llm.invoke("one two", **given)))
            llm.close()
    assert answers[0] == answers[1] != answers[2] == answers[3]


def test_texts_that_end_an_answer_count_where_only_the_constructor_names_them(models):
    llm = LocalLLM(model=str(models["qwen3"]), cache=InMemoryCache(), **OPTIONS)
    whole = llm.invoke("one two")
    stopping = llm.model_copy(update={"stop": [whole[2:4]]})
    assert stopping.invoke("one two") == whole[: whole.index(whole[2:4])] and llm.invoke("one two") == whole


def key(llm, **call):
    return llm._get_llm_string(**call)


def test_schemas_count_and_not_the_names_of_their_classes(llm):
    def answer(field: str, **kwargs) -> type[BaseModel]:
        return create_model("Answer", **{field: (bool, ...)}, **kwargs)

    told = [key(llm, response_format=answer(field)) for field in ("yes", "no")]
    tools = [key(llm, tools=[answer(field, __doc__="a tool")]) for field in ("yes", "no")]
    assert len({*told, *tools, key(llm)}) == 5
    assert key(llm, response_format=answer("yes")) == told[0] == key(llm, format=answer("yes").model_json_schema())


def test_what_means_the_same_is_the_same_and_what_changes_no_answer_does_not_count(llm):
    assert key(llm, num_predict=5) == key(llm, max_tokens=5) == key(llm, options={"num_predict": 5}) != key(llm)
    assert key(llm, model=llm.model) == key(llm) == key(llm, temperature=None, stream=True, timeout=5, priority=1, max_retries=2)
    assert key(llm, tools=[]) == key(llm)
    other = llm.model_copy(update={"chat_options": {"tools": [answer_tool()]}})
    assert len({key(llm), key(other), key(other, tools=[answer_tool("other")])}) == 3 and key(other, tools=[]) == key(llm)


def answer_tool(name: str = "answer") -> dict:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def test_the_form_of_an_answer_counts(llm):
    cached = llm.model_copy(update={"cache": InMemoryCache()})
    blocks = cached.model_copy(update={"output_version": "v1"})
    assert isinstance(blocks.invoke("one").content, list) and isinstance(cached.invoke("one").content, str)
