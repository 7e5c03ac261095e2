"""One Model under several engines and embedders, each with its thread: adapters of one are no trouble for the others."""

from __future__ import annotations

import ctypes
import threading

import pytest

from localllm import ContextConfig, Embedder, EmbedRequest, Engine, Lora, Request, SamplingParams
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Model, default_model_params
from localllm.native.library import load

CONTEXT = ContextConfig(n_ctx=256, n_threads=1, n_ubatch=16)
PROMPT = (5, 6, 7, 8, 9)


@pytest.fixture
def model(models):
    model = Model(str(models["qwen3"]), default_model_params(load()))
    yield model
    model.close()


@pytest.fixture(scope="module")
def loras(builder, makers):
    recipe = builder.load("qwen3")
    return [str(builder.save("shared-lora", makers.lora(recipe, seed=seed))) for seed in range(1, 9)]


def answer(engine: Engine, *loras: str) -> tuple[int, ...]:
    asked = Request(prompt=PROMPT, max_tokens=8, sampling=SamplingParams(temperature=0), loras=tuple(map(Lora, loras)))
    return engine.generate(asked).tokens


def test_a_closed_engine_takes_its_adapters_along(model, loras):
    with Embedder(model, context=CONTEXT) as embedder, Engine(model, context=CONTEXT) as other:
        engine = Engine(model, context=CONTEXT)
        steered = answer(engine, loras[0])
        (adapter,) = engine._core.adapters._loras.values()
        pointers = (llama_h.llama_adapter_lora_p * 1)(adapter.pointer)

        def steer() -> int:
            context = other._core.runner.context.pointer
            return model.native.lm_steer(context, pointers, (ctypes.c_float * 1)(1.0), 1, None, 0)

        assert steer() == localllm_h.LM_OK
        assert model.native.lm_steer(other._core.runner.context.pointer, None, None, 0, None, 0) == localllm_h.LM_OK
        engine.close()
        assert steer() == localllm_h.LM_INVALID_ARGUMENT and not model.closed
        assert answer(other, loras[0]) == steered
        assert embedder.run(EmbedRequest((PROMPT,), "mean")).counts == (1,)


def test_adapters_come_and_go_while_others_compute_and_make_contexts(model, models, loras):
    """What llama.cpp keeps of a model's adapters has no lock of its own."""
    with Engine(str(models["qwen3"]), context=CONTEXT) as alone:
        wanted = {lora: answer(alone, lora) for lora in loras}
    errors: list[BaseException] = []

    def steering() -> None:
        for _ in range(6):
            with Engine(model, context=CONTEXT) as engine:
                assert all(answer(engine, lora) == wanted[lora] for lora in loras)

    def embedding() -> None:
        for _ in range(30):
            with Embedder(model, context=CONTEXT) as embedder:
                embedder.run(EmbedRequest((PROMPT * 20,), "mean"))

    def watched(work) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=watched, args=(work,)) for work in (steering, steering, embedding)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors and not any(thread.is_alive() for thread in threads)
