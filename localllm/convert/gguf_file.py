"""GGUF files by the package gguf: written tensor by tensor, with the tokenizer of another file."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localllm.convert.checkpoint import Floats
from localllm.errors import UnsupportedModelError
from localllm.hub.gguf import Header, LongArray

if TYPE_CHECKING:
    from gguf import GGUFWriter, ReaderField

TOKENIZER = "tokenizer."
#: Of all arrays of a file together. The package takes a kilobyte of memory and some microseconds for each entry; the largest
#: vocabularies have 1.3 million with their merges.
MAX_ENTRIES = 1 << 21


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        name: str.
        shape: tuple of int, in PyTorch's order (fastest last).
        type: str, "F32", "F16" or "BF16".
        values: gives them when they are wanted, of any shape with as many.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    values: Callable[[], Floats]

    @property
    def dtype(self) -> np.dtype[Any]:
        from ml_dtypes import bfloat16

        kinds: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": bfloat16}
        return np.dtype(kinds[self.type])

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class NewFile:
    """A file to be written: `writer` has its keys."""

    writer: GGUFWriter
    tensors: Sequence[NewTensor]


class _Written(np.ndarray[Any, Any]):
    """An array that says when a disk is full. numpy's own writes through a buffer whose end may be lost without an error."""

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        fid.write(self.view(np.ndarray).view(np.uint8).data)


def write_file(file: NewFile, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Writes a file.

    Args:
        file: NewFile, of which nothing is written yet.
        path: Path.
        progress: is told how many bytes of tensors are written, and of how many.

    Raises:
        OSError: It cannot be written.
        Exception: What reading a tensor's values raises.
    """
    from gguf import GGMLQuantizationType

    writer = file.writer
    for tensor in file.tensors:
        kind = GGMLQuantizationType[tensor.type]
        writer.add_tensor_info(tensor.name, tensor.shape, tensor.dtype, tensor.n_bytes, kind)
    done, total = 0, sum(tensor.n_bytes for tensor in file.tensors)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in file.tensors:
            values: NDArray[Any] = np.ascontiguousarray(tensor.values(), tensor.dtype)
            writer.write_tensor_data(values.reshape(-1).view(_Written))
            done += values.nbytes
            if progress is not None:
                progress(done, total)
    finally:
        writer.close()


def add_tokenizer(writer: GGUFWriter, header: Header, *, but: Collection[str] = ()) -> None:
    """Gives a new file the tokenizer of another one.

    Args:
        writer: of the new file.
        header: of the other file, or the first one of its set.
        but: keys to leave out.

    Raises:
        UnsupportedModelError: The other file is sound, but the package gguf cannot read it, or not write what it has.
        OSError: It cannot be read any more.
    """
    from gguf import GGUFReader, GGUFValueType

    n_entries = sum(_length(value) for value in header.metadata.values())
    if n_entries > MAX_ENTRIES:
        raise UnsupportedModelError(
            f"{header.path}: its arrays have {n_entries:,} entries, more than the {MAX_ENTRIES:,} of any known"
        )
    try:
        fields = GGUFReader(header.path).fields
    except (ValueError, LookupError, ArithmeticError) as error:
        reason = f"the package gguf cannot read it ({error}); pip install --upgrade gguf"
        raise UnsupportedModelError(f"{header.path}: {reason}") from error
    for key, field in fields.items():
        if not key.startswith(TOKENIZER) or key in but:
            continue
        if field.types == [GGUFValueType.ARRAY]:
            raise UnsupportedModelError(f"{header.path}: {key} is an array of nothing, which the package gguf does not write")
        writer.add_key_value(key, _value(field), *field.types)


def _value(field: ReaderField) -> Any:
    """Texts as bytes: a token need not be UTF-8."""
    from gguf import GGUFValueType

    if field.types[-1] is not GGUFValueType.STRING:
        return field.contents()
    texts = [field.parts[at].tobytes() for at in field.data]
    return texts if field.types[0] is GGUFValueType.ARRAY else texts[0]


def _length(value: Any) -> int:
    return value.length if isinstance(value, LongArray) else len(value) if isinstance(value, tuple) else 0
