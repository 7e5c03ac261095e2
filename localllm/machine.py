"""What this machine computes how fast: measured once through the native library, and kept in the user's folder.

The file depends on the CPU, what the library was compiled for, its version and the number of threads; where one of them changes,
everything is measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import localllm
from localllm.errors import InvalidRequestError, NativeLibraryError, StateError
from localllm.files import write_atomically
from localllm.hub import here
from localllm.hub.catalog import home
from localllm.hub.choose import Machine
from localllm.hub.speed import Rates, TypeRate

logger = logging.getLogger("localllm.machine")

_FOLDER = "machine"
_GPU_MARGIN_BYTES = 1 << 30  # common_params::fit_params_target of the pinned source
_MAX_THREADS = 512  # as lm_speed_matrix has it
_ROUNDS = 2  # the better of two that are some seconds apart: what else runs on a machine comes and goes
_STAT = Path("/proc/stat")
_QUIET_CPUS = 0.25
_PATIENCE_SECONDS = 60  # for another process that is measuring: two at once would measure each other

#: Is told how many measurements are done, and of how many.
RatesProgress = Callable[[int, int], None]


def rates(*, n_threads: int | None = None, refresh: bool = False, progress: RatesProgress | None = None) -> Rates:
    """How fast this machine's CPU multiplies with each tensor type. Measures for about ten seconds, the first time only.

    Args:
        n_threads: int, threads to compute with; None or 0: one per physical core.
        refresh: bool, measure again.
        progress: called while it measures.

    Returns:
        Rates.

    Raises:
        InvalidRequestError: `n_threads` is not an integer from 0 to 512.
        NativeLibraryError: The native libraries cannot be used.
        NativeError: A computation failed.
    """
    threads = _threads(n_threads)
    key = _key(threads)
    path = _path(key)
    if not refresh and (found := _read(path, key)):
        return found
    with _alone(path):
        # Somebody else may have measured while we waited.
        if not refresh and (found := _read(path, key)):
            return found
        busy, begin = others_seconds(), time.monotonic()
        measured = _measure(threads, str(key["cpu"]), progress)
        others = (others_seconds() - busy) / (time.monotonic() - begin)
        if others > _QUIET_CPUS:
            logger.warning(
                "rates were measured while other programs kept %.1f CPUs busy, and are too low: measure again in a quiet moment",
                others,
            )
        _write(path, key, measured)
        return measured


def known_rates(n_threads: int | None = None) -> Rates | None:
    """What `rates` has measured before; None if it has not. Raises as `rates` does."""
    key = _key(_threads(n_threads))
    return _read(_path(key), key)


def this_machine() -> Machine:
    """The machine as a model finds it now, with its GPUs, if the native libraries can be used; without them it has none.

    A GPU keeps 1 GiB free, llama.cpp's own default for fitting. Integrated ones have the machine's memory, which counts once.
    """
    from localllm.native.library import load

    found = here.this_machine()
    try:
        devices = load().json_call("lm_devices")
    except NativeLibraryError as error:
        logger.info("no GPU is seen, as the native libraries cannot be used: %s", error)
        return found
    free = [max(0, one["memory_free_bytes"] - _GPU_MARGIN_BYTES) for one in devices if one["type"] == "gpu"]
    on_cpu = not any(one["type"] in ("gpu", "igpu") for one in devices)
    return dataclasses.replace(found, on_cpu=on_cpu, repacked=repacked_types() if on_cpu else frozenset(), gpu_bytes=sum(free))


def repacked_types() -> frozenset[str]:
    """The tensor types that llama.cpp repacks on this CPU, as the library says; nothing is measured.

    Raises:
        NativeLibraryError: The native libraries cannot be used.
    """
    from localllm.native.library import load

    return frozenset(entry["type"] for entry in load().json_call("lm_speed_types") if entry["repacked"])


def others_seconds() -> float:
    """CPU seconds that other processes have used since the machine started; 0.0 where the kernel does not tell."""
    try:
        # proc(5)
        user, nice, system, _, _, irq, softirq = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:8])
    except (OSError, ValueError):
        return 0.0
    own = os.times()
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def _threads(n_threads: int | None) -> int:
    from localllm.engine import checks
    from localllm.engine.threads import default_threads

    threads = 0 if n_threads is None else checks.whole("n_threads", n_threads, least=0)
    if threads > _MAX_THREADS:
        raise InvalidRequestError(f"n_threads: {checks.shown(n_threads)} is not an integer from 0 to {_MAX_THREADS}")
    return threads or default_threads()


def _path(key: dict[str, Any]) -> Path:
    return home() / _FOLDER / f"rates-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"


def _key(threads: int) -> dict[str, Any]:
    from localllm.native.library import load

    native = load()
    build = native.json_call("lm_build_info")
    cpus = [device["description"] for device in native.json_call("lm_devices") if device["type"] == "cpu"]
    return {
        "cpu": " ".join(cpus),
        "features": " ".join(build["system_info"].split()),
        "threads": threads,
        "localllm": localllm.__version__,
        "abi": build["abi"],
        "llama.cpp": build["llama_commit"],
    }


def _measure(threads: int, cpu: str, progress: RatesProgress | None) -> Rates:
    from localllm.native import logs
    from localllm.native.library import load

    native = load()
    names = [entry["type"] for entry in native.json_call("lm_speed_types")]
    n_all = _ROUNDS * (len(names) + 1)
    n_done = 0

    def call(function: str, *arguments: Any) -> dict[str, Any]:
        nonlocal n_done
        result: dict[str, Any] = native.json_call(function, *arguments, threads)
        n_done += 1
        if progress is not None:
            progress(n_done, n_all)
        return result

    types: dict[str, TypeRate] = {}
    layer: dict[str, float] = {}
    try:
        for _ in range(_ROUNDS):
            for name in names:
                types[name] = _better(types.get(name), call("lm_speed_matrix", name.encode()))
            times = call("lm_speed_layer")
            layer = {key: min(seconds, layer.get(key, seconds)) for key, seconds in times.items()}
    finally:
        logs.forward(native)
    return Rates(types=tuple(types.values()), n_threads=threads, cpu=cpu, **layer)


def _better(before: TypeRate | None, now: dict[str, Any]) -> TypeRate:
    flops, n_bytes = now["flops_per_second"], now["bytes_per_second"]
    if before is not None:
        flops, n_bytes = max(flops, before.flops_per_second), max(n_bytes, before.bytes_per_second)
    return TypeRate(now["type"], now["repacked"], flops, n_bytes)


def _read(path: Path, key: dict[str, Any]) -> Rates | None:
    """What was measured before; None if nothing was, or if the file is damaged."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if not isinstance(data, dict) or data.get("key") != key:
            raise StateError("it belongs to another machine or another version")
        return Rates.from_json(json.dumps(data.get("rates")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:  # a StateError is a ValueError
        logger.warning("%s: measured again, because the file cannot be used: %s", path, error)
        return None


def _write(path: Path, key: dict[str, Any], measured: Rates) -> None:
    data = {"key": key, "rates": json.loads(measured.to_json())}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(data, indent=2).encode(), sync=True)
    except OSError as error:
        logger.warning("%s: not kept, so it is measured again next time: %s", path, error)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes of this user from measuring at the same time, where that can be done."""
    from filelock import FileLock

    lock = FileLock(f"{path}.lock", timeout=_PATIENCE_SECONDS)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:  # a TimeoutError is one
        logger.info("%s: measuring beside others: %s", path, error)
    try:
        yield
    finally:
        lock.release()
