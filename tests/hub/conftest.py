"""What tests of the model manager share beside tests/conftest.py."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localllm.hub.client import HubClient
from localllm.hub.manifest import Manifest
from localllm.hub.pull import pull
from localllm.hub.retries import Patience
from localllm.hub.store import Store

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


def gguf(name: str = "model", kind: str = "model", shard: tuple[int, int] = (0, 1), n_values: int = 4096) -> bytes:
    """A small GGUF file (version 3) of one tensor a file; another `name` makes another content."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def number(key: str, value: int, code: int = 4) -> bytes:
        return text(key) + struct.pack("<I", code) + struct.pack({4: "<I", 2: "<H", 5: "<i"}[code], value)

    def word(key: str, value: str) -> bytes:
        return text(key) + struct.pack("<I", 8) + text(value)

    pairs = [word("general.architecture", "clip" if kind == "projector" else "llama"), word("general.name", name)]
    if kind == "projector":
        pairs.append(number("clip.vision.projection_dim", 32))
    else:
        facts = {"block_count": 1, "embedding_length": 32, "attention.head_count": 2, "context_length": 256, "vocab_size": 64}
        pairs += [number(f"llama.{key}", value) for key, value in facts.items()]
        pairs += [number("llama.feed_forward_length", 64), word("tokenizer.chat_template", f"{{{{ messages }}}} {name}")]
    if shard[1] > 1:
        pairs += [number("split.no", shard[0], 2), number("split.count", shard[1], 2), number("split.tensors.count", shard[1], 5)]
    tensor = text(f"blk.0.ffn_{shard[0]}.weight") + struct.pack("<IQQIQ", 2, 32, n_values // 32, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    data = random.Random(f"{name} {shard}").randbytes(4 * n_values)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture(scope="session", name="gguf")
def gguf_fixture() -> Callable[..., bytes]:
    """`gguf(name, kind, shard, n_values)`: the bytes of a small model, projector or shard."""
    return gguf


@pytest.fixture
def store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; its records are in `own/models`, and Ollama's store is empty, too."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return Store(tmp_path / "own/models", home / "hub")


@pytest.fixture
def pulled(client: HubClient, store: Store) -> Callable[..., Manifest]:
    """`pulled("org/model:Q4_0")`: the record of a model that was pulled from the server."""

    def pulled(reference: str, **options: object) -> Manifest:
        return pull(reference, client=client, store=store, **options).manifest

    return pulled
