"""Fixtures that all tests share: tiny models built once per run, and the embedded one."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from localllm import ContextConfig, Delta, Embedder, Engine, Request
from localllm.engine.request import Event, TokenLogprob
from localllm.hub.resolve import resolve
from localllm.native.library import load

# How long an example takes says more about the machine than about the code.
settings.register_profile("localllm", settings.default, deadline=None)
settings.load_profile("localllm")


HERE = Path(__file__).parent
TRAINED = HERE / "models" / "trained"


# Everything that huggingface_hub or we read from the environment, and what would lead requests off this machine.
READ = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "LOCALLLM_HOME", "REQUESTS_CA_BUNDLE", "SSL_CERT_")


@pytest.fixture(scope="session")
def rest() -> Callable[..., None]:
    """`rest(engine, ...)`: waits until none of them has anything to do."""

    def rest(*values: Engine | Embedder) -> None:
        for value in values:
            rested, before = threading.Event(), value.activity.worker.on_rest

            def note(rested: threading.Event = rested, before: Callable[[], None] | None = before) -> None:
                rested.set()
                if before is not None:
                    before()

            value.activity.on_rest(note)
            while not (value.closed or value.activity.resting):
                assert rested.wait(30), "it does not come to rest"
                rested.clear()
            value.activity.on_rest(before)

    return rest


def _by_path(path: Path) -> ModuleType:
    name = f"localllm_tests_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # data classes look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def nobody_elses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests, and the processes that they start, from the user's own models and from any network."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder / "huggingface"))
        patch.setenv("LOCALLLM_HOME", str(folder / "localllm"))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port for discarding, where nobody listens
        yield


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """tests/models/build.py."""
    return _by_path(HERE / "models" / "build.py")


@pytest.fixture(scope="session")
def makers() -> ModuleType:
    """tests/models/adapters.py."""
    return _by_path(HERE / "models" / "adapters.py")


@pytest.fixture(scope="session")
def models(builder: ModuleType) -> dict[str, Path]:
    """All tiny models with random weights, by name."""
    return builder.build_all()


@pytest.fixture(scope="session")
def numpy_bert() -> Callable[[Path], Any]:
    """tests/models/bert_numpy.py: the encoder of a file, computed independently."""
    return _by_path(HERE / "models" / "bert_numpy.py").Bert


@pytest.fixture(scope="session")
def hostile(builder: ModuleType) -> dict[str, Path]:
    """Damaged and malicious files, by name."""
    return builder.hostile()


@pytest.fixture(scope="session")
def trained() -> Path:
    """A tiny trained hybrid model with a multi-token-prediction head."""
    return TRAINED / "tiny-trained-qwen35.gguf"


@pytest.fixture(scope="session")
def lilicorr_maker() -> ModuleType:
    return _by_path(HERE / "models" / "lilicorr.py")


@pytest.fixture(scope="session")
def lilicorr_files(lilicorr_maker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, DFlash drafts and LiLiCorr heads for them, in every layout, by name."""
    files: dict[str, Path] = lilicorr_maker.build_all(tmp_path_factory.mktemp("lilicorr"))
    return files


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, the embedded model."""
    return resolve("smollm2")


@pytest.fixture(scope="session")
def faster_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2 in a type that CPUs multiply two to three times as fast as that of the embedded file. It words things otherwise."""
    path = tmp_path_factory.mktemp("faster") / "SmolLM2-135M-Instruct.Q4_0.gguf"
    native = load()
    native.check(native.lm_quantize(os.fsencode(smollm2), os.fsencode(path), b"Q4_0", 1, b"{}", None))
    yield path
    path.unlink()  # pytest keeps the folders of three runs


@pytest.fixture
def engine_for(models: dict[str, Path]) -> Any:
    """A function that opens an engine over a tiny model (name) or a file (path); all are closed after the test."""
    opened: list[Engine] = []

    def open_engine(model: str | Path, **context: Any) -> Engine:
        path = models[model] if isinstance(model, str) else model
        options = {"n_ctx": 512, "parallel": 4, "n_threads": 1, **context}
        engine = Engine(str(path), context=ContextConfig(**options))
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.close()


@pytest.fixture
def embedder_for(models: dict[str, Path]) -> Any:
    """A function that opens an embedder over a tiny model (name) or a file (path); all are closed after the test."""
    opened: list[Embedder] = []

    def open_embedder(model: str | Path, *, rank: bool = False, **context: Any) -> Embedder:
        path = models[model] if isinstance(model, str) else model
        options = {"n_ctx": 512, "n_threads": 1, **context}
        opened.append(Embedder(str(path), context=ContextConfig(**options), rank=rank))
        return opened[-1]

    yield open_embedder
    for embedder in opened:
        embedder.close()


@pytest.fixture(scope="session")
def qwen3(models: dict[str, Path]) -> Any:
    """An engine over the tiny dense model, shared by tests that do not change it."""
    with Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=512, parallel=4, n_threads=1)) as engine:
        yield engine


@pytest.fixture(scope="session")
def together() -> Callable[[Engine, list[Request]], list[list[Event]]]:
    """A function that submits requests all at once and gives the events of each when all have ended."""

    def submit(engine: Engine, requests: list[Request]) -> list[list[Event]]:
        events: list[list[Event]] = [[] for _ in requests]
        ended = [threading.Event() for _ in requests]

        def sink(place: int) -> Callable[[Event], None]:
            def put(event: Event) -> None:
                events[place].append(event)
                if not isinstance(event, Delta):
                    ended[place].set()

            return put

        for request in requests:
            engine._core.steering(request)  # adapters are loaded by the engine's thread, which must not wait for us then
        with engine._core._wake:  # the engine takes them in together, so the batches are the same each time
            for place, request in enumerate(requests):
                engine.submit(request, sink(place))
        assert all(event.wait(60) for event in ended)
        return events

    return submit


@pytest.fixture(scope="session")
def assert_same_greedy() -> Callable[[Sequence[TokenLogprob], Sequence[TokenLogprob]], None]:
    """A function that holds two greedy answers, with their most probable candidates, against each other.

    They must be the same but for the rounding of llama.cpp's kernels: those for one and for many tokens round differently. With
    random weights two tokens can be so close that this decides between them: there, and only there, the answers may part. Up to
    that place every log-probability must agree.
    """

    def compare(one: Sequence[TokenLogprob], other: Sequence[TokenLogprob]) -> None:
        for mine, theirs in zip(one, other, strict=True):
            assert abs(mine.logprob - theirs.logprob) < 0.02
            if mine.token != theirs.token:
                places = {top.token: top.logprob for top in mine.top}
                assert theirs.token in places and places[mine.token] - places[theirs.token] < 0.02
                return

    return compare


def _heed_permissions() -> None:
    """Gives up, for this thread, what lets root pass over the permissions of files (capabilities(7): CAP_DAC_*, CAP_FOWNER)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities from 32 on
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~0b1110
    sets[1] &= ~0b1110
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


@pytest.fixture(scope="session")
def frozen() -> Callable[[Path, Callable[[], object]], None]:
    """A function that calls another one while nothing in a folder can be written, not even by root."""

    def call(folder: Path, function: Callable[[], object]) -> None:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*")) if not path.is_symlink()}
        for path, mode in modes.items():
            path.chmod(mode & 0o555)
        try:
            with ThreadPoolExecutor(1, initializer=_heed_permissions if os.geteuid() == 0 else None) as pool:
                pool.submit(function).result()
        finally:
            for path, mode in modes.items():
                path.chmod(mode)

    return call


def _shown(terminal: int, pattern: str | None = None, seconds: float = 60) -> str:
    text, end = "", time.monotonic() + seconds
    while pattern is None or not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)):
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], f"{pattern!r} did not appear in {text!r}"
        try:
            text += os.read(terminal, 65536).decode("utf-8", "replace")
        except OSError:  # the other side is closed
            assert pattern is None, f"{pattern!r} did not appear in {text!r}"
            break
    return text


@pytest.fixture(scope="session")
def shown() -> Callable[..., str]:
    """`shown(terminal, pattern)`: what comes to a pseudoterminal until a pattern appears; without one, until all programs end."""
    return _shown


@pytest.fixture(scope="session")
def hub_server() -> ModuleType:
    """tests/hub/hub_server.py."""
    return _by_path(HERE / "hub" / "hub_server.py")


@pytest.fixture(scope="session")
def gguf_files() -> ModuleType:
    """tests/hub/gguf_files.py."""
    return _by_path(HERE / "hub" / "gguf_files.py")


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
