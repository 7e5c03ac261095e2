"""Writing a version of a model that was planned: as a whole or not at all, and never over another file.

The file says in its metadata what it came from: localllm.parent.name, .sha256 (of the file, or of all files of a set one after
the other) and .types.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import localllm
from localllm.errors import DiskSpaceError, LocalLLMError, ModelFileError, NativeError
from localllm.files import publish, require_new
from localllm.hub.gguf import Header, read_header, read_model
from localllm.hub.inventory import PARENT
from localllm.hub.unfinished import OPTIMIZING, unfinished
from localllm.optimize.planning import OptimizePlan

#: Is told how many bytes are written, and of how many.
OptimizeProgress = Callable[[int, int], None]

_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_POLL_SECONDS = 0.1
_MAX_VALUE_BYTES = 127  # llama_model_kv_override.val_str


def optimize(plan: OptimizePlan, output: str | os.PathLike[str] | None = None, progress: OptimizeProgress | None = None) -> Path:
    """Writes what was planned. An interruption, as by Ctrl-C, or a failure leaves nothing behind; what a killed program has left
    in the folder goes before.

    Args:
        plan: OptimizePlan.
        output: a file that does not exist yet; None: `plan.default_output`.
        progress: called about ten times a second; what it raises ends the writing, and is passed on.

    Returns:
        Path of the file.

    Raises:
        InvalidRequestError: There is something at `output` already.
        DiskSpaceError: It would not fit on the disk.
        ModelFileError: The file cannot be written, or the source has changed since it was planned.
        NativeError: llama.cpp failed.
    """
    target = Path(output) if output is not None else plan.default_output
    require_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target.parent, OPTIMIZING) as temporary:
            _require_room(target, plan.expected_bytes)
            _require_same(plan)
            try:
                _write(plan, temporary, progress)
            except NativeError as error:
                left = plan.expected_bytes - _size(temporary)
                if shutil.disk_usage(target.parent).free < left:  # all that llama.cpp says is that its stream has failed
                    raise _no_room(target, left) from error
                raise
            _verify(plan, temporary)
            publish(temporary, target)
    except LocalLLMError:
        raise
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or str(error), str(target)) from error
    return target


def _require_room(target: Path, n_bytes: int) -> None:
    if shutil.disk_usage(target.parent).free < n_bytes + _MARGIN_BYTES:
        raise _no_room(target, n_bytes)


def _no_room(target: Path, n_bytes: int) -> DiskSpaceError:
    free = shutil.disk_usage(target.parent).free
    return DiskSpaceError(
        f"{target}: {n_bytes:,} bytes are to be written, and {free:,} are free; make room, or name a file on another disk",
        n_bytes,
        free,
    )


def _require_same(plan: OptimizePlan) -> None:
    now = read_model(plan.source)
    if (now.tensors, now.file_bytes) != (plan.header.tensors, plan.header.file_bytes):
        raise ModelFileError(None, "it has changed since it was planned; plan again", str(plan.source))


def _write(plan: OptimizePlan, temporary: Path, progress: OptimizeProgress | None) -> None:
    """Lets llama.cpp write on a thread of its own, so that this one hears of Ctrl-C."""
    from localllm.native import logs
    from localllm.native.library import load

    native = load()
    abort = ctypes.c_int32(0)
    done = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            if metadata := _parent(plan, abort):
                arguments = (os.fsencode(plan.source), os.fsencode(temporary), plan.type.encode(), plan.n_threads)
                native.check(native.lm_quantize(*arguments, json.dumps(metadata).encode(), ctypes.byref(abort)), str(plan.source))
        except Exception as error:  # raised again in the thread that waits
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, name="localllm-optimize", daemon=True)
    thread.start()
    try:
        while not done.wait(_POLL_SECONDS):
            if progress is not None:
                progress(min(_size(temporary), plan.expected_bytes), plan.expected_bytes)
    finally:
        abort.value = 1
        thread.join()
        logs.forward(native)
    if failures:
        raise failures[0]
    if progress is not None:
        progress(plan.expected_bytes, plan.expected_bytes)


def _parent(plan: OptimizePlan, abort: ctypes.c_int32) -> dict[str, str]:
    """What the new file says of its source; empty if it was aborted."""
    digest = hashlib.sha256()
    for file in _files(plan):
        with file.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                if abort.value:
                    return {}
                digest.update(chunk)
    name = plan.source.name.encode(errors="replace")[:_MAX_VALUE_BYTES].decode(errors="ignore")
    return {
        "localllm.version": localllm.__version__,
        PARENT: name,
        "localllm.parent.sha256": digest.hexdigest(),
        "localllm.parent.types": ",".join(plan.header.tensor_types)[:_MAX_VALUE_BYTES],
    }


def _files(plan: OptimizePlan) -> list[Path]:
    count = plan.header.n_files
    if count == 1:
        return [plan.source]
    head = plan.source.name[: -len("-00001-of-00001.gguf")]
    return [plan.source.with_name(f"{head}-{at:05d}-of-{count:05d}{plan.source.suffix}") for at in range(1, count + 1)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _verify(plan: OptimizePlan, temporary: Path) -> None:
    if _described(read_header(temporary)) != _described(plan.result):
        raise ModelFileError(None, "llama.cpp has written other tensors than planned; please report this", str(plan.source))


def _described(header: Header) -> dict[str, tuple[str, int, int]]:
    """The tensors, but for what writing may change: their order, and dimensions of 1 at the end of a shape."""
    return {tensor.name: (tensor.type, tensor.shape[0], tensor.n_elements) for tensor in header.tensors}
