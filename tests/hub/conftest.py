"""What tests of the model manager share beside tests/conftest.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localllm.hub.client import HubClient
from localllm.hub.retries import Patience

QUICK = Patience(connect_seconds=2, stall_seconds=2, tries=4, first_wait_seconds=0.01, longest_wait_seconds=2)


@pytest.fixture
def client(hub: object) -> Iterator[HubClient]:
    with HubClient(patience=QUICK) as client:
        yield client


@pytest.fixture(scope="session")
def content() -> Callable[[int], bytes]:
    """`content(n)`: n bytes without a pattern, the same ones every time."""
    made: dict[int, bytes] = {}

    def bytes_of(n_bytes: int) -> bytes:
        if n_bytes not in made:
            made[n_bytes] = random.Random(n_bytes).randbytes(n_bytes)
        return made[n_bytes]

    return bytes_of


@pytest.fixture(scope="session")
def split(gguf_files: ModuleType) -> Callable[[Path, Path, int], list[Path]]:
    """`split(file, stem, n)`: the file as a set of n."""
    return gguf_files.split
