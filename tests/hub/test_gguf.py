"""The header reader: right about sound files, a typed error for all others."""

from __future__ import annotations

import os

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import ModelError, ModelFileError, ModelNotFoundError
from localllm.hub.gguf import TENSOR_TYPES, LongArray, read_header


def test_tensor_types_are_those_of_the_library():
    from localllm.native.bindings import ggml as ggml_h
    from localllm.native.library import load

    native = load()
    numbers = {value for name, value in vars(ggml_h).items() if name.startswith("GGML_TYPE_") and name != "GGML_TYPE_COUNT"}
    sized = {number for number in numbers if native.ggml_type_size(number)}
    assert set(TENSOR_TYPES) == sized
    for number, (name, block_values, block_bytes) in TENSOR_TYPES.items():
        assert name.lower() == native.ggml_type_name(number).decode().lower()
        assert (block_values, block_bytes) == (native.ggml_blck_size(number), native.ggml_type_size(number))


def test_every_model_is_read_as_the_gguf_package_reads_it(models):
    for name, path in models.items():
        header, reader = read_header(path), gguf.GGUFReader(str(path))
        assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in reader.tensors], name
        for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
            assert list(ours.shape) == [int(n) for n in theirs.shape]
            assert (ours.type, ours.n_bytes) == (theirs.tensor_type.name, int(theirs.n_bytes))
            assert header.data_offset_bytes + ours.offset_bytes == int(theirs.data_offset)
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(header.metadata) == set(fields)
        for key, field in fields.items():
            ours, theirs = header.metadata[key], field.contents()
            if isinstance(ours, LongArray):
                assert ours.length == len(theirs)
            else:
                assert (list(ours) if isinstance(ours, tuple) else ours) == theirs, (name, key)


def test_facts_agree_with_the_library(models):
    from localllm.engine.config import ModelConfig
    from localllm.engine.params import model_params
    from localllm.native.handles import Model
    from localllm.native.library import load

    native = load()
    for name, path in models.items():
        header = read_header(path)
        if header.kind != "model" or header.architecture == "foobar":
            continue
        model = Model(str(path), model_params(native, ModelConfig()))
        assert header.context_length == native.llama_model_n_ctx_train(model.pointer), name
        assert header.embedding_length == native.llama_model_n_embd(model.pointer)
        assert header.vocab_size == native.llama_vocab_n_tokens(model.vocab)
        assert header.architecture == model.metadata()["general.architecture"]
        model.close()


def test_facts_of_the_embedded_model(smollm2):
    header = read_header(smollm2)
    assert (header.architecture, header.kind, header.context_length) == ("llama", "model", 8192)
    assert header.n_parameters == 134_515_008 and header.vocab_size == 49152
    assert header.quantization == "Q4_1" and "<|im_start|>" in header.chat_template
    assert 5 < header.bits_per_weight < 7


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3", "model"), ("qwen35", "model"), ("bert", "model"), ("mamba2", "model"), ("gemma3-mmproj", "projector"),
        ("qwen3-lora", "adapter"), ("qwen3-vocab-only", "vocabulary"), ("qwen35-mtp-head", "draft"),
    ],
)  # fmt: skip
def test_the_kind_of_a_file(models, name, kind):
    assert read_header(models[name]).kind == kind


def test_hostile_files_are_typed_errors_that_name_the_file(hostile):
    refused = []
    for fault, path in hostile.items():
        try:
            read_header(path)
        except ModelError as error:
            assert path.name in str(error), fault
            refused.append(fault)
    # The others are sound as containers; what is wrong with them only the loader can tell (test_bad_input.py).
    container = ("alignment", "array-length", "cut", "dim", "duplicate", "empty", "git-lfs", "key-count", "key-length-huge",
                 "nested-array-deep", "offset-b", "offset-m", "offset-o", "string-length", "tensor-count", "tensor-type", "text",
                 "unknown-", "version", "wrong-magic")  # fmt: skip
    assert [fault for fault in hostile if fault.startswith(container) and fault not in refused] == []


def test_files_that_are_none(tmp_path):
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, kind, reason in [
        (tmp_path / "nothing.gguf", ModelNotFoundError, "no such file"),
        (tmp_path, ModelFileError, "directory"),
        (empty, ModelFileError, "empty"),
    ]:
        with pytest.raises(kind, match=reason) as caught:
            read_header(path)
        assert caught.value.filename == str(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no pipes in the file system")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_header(tmp_path / "pipe.gguf")


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_a_typed_error_or_harmless(models, tmp_path, data):
    sound = models["bert"].read_bytes()
    at = data.draw(st.integers(0, 6000))
    damaged = bytearray(sound)
    damaged[at : at + data.draw(st.integers(1, 8))] = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    try:
        read_header(path)
    except ModelFileError as error:
        assert str(path) in str(error)
