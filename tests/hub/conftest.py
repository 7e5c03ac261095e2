"""A Hub on loopback, and a clean environment for everything that asks one."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localllm.hub.client import HubClient
from localllm.hub.retries import Patience

HERE = Path(__file__).parent
QUICK = Patience(connect_seconds=2, stall_seconds=2, tries=4, first_wait_seconds=0.01, longest_wait_seconds=2)

# Everything that huggingface_hub or we read from the environment, and what would lead requests off this machine.
READ = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "LOCALLLM_HOME", "REQUESTS_CA_BUNDLE", "SSL_CERT_")


def _by_name(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def hub_server() -> ModuleType:
    """tests/hub/hub_server.py."""
    return _by_name("hub_server")


@pytest.fixture(scope="session")
def gguf_files() -> ModuleType:
    """tests/hub/gguf_files.py."""
    return _by_name("gguf_files")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HF_HOME and LOCALLLM_HOME; no other variable that matters is set. The cache is `hub` in it."""
    for name in list(os.environ):
        if name.startswith(READ) or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "localllm"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return folder


@pytest.fixture
def hub(hub_server: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An empty HubServer, which HF_ENDPOINT names."""
    with hub_server.HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


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
