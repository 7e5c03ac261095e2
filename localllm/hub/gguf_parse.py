"""Takes the bytes of a GGUF header apart: bounded, from any source that can be read in ranges.

Format: the GGUF specification in ggml's repository (docs/gguf.md), versions 2 and 3, little-endian. Nothing of it is trusted:
every count, length and offset is checked against a limit and against the file's size before anything is read or allocated, and
what takes time is counted. No file costs more than the limits below allow, whatever it claims.
"""

from __future__ import annotations

import errno
import hashlib
import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.errors import ModelFileError

MAX_HEADER_BYTES = 64 << 20
MAX_METADATA_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_DIMENSIONS = 4
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 63  # of a tensor, as in llama.cpp
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ITEMS = 1 << 24
MAX_STRINGS = 1 << 21  # of all arrays together: each is looked at, so this bounds the time. Vocabularies have up to 2**18
MAX_ALIGNMENT = 1 << 20
MAX_SHARDS = 1 << 16
KEPT_NUMBERS = 1024  # arrays of numbers up to this length are kept: those that have an entry for each layer
KEPT_STRINGS = 64  # a vocabulary is no fact about a model

TEMPLATE = "tokenizer.chat_template"
TOKENS = "tokenizer.ggml.tokens"

# What is fetched at a time: most headers of small models end within the first of these, large vocabularies within 16 MiB.
_RANGE_ENDS = (1 << 18, 1 << 20, 1 << 22, *range(1 << 24, MAX_HEADER_BYTES + 1, 1 << 24))

# Value types of metadata, by GGUF's numbers: struct format of the fixed-size ones.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALAR_READERS = {kind: struct.Struct("<" + code) for kind, code in _SCALARS.items()}
_STRING, _ARRAY = 8, 9
_MAGIC = b"GGUF"
_ENTRIES = {n: struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMENSIONS + 1)}  # of a tensor: dimensions, type, offset
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_PADDING = re.compile(rb"\[PAD\d*\]")  # what converters append to a vocabulary to get a round number of embeddings

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

#: Reads `length` bytes from `start` of a file; fewer or more are an error of the source.
ReadRange = Callable[[int, int], bytes]


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
        return math.prod(self.shape)


@dataclass(frozen=True)
class Parsed:
    """A header in parts. `tokens_hash`: of the vocabulary's texts without padding at its end, "" without a vocabulary."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset_bytes: int
    tokens_hash: str


def begins_as_gguf(path: Path) -> bool:
    """Whether a file begins with the mark of GGUF; also True for one that cannot be read, of which nothing is known."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return True


def parse(read: ReadRange, total_bytes: int, path: str) -> Parsed:
    """Reads and checks a header, in growing ranges, no byte twice.

    Args:
        read: ReadRange.
        total_bytes: int, size of the file.
        path: str, what errors call the file.

    Raises:
        ModelFileError: Empty, not a GGUF, damaged, beyond a limit, or shorter than its tensors.
        Exception: What `read` raises.
    """
    return _Parser(read, total_bytes, path).header()


class _Parser:
    """Reads forward through a header; every failure names the file and what is wrong with it."""

    def __init__(self, read: ReadRange, total_bytes: int, path: str) -> None:
        self.read = read
        self.size = total_bytes
        self.path = path
        self.data = bytearray()
        self.at = 0
        self.n_strings = 0
        self.tokens_hash = ""

    def fail(self, reason: str) -> ModelFileError:
        return ModelFileError(errno.EINVAL, reason, self.path)

    def header(self) -> Parsed:
        if self.size == 0:
            raise self.fail("the file is empty")
        magic = bytes(self.take(min(4, self.size), "the magic number"))
        if magic != b"GGUF":
            raise self.fail(f"not a GGUF file: it begins with {magic!r}")
        version = self.u32("version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = "; it is big-endian" if swapped in (2, 3) else ""
            raise self.fail(f"GGUF version {version} is not supported{hint}")
        n_tensors = self.count("number of tensors", MAX_TENSORS)
        n_keys = self.count("number of metadata keys", MAX_METADATA_KEYS)
        metadata = self.metadata(n_keys)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            raise self.fail(f"general.alignment is {alignment!r}, not a power of two")
        entries = [self.tensor(alignment) for _ in range(n_tensors)]
        data_offset = -(-self.at // alignment) * alignment
        self.check_tensors(entries, data_offset)
        self.check_split(metadata)
        return Parsed(version, metadata, tuple(entries), data_offset, self.tokens_hash)

    def metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string("a metadata key", MAX_KEY_BYTES)
            if not key:
                raise self.fail("a metadata key is empty")
            if key in metadata:
                raise self.fail(f"the metadata key {key!r} appears twice")
            kind = self.u32("value type")
            # A template is a program: it is text, or somebody tries to get it past those who look at it.
            if kind != _STRING and (key == TEMPLATE or key.startswith(TEMPLATE + ".")):
                raise self.fail(f"the chat template {key!r} is not text")
            metadata[key] = self.array(key) if kind == _ARRAY else self.value(kind, f"the value of {key!r}")
        return metadata

    def tensor(self, alignment: int) -> TensorInfo:
        name = self.string("a tensor name", MAX_NAME_BYTES)
        n_dims = self.u32("dimensions")
        if not 1 <= n_dims <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {n_dims} dimensions")
        reader = _ENTRIES[n_dims]
        *extents, type_number, offset = reader.unpack(self.take(reader.size, "a tensor's dimensions, type and offset"))
        shape = tuple(extents)
        if type_number not in TENSOR_TYPES:
            raise self.fail(f"tensor {name!r} has the unknown type {type_number}")
        type_name, block_values, block_bytes = TENSOR_TYPES[type_number]
        n_elements = math.prod(shape)
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

    def check_split(self, metadata: dict[str, Any]) -> None:
        number, count = metadata.get("split.no", 0), metadata.get("split.count", 0)
        total = metadata.get("split.tensors.count", 0)
        sound = all(isinstance(value, int) and not isinstance(value, bool) for value in (number, count, total))
        if not sound or not 0 <= count <= MAX_SHARDS or not 0 <= number < max(1, count) or not 0 <= total <= MAX_TENSORS:
            raise self.fail(f"damaged: it claims to be file {number!r} (from 0) of {count!r} with {total!r} tensors in all")

    def value(self, kind: int, what: str) -> Any:
        if kind in _SCALAR_READERS:
            reader = _SCALAR_READERS[kind]
            return reader.unpack(self.take(reader.size, what))[0]
        if kind == _STRING:
            return self.string(what, MAX_STRING_BYTES)
        raise self.fail(f"{what} has the unknown type {kind}")

    def array(self, key: str) -> Any:
        kind = self.u32("array type")
        length = self.u64("array length")
        if kind == _ARRAY:
            raise self.fail(f"the metadata key {key!r} is an array of arrays")
        if kind != _STRING and kind not in _SCALAR_READERS:
            raise self.fail(f"the metadata key {key!r} is an array of the unknown type {kind}")
        item_bytes = 8 if kind == _STRING else _SCALAR_READERS[kind].size
        if length > MAX_ARRAY_ITEMS or length * item_bytes > self.left:
            raise self.fail(f"truncated, or damaged: the array {key!r} claims {length:,} items")
        if kind == _STRING:
            return self.strings(key, length)
        data = self.take(length * item_bytes, f"the array {key!r}")
        return struct.unpack(f"<{length}{_SCALARS[kind]}", data) if length <= KEPT_NUMBERS else LongArray(length)

    def strings(self, key: str, length: int) -> Any:
        self.n_strings += length
        if self.n_strings > MAX_STRINGS:
            raise self.fail(f"damaged: with the array {key!r} it claims {self.n_strings:,} texts")
        if length <= KEPT_STRINGS and key != TOKENS:
            return tuple(self.string(f"a text of {key!r}", MAX_STRING_BYTES) for _ in range(length))
        starts = self.skip_strings(length)
        if key == TOKENS:
            self.tokens_hash = self.hash_tokens(starts)
            if length <= KEPT_STRINGS:
                return tuple(self.token(at).decode("utf-8", errors="replace") for at in starts[:-1])
        return LongArray(length)

    def skip_strings(self, length: int) -> list[int]:
        """Passes over so many texts; where each begins, and where the last one ends."""
        at, have, unpack = self.at, len(self.data), _U64.unpack_from
        starts = [at]
        for _ in range(length):
            end = at + 8
            if end > have:
                have = self.fetch(end, "a text of an array")
            n_bytes = unpack(self.data, at)[0]
            if n_bytes > MAX_STRING_BYTES:
                raise self.fail(f"damaged: a text of an array claims {n_bytes:,} bytes")
            at = end + n_bytes
            if at > have:
                have = self.fetch(at, "a text of an array")
            starts.append(at)
        self.at = at
        return starts

    def token(self, at: int) -> bytes:
        n_bytes = _U64.unpack_from(self.data, at)[0]
        return bytes(self.data[at + 8 : at + 8 + n_bytes])

    def hash_tokens(self, starts: list[int]) -> str:
        last = len(starts) - 1
        while last > 0 and _PADDING.fullmatch(self.token(starts[last - 1])):
            last -= 1
        with memoryview(self.data) as data:
            return hashlib.blake2b(data[starts[0] : starts[last]], digest_size=16).hexdigest()

    def count(self, what: str, limit: int) -> int:
        found = self.u64(what)
        if found > limit:
            raise self.fail(f"damaged: the {what} is {found:,}")
        return found

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str, limit: int) -> str:
        length = self.u64(what)
        if length > limit:
            raise self.fail(f"damaged: {what} claims {length:,} bytes")
        return self.take(length, what).decode("utf-8", errors="replace")

    @property
    def left(self) -> int:
        return min(self.size, MAX_HEADER_BYTES) - self.at

    def take(self, n_bytes: int, what: str) -> bytearray:
        end = self.at + n_bytes
        if end > len(self.data):
            self.fetch(end, what)
        data = self.data[self.at : end]
        self.at = end
        return data

    def fetch(self, end: int, what: str) -> int:
        """Makes sure that everything before `end` is there; how much is there."""
        if end > self.size:
            raise self.fail(f"truncated: the file ends within {what}")
        if end > MAX_HEADER_BYTES:
            raise self.fail(f"damaged: its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        for range_end in _RANGE_ENDS:
            start, stop = len(self.data), min(range_end, self.size)
            if start >= end:
                break
            if stop > start:
                data = self.read(start, stop - start)
                if len(data) != stop - start:
                    raise self.fail(f"truncated: the file ends within {what}")
                self.data += data
        return len(self.data)
