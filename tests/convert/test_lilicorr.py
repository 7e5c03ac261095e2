"""Checkpoints of LiLiCorr drafts as GGUF: the same tensors and keys as in files of another converter."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from localllm.convert import convert_lilicorr
from localllm.convert.checkpoint import open_checkpoint
from localllm.engine.config import ModelConfig
from localllm.engine.params import model_params
from localllm.errors import InvalidRequestError, MissingPackageError, ModelError, ModelFileError, UnsupportedModelError
from localllm.hub.gguf import read_header
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.native.lilicorr import LilicorrHead

VARIANTS = ["lilicorr", "hd", "conv"]


@pytest.fixture
def source(lilicorr_maker, lilicorr_files, tmp_path):
    """A checkpoint, and what a file made of it has to hold."""

    def make(variant="lilicorr", **options):
        file = lilicorr_maker.read(lilicorr_files[f"{variant}-unified"])
        return lilicorr_maker.checkpoint(file, tmp_path / "checkpoint", **options), file

    return make


@pytest.fixture
def folder(source):
    return source()[0]


@pytest.fixture
def target(lilicorr_files):
    return lilicorr_files["target"]


def edit(folder, inner=None, **changes):
    """config.json with other values; ... takes a field away."""
    config = json.loads((folder / "config.json").read_text())
    for values, to in ((changes, config), (inner or {}, config["dflash_config"])):
        for name, value in values.items():
            to.pop(name, None)
            if value is not ...:
                to[name] = value
    (folder / "config.json").write_text(json.dumps(config))


def split(folder):
    """Weights in two files and an index, which is given."""
    arrays = load_file(folder / "model.safetensors")
    names = list(arrays)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for part, some in parts.items():
        save_file({name: arrays[name] for name in some}, folder / part, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: part for part, some in parts.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def assert_same(file, expected, but=()):
    assert {name: array.dtype for name, array in file.tensors.items()} == {n: a.dtype for n, a in expected.tensors.items()}
    for name, array in expected.tensors.items():
        np.testing.assert_array_equal(file.tensors[name], array, err_msg=name)
    left_out = {"general.name", *but}
    mine, theirs = ({key: value for key, value in each.keys.items() if key not in left_out} for each in (file, expected))
    assert mine == theirs


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_file(lilicorr_maker, source, target, tmp_path, variant):
    folder, expected = source(variant)
    path = convert_lilicorr(folder, target, tmp_path / "draft.gguf")
    assert_same(lilicorr_maker.read(path), expected)
    Model(str(path), model_params(load(), ModelConfig()), any_kind=True)
    assert LilicorrHead(path).shape.n_slots == 7
    assert read_header(path).draft_kind == "lilicorr"


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_files(lilicorr_maker, lilicorr_files, source, target, tmp_path, variant):
    folder, unified = source(variant)
    paths = tmp_path / "draft.gguf", tmp_path / "head.gguf"
    assert convert_lilicorr(folder, target, paths[0], head=paths[1]) == paths[0]
    plain = lilicorr_maker.read(lilicorr_files[lilicorr_maker.VARIANTS[variant]])
    assert_same(lilicorr_maker.read(paths[0]), plain, but={"dflash.selector_top_k"})
    bias = {"lilicorr.attention_bias.bias": unified.tensors["lilicorr.attention_bias.bias"]}
    head = lilicorr_maker.read(lilicorr_files[f"{variant}-head"]).changed(tensors=bias)
    assert_same(lilicorr_maker.read(paths[1]), head)
    Model(str(paths[0]), model_params(load(), ModelConfig()), any_kind=True)
    LilicorrHead(paths[1])


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("written", [None, "F32", "F16", "BF16"])
def test_types(lilicorr_maker, source, target, tmp_path, stored, written):
    folder, expected = source(dtype=stored)
    path = convert_lilicorr(folder, target, tmp_path / "draft.gguf", type=written)
    types = {tensor.name: tensor.type for tensor in read_header(path).tensors}
    kind = written or stored
    assert types["blk.0.attn_q.weight"] == types["lilicorr.out_head.weight"] == types["blk.4.ffn_up.weight"] == kind
    others = (
        "lilicorr.slot_embedding.weight",
        "blk.2.attn_norm.weight",
        "lilicorr.out_head.bias",
        "lilicorr.attention_bias.bias",
    )
    assert {types[name] for name in others} == {"F32"}
    found = lilicorr_maker.read(path)
    if kind != "BF16":
        for name, array in expected.tensors.items():
            near = 0 if stored == kind == "F32" else 2**-11 if stored != "BF16" else 2**-7
            np.testing.assert_allclose(found.tensors[name].astype(np.float32), array, rtol=near, atol=near, err_msg=name)
    LilicorrHead(path)


def test_halves_are_those_of_another_converter(lilicorr_maker, source, target, tmp_path):
    folder, expected = source()
    path = convert_lilicorr(folder, target, tmp_path / "draft.gguf", type="F16")
    assert_same(lilicorr_maker.read(path), lilicorr_maker.half(expected), but={"general.file_type"})


def test_brain_floats_are_rounded_to_the_nearest(lilicorr_maker, source, target, tmp_path):
    import gguf

    folder, expected = source()
    path = convert_lilicorr(folder, target, tmp_path / "draft.gguf", type="BF16")
    name = "blk.1.ffn_down.weight"
    theirs = gguf.quants.quantize(expected.tensors[name], gguf.GGMLQuantizationType.BF16)
    assert lilicorr_maker.read(path).tensors[name].tobytes() == theirs.tobytes()


def test_weights_in_several_files_and_newer_configurations(lilicorr_maker, lilicorr_files, tmp_path, target):
    file = lilicorr_maker.read(lilicorr_files["lilicorr-unified"])
    folder = lilicorr_maker.checkpoint(file, tmp_path / "checkpoint")
    split(folder)
    edit(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert_same(lilicorr_maker.read(convert_lilicorr(folder, target, tmp_path / "draft.gguf")), file)


# ---- faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "inner", "error", "says"),
    [
        ({"architectures": ["DFlashDraftModel"]}, {}, UnsupportedModelError, "architectures is"),
        ({"architectures": ...}, {}, UnsupportedModelError, "architectures is None"),
        ({"dflash_config": 3}, {}, ModelFileError, "dflash_config is no object"),
        ({"hidden_size": ...}, {}, ModelFileError, "hidden_size is None"),
        ({"hidden_size": 96.5}, {}, ModelFileError, "hidden_size is 96.5"),
        ({"num_hidden_layers": 10**12}, {}, ModelFileError, "num_hidden_layers is"),
        ({"num_hidden_layers": 513}, {}, ModelFileError, "num_hidden_layers is 513, not a whole number from 1 to 512"),
        ({"rope_theta": 1e39}, {}, ModelFileError, "rope_theta is 1e.39"),
        ({"rope_theta": 10**400}, {}, ModelFileError, "rope_theta is 1000"),
        ({}, {"lilicorr_candidate_topk": 1 << 20}, ModelFileError, "are too large together"),
        ({"num_hidden_layers": 3}, {}, ModelFileError, "layers.2.input_layernorm.weight is missing"),
        (
            {"intermediate_size": 161},
            {},
            ModelFileError,
            r"mlp.down_proj.weight is \[96, 160\], by .* \[96, 161\]",
        ),
        ({"block_size": 1}, {}, ModelFileError, "block_size is 1"),
        ({"block_size": 9}, {}, ModelFileError, "relative_slot_bias is|slot_embedding is"),
        ({"rms_norm_eps": 0}, {}, ModelFileError, "rms_norm_eps is 0"),
        ({"rms_norm_eps": "1e-6"}, {}, ModelFileError, "rms_norm_eps is"),
        ({"hidden_act": "gelu"}, {}, UnsupportedModelError, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, {}, UnsupportedModelError, "attention_bias is True"),
        ({"rope_scaling": {"type": "yarn"}}, {}, UnsupportedModelError, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, UnsupportedModelError, "rope_type is 'yarn'"),
        ({}, {"lilicorr_logit_scale": ...}, ModelFileError, r"dflash_config\.lilicorr_logit_scale is None"),
        ({}, {"lilicorr_vector_eps": 0.5}, ModelFileError, "lilicorr_vector_eps is not below"),
        ({}, {"lilicorr_num_heads": 5}, ModelFileError, "no multiple of lilicorr_num_heads"),
        ({}, {"lilicorr_hidden_size": 0}, UnsupportedModelError, "lilicorr.token_proj.bias is not known"),
        ({}, {"lilicorr_candidate_topk": True}, ModelFileError, "lilicorr_candidate_topk is True"),
        ({}, {"lilicorr_candidate_topk": 5}, ModelFileError, "rank_embedding is"),
        ({}, {"lilicorr_num_layers": 1}, UnsupportedModelError, "layers.1.*is not known"),
        ({}, {"target_layer_ids": []}, ModelFileError, "target_layer_ids is"),
        ({}, {"target_layer_ids": [0, 4]}, InvalidRequestError, "target: .*it has 4 layers"),
        ({}, {"mask_token_id": 384}, InvalidRequestError, "target: .*mask is 384"),
        ({}, {"projector_type": "dspark"}, UnsupportedModelError, "projector_type is 'dspark'"),
        ({}, {"use_swa": True}, UnsupportedModelError, "use_swa is True"),
        ({}, {"conv_kernel_size": 2}, ModelFileError, "conv_group_size is None"),
        ({}, {"conv_group_size": 2}, ModelFileError, "conv_kernel_size is None"),
        ({}, {"conv_kernel_size": 2, "conv_group_size": 7}, ModelFileError, "no multiple of conv_group_size"),
        ({}, {"conv_kernel_size": 2, "conv_group_size": 16}, ModelFileError, "attention_conv.base_kernel is missing"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(folder, target, tmp_path, changes, inner, error, says):
    edit(folder, inner, **changes)
    with pytest.raises(error, match=says):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf", head=tmp_path / "head.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def entries(change):
    """model.safetensors with another header."""

    def make(data):
        n_header = struct.unpack_from("<Q", data)[0]
        header = change(json.loads(data[8 : 8 + n_header]))
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + n_header :]

    return make


def altered(**fields):
    return entries(lambda header: {**header, "fc.weight": {**header["fc.weight"], **fields}})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: b"", "no sound file"),
        (lambda data: data[:7], "no sound file"),
        (lambda data: data[:100], "no sound file"),
        (lambda data: data[:-1], "no sound file"),
        (lambda data: data + b"x", "no sound file"),
        (lambda data: struct.pack("<Q", 2**63) + data[8:], "no sound file"),
        (lambda data: data[:8] + b"[" * 1000 + data[1008:], "no sound file"),
        (lambda data: struct.pack("<Q", 300_000) + b'{"a":' * 60_000 + data, "no sound file"),
        (lambda data: struct.pack("<Q", 2) + b"[]" + data, "no sound file"),
        (entries(lambda header: {name: entry for name, entry in header.items() if name != "fc.weight"}), "no sound file"),
        (entries(lambda header: {**header, "fc.weight": 3}), "no sound file"),
        (entries(lambda header: {**header, "fc.bias": header["norm.weight"]}), "no sound file.*offset"),
        (altered(shape=[96]), "no sound file"),
        (altered(shape=[2**40, 2**40]), "no sound file"),
        (altered(shape=[-96, -192]), "no sound file"),
        (altered(shape="96"), "no sound file"),
        (altered(data_offsets=[0, 10**15]), "no sound file.*offset"),
        (altered(data_offsets=[10, 5]), "no sound file.*offset"),
        (altered(data_offsets=[0]), "no sound file"),
        (altered(data_offsets=[2**64, 2**64 + 1]), "no sound file"),
        (altered(dtype=3), "no sound file"),
        (altered(dtype="F33"), "no sound file"),
        (altered(dtype="F16"), "no sound file"),
        (altered(dtype="I32"), "fc.weight is I32"),
        (altered(shape=[192, 96]), r"fc.weight is \[192, 96\], by config.json it is \[96, 192\]"),
    ],
)
def test_what_is_wrong_in_the_weights_is_named(folder, target, tmp_path, damage, says):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=says) as raised:
        convert_lilicorr(folder, target, tmp_path / "draft.gguf")
    assert str(path) in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_a_header_is_an_error_or_none(folder, data):
    path = folder / "model.safetensors"
    whole = bytearray((folder / "model.safetensors").read_bytes())
    n_header = struct.unpack_from("<Q", whole)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 7 + n_header))] = data.draw(st.integers(0, 255))
    other = folder / "damaged"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    (other / path.name).write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    with contextlib.suppress(ModelFileError, UnsupportedModelError):
        for tensor in open_checkpoint(other).tensors.values():
            assert tensor.read().shape == tensor.shape


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fc.weight": None}, "fc.weight is missing"),
        ({"lilicorr.same_slot_bias": None}, "lilicorr.same_slot_bias is missing"),
        ({"fc.bias": np.zeros(96, np.float32)}, "fc.bias is not known"),
        ({"lm_head.weight": np.zeros((383, 96), np.float32)}, "lm_head.weight is .*383"),
    ],
)
def test_tensors_that_are_missing_or_too_many_are_named(folder, target, tmp_path, change, says):
    arrays = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: array for name, array in arrays.items() if array is not None}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=says):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda index, name: index["weight_map"].update({name: "../model-1.safetensors"}), "outside of its folder"),
        (lambda index, name: index["weight_map"].update({name: ".."}), "outside of its folder"),
        (lambda index, name: index["weight_map"].update({name: 3}), "no weight_map of file names"),
        (lambda index, name: index.update(weight_map=[name]), "no weight_map of file names"),
        (lambda index, name: index["weight_map"].update({name: "model-3.safetensors"}), r"model-3\.safetensors"),
        (lambda index, name: index["weight_map"].update({name: "copy.safetensors"}), "is in .* as well"),
    ],
)
def test_what_is_wrong_in_an_index_is_named(folder, target, tmp_path, change, says):
    index = split(folder)
    (folder / "copy.safetensors").write_bytes((folder / "model-1.safetensors").read_bytes())
    change(index, next(iter(index["weight_map"])))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=says):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf")


def test_weights_that_become_shorter_are_an_error(folder):
    path = folder / "model.safetensors"
    tensors = open_checkpoint(folder).tensors
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelFileError, match=f"cannot be read.*{path}"):
        for tensor in tensors.values():
            tensor.read()


def test_missing_files_are_named(folder, target, tmp_path):
    with pytest.raises(ModelFileError, match="nowhere"):
        convert_lilicorr(tmp_path / "nowhere", target, tmp_path / "draft.gguf")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf")


def test_another_target_is_refused(folder, lilicorr_files, models, tmp_path):
    for path, why in ((models["qwen3"], "rows have"), (lilicorr_files["dflash"], "it is a draft")):
        with pytest.raises(InvalidRequestError, match=f"^target: .*{why}"):
            convert_lilicorr(folder, path, tmp_path / "draft.gguf")


def test_nothing_is_written_over(folder, target, tmp_path):
    there = tmp_path / "there.gguf"
    there.write_text("mine")
    for options in ({"output": there}, {"output": tmp_path / "new.gguf", "head": there}):
        with pytest.raises(InvalidRequestError, match="exists already"):
            convert_lilicorr(folder, target, **options)
    with pytest.raises(InvalidRequestError, match="^head: "):
        convert_lilicorr(folder, target, tmp_path / "new.gguf", head=tmp_path / "new.gguf")
    with pytest.raises(InvalidRequestError, match="^type: "):
        convert_lilicorr(folder, target, tmp_path / "new.gguf", type="Q4_0")
    assert there.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "there.gguf"]


@pytest.mark.parametrize("package", ["gguf", "ml_dtypes", "safetensors"])
def test_a_package_that_is_missing_is_named(folder, target, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{package}; pip install gguf safetensors ml_dtypes"):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("missing_bytes", [1, 5000, 100_000, 600_000])
def test_a_full_disk_is_an_error_and_leaves_nothing(folder, target, tmp_path, missing_bytes):
    whole = convert_lilicorr(folder, target, tmp_path / "whole.gguf").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole - missing_bytes, limits[1]))
    try:
        with pytest.raises(ModelFileError, match=rf"^\[Errno {errno.EFBIG}\]"):
            convert_lilicorr(folder, target, tmp_path / "draft.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "whole.gguf"]


def test_an_interruption_leaves_nothing(folder, target, tmp_path):
    def stop(done, total):
        assert 0 < done <= total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_lilicorr(folder, target, tmp_path / "draft.gguf", head=tmp_path / "head.gguf", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_the_command(lilicorr_maker, source, target, tmp_path):
    folder, expected = source()
    command = [sys.executable, "-m", "localllm", "convert", str(folder), "--target", str(target), "-o", str(tmp_path / "a.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.splitlines() == [str(tmp_path / "a.gguf")], done.stderr
    assert_same(lilicorr_maker.read(tmp_path / "a.gguf"), expected)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "exists already" in done.stderr
    two = [*command[:-1], str(tmp_path / "b.gguf"), "--head", str(tmp_path / "h.gguf"), "--type", "f16", "--json"]
    done = subprocess.run(two, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout) == {"written": [str(tmp_path / "b.gguf"), str(tmp_path / "h.gguf")]}
    done = subprocess.run([*two, "--type", "q4"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--type" in done.stderr
