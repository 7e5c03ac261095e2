"""Checkpoints as the Hub has them: config.json, and weights in one file of safetensors or in several with an index.

Which bytes are which tensor's is for the package safetensors to find and to check.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localllm.errors import ModelFileError, UnsupportedModelError

MAX_JSON_BYTES = 64 << 20
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
#: What values may be stored as.
DTYPES = ("F32", "F16", "BF16", "F64")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file of safetensors, which `file` holds open. `shape` in PyTorch's order (fastest last)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    file: Any = field(repr=False, compare=False)

    def read(self) -> Floats:
        """Its values in 32 bits.

        Raises:
            UnsupportedModelError: They are of a type other than floats of 16, 32 or 64 bits.
            ModelFileError: The file cannot be read any more, or has become shorter.
        """
        from safetensors import SafetensorError

        if self.dtype not in DTYPES:
            raise UnsupportedModelError(f"{self.path}: {self.name} is {self.dtype}; convert a checkpoint of {', '.join(DTYPES)}")
        try:
            values: NDArray[Any] = self.file.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise damaged(self.path, f"{self.name} cannot be read ({error})") from error
        return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a model: `config` is config.json, `tensors` the weights by name."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def damaged(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(errno.EINVAL, reason, str(path))


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads what a checkpoint consists of, no weights.

    Args:
        folder: Path, with config.json and model.safetensors, or several files and an index.

    Raises:
        ModelFileError: A file is missing or damaged; the message names it.
    """
    config = _object(folder / CONFIG)
    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists() and (folder / INDEX).exists():
        weight_map = _object(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise damaged(folder / INDEX, "it has no weight_map of file names")
        names = sorted(set(weight_map.values()))
        if any(Path(name).name != name or name in ("", "..") for name in names):
            raise damaged(folder / INDEX, "it names a file outside of its folder")
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        for tensor in _stored(folder / name):
            if tensor.name in tensors:
                raise damaged(tensor.path, f"{tensor.name} is in {tensors[tensor.name].path.name} as well")
            tensors[tensor.name] = tensor
    return Checkpoint(folder, config, tensors)


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; none of ours is larger than a vocabulary."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > MAX_JSON_BYTES:
        raise damaged(path, f"it is longer than {MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise damaged(path, "it is no JSON object")
    return value


def _stored(path: Path) -> list[StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        path.open("rb").close()  # the library's errors have no number
        # Not mapped: a file that another program cuts short, or a network that goes away, would end the process.
        file: Any = safe_open(path, framework="numpy", backend="pread")
    except SafetensorError as error:
        raise damaged(path, f"it is no sound file of safetensors ({error})") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    parts = {name: file.get_slice(name) for name in file.offset_keys()}
    return [StoredTensor(name, part.get_dtype(), tuple(part.get_shape()), path, file) for name, part in parts.items()]


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError(error.errno, error.strerror or str(error), str(path))
