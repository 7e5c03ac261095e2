"""The limits of the header reader, each with a file that goes beyond it; reading in ranges; sets of files."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.cli.info import describe
from localllm.errors import IncompleteSetError, ModelFileError, NativeError
from localllm.hub import gguf_parse
from localllm.hub.gguf import LongArray, merge_shards, parse_header, read_header, read_model

U8, U16, U32, F32, STRING, ARRAY, U64 = 0, 2, 4, 6, 8, 9, 10
LENGTH = struct.Struct("<Q")


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return LENGTH.pack(len(data) if length is None else length) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, items: bytes, length: int) -> bytes:
    return struct.pack("<IQ", kind, length) + items


def tensor(name: str, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape) if n_dims is None else n_dims) + dims + struct.pack("<IQ", kind, offset)


def gguf_bytes(*entries: bytes, tensors: tuple[bytes, ...] = (), n_keys: int | None = None, n_tensors: int | None = None,
               data: int = 0) -> bytes:  # fmt: skip
    counts = struct.pack("<QQ", len(tensors) if n_tensors is None else n_tensors, len(entries) if n_keys is None else n_keys)
    head = b"GGUF" + struct.pack("<I", 3) + counts + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


ARCHITECTURE = entry("general.architecture", STRING, text("llama"))

# what is wrong -> (the file, a part of the message)
BEYOND = {
    "keys": (gguf_bytes(n_keys=(1 << 16) + 1), "number of metadata keys"),
    "keys-2-to-the-60": (gguf_bytes(n_keys=1 << 60), "number of metadata keys"),
    "keys-negative": (gguf_bytes(n_keys=(1 << 64) - 1), "number of metadata keys"),
    "tensors": (gguf_bytes(n_tensors=(1 << 17) + 1), "number of tensors"),
    "dims": (gguf_bytes(tensors=(tensor("a", n_dims=5),)), "5 dimensions"),
    "dims-2-to-the-32": (gguf_bytes(tensors=(tensor("a", n_dims=2**32 - 1),)), "dimensions"),
    "dims-none": (gguf_bytes(tensors=(tensor("a", n_dims=0),)), "0 dimensions"),
    "elements": (gguf_bytes(tensors=(tensor("a", (1 << 32, 1 << 32)),)), "impossible shape"),
    "elements-of-nothing": (gguf_bytes(tensors=(tensor("a", (32, 0)),)), "impossible shape"),
    "tensor-longer-than-the-file": (gguf_bytes(tensors=(tensor("a", (1 << 40,)),)), "truncated"),
    "tensor-name": (gguf_bytes(tensors=(tensor("a" * 64),), data=128), "a tensor name claims 64 bytes"),
    "string-2-to-the-62": (gguf_bytes(entry("k", STRING, text("", 1 << 62))), "claims"),
    "string": (gguf_bytes(entry("k", STRING, text("", (1 << 24) + 1))), "claims 16,777,217 bytes"),
    "string-in-an-array": (
        gguf_bytes(entry("k", ARRAY, array(STRING, text("", 1 << 40) + bytes(800), 100))), "a text of an array",
    ),
    "key": (gguf_bytes(text("", 1 << 17), n_keys=1), "a metadata key claims"),
    "key-empty": (gguf_bytes(entry("", U8, b"1")), "empty"),
    "key-twice": (gguf_bytes(ARCHITECTURE, ARCHITECTURE), "twice"),
    "array-2-to-the-63": (gguf_bytes(entry("k", ARRAY, array(U8, b"", 1 << 63))), "claims"),
    "array": (gguf_bytes(entry("k", ARRAY, array(U8, b"", (1 << 24) + 1)), data=1 << 25), "claims 16,777,217 items"),
    "array-longer-than-the-file": (gguf_bytes(entry("k", ARRAY, array(U32, bytes(64), 1000))), "claims 1,000 items"),
    "array-of-arrays": (gguf_bytes(entry("k", ARRAY, array(ARRAY, array(U8, b"1", 1), 1))), "array of arrays"),
    "array-of-nothing-known": (gguf_bytes(entry("k", ARRAY, array(77, bytes(64), 3))), "unknown type 77"),
    "type": (gguf_bytes(entry("k", 13, bytes(64))), "unknown type 13"),
    "strings": (
        gguf_bytes(*(entry(f"k{n}", ARRAY, array(STRING, bytes(8 << 20), 1 << 20)) for n in range(2)),
                   entry("k", ARRAY, array(STRING, bytes(8), 1))),
        "2,097,153 texts",
    ),
    "alignment": (gguf_bytes(entry("general.alignment", U32, struct.pack("<I", 1 << 21))), "alignment"),
    "alignment-odd": (gguf_bytes(entry("general.alignment", U32, struct.pack("<I", 24))), "alignment"),
    "offset": (gguf_bytes(tensors=(tensor("a", offset=(1 << 64) - 32),), data=128), "truncated"),
    "header": (gguf_bytes(*(entry(f"k{n}", ARRAY, array(U8, bytes(1 << 24), 1 << 24)) for n in range(4))), "claims"),
    "shard-number": (
        gguf_bytes(entry("split.no", U16, struct.pack("<H", 3)), entry("split.count", U16, struct.pack("<H", 3))),
        "file 3 .from 0. of 3",
    ),
    "shard-count": (gguf_bytes(entry("split.count", U32, struct.pack("<I", 1 << 20))), "of 1048576"),
    "shard-number-of-text": (gguf_bytes(entry("split.no", STRING, text("x"))), "file 'x'"),
    "template-array": (
        gguf_bytes(entry("tokenizer.chat_template", ARRAY, array(STRING, text("{{ x }}"), 1))), "chat_template' is not text",
    ),
    "template-number": (gguf_bytes(entry("tokenizer.chat_template.tool_use", U8, b"1")), "tool_use' is not text"),
}  # fmt: skip

# Reads files given on its standard input within a limit of memory; one line of JSON for each: name, error, seconds of its own.
CHILD = """
import json, resource, sys, time
from localllm.errors import ModelFileError
from localllm.hub.gguf import read_header
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = pages + 200 * 10**6
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.stdin.read().split():
    start = time.process_time()
    try:
        read_header(path)
        error = ""
    except ModelFileError as found:
        error = str(found)
    print(json.dumps([path, error, time.process_time() - start]))
"""


def read_in_child(paths: list[Path]) -> dict[str, tuple[str, float]]:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], input="\n".join(map(str, paths)), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return {path: (error, seconds) for path, error, seconds in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory as Linux has them")
def test_what_goes_beyond_a_limit_is_refused_within_a_second_and_200_mb(tmp_path):
    paths = {}
    for fault, (data, _) in BEYOND.items():
        paths[fault] = tmp_path / f"{fault}.gguf"
        paths[fault].write_bytes(data)
    # A header that would be longer than all limits together, in a file that takes no room.
    with (tmp_path / "sparse.gguf").open("wb") as file:
        file.write(gguf_bytes(*(entry(f"k{n}", ARRAY, array(U8, bytes(1 << 23), 1 << 23)) for n in range(9)))[: 70 << 20])
    found = read_in_child([*paths.values(), tmp_path / "sparse.gguf"])
    for fault, (_, message) in BEYOND.items():
        error, seconds = found[str(paths[fault])]
        assert paths[fault].name in error, fault
        assert re.search(message, error), (fault, error)
        assert seconds < 1, fault
    assert "sparse.gguf" in found[str(tmp_path / "sparse.gguf")][0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory as Linux has them")
def test_a_corpus_of_damaged_files_costs_little(tmp_path, models):
    seeds = [models[name].read_bytes()[:60_000] for name in ("bert", "qwen35", "qwen3-lora", "gemma3-mmproj")]
    rng = random.Random(11)
    paths = []
    for number in range(300):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.choice((rng.randrange(64), rng.randrange(len(data))))
            width = rng.choice((1, 4, 8))
            value = rng.choice((0, 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1, rng.randrange(2**64)))
            data[at : at + width] = struct.pack("<Q", value)[:width]
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(bytes(data[: rng.choice((len(data), rng.randrange(1, len(data))))]))
        paths.append(path)
    found = read_in_child(paths)
    assert len(found) == len(paths)
    assert max(seconds for _, seconds in found.values()) < 1
    assert all(Path(path).name in error for path, (error, _) in found.items() if error)


class Source:
    """Ranges of some bytes, with a note of what was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, length: int) -> bytes:
        self.asked.append((start, length))
        return self.data[start : start + length]


def test_a_small_header_takes_one_range_and_no_byte_is_read_twice(models):
    for name, path in models.items():
        source = Source(path.read_bytes())
        header = parse_header(source, len(source.data), "there")
        local = read_header(path)
        assert (header.metadata, header.tensors, header.tokens_hash) == (local.metadata, local.tensors, local.tokens_hash), name
        assert source.asked[0] == (0, min(1 << 18, len(source.data)))
        assert all(one[0] + one[1] == other[0] for one, other in itertools.pairwise(source.asked))
        assert source.asked[-1][0] < local.data_offset_bytes


def test_a_large_header_is_read_in_growing_ranges(smollm2):
    source = Source(smollm2.read_bytes()[: 5 << 20])
    header = parse_header(source, smollm2.stat().st_size, "smollm2")
    assert header.vocab_size == 49152 and header.file_bytes == smollm2.stat().st_size
    assert source.asked == [(0, 1 << 18), (1 << 18, 3 << 18), (1 << 20, 3 << 20)]


def test_what_a_source_raises_is_passed_on_and_too_little_is_an_error(models):
    def broken(start: int, length: int) -> bytes:
        raise NativeError("no line")

    with pytest.raises(NativeError, match="no line"):
        parse_header(broken, 1000, "x")
    with pytest.raises(ModelFileError, match="truncated"):
        parse_header(lambda start, length: b"GGUF", 1000, "x")


def test_arrays_of_numbers_are_kept_by_layer_and_long_ones_are_counted(tmp_path):
    path = tmp_path / "x.gguf"
    arrays = {1024: array(U32, bytes(4 * 1024), 1024), 1025: array(U32, bytes(4 * 1025), 1025)}
    texts = array(STRING, text("a") * 65, 65)
    path.write_bytes(gguf_bytes(*(entry(f"k{n}", ARRAY, data) for n, data in arrays.items()), entry("t", ARRAY, texts)))
    metadata = read_header(path).metadata
    assert metadata == {"k1024": (0,) * 1024, "k1025": LongArray(1025), "t": LongArray(65)}


def vocabulary(*tokens: str) -> bytes:
    return gguf_bytes(entry(gguf_parse.TOKENS, ARRAY, array(STRING, b"".join(map(text, tokens)), len(tokens))))


def test_vocabularies_are_compared_without_their_padding(tmp_path):
    def tokens_hash(*tokens: str) -> str:
        path = tmp_path / "x.gguf"
        path.write_bytes(vocabulary(*tokens))
        return read_header(path).tokens_hash

    assert tokens_hash("a", "b") == tokens_hash("a", "b", "[PAD2]", "[PAD3]") != tokens_hash("a", "c")
    assert tokens_hash("a", "bc") != tokens_hash("ab", "c")
    assert tokens_hash("[PAD0]", "a") != tokens_hash("a")
    (tmp_path / "none.gguf").write_bytes(gguf_bytes(ARCHITECTURE))
    assert read_header(tmp_path / "none.gguf").tokens_hash == ""


def test_templates_by_name(tmp_path):
    path = tmp_path / "x.gguf"
    keys = {"tokenizer.chat_template": "usual", "tokenizer.chat_template.tool_use": "tools", "tokenizer.chat_templates": "x"}
    path.write_bytes(gguf_bytes(*(entry(key, STRING, text(value)) for key, value in keys.items())))
    assert read_header(path).chat_templates == {"default": "usual", "tool_use": "tools"}


@pytest.mark.parametrize(
    ("metadata", "tensors", "kind", "draft", "speech", "modalities"),
    [
        ({"general.architecture": "wavtokenizer-dec"}, ("blk.0.x",), "model", "", "wavtokenizer", ()),
        ({"general.architecture": "pockettts", "general.type": "model"}, ("blk.0.x",), "model", "", "pockettts", ()),
        ({"general.architecture": "qwen3", "tokenizer.ggml.pre": "soprano"}, ("blk.0.x",), "model", "", "soprano", ()),
        ({"general.architecture": "clip", "clip.has_gen_audio_encoder": True, "clip.gen.audio.projector_type": "soprano"}, (),
         "projector", "", "soprano", ("speech",)),
        ({"general.architecture": "clip", "clip.has_audio_encoder": True, "clip.has_gen_audio_encoder": True,
          "clip.gen.audio.projector_type": "qwen3tts_gen"}, (), "projector", "", "qwen3tts", ("audio", "speech")),
        ({"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.has_audio_encoder": True}, (),
         "projector", "", "", ("audio", "image")),
        ({"general.architecture": "clip", "clip.projector_type": "mlp"}, (), "projector", "", "", ("image",)),
        ({"general.architecture": "eagle3"}, ("blk.0.x",), "draft", "eagle3", "", ()),
        ({"general.architecture": "dflash"}, ("blk.0.x",), "draft", "dflash", "", ()),
        ({"general.architecture": "dflash"}, ("blk.0.x", "markov_w1.weight"), "draft", "dspark", "", ()),
        ({"general.architecture": "dflash", "lilicorr.hidden_size": 64}, ("blk.0.x",), "draft", "lilicorr", "", ()),
        ({"general.architecture": "gemma4-assistant"}, ("blk.0.x",), "draft", "mtp", "", ()),
        ({"general.architecture": "llama", "general.type": "imatrix"}, (), "other", "", "", ()),
        ({"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}, (), "adapter", "", "", ()),
    ],
)  # fmt: skip
def test_kinds_of_files_and_what_they_are_for(tmp_path, metadata, tensors, kind, draft, speech, modalities):
    def packed(key: str, value: object) -> bytes:
        if isinstance(value, bool):
            return entry(key, 7, b"\1" if value else b"\0")
        return entry(key, STRING, text(value)) if isinstance(value, str) else entry(key, U32, struct.pack("<I", value))

    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(*map(packed, metadata, metadata.values()), tensors=tuple(map(tensor, tensors)), data=128))
    header = read_header(path)
    assert (header.kind, header.draft_kind, header.speech) == (kind, draft, speech)
    assert sorted(header.modalities) == list(modalities)


def shards(folder: Path, count: int, total: int | None = None) -> list[Path]:
    paths = []
    for number in range(count):
        split = {"split.no": number, "split.count": count, "split.tensors.count": count if total is None else total}
        entries = [entry(key, U16, struct.pack("<H", value)) for key, value in split.items()]
        first = [ARCHITECTURE, entry("llama.block_count", U32, struct.pack("<I", count))] if number == 0 else []
        paths.append(folder / f"m-Q8_0-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(gguf_bytes(*first, *entries, tensors=(tensor(f"blk.{number}.x"),), data=128))
    return paths


def test_a_set_of_files_is_one_header(tmp_path):
    paths = shards(tmp_path, 3)
    header = read_model(paths[0])
    assert (header.n_files, len(header.tensors), header.n_tensor_bytes) == (3, 3, 3 * 128)
    assert (header.architecture, header.block_count, header.kind) == ("llama", 3, "model")
    assert header.file_bytes == sum(path.stat().st_size for path in paths)
    assert read_header(paths[0]).kind == "model" and read_header(paths[0]).n_files == 1


def test_files_that_are_no_set_are_refused(tmp_path):
    paths = shards(tmp_path, 3)
    first, second, third = map(read_header, paths)
    for wrong in ([first, third, second], [first, second], [second, first, third], [first, second, second]):
        with pytest.raises(IncompleteSetError):
            merge_shards(wrong)
    with pytest.raises(IncompleteSetError, match="not named as the first"):
        read_model(paths[1])
    paths[1].unlink()
    with pytest.raises(IncompleteSetError, match="m-Q8_0-00002-of-00003.gguf"):
        read_model(paths[0])
    (tmp_path / "short").mkdir()
    with pytest.raises(IncompleteSetError, match="2 tensors, not the 7"):
        read_model(shards(tmp_path / "short", 2, total=7)[0])
    lonely = tmp_path / "renamed.gguf"
    os.link(paths[0], lonely)
    with pytest.raises(IncompleteSetError, match="not named as the first"):
        read_model(lonely)


def test_a_model_in_one_file_is_itself(models):
    assert read_model(models["qwen3"]) == read_header(models["qwen3"])


def test_facts_of_odd_headers_are_numbers_and_json(tmp_path):
    """A vocabulary that is no list, a layer whose number is no decimal, and numbers that JSON does not have."""
    path = tmp_path / "odd.gguf"
    nan = struct.pack("<f", float("nan"))
    path.write_bytes(
        gguf_bytes(
            ARCHITECTURE,
            entry("llama.block_count", U32, struct.pack("<I", 2)),
            entry("llama.nextn_predict_layers", U32, struct.pack("<I", 1)),
            entry("tokenizer.ggml.tokens", U32, struct.pack("<I", 7)),
            entry("llama.rope.freq_base", F32, nan),
            entry("numbers", ARRAY, array(F32, nan * 2, 2)),
            tensors=(tensor("blk.0.attn_q.weight"), tensor("blk.\u00b2.attn_q.weight", offset=128)),
            data=256,
        )
    )
    facts = describe(read_header(path), with_metadata=True)
    assert facts["vocab_size"] == 0 and facts["memory_bytes"] > 0
    assert facts["metadata"]["llama.rope.freq_base"] == "nan" and facts["metadata"]["numbers"] == ["nan", "nan"]
    json.dumps(facts, allow_nan=False)
