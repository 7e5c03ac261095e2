"""Fixtures: tiny models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
