"""The adapters of one engine: files to native objects, each loaded once, known by what is in it."""

from __future__ import annotations

import errno
import hashlib
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localllm.engine.steering import UNSTEERED, ControlVector, Lora, Steering, steering_of
from localllm.errors import InvalidRequestError, LocalLLMError, ModelFileError, ModelNotFoundError
from localllm.native import handles
from localllm.native.handles import Context, Model

# What tells that a file has not changed: device, inode, size, time of its last change.
_Identity = tuple[int, int, int, int]


class Adapters:
    """LoRA adapters and control vectors of a model, and which of them act on its context.

    What was loaded once is there for every later request of the engine.

    Args:
        model: Model.
        on_thread: runs a function on the engine's thread, one after the other, and waits for its end.
    """

    def __init__(self, model: Model, on_thread: Callable[[Callable[[], None]], None]) -> None:
        self._model = model
        self._on_thread = on_thread
        self._lock = threading.Lock()
        self._files: dict[str, tuple[_Identity, bytes]] = {}
        self._loras: dict[bytes, handles.Lora] = {}
        self._controls: dict[bytes, Any] = {}
        self._acting: tuple[Context | None, bytes] = (None, b"")

    def __len__(self) -> int:
        return len(self._loras) + len(self._controls)

    def steering(self, loras: tuple[Lora, ...], controls: tuple[ControlVector, ...]) -> Steering:
        """What adapters do to the model. Loads those that are not loaded yet; callable from any thread, and may take a while.

        Raises:
            ModelNotFoundError: There is no such file.
            ModelError: A file cannot be used, or not with this model. The message names the file and the reason.
            InvalidRequestError: A control vector acts on layers that the model does not have.
        """
        wanted = [lora for lora in loras if lora.scale], [control for control in controls if control.scale]
        if not any(wanted):
            return UNSTEERED
        ranges = [self._layers(control) for control in wanted[1]]
        return steering_of(
            [(self._lora(lora.path), lora.scale) for lora in wanted[0]],
            [(self._control(control.path), control.scale, *layers) for control, layers in zip(wanted[1], ranges, strict=True)],
        )

    def act(self, context: Context, steering: Steering) -> None:
        """Puts a steering on a context, if another one is there. On the engine's thread.

        Raises:
            NativeError: llama.cpp could not; the context cannot be relied on.
        """
        known, key = self._acting
        if steering.key == (key if known is context else b""):
            return
        # Whatever becomes of the call, the context is not what it was.
        self._acting = (context, b"?")
        context.steer(
            [(self._loras[file], scale) for file, scale in steering.loras],
            [(self._controls[file], scale, first, last) for file, scale, first, last in steering.controls],
        )
        self._acting = (context, steering.key)

    def close(self) -> None:
        """Frees what was loaded, as the model may live on. No context may be left."""
        for lora in self._loras.values() if not self._model.closed else ():
            lora.discard()
        self._loras.clear()
        self._controls.clear()

    # ---- inside

    def _lora(self, path: str) -> bytes:
        """The fingerprint of a LoRA adapter, which is loaded then."""
        file = _identity("loras", path)
        known = self._known(path, file, self._loras)
        if known is not None:
            return known
        digest = _fingerprint(path)
        if digest not in self._loras:
            # Reads all of it: not while others wait for their tokens.
            self._model.check_lora(path)
            self._on_thread(lambda: self._load(path, file, digest))
        self._remember(path, file, digest)
        return digest

    def _load(self, path: str, file: _Identity, digest: bytes) -> None:
        # Two requests may have come for the same file; here they are one behind the other.
        if digest in self._loras:
            return
        lora = handles.Lora(self._model, path)
        if _identity("loras", path) != file:
            lora.discard()
            raise _changed(path)
        self._loras[digest] = lora

    def _control(self, path: str) -> bytes:
        """The fingerprint of a control vector, which is loaded then."""
        file = _identity("control_vectors", path)
        known = self._known(path, file, self._controls)
        if known is not None:
            return known
        digest = _fingerprint(path)
        if digest not in self._controls:
            if not self._controls:
                self._on_thread(self._model.check_control)
            data = self._model.control_vector(path)
            if _identity("control_vectors", path) != file:
                raise _changed(path)
            self._controls[digest] = data
        self._remember(path, file, digest)
        return digest

    def _known(self, path: str, file: _Identity, loaded: dict[bytes, Any]) -> bytes | None:
        with self._lock:
            identity, digest = self._files.get(path, (None, b""))
        return digest if identity == file and digest in loaded else None

    def _remember(self, path: str, file: _Identity, digest: bytes) -> None:
        with self._lock:
            self._files[path] = (file, digest)

    def _layers(self, control: ControlVector) -> tuple[int, int]:
        last = self._model.n_layer - 1
        for name, layer in (("layer_first", control.layer_first), ("layer_last", control.layer_last)):
            if layer is not None and layer > last:
                raise InvalidRequestError(f"control_vectors: {name} {layer} is beyond {last}, the last layer that can be steered")
        return control.layer_first or 1, control.layer_last or last


def _identity(option: str, path: str) -> _Identity:
    try:
        found = Path(path).stat()
    except FileNotFoundError as error:
        raise ModelNotFoundError(errno.ENOENT, f"{option}: no such file", path) from error
    except OSError as error:
        raise ModelFileError(error.errno, f"{option}: {error.strerror or 'cannot be read'}", path) from error
    if not stat.S_ISREG(found.st_mode):
        raise ModelFileError(errno.EINVAL, f"{option}: not a regular file", path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fingerprint(path: str) -> bytes:
    """32 bytes that stand for a file's content."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        with Path(path).open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or "cannot be read", path) from error
    return digest.digest()


def _changed(path: str) -> LocalLLMError:
    return ModelFileError(errno.EAGAIN, "changed while it was being loaded; ask again", path)
