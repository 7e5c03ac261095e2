"""The fixtures of localllm's own tests that these need too, models that answer within milliseconds, and what watches engines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from langchain_localllm import ChatLocalLLM

ROOT = Path(__file__).parents[3]
THINKING = ROOT / "vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja"

_PATH = ROOT / "tests/conftest.py"
_spec = importlib.util.spec_from_file_location("localllm_tests_conftest", _PATH)
assert _spec and _spec.loader
_shared = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _shared
_spec.loader.exec_module(_shared)

builder = _shared.builder
makers = _shared.makers
models = _shared.models
nobody_elses = _shared.nobody_elses
smollm2 = _shared.smollm2
faster_smollm2 = _shared.faster_smollm2


@pytest.fixture(scope="session")
def tiny() -> str:
    """A tiny trained hybrid model."""
    return str(ROOT / "tests/models/trained/tiny-trained-qwen35.gguf")


@pytest.fixture(scope="module")
def llm(tiny) -> ChatLocalLLM:
    return ChatLocalLLM(model=tiny, temperature=0, max_tokens=24, n_threads=1)


@pytest.fixture(scope="module")
def endless(builder) -> ChatLocalLLM:
    """A model that never ends by itself."""
    return ChatLocalLLM(model=builder.build("qwen3"), n_threads=1, n_ctx=2048, ignore_eos=True, context_shift=4)


@pytest.fixture(scope="module")
def thinker(tiny) -> ChatLocalLLM:
    """A model whose template begins a thought, which has to end soon."""
    return ChatLocalLLM(
        model=tiny, temperature=0, max_tokens=200, n_threads=1, chat_template=THINKING.read_text(), reasoning_budget=6, n_ctx=2048
    )


@pytest.fixture(scope="session")
def at_rest() -> Callable[[ChatLocalLLM], bool]:
    """A function that tells whether an engine comes to rest; a stopped request takes one more step."""

    def wait(llm: ChatLocalLLM) -> bool:
        engine = llm.local_model.engine
        for _ in range(20):
            if not engine.activity.busy:
                return True
            llm.local_model.complete("x", max_tokens=1)
        return False

    return wait


@pytest.fixture
def batches(monkeypatch) -> Callable[[ChatLocalLLM], list[int]]:
    """A function that gives a list of how many sequences each batch of an engine has from now on."""

    def watch(llm: ChatLocalLLM) -> list[int]:
        runner = llm.local_model.engine._core.runner
        sizes: list[int] = []
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda chunks: (sizes.append(len(chunks)), run(chunks))[1])
        return sizes

    return watch
