"""Adapters as a user names them: on LocalModel, on the command line, in LangChain."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_localllm import ChatLocalLLM

from localllm import ControlVector, LocalModel, Lora
from localllm.cli.main import _scaled
from localllm.errors import InvalidRequestError, ModelError, ModelNotFoundError, UnsupportedModelError

QUESTION = [{"role": "user", "content": "one two three"}]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(builder, makers) -> dict[str, Path]:
    base = builder.load("qwen3")
    return {
        "lora": builder.save("qwen3-lora", makers.lora(base)),
        "control": builder.save("qwen3-control", makers.control(base)),
    }


@pytest.fixture(scope="module")
def model(models) -> Any:
    with LocalModel(models["qwen3"], n_ctx=1024, n_threads=1) as model:
        yield model


def test_every_way_to_ask_takes_adapters(model, files):
    """A peer's chat path drops them silently."""
    plain_text, plain_chat = model.complete("one two", **GREEDY).text, model.chat(QUESTION, **GREEDY).message.content
    for options in ({"loras": [files["lora"]]}, {"control_vectors": [(str(files["control"]), 0.5)]}):
        options |= GREEDY
        text, chat = model.complete("one two", **options).text, model.chat(QUESTION, **options).message.content
        assert text != plain_text and chat != plain_chat

        async def awaited(options: dict[str, Any] = options) -> list[str]:
            return [
                (await model.acomplete("one two", **options)).text,
                "".join([event.text async for event in model.astream_complete("one two", **options) if hasattr(event, "text")]),
                (await model.achat(QUESTION, **options)).message.content,
                "".join([delta.content async for delta in model.astream_chat(QUESTION, **options)]),
            ]

        assert asyncio.run(awaited()) == [text, text, chat, chat]
        assert "".join(event.text for event in model.stream_complete("one two", **options) if hasattr(event, "text")) == text
        assert "".join(delta.content for delta in model.stream_chat(QUESTION, **options)) == chat
    assert model.complete("one two", **GREEDY).text == plain_text


def test_paths_pairs_and_adapters_mean_the_same(model, files):
    forms = [[str(files["lora"])], [files["lora"]], [(files["lora"], 1)], [Lora(files["lora"])], (Lora(str(files["lora"]), 1.0),)]
    assert len({model.complete("one two", loras=form, **GREEDY).tokens for form in forms}) == 1
    forms = [[(files["control"], -1)], [ControlVector(files["control"], -1, 1, 3)]]
    assert len({model.complete("one two", control_vectors=form, **GREEDY).tokens for form in forms}) == 1


def test_a_models_own_adapters_hold_unless_a_request_names_others(model, files, models):
    plain, steered = model.complete("one two", **GREEDY).tokens, model.complete("one two", loras=[files["lora"]], **GREEDY).tokens
    own = LocalModel(models["qwen3"], n_ctx=1024, n_threads=1, loras=[files["lora"]])
    for each in (own, pickle.loads(pickle.dumps(own))):
        assert each.engine is model.engine, "the weights are shared whatever the adapters"
        assert each.complete("one two", **GREEDY).tokens == steered
        assert each.complete("one two", loras=[], **GREEDY).tokens == plain
        assert each.complete("one two", loras=None, **GREEDY).tokens == steered
        both = each.complete("one two", control_vectors=[files["control"]], **GREEDY).tokens
        assert both == model.complete("one two", loras=[files["lora"]], control_vectors=[files["control"]], **GREEDY).tokens


def test_a_model_with_adapters_is_cheap_to_make(models):
    LocalModel(models["qwen3"], loras=["there/is/none.gguf"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"loras": "a.gguf"}, InvalidRequestError, "^loras: must be a list"),
        ({"loras": [None]}, InvalidRequestError, "^loras: None is no path"),
        ({"loras": [("a.gguf", "1")]}, InvalidRequestError, "^loras: the scale"),
        ({"control_vectors": [{"path": "a"}]}, InvalidRequestError, "^control_vectors: .* is no path"),
        ({"control_vectors": [Lora("a")]}, InvalidRequestError, "^control_vectors: .* is no path"),
        ({"lora": ["a.gguf"]}, InvalidRequestError, "did you mean 'loras'"),
        ({"loras": ["there/is/none.gguf"]}, ModelNotFoundError, "no such file"),
        ({"control_vectors": ["none.gguf"]}, ModelNotFoundError, "no such file"),
        ({"loras": ["smollm2"]}, UnsupportedModelError, "no LoRA adapter"),
    ],
)
def test_wrong_adapters_are_errors_at_once(model, smollm2, options, error, message):
    for ask in (model.complete, model.stream_complete):
        with pytest.raises(error, match=message):
            ask("one", **options)
    with pytest.raises(error, match=message):
        model.stream_chat(QUESTION, **options)
    if error is InvalidRequestError:
        with pytest.raises(error):
            LocalModel("smollm2", **options)


def test_adapters_and_their_model_confused_is_an_error_that_says_so(files):
    for name, path in files.items():
        with pytest.raises(ModelError, match={"lora": "is a LoRA adapter", "control": "is a control vector"}[name]):
            LocalModel(path).complete("one")


# ---- the command line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "localllm", *arguments], capture_output=True, text=True, timeout=120)


def test_the_command_takes_adapters(model, models, files):
    base = ["run", str(models["qwen3"]), "one two", "--raw", "-t", "0", "-n", "8"]
    wanted = model.complete("one two", temperature=0, max_tokens=8, loras=[(files["lora"], 0.5)]).text
    done = run(*base, "--lora", f"{files['lora']}:0.5")
    assert (done.stdout, done.stderr) == (wanted + "\n", "")
    done = run(*base, "--control-vector", str(files["control"]), "--lora", str(files["lora"]))
    wanted = model.complete("one two", temperature=0, max_tokens=8, loras=[files["lora"]], control_vectors=[files["control"]])
    assert done.stdout == wanted.text + "\n"
    done = run(*base, "--lora", "none.gguf:2")
    assert done.returncode == 3 and "none.gguf: no such file" in done.stderr and "Traceback" not in done.stderr
    done = run(*base, "--lora", str(models["qwen3"]))
    assert done.returncode == 3 and "no LoRA adapter" in done.stderr


def test_a_scale_is_what_follows_the_last_colon_if_it_is_one(tmp_path, monkeypatch):
    assert _scaled("a.gguf") == ("a.gguf", 1.0)
    assert _scaled("a.gguf:0.5") == ("a.gguf", 0.5) and _scaled("a.gguf:-2") == ("a.gguf", -2.0)
    assert _scaled("C:\\a.gguf") == ("C:\\a.gguf", 1.0) and _scaled("C:\\a.gguf:3") == ("C:\\a.gguf", 3.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:2").touch()
    assert _scaled("a:2") == ("a:2", 1.0)


# ---- LangChain


def test_langchain_passes_adapters_on(models, files, model):
    options = {"model": str(models["qwen3"]), "temperature": 0, "max_tokens": 8, "model_options": {"n_ctx": 1024, "n_threads": 1}}
    plain, steered = ChatLocalLLM(**options), ChatLocalLLM(**options, loras=[(str(files["lora"]), 0.5)])
    wanted = model.chat(QUESTION, temperature=0, max_tokens=8, loras=[(files["lora"], 0.5)]).message.content
    assert steered.invoke("one two three").content == wanted != plain.invoke("one two three").content
    assert plain.invoke("one two three", loras=[(files["lora"], 0.5)]).content == wanted
    assert steered.model_copy(update={"loras": []}).invoke("one two three").content == plain.invoke("one two three").content
    assert plain._identifying_params != steered._identifying_params
    with pytest.raises(ValueError, match="loras: the scale must be a number"):
        ChatLocalLLM(**options, loras=[("a.gguf", "strong")])
