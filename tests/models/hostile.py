"""Damaged GGUF files, made from a sound one by editing its bytes: for the tests of how bad files are refused.

``build.hostile`` writes them. A fault is a function from the sound file's parts to bytes. Three tables list them by what the
vendored llama.cpp does with such a file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

HUGE = 1 << 62
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"
ALIGNMENT = 32
UINT16, UINT32, INT32, FLOAT32, STRING, ARRAY = 2, 4, 5, 6, 8, 9  # GGUF's numbers for the types of values

#: The tensor that the faults about tensors damage, and one that stays as it is.
VICTIM, OTHER = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


class Parts(NamedTuple):
    """A GGUF file in pieces: metadata by key, tensor infos by name, both as the bytes of one entry, and the data."""

    keys: dict[str, bytes]
    infos: dict[str, bytes]
    data: bytes
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    tensor_count: int | None = None
    key_count: int | None = None

    def head(self) -> bytes:
        """Everything before the tensor infos."""
        tensors = len(self.infos) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        return self.magic + self.version + struct.pack("<QQ", tensors, keys) + b"".join(self.keys.values())

    def whole(self) -> bytes:
        """The file."""
        head = self.head() + b"".join(self.infos.values())
        return head + bytes(-len(head) % ALIGNMENT) + self.data

    def with_key(self, key: str, kind: int, value: bytes) -> bytes:
        """The file with the metadata ``key`` set to ``value``, already packed."""
        return self._replace(keys={**self.keys, key: text(key) + struct.pack("<I", kind) + value}).whole()

    def with_number(self, key: str, value: int) -> bytes:
        """The file with the metadata ``key`` set to a uint32."""
        return self.with_key(key, UINT32, struct.pack("<I", value))

    def with_float(self, key: str, value: float) -> bytes:
        """The file with the metadata ``key`` set to a float32."""
        return self.with_key(key, FLOAT32, struct.pack("<f", value))

    def with_text(self, key: str, value: str, length: int | None = None) -> bytes:
        """The file with the metadata ``key`` set to a string, that says it has ``length`` bytes if one is given."""
        return self.with_key(key, STRING, text(value, length))

    def with_numbers(self, key: str, values: list[int]) -> bytes:
        """The file with the metadata ``key`` set to an array of uint32."""
        return self.with_key(key, ARRAY, struct.pack(f"<IQ{len(values)}I", UINT32, len(values), *values))

    def with_strings(self, key: str, values: list[str]) -> bytes:
        """The file with the metadata ``key`` set to an array of strings."""
        return self.with_key(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values)))

    def with_info(self, victim: str = VICTIM, *, repeated: bool = False, **changes: object) -> bytes:
        """The file with ``changes`` (see :func:`info`) in the tensor's info; ``repeated`` adds that as one more."""
        key = victim + " again" if repeated else victim
        return self._replace(infos={**self.infos, key: info(self.infos[victim], **changes)}).whole()

    def without(self, *prefixes: str) -> bytes:
        """The file without the keys that begin so."""
        return self._replace(keys={k: v for k, v in self.keys.items() if not k.startswith(prefixes)}).whole()


def read(path: Path) -> Parts:
    """The parts of a sound file."""
    raw, reader = path.read_bytes(), gguf.GGUFReader(path)
    fields = {key: field.offset for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    fields |= {tensor.name: tensor.field.offset for tensor in reader.tensors}
    last = reader.tensors[-1].field
    ends = [*[*fields.values()][1:], last.offset + sum(part.nbytes for part in last.parts)]
    entries = {key: raw[start:end] for (key, start), end in zip(fields.items(), ends, strict=True)}
    infos = {tensor.name: entries.pop(tensor.name) for tensor in reader.tensors}
    return Parts(entries, infos, raw[reader.data_offset :])


def text(value: str, length: int | None = None) -> bytes:
    """A GGUF string, with a false ``length`` if one is given."""
    data = value.encode()
    return struct.pack("<Q", len(data) if length is None else length) + data


def info(
    entry: bytes,
    *,
    name: str | None = None,
    dims: list[int] | None = None,
    dim_count: int | None = None,
    kind: int | None = None,
    offset: int | Callable[[int], int] | None = None,
) -> bytes:
    """A tensor info like ``entry`` but for what is given; ``offset`` may be a function of the old one."""
    (length,) = struct.unpack_from("<Q", entry)
    (count,) = struct.unpack_from("<I", entry, 8 + length)
    old_dims = list(struct.unpack_from(f"<{count}Q", entry, 12 + length))
    old_kind, old_offset = struct.unpack_from("<IQ", entry, 12 + length + 8 * count)
    dims = old_dims if dims is None else dims
    offset = old_offset if offset is None else offset(old_offset) if callable(offset) else offset
    head = text(entry[8 : 8 + length].decode() if name is None else name)
    head += struct.pack("<I", len(dims) if dim_count is None else dim_count) + struct.pack(f"<{len(dims)}Q", *dims)
    return head + struct.pack("<IQ", old_kind if kind is None else kind, offset)


def key_of_length(parts: Parts, length: int) -> bytes:
    """The file whose first key says that its name is ``length`` bytes long."""
    first, entry = next(iter(parts.keys.items()))
    return parts._replace(keys={**parts.keys, first: struct.pack("<Q", length) + entry[8:]}).whole()


def cut(part: bytes, share: float) -> bytes:
    """The first ``share`` of the bytes."""
    return part[: int(len(part) * share)]


def cut_in_infos(parts: Parts) -> bytes:
    """The file up to the middle of a tensor's info."""
    infos = b"".join(parts.infos.values())
    return parts.head() + cut(infos, 0.53)


def nested(depth: int) -> bytes:
    """An array of one array of one array ... of one number, packed."""
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQI", UINT32, 1, 7)


Fault = Callable[[Parts], bytes]

#: llama.cpp refuses these with an error.
REFUSED: dict[str, Fault] = {
    # Not GGUF at all
    "empty": lambda p: b"",
    "text": lambda p: b"This is not a model.\n" * 100,
    "wrong-magic": lambda p: p._replace(magic=b"GGML").whole(),
    "git-lfs-pointer": lambda p: LFS_POINTER,
    # Versions
    "version-0": lambda p: p._replace(version=struct.pack("<I", 0)).whole(),
    "version-1": lambda p: p._replace(version=struct.pack("<I", 1)).whole(),
    "version-99": lambda p: p._replace(version=struct.pack("<I", 99)).whole(),
    "version-swapped": lambda p: p._replace(version=struct.pack(">I", 3)).whole(),
    # Cut short
    "cut-in-magic": lambda p: p.whole()[:3],
    "cut-in-header": lambda p: p.whole()[:20],
    "cut-in-metadata": lambda p: cut(p.head(), 0.5),
    "cut-in-infos": cut_in_infos,
    "cut-before-data": lambda p: p.whole()[: -len(p.data)],
    "cut-in-data": lambda p: p.whole()[: -len(p.data) // 2],
    # Counts and lengths that no file can have
    "tensor-count-huge": lambda p: p._replace(tensor_count=HUGE).whole(),
    "tensor-count-negative": lambda p: p._replace(tensor_count=2**64 - 1).whole(),
    "tensor-count-one-more": lambda p: p._replace(tensor_count=len(p.infos) + 1).whole(),
    "key-count-huge": lambda p: p._replace(key_count=HUGE).whole(),
    "key-count-negative": lambda p: p._replace(key_count=2**64 - 1).whole(),
    "key-length-huge": lambda p: key_of_length(p, HUGE),
    "string-length-huge": lambda p: p.with_text("general.name", "tiny", HUGE),
    "string-length-4g": lambda p: p.with_text("general.name", "tiny", 1 << 32),
    "array-length-huge": lambda p: p.with_key("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, HUGE)),
    "array-length-overflow": lambda p: p.with_key("test.array", ARRAY, struct.pack("<IQ", UINT32, 2**62 + 1)),
    # Tensors
    "dims-overflow": lambda p: p.with_info(dims=[1 << 32, 1 << 32]),
    "dims-huge": lambda p: p.with_info(dims=[1 << 40, 64]),
    "dims-negative": lambda p: p.with_info(dims=[2**64 - 64, 64]),
    "dims-zero": lambda p: p.with_info(dims=[0, 64]),
    "dims-too-many": lambda p: p.with_info(dims=[64, 64, 1, 1, 1]),
    "dim-count-huge": lambda p: p.with_info(dim_count=2**32 - 1),
    "tensor-type-unknown": lambda p: p.with_info(kind=999),
    "tensor-name-long": lambda p: p.with_info(name="n" * 200),
    "offset-beyond-file": lambda p: p.with_info(offset=1 << 40),
    "offset-overflow": lambda p: p.with_info(offset=2**64 - ALIGNMENT),
    "offset-misaligned": lambda p: p.with_info(offset=lambda old: old + 1),
    "offset-shared": lambda p: p.with_info(offset=0),
    "duplicate-tensor": lambda p: p.with_info(OTHER, repeated=True),
    "wrong-shape": lambda p: p.with_info(dims=[32, 128]),
    "missing-tensor": lambda p: p.with_info(name="blk.0.attn_p.weight"),
    # Metadata
    "duplicate-key": lambda p: p._replace(keys={**p.keys, "again": p.keys["general.name"]}).whole(),
    "empty-key": lambda p: p.with_key("", UINT32, struct.pack("<I", 1)),
    "nested-array": lambda p: p.with_key("test.nested", ARRAY, nested(1)),
    "nested-array-deep": lambda p: p.with_key("test.nested", ARRAY, nested(10_000)),
    "unknown-value-type": lambda p: p.with_key("test.unknown", 77, bytes(8)),
    "unknown-item-type": lambda p: p.with_key("test.unknown", ARRAY, struct.pack("<IQQ", 77, 1, 0)),
    "alignment-0": lambda p: p.with_number("general.alignment", 0),
    "alignment-24": lambda p: p.with_number("general.alignment", 24),
    "alignment-huge": lambda p: p.with_number("general.alignment", 1 << 31),
    "no-architecture": lambda p: p.without("general.architecture"),
    "architecture-number": lambda p: p.with_number("general.architecture", 3),
    "no-tokenizer": lambda p: p.without("tokenizer."),
    "no-tokens": lambda p: p.without("tokenizer.ggml.tokens"),
    "tokenizer-unknown": lambda p: p.with_text("tokenizer.ggml.model", "foobar"),
    "pre-tokenizer-unknown": lambda p: p.with_text("tokenizer.ggml.pre", "foobar"),
    "tokens-none": lambda p: p.with_strings("tokenizer.ggml.tokens", []),
    "tokens-few": lambda p: p.with_strings("tokenizer.ggml.tokens", ["a", "b"]),
    "tokens-numbers": lambda p: p.with_numbers("tokenizer.ggml.tokens", [1]),
    "token-types-few": lambda p: p.with_key("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQi", INT32, 1, 1)),
    "no-merges": lambda p: p.without("tokenizer.ggml.merges"),
    "suppress-unsigned": lambda p: p.with_numbers("tokenizer.ggml.suppress_tokens", [1]),
    "no-hyperparameters": lambda p: p.without("qwen3."),
    "block-count-string": lambda p: p.with_text("qwen3.block_count", "one"),
    "block-count-2": lambda p: p.with_number("qwen3.block_count", 2),
    "head-count-0": lambda p: p.with_number("qwen3.attention.head_count", 0),
    "head-count-few": lambda p: p.with_numbers("qwen3.attention.head_count", []),
    "head-count-many": lambda p: p.with_numbers("qwen3.attention.head_count", [4] * 9),
    "head-count-kv-0": lambda p: p.with_number("qwen3.attention.head_count_kv", 0),
    "head-count-kv-3": lambda p: p.with_number("qwen3.attention.head_count_kv", 3),
    "key-length-0": lambda p: p.with_number("qwen3.attention.key_length", 0),
    "value-length-0": lambda p: p.with_number("qwen3.attention.value_length", 0),
    "embedding-length-0": lambda p: p.with_number("qwen3.embedding_length", 0),
    "embedding-length-huge": lambda p: p.with_number("qwen3.embedding_length", 2**31),
    "feed-forward-0": lambda p: p.with_number("qwen3.feed_forward_length", 0),
    "nextn-1": lambda p: p.with_number("qwen3.nextn_predict_layers", 1),
    "split-of-2": lambda p: p.with_key("split.count", UINT16, struct.pack("<H", 2)),
}

#: llama.cpp ends the process on these, at the latest when it tokenizes: to be refused before it sees them.
FATAL: dict[str, Fault] = {
    "tokenizer-llama": lambda p: p.with_text("tokenizer.ggml.model", "llama"),
    "tokens-alike": lambda p: p.with_strings("tokenizer.ggml.tokens", ["a"] * 392),
    "block-count-huge": lambda p: p.with_number("qwen3.block_count", 2**32 - 1),
    "block-count-0": lambda p: p.with_number("qwen3.block_count", 0),
    "rope-dimensions-15": lambda p: p.with_number("qwen3.rope.dimension_count", 15),
    "rope-dimensions-huge": lambda p: p.with_number("qwen3.rope.dimension_count", 2**31),
    "rope-scaling-unknown": lambda p: p.with_text("qwen3.rope.scaling.type", "foobar"),
    "epsilon-negative": lambda p: p.with_float("qwen3.attention.layer_norm_rms_epsilon", -1),
    "epsilon-nan": lambda p: p.with_float("qwen3.attention.layer_norm_rms_epsilon", np.nan),
    "experts": lambda p: p.with_number("qwen3.expert_count", 2**31),
    "experts-used": lambda p: p.with_number("qwen3.expert_used_count", 5),
}

#: llama.cpp loads these and computes something: to be refused or to do no harm.
ODD: dict[str, Fault] = {
    "string-not-utf8": lambda p: p.with_key("general.name", STRING, struct.pack("<Q", 4) + b"\xff\xfe\xc3\x28"),
    "tokenizer-bert": lambda p: p.with_text("tokenizer.ggml.model", "bert"),
    "tokenizer-t5": lambda p: p.with_text("tokenizer.ggml.model", "t5"),
    "tokens-empty": lambda p: p.with_strings("tokenizer.ggml.tokens", [""] * 392),
    "merges-broken": lambda p: p.with_strings("tokenizer.ggml.merges", ["", " ", "x", "  y", "a b c"]),
    "eos-beyond-vocabulary": lambda p: p.with_number("tokenizer.ggml.eos_token_id", 10**6),
    "template-broken": lambda p: p.with_text("tokenizer.chat_template", "{% for m in %}{{ m."),
    "template-number": lambda p: p.with_number("tokenizer.chat_template", 1),
    "template-endless": lambda p: p.with_text("tokenizer.chat_template", "{% for i in range(10**12) %}x{% endfor %}"),
    "rope-base-0": lambda p: p.with_float("qwen3.rope.freq_base", 0),
    "context-length-0": lambda p: p.with_number("qwen3.context_length", 0),
    "context-length-huge": lambda p: p.with_number("qwen3.context_length", 2**32 - 1),
    "pooling-unknown": lambda p: p.with_number("qwen3.pooling_type", 77),
    "split-no-5": lambda p: p.with_key("split.no", UINT16, struct.pack("<H", 5)),
    "weights-nan": lambda p: p._replace(data=np.full(len(p.data) // 2, np.nan, "<f2").tobytes()).whole(),
}


def files(sound: Path, groups: Sequence[str]) -> dict[str, bytes]:
    """The files with the faults of ``groups``, made from the file at ``sound``."""
    parts = read(sound)
    tables = {"refused": REFUSED, "fatal": FATAL, "odd": ODD}
    return {name: fault(parts) for group in groups for name, fault in tables[group].items()}
