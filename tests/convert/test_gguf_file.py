"""The tokenizer of one file for another, to the byte."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Type

from localllm.convert.gguf_file import MAX_ENTRIES, NewFile, NewTensor, add_tokenizer, write_file
from localllm.errors import UnsupportedModelError
from localllm.hub.gguf import read_header

VALUES = [
    (Type.UINT8, 255), (Type.INT8, -128), (Type.UINT16, 65_535), (Type.INT16, -1), (Type.UINT32, 2**32 - 1), (Type.INT32, -1),
    (Type.UINT64, 2**64 - 1), (Type.INT64, -(2**63)), (Type.FLOAT32, float(np.float32(0.1))), (Type.FLOAT64, 0.1),
    (Type.BOOL, True), (Type.STRING, ""), (Type.STRING, "zwölf"), (Type.STRING, b"no \xff UTF-8"),
]  # fmt: skip
ARRAYS = [(kind, [value, value]) for kind, value in VALUES] + [(Type.STRING, ["", b"\xe2\x96", "▁a", "\x00"])]


def written(path, add, tensors=()):
    writer = gguf.GGUFWriter(None, "test")
    add(writer)
    write_file(NewFile(writer, list(tensors)), path)
    return path


def parts(path):
    """Everything that a file says in its keys, as bytes."""
    fields = gguf.GGUFReader(path).fields.items()
    return {key: [part.tobytes() for part in field.parts] for key, field in fields if key.startswith("tokenizer.")}


def raw(path, key, value, tensor=b""):
    name = key.encode()
    n_tensors = int(bool(tensor))
    header = b"GGUF" + struct.pack("<IQQQ", 3, n_tensors, 1, len(name)) + name + value + tensor
    path.write_bytes(header + bytes(4096 - len(header) % 32))
    return path


def test_a_tokenizer_stays_as_it_is(tmp_path):
    def add(writer):
        for at, (kind, value) in enumerate(VALUES):
            writer.add_key_value(f"tokenizer.value.{at}", value, kind)
        for at, (kind, value) in enumerate(ARRAYS):
            writer.add_key_value(f"tokenizer.array.{at}", value, Type.ARRAY, kind)
        writer.add_uint32("tokenizer.ggml.mask_token_id", 7)
        writer.add_uint32("test.block_count", 1)

    tensor = NewTensor("a", (2, 3), "BF16", lambda: np.arange(6, dtype=np.float32))
    path = written(tmp_path / "from.gguf", add, [tensor])
    but = ["tokenizer.ggml.mask_token_id"]
    other = written(tmp_path / "to.gguf", lambda writer: add_tokenizer(writer, read_header(path), but=but))
    expected = parts(path)
    assert len(expected) == len(VALUES) + len(ARRAYS) + 1
    del expected["tokenizer.ggml.mask_token_id"]
    assert parts(other) == expected
    assert "test.block_count" not in gguf.GGUFReader(other).fields


def array(kind, n, data=b""):
    return struct.pack("<IIQ", Type.ARRAY, kind, n) + data


@pytest.mark.parametrize(
    ("key", "value", "tensor", "says"),
    [
        ("tokenizer.ggml.merges", array(Type.STRING, 0), b"", "tokenizer.ggml.merges is an array of nothing"),
        ("other", array(Type.UINT8, MAX_ENTRIES + 1, bytes(MAX_ENTRIES + 1)), b"", "2,097,153 entries"),
        ("GGUF.version", struct.pack("<II", Type.UINT32, 3), b"", "pip install --upgrade gguf"),
        ("general.alignment", struct.pack("<IQ", Type.UINT64, 32), b"", "pip install --upgrade gguf"),
        (
            "key",
            struct.pack("<II", Type.UINT32, 3),
            struct.pack("<QcIQIQ", 1, b"\xff", 1, 32, 0, 0),
            "pip install --upgrade gguf",
        ),
    ],
)
def test_what_the_package_cannot_take_is_an_error_that_names_the_file(tmp_path, key, value, tensor, says):
    path = raw(tmp_path / "target.gguf", key, value, tensor)
    with pytest.raises(UnsupportedModelError, match=rf"target\.gguf: .*{says}"):
        add_tokenizer(gguf.GGUFWriter(None, "test"), read_header(path))
