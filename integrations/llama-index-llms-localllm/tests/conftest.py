"""Fixtures: tiny models, and the LLM that the conformance suite runs against."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.llms.localllm import LocalLLM

BUILDER = Path(__file__).parents[3] / "tests" / "models" / "build.py"


@pytest.fixture(scope="session", autouse=True)
def nobody_elses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests from the user's own models and from any network."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder / "huggingface"))
        patch.setenv("LOCALLLM_HOME", str(folder / "localllm"))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        yield


@pytest.fixture(scope="session")
def builder() -> Any:
    """tests/models/build.py."""
    spec = importlib.util.spec_from_file_location("localllm_tiny_models", BUILDER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny(builder: Any) -> Path:
    """A model with random weights, whose chat template knows tools."""
    return builder.build("qwen3")


@pytest.fixture(scope="session")
def make_llm(tiny: Path) -> Callable[..., FunctionCallingLLM]:
    """A function that makes the LLM under test, with further options.

    CONFORMANCE_LLM names another class ("llama_index.llms.ollama:Ollama"), CONFORMANCE_OPTIONS its options in JSON. They should
    keep answers short, at temperature 0.
    """

    def make(**more: Any) -> FunctionCallingLLM:
        module, _, name = os.environ.get("CONFORMANCE_LLM", "").partition(":")
        options = json.loads(os.environ.get("CONFORMANCE_OPTIONS", "{}"))
        if not module:
            options = options or {"model": tiny, "temperature": 0, "max_tokens": 200, "model_options": {"n_threads": 1}}
            return LocalLLM(**{**options, **more})
        return getattr(importlib.import_module(module), name)(**{**options, **more})

    return make


@pytest.fixture(scope="session")
def llm(make_llm: Callable[..., FunctionCallingLLM]) -> FunctionCallingLLM:
    """The LLM under test."""
    return make_llm()
