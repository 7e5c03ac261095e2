"""What changes a model for one request: LoRA adapters and control vectors. Pure data."""

from __future__ import annotations

import functools
import hashlib
import numbers
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.engine import checks
from localllm.errors import InvalidRequestError


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter for one request.

    Args:
        path: str or PathLike, a GGUF file made for this model (llama.cpp's convert_lora_to_gguf.py).
        scale: float, its strength: the weights change by scale * alpha / rank * B @ A; 0 leaves the adapter out, 1 is as trained.

    Raises:
        InvalidRequestError: The path is none, or the scale is no finite number.
    """

    path: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path("loras", self.path))
        object.__setattr__(self, "scale", _scale("loras", self.scale))


@dataclass(frozen=True)
class ControlVector:
    """A control vector for one request: directions that are added to the hidden states after each layer (arXiv:2312.06681).

    Args:
        path: str or PathLike, a GGUF file made for this model (llama.cpp's cvector-generator).
        scale: float, its strength, negative for the opposite direction; 0 leaves it out.
        layer_first, layer_last: int, the layers that it acts on, both included, from 1; None: from the first, to the last.

    Raises:
        InvalidRequestError: The path is none, the scale is no finite number, or the layers are no range.
    """

    path: str
    scale: float = 1.0
    layer_first: int | None = None
    layer_last: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path("control_vectors", self.path))
        object.__setattr__(self, "scale", _scale("control_vectors", self.scale))
        for name in ("layer_first", "layer_last"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise InvalidRequestError(f"control_vectors: {name} must be a layer from 1 on, or None, not {value!r}")
            object.__setattr__(self, name, int(value))
        if self.layer_first is not None and self.layer_last is not None and self.layer_first > self.layer_last:
            raise InvalidRequestError(f"control_vectors: layer_first {self.layer_first} is behind layer_last {self.layer_last}")


@dataclass(frozen=True)
class Steering:
    """All that a request changes about the model, by content: equal ones compute equal states, so they may share them.

    Attributes:
        loras: (fingerprint of the file, scale), sorted, no scale of 0.
        controls: (fingerprint of the file, scale, first layer, last layer), sorted, no scale of 0.
    """

    loras: tuple[tuple[bytes, float], ...] = ()
    controls: tuple[tuple[bytes, float, int, int], ...] = ()

    @functools.cached_property
    def key(self) -> bytes:
        """32 bytes that stand for it; b"" if it changes nothing."""
        if not self.loras and not self.controls:
            return b""
        digest = hashlib.blake2b(struct.pack("<I", len(self.loras)), digest_size=32)
        for file, scale in self.loras:
            digest.update(file + struct.pack("<f", scale))
        for file, scale, first, last in self.controls:
            digest.update(file + struct.pack("<fII", scale, first, last))
        return digest.digest()


UNSTEERED = Steering()


def steering_of(loras: Iterable[tuple[bytes, float]], controls: Iterable[tuple[bytes, float, int, int]]) -> Steering:
    """The steering by adapters in any order. The same one twice acts twice: its scales add up."""
    lora_scales: dict[bytes, float] = {}
    for file, scale in loras:
        lora_scales[file] = lora_scales.get(file, 0.0) + scale
    control_scales: dict[tuple[bytes, int, int], float] = {}
    for file, scale, first, last in controls:
        control_scales[file, first, last] = control_scales.get((file, first, last), 0.0) + scale
    return Steering(
        tuple(sorted((file, single(scale)) for file, scale in lora_scales.items() if single(scale))),
        tuple(
            sorted((file, single(scale), first, last) for (file, first, last), scale in control_scales.items() if single(scale))
        ),
    )


def single(scale: float) -> float:
    """A number in the single precision that llama.cpp computes with."""
    value: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    return value


def adapters(name: str, value: Any, kind: type[Any]) -> tuple[Any, ...]:
    """An option's value as Loras or ControlVectors.

    Args:
        name: str, the option's name for messages: "loras" or "control_vectors".
        value: list of paths, (path, scale) pairs, or `kind` itself; None: none.
        kind: Lora or ControlVector.

    Raises:
        InvalidRequestError: An item is none of these.
    """
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InvalidRequestError(f"{name}: must be a list of paths or (path, scale) pairs, not {type(value).__name__}")
    if len(value) == 2 and isinstance(value[0], (str, os.PathLike)) and isinstance(value[1], numbers.Real):
        raise InvalidRequestError(f"{name}: one pair still goes into a list: [{tuple(value)!r}]")
    return tuple(_adapter(name, item, kind) for item in value)


def _adapter(name: str, item: Any, kind: type[Any]) -> Any:
    if isinstance(item, kind):
        return item
    if isinstance(item, (str, os.PathLike)):
        return kind(item)
    if isinstance(item, (list, tuple)) and len(item) == 2:
        return kind(*item)
    raise InvalidRequestError(f"{name}: {item!r} is no path, no (path, scale) pair and no {kind.__name__}")


def _path(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidRequestError(f"{name}: the path must be text or a path, not {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidRequestError(f"{name}: {text!r} is no path")
    return str(Path(text).expanduser())


def _scale(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequestError(f"{name}: the scale must be a number, not {value!r}")
    return checks.real(f"{name}: the scale", value)
