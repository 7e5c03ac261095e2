"""Fixtures of these tests: a clock that stands still, and memory that has a size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm import LocalModel, loaded, loaded_models
from localllm.residency.registry import registry


class Clock:
    """Seconds that pass only when they are told to. What is due by then is done when `pass_` returns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        registry.expire()


@pytest.fixture(autouse=True, scope="package")
def nothing_of_others() -> None:
    """What tests of other folders hold is let go; it is loaded again where it is used again."""
    for handle in list(loaded._handles):
        handle.let_go()
    gc.collect()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Models of other tests do not make way here."""
    if loaded_models():
        gc.collect()
    yield
    registry.budget_bytes = None


@pytest.fixture
def settle(rest: Callable[..., None]) -> Callable[[], None]:
    """A function that lets the threads of engines that have ended their requests come to rest."""
    return lambda: rest(*registry._there._contexts)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(registry, "clock", clock)
    return clock


@pytest.fixture
def local(models: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., LocalModel]]:
    """A function that makes a LocalModel of a tiny model's own copy; all are closed after the test."""
    made: list[LocalModel] = []

    def make(name: str = "qwen3", **options: Any) -> LocalModel:
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            path.write_bytes(models[name].read_bytes())
        made.append(LocalModel(path, **{"n_ctx": 256, "n_threads": 1, **options}))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture
def mapped(tmp_path: Path) -> Callable[[], list[str]]:
    """A function that gives the names of the files whose weights are in memory, as the kernel knows it."""

    def names() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted({Path(line.split()[-1]).stem for line in lines if str(tmp_path) in line and line.endswith(".gguf")})

    return names
