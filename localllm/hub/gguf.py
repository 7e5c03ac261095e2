"""Reads the header of a GGUF file: metadata and tensor table, no weights.

Format: the GGUF specification in ggml's repository (docs/gguf.md), versions 2 and 3, little-endian. The file is not trusted:
every count, length and offset is checked against the file's size before anything is read or allocated.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from localllm.errors import ModelFileError, ModelNotFoundError

MAX_METADATA_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 26
MAX_ARRAY_DEPTH = 4
KEPT_ARRAY_ITEMS = 64  # of longer arrays only the length is kept: a vocabulary is not a fact about a model

# Value types of metadata, by GGUF's numbers: struct format of the fixed-size ones.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml's tensor types: number -> (name, values per block, bytes per block). From ggml.h and ggml-common.h of the pinned source;
# a test compares them with the library.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip


@dataclass(frozen=True)
class LongArray:
    """An array of metadata that was counted but not kept."""

    length: int


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor table. `shape` in ggml's order (fastest first); offset from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    offset_bytes: int

    @property
    def n_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of one GGUF file, and the facts that follow from them."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset_bytes: int
    file_bytes: int
    _facts: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def get(self, suffix: str) -> Any:
        """A value of the architecture's own keys, e.g. `get("context_length")` for `llama.context_length`; None if missing."""
        return self.metadata.get(f"{self.architecture}.{suffix}")

    @property
    def architecture(self) -> str:
        return _text(self.metadata.get("general.architecture"))

    @property
    def name(self) -> str:
        return _text(self.metadata.get("general.name"))

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for; 0 if the file does not say."""
        return _count(self.get("context_length"))

    @property
    def embedding_length(self) -> int:
        return _count(self.get("embedding_length"))

    @property
    def block_count(self) -> int:
        return _count(self.get("block_count"))

    @property
    def vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, LongArray) else len(tokens or ())

    @property
    def chat_template(self) -> str:
        """Jinja text; "" if there is none."""
        return _text(self.metadata.get("tokenizer.chat_template"))

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the special tokens that the file names, e.g. {"bos": 1, "eos": 2}."""
        prefix, suffix = "tokenizer.ggml.", "_token_id"
        return {
            key[len(prefix) : -len(suffix)]: value
            for key, value in self.metadata.items()
            if key.startswith(prefix) and key.endswith(suffix) and isinstance(value, int)
        }

    @functools.cached_property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @functools.cached_property
    def n_tensor_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_tensor_bytes / self.n_parameters if self.n_parameters else 0.0

    @functools.cached_property
    def quantization(self) -> str:
        """The tensor type that holds most of the bytes, e.g. "Q4_K"."""
        by_type: Counter[str] = Counter()
        for tensor in self.tensors:
            by_type[tensor.type] += tensor.n_bytes
        return by_type.most_common(1)[0][0] if by_type else ""

    @functools.cached_property
    def kind(self) -> str:
        """What the file is for.

        "model", "vocabulary" (no tensors), "projector", "adapter", "control vector", "draft" or "other".
        """
        file_type = _text(self.metadata.get("general.type"))
        if self.architecture == "clip" or file_type == "mmproj":
            return "projector"
        if file_type == "adapter":
            return "adapter"
        if self.architecture == "controlvector":
            return "control vector"
        if self.architecture in ("eagle3", "dflash"):
            return "draft"
        if not self.architecture or file_type not in ("", "model"):
            return "other"
        split = _count(self.metadata.get("split.count")) > 1
        if not self.tensors:
            return "model" if split else "vocabulary"
        has_trunk = any(tensor.name.startswith("blk.0.") for tensor in self.tensors)
        if not split and not has_trunk and _count(self.get("nextn_predict_layers")) > 0:
            return "draft"
        return "model"


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads and checks the header of a GGUF file.

    Args:
        path: a file.

    Raises:
        ModelNotFoundError: There is no such file.
        ModelFileError: A directory, not readable, empty, not a GGUF, damaged, or shorter than its tensors.
    """
    name = os.fspath(path)
    try:
        if Path(name).is_dir():
            raise ModelFileError(errno.EISDIR, "is a directory; give the GGUF file in it", name)
        if Path(name).exists() and not Path(name).is_file():
            raise ModelFileError(errno.EINVAL, "not a regular file", name)
        # Reads ahead in large steps: a vocabulary is a hundred thousand short strings.
        with Path(name).open("rb", buffering=1 << 20) as file:
            return _Reader(file, name).header()
    except FileNotFoundError as error:
        raise ModelNotFoundError(errno.ENOENT, "no such file", name) from error
    except ModelFileError:
        raise
    except PermissionError as error:
        raise ModelFileError(error.errno, "no permission to read it", name) from error
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or "cannot be read", name) from error


class _Reader:
    """Reads forward through a header; every failure names the file and what is wrong with it."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size if hasattr(file, "fileno") else 0
        self.file = file
        self.at = 0

    def fail(self, reason: str) -> ModelFileError:
        return ModelFileError(errno.EINVAL, reason, self.path)

    def header(self) -> Header:
        if self.size == 0:
            raise self.fail("the file is empty")
        magic = self.file.read(4)
        self.at = 4
        if magic != b"GGUF":
            raise self.fail(f"not a GGUF file: it begins with {magic!r}")
        version = self.number("I", "version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = "; it is big-endian" if swapped in (2, 3) else ""
            raise self.fail(f"GGUF version {version} is not supported{hint}")
        n_tensors = self.count("number of tensors", MAX_TENSORS)
        n_keys = self.count("number of metadata keys", MAX_METADATA_KEYS)
        metadata = self.metadata(n_keys)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self.fail(f"general.alignment is {alignment!r}, not a power of two")
        entries = [self.tensor(alignment) for _ in range(n_tensors)]
        data_offset = -(-self.at // alignment) * alignment
        self.check_tensors(entries, data_offset)
        return Header(self.path, version, metadata, tuple(entries), data_offset, self.size)

    def metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                raise self.fail(f"the metadata key {key!r} appears twice")
            metadata[key] = self.value(self.number("I", "value type"), key, 0)
        return metadata

    def tensor(self, alignment: int) -> TensorInfo:
        name = self.string("a tensor name", MAX_KEY_BYTES)
        n_dims = self.number("I", "dimensions")
        if not 1 <= n_dims <= 4:
            raise self.fail(f"tensor {name!r} has {n_dims} dimensions")
        shape = tuple(self.number("Q", "dimension") for _ in range(n_dims))
        type_number = self.number("I", "tensor type")
        offset = self.number("Q", "tensor offset")
        if type_number not in TENSOR_TYPES:
            raise self.fail(f"tensor {name!r} has the unknown type {type_number}")
        type_name, block_values, block_bytes = TENSOR_TYPES[type_number]
        n_elements = 1
        for extent in shape:
            n_elements *= extent
        if not 0 < n_elements < 1 << 60:
            raise self.fail(f"tensor {name!r} has the impossible shape {list(shape)}")
        if shape[0] % block_values:
            raise self.fail(f"tensor {name!r}: rows of {shape[0]} values do not divide into blocks of {type_name}")
        if offset % alignment:
            raise self.fail(f"tensor {name!r} is not aligned to {alignment} bytes")
        return TensorInfo(name, shape, type_name, n_elements // block_values * block_bytes, offset)

    def check_tensors(self, entries: list[TensorInfo], data_offset: int) -> None:
        names = Counter(entry.name for entry in entries)
        for name, times in names.most_common(1):
            if times > 1:
                raise self.fail(f"the tensor {name!r} appears twice")
        needed = max((data_offset + entry.offset_bytes + entry.n_bytes for entry in entries), default=0)
        if needed > self.size:
            raise self.fail(f"truncated: {self.size:,} bytes, but its tensors need {needed:,}; download it again")

    def value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], f"the value of {key!r}")
        if kind == _STRING:
            return self.string(f"the value of {key!r}", MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(key, depth + 1)
        raise self.fail(f"the metadata key {key!r} has the unknown type {kind}")

    def array(self, key: str, depth: int) -> Any:
        if depth > MAX_ARRAY_DEPTH:
            raise self.fail(f"the metadata key {key!r} is nested too deeply")
        kind = self.number("I", "array type")
        length = self.number("Q", "array length")
        item_bytes = struct.calcsize("<" + _SCALARS[kind]) if kind in _SCALARS else 8
        if length * item_bytes > self.size - self.at:
            raise self.fail(f"truncated, or damaged: the array {key!r} claims {length:,} items")
        if length <= KEPT_ARRAY_ITEMS:
            return tuple(self.value(kind, key, depth) for _ in range(length))
        if kind in _SCALARS:
            self.skip(length * item_bytes)
        else:
            for _ in range(length):
                self.skip_string() if kind == _STRING else self.value(kind, key, depth)
        return LongArray(length)

    def count(self, what: str, limit: int) -> int:
        found = self.number("Q", what)
        if found > limit:
            raise self.fail(f"damaged: the {what} is {found:,}")
        return int(found)

    def number(self, code: str, what: str) -> Any:
        data = self.take(struct.calcsize("<" + code), what)
        return struct.unpack("<" + code, data)[0]

    def string(self, what: str, limit: int) -> str:
        length = self.number("Q", what)
        if length > limit:
            raise self.fail(f"damaged: {what} claims {length:,} bytes")
        return self.take(length, what).decode("utf-8", errors="replace")

    def skip_string(self) -> None:
        self.skip(self.number("Q", "string length"))

    def take(self, n_bytes: int, what: str) -> bytes:
        if n_bytes > self.size - self.at:
            raise self.fail(f"truncated: the file ends within {what}")
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise self.fail(f"truncated: the file ends within {what}")
        self.at += n_bytes
        return data

    def skip(self, n_bytes: int) -> None:
        if n_bytes > self.size - self.at:
            raise self.fail("truncated: the file ends within the metadata")
        self.file.seek(n_bytes, io.SEEK_CUR)
        self.at += n_bytes


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
