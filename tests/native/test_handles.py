"""One owner, one release, in order."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from pathlib import Path

import pytest

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.errors import ClosedError, InvalidRequestError, ModelLoadError
from localllm.native import handles, logs
from localllm.native.handles import Chat, Context, Model, Owned, Parser, Sampler, Text
from localllm.native.library import load

STATM = Path("/proc/self/statm")


def open_model(path) -> Model:
    return Model(str(path), model_params(load(), ModelConfig()))


def test_a_release_runs_exactly_once_whatever_triggers_it():
    released = []

    class Owner:
        pass

    owner = Owner()
    owned = Owned(owner, 42, released.append, "thing")
    assert owned.pointer == 42
    owned.close()
    owned.close()
    del owner
    gc.collect()
    assert released == [42] and owned.closed
    with pytest.raises(ClosedError, match="thing is closed"):
        _ = owned.pointer


def test_an_owner_nobody_holds_is_released():
    released = []

    class Owner:
        pass

    owner = Owner()
    owned = Owned(owner, 7, released.append, "thing")
    del owner
    gc.collect()
    assert released == [7] and owned.closed


def test_a_context_keeps_its_model_until_it_is_gone(models, monkeypatch):
    order = []
    native = load()
    free_model, free_context = native.llama_model_free, native.llama_free
    monkeypatch.setattr(native, "llama_model_free", lambda pointer: (order.append("model"), free_model(pointer)))
    monkeypatch.setattr(native, "llama_free", lambda pointer: (order.append("context"), free_context(pointer)))
    model = open_model(models["qwen3"])
    context = Context(model, context_params(native, ContextConfig(n_ctx=256), 0))
    sampler, text, chat = Sampler(model, {}), Text(model, {}), Chat(model)
    del model
    gc.collect()
    assert order == []
    del sampler, text, chat, context
    gc.collect()
    assert order == ["context", "model"]


def test_a_closed_handle_is_an_error_and_not_a_crash(models):
    model = open_model(models["qwen3"])
    sampler, text, chat = Sampler(model, {}), Text(model, {}), Chat(model)
    for handle in (sampler, text, chat):
        handle.close()
        handle.close()
    with pytest.raises(ClosedError):
        sampler.accept([1], generated=False)
    with pytest.raises(ClosedError):
        text.push(1)
    with pytest.raises(ClosedError):
        chat.info()
    model.close()
    with pytest.raises(ClosedError):
        model.tokenize("x", True, True)
    with pytest.raises(ClosedError):
        Sampler(model, {})


def test_failed_constructors_leave_nothing_behind(models, tmp_path):
    model = open_model(models["qwen3"])
    before = len(weakref.finalize._registry)
    for _ in range(50):
        with pytest.raises(InvalidRequestError):
            Sampler(model, {"nonsense": 1})
        with pytest.raises(InvalidRequestError):
            Text(model, {"nonsense": 1})
        with pytest.raises(ModelLoadError):
            open_model(tmp_path / "nothing")
        with pytest.raises(InvalidRequestError):
            Parser({"nonsense": 1})
    assert len(weakref.finalize._registry) == before


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="reads Linux' memory accounting")
def test_a_hundred_loads_leave_flat_memory(models):
    native = load()

    def cycle() -> None:
        model = open_model(models["qwen3"])
        context = Context(model, context_params(native, ContextConfig(n_ctx=256, parallel=1), 0))
        for _ in range(5):
            Sampler(model, {"grammar": 'root ::= "a" | "b"'}).close()
            Text(model, {"stop": ["x"]}).close()
        Chat(model).close()
        context.close()
        model.close()

    for _ in range(20):
        cycle()
    gc.collect()
    before = resident_bytes()
    for _ in range(100):
        cycle()
    gc.collect()
    # A leaked model or context would be megabytes a time.
    assert resident_bytes() - before < 8 * 2**20


def test_a_vocabulary_alone_tokenises_and_has_facts(models):
    native = load()
    whole = open_model(models["qwen3"])
    alone = Model(str(models["qwen3"]), model_params(native, ModelConfig(vocab_only=True)))
    assert alone.tokenize("What is one?", True, True) == whole.tokenize("What is one?", True, True)
    assert alone.metadata() == whole.metadata()
    bare = Model(str(models["qwen3-vocab-only"]), model_params(native, ModelConfig(vocab_only=True)))
    assert bare.tokenize("What is one?", True, True) == whole.tokenize("What is one?", True, True)


def test_metadata_can_be_overridden_when_loading(models):
    native = load()
    overrides = (("qwen3.context_length", 77), ("general.name", "other"), ("tokenizer.ggml.add_bos_token", True))
    model = Model(str(models["qwen3"]), model_params(native, ModelConfig(metadata_overrides=overrides)))
    assert native.llama_model_n_ctx_train(model.pointer) == 77


@pytest.mark.parametrize("text", ["", " ", "What is the capital of France?", "é€😀\n\t", "<|im_start|>user", "x" * 5000])
def test_tokens_come_back_as_the_text(models, text):
    for name in ("qwen3", "gemma3", "gemma4"):
        model = open_model(models[name])
        tokens = model.tokenize(text, add_special=False, parse_special=True)
        assert model.detokenize(tokens, special=True).decode() == text, name


def test_messages_of_llama_go_to_logging_and_nowhere_else(models, caplog, capfd):
    with caplog.at_level(logging.DEBUG, "localllm.native"):
        open_model(models["qwen3"])
    assert "qwen3" in caplog.text
    assert capfd.readouterr() == ("", "")
    logs.forward(load())


def test_default_parameters_are_those_of_llama():
    params = handles.default_context_params(load())
    assert params.n_batch == 2048 and params.n_ubatch == 512
