"""What models and contexts take of each device's memory, before and after they are loaded, and what llama.cpp puts where."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from typing import Any

from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Context, Owned
from localllm.native.library import Native


@dataclass(frozen=True)
class BufferUse:
    """Memory of one kind.

    Attributes:
        buffer: str, llama.cpp's name of the kind, e.g. "CPU_Mapped".
        device: str, "" if it belongs to none.
        is_host: bool, it lies in the machine's own memory.
        model_bytes, context_bytes, compute_bytes: int, weights; caches and states; scratch memory.
    """

    buffer: str
    device: str
    is_host: bool
    model_bytes: int
    context_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.context_bytes + self.compute_bytes


@dataclass(frozen=True)
class Device:
    """A device that a model uses besides the CPU.

    Attributes:
        name: str.
        is_gpu: bool, it has memory of its own, or at least a limit.
        free_bytes, total_bytes: int.
    """

    name: str
    is_gpu: bool
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """What a model and a context take together.

    Attributes:
        buffers: BufferUse of each kind.
        output_bytes: int, rows of logits and vectors that are handed out, on the host.
        n_ctx: int, cells of the context.
        n_ctx_train: int, the length that the model was trained for; 0 where it was not asked for.
        devices: Devices of the model.
    """

    buffers: tuple[BufferUse, ...]
    output_bytes: int
    n_ctx: int
    n_ctx_train: int = 0
    devices: tuple[Device, ...] = ()

    @property
    def model_bytes(self) -> int:
        return sum(use.model_bytes for use in self.buffers)

    @property
    def context_bytes(self) -> int:
        """Caches and states."""
        return sum(use.context_bytes for use in self.buffers)

    @property
    def compute_bytes(self) -> int:
        """Scratch memory and outputs."""
        return sum(use.compute_bytes for use in self.buffers) + self.output_bytes

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.context_bytes + self.compute_bytes

    def on(self, device: str) -> int:
        """Bytes on a device that is not the machine's own memory."""
        return sum(use.total_bytes for use in self.buffers if use.device == device and not use.is_host)

    @property
    def host_bytes(self) -> int:
        """Bytes in the machine's own memory."""
        return sum(use.total_bytes for use in self.buffers if use.is_host) + self.output_bytes

    @property
    def host_weights_bytes(self) -> int:
        """Of these, the weights."""
        return sum(use.model_bytes for use in self.buffers if use.is_host)


def with_draft(target: MemoryUse, draft: MemoryUse, *, own_weights: bool) -> MemoryUse:
    """What a context takes together with that of its draft, which counts as a part of the context.

    Args:
        target, draft: MemoryUse.
        own_weights: bool, the draft's weights are a file's of its own, and not among the target's.
    """
    parts = tuple(
        replace(one, model_bytes=0, context_bytes=one.context_bytes + (one.model_bytes if own_weights else 0))
        for one in draft.buffers
    )
    return replace(target, buffers=target.buffers + parts, output_bytes=target.output_bytes + draft.output_bytes)


def memory_of(context: Context) -> MemoryUse:
    """What a context and its model take. Nothing may compute with it meanwhile.

    Raises:
        ClosedError: It is closed.
    """
    return _parsed(context.native.json_call("lm_memory_of", context.pointer))


def measure(native: Native, path: str, model: llama_h.llama_model_params, context: llama_h.llama_context_params) -> MemoryUse:
    """What a model and a context would take, by llama.cpp itself; of the file only the header is read.

    Args:
        native: Native.
        path: str, a GGUF file; what follows its header may be a hole.
        model: llama_model_params.
        context: llama_context_params.

    Raises:
        ModelError: llama.cpp refuses the file or the options; the message holds its reason.
    """
    try:
        arguments = (os.fsencode(path), ctypes.byref(model), ctypes.byref(context))
        return _parsed(native.json_call("lm_memory_measure", *arguments, prefix=path))
    finally:
        logs.forward(native)


def _parsed(found: dict[str, Any]) -> MemoryUse:
    return MemoryUse(
        buffers=tuple(BufferUse(**entry) for entry in found["buffers"]),
        output_bytes=found["output_bytes"],
        n_ctx=found["n_ctx"],
        n_ctx_train=found.get("n_ctx_train", 0),
        devices=tuple(Device(**entry) for entry in found.get("devices", ())),
    )


class Fit:
    """An lm_fit: llama.cpp's choice of layers, shares and context for the memory that its devices have now.

    Only what has llama.cpp's default value is chosen. Loading waits meanwhile, in all threads.

    Args:
        native: Native.
        path: str, a GGUF file.
        model: llama_model_params.
        context: llama_context_params; an n_ctx of 0 is chosen, too.
        margin_bytes: int, what stays free on every device.
        n_ctx_min: int, fewer tokens are never chosen.

    Attributes:
        fits: bool, llama.cpp found something that leaves the margin.
        n_ctx: int, tokens.
        n_gpu_layers: int, negative for all.

    Raises:
        ModelError: llama.cpp refuses the file or the options.
    """

    def __init__(
        self,
        native: Native,
        path: str,
        model: llama_h.llama_model_params,
        context: llama_h.llama_context_params,
        *,
        margin_bytes: int,
        n_ctx_min: int,
    ) -> None:
        self.native = native
        out = localllm_h.lm_fit_p()
        arguments = (os.fsencode(path), ctypes.byref(model), ctypes.byref(context), margin_bytes, n_ctx_min)
        try:
            native.check(native.lm_fit_create(*arguments, ctypes.byref(out)), path)
        finally:
            logs.forward(native)
        assert out.value is not None
        self._owned = Owned(self, out.value, native.lm_fit_free, "fit", at_exit=False)
        info = native.json_call("lm_fit_info", self._owned.pointer)
        self.fits: bool = info["fits"]
        self.n_ctx: int = info["n_ctx"]
        self.n_gpu_layers: int = info["n_gpu_layers"]
        self.overrides: tuple[tuple[str, str], ...] = tuple((pattern, buffer) for pattern, buffer in info["overrides"])

    def apply(self, model: llama_h.llama_model_params, context: llama_h.llama_context_params) -> None:
        """Writes the choice into parameters; the Fit has to live until the model is loaded."""
        self.native.check(self.native.lm_fit_apply(self._owned.pointer, ctypes.byref(model), ctypes.byref(context)))

    def close(self) -> None:
        self._owned.close()
