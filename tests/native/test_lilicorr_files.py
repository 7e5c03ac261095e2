"""Files of LiLiCorr heads and drafts: a draft is the same with its head in the file, and a bad file is an error that says why."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.engine.config import ModelConfig
from localllm.engine.params import model_params
from localllm.errors import LocalLLMError, ModelError, ModelLoadError, UnsupportedModelError
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.native.lilicorr import LilicorrHead


def open_model(path, **config):
    return Model(str(path), model_params(load(), ModelConfig(**config)), any_kind=True)


@pytest.fixture(scope="module")
def head(lilicorr_maker, lilicorr_files):
    return lilicorr_maker.read(lilicorr_files["lilicorr-head"])


@pytest.fixture
def changed(lilicorr_maker, head, tmp_path):
    def make(keys=None, tensors=None):
        return lilicorr_maker.write(head.changed(keys, tensors), tmp_path / "changed-head.gguf")

    return make


# ---- one file or two ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load_mode", ["auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io"])
@pytest.mark.parametrize("name", ["lilicorr-unified", "conv-unified", "lilicorr-unified-f16"])
def test_a_draft_loads_from_one_file_with_its_head(lilicorr_files, name, load_mode):
    model = open_model(lilicorr_files[name], load_mode=load_mode)
    plain = open_model(lilicorr_files["conv-dflash" if name.startswith("conv") else "dflash"])
    native = load()
    for size in ("llama_model_n_params", "llama_model_n_embd", "llama_model_n_layer"):
        assert getattr(native, size)(model.pointer) == getattr(native, size)(plain.pointer)
    found = model.metadata()
    assert found["lilicorr.candidate_topk"] == "4" and plain.metadata().items() - found.items() <= {
        ("dflash.selector_top_k", "4"),
        ("general.file_type", "0"),
    }


def test_values_are_checked_in_one_file_as_in_two(lilicorr_maker, lilicorr_files, tmp_path):
    unified = lilicorr_maker.read(lilicorr_files["lilicorr-unified-f16"])
    broken = unified.tensors["blk.1.ffn_up.weight"].copy()
    broken[3, 5] = np.nan
    path = lilicorr_maker.write(unified.changed(tensors={"blk.1.ffn_up.weight": broken}), tmp_path / "nan.gguf")
    open_model(path)
    with pytest.raises(ModelLoadError, match=r"blk\.1\.ffn_up\.weight"):
        open_model(path, check_tensors=True)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments(lilicorr_maker, lilicorr_files, tmp_path, alignment):
    """gguf's writer aligns as the key says."""
    import gguf

    path = tmp_path / "aligned.gguf"
    unified = lilicorr_maker.read(lilicorr_files["lilicorr-unified"])
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_custom_alignment(alignment)
    for key, (types, value) in unified.keys.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, types[0], types[1] if len(types) > 1 else None)
    for name, array in unified.tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = open_model(path, check_tensors=True)
    assert load().llama_model_n_params(model.pointer) == load().llama_model_n_params(open_model(lilicorr_files["dflash"]).pointer)
    assert LilicorrHead(path).shape == LilicorrHead(lilicorr_files["lilicorr-head"]).shape


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process is not told its own peak of memory")
def test_the_draft_is_read_once_and_kept_once(lilicorr_maker, lilicorr_files, tmp_path):
    """A draft of 90 MB in one file with its head takes its size once, not twice: nothing is copied on the way."""
    unified = lilicorr_maker.read(lilicorr_files["lilicorr-unified"])
    width = 80_000
    keys = {"dflash.feed_forward_length": width}
    generator = np.random.default_rng(1)
    tensors = {
        f"blk.{layer}.ffn_{part}.weight": generator.normal(size=(96, width) if part == "down" else (width, 96)).astype(np.float16)
        for layer in range(2)
        for part in ("gate", "up", "down")
    }
    path = lilicorr_maker.write(unified.changed(keys, tensors), tmp_path / "large.gguf")
    script = (
        "import re\n"
        "from pathlib import Path\n"
        "from localllm.engine.config import ModelConfig\n"
        "from localllm.engine.params import model_params\n"
        "from localllm.native.handles import Model\n"
        "from localllm.native.library import load\n"
        "native = load()\n"
        "most = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "before = most()\n"
        f"model = Model({str(path)!r}, model_params(native, ModelConfig()), any_kind=True)\n"
        "print(most() - before)\n"
    )
    grown = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout) * 1024
    assert 0.9 * path.stat().st_size < grown < 1.3 * path.stat().st_size


def test_a_unified_file_says_what_it_is(lilicorr_files):
    for name in ("lilicorr-unified", "lilicorr-head"):
        path = str(lilicorr_files[name])
        assert load().json_call("lm_file_info", path.encode())["kind"] == "draft"
        with pytest.raises(UnsupportedModelError):
            Model(path, model_params(load(), ModelConfig()))
    with pytest.raises(UnsupportedModelError, match="goes beside that"):
        open_model(lilicorr_files["lilicorr-head"])


# ---- faults ---------------------------------------------------------------------------------------------------------------

KEYS = [
    "lilicorr.hidden_size", "lilicorr.candidate_topk", "lilicorr.num_heads", "lilicorr.num_layers", "lilicorr.factor_dim",
    "lilicorr.mlp_hidden_size", "dflash.block_size", "dflash.block_count", "dflash.embedding_length",
]  # fmt: skip
NUMBERS = ["lilicorr.vector_eps", "lilicorr.logit_scale", "dflash.attention.layer_norm_rms_epsilon"]


@pytest.mark.parametrize("key", [*KEYS, *NUMBERS])
def test_a_missing_key_is_named(changed, key):
    with pytest.raises(ModelError, match=rf"changed-head\.gguf: .*({key}|has no LiLiCorr head)"):
        LilicorrHead(changed({key: None}))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [0, 1, 3, 1000, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_wrong_size_is_an_error(changed, key, value):
    with pytest.raises(ModelError, match=r"changed-head\.gguf: .*"):
        LilicorrHead(changed({key: value}))


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_constant_that_is_none_is_an_error(changed, key, value):
    with pytest.raises(ModelError, match=rf"changed-head\.gguf: {key} "):
        LilicorrHead(changed({key: value}))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"lilicorr.num_heads": 5}, r"lilicorr\.hidden_size \(64\) is no multiple of lilicorr\.num_heads \(5\)"),
        (
            {"lilicorr.num_heads": 2},
            r"the tensor lilicorr\.attention_bias\.bias is 28 x 28 x 4, by the keys of the file it is 28 x 28 x 2",
        ),
        ({"dflash.block_size": 1}, r"dflash\.block_size is 1"),
        (
            {"dflash.block_size": 9},
            r"the tensor lilicorr\.slot_embedding\.weight is 64 x 7, by the keys of the file it is 64 x 8",
        ),
        ({"dflash.block_size": 2000}, r"dflash\.block_size is 2000, more than 1024"),
        (
            {"lilicorr.candidate_topk": 5},
            r"the tensor lilicorr\.rank_embedding\.weight is 64 x 4, by the keys of the file it is 64 x 5",
        ),
        ({"lilicorr.num_layers": 1}, r"the tensor blk\.3\.ffn_norm\.weight is 64, by the keys of the file it is 5"),
        ({"lilicorr.num_layers": 3}, r"the tensor "),
        ({"lilicorr.hidden_size": 96}, r"the tensor lilicorr\."),
        ({"lilicorr.vector_eps": 0.0}, r"lilicorr\.vector_eps"),
        ({"lilicorr.vector_eps": 0.5}, r"lilicorr\.vector_eps"),
        ({"lilicorr.logit_scale": 0.0}, r"lilicorr\.logit_scale"),
        ({"general.architecture": "llama"}, r"this file has no LiLiCorr head"),
    ],
)
def test_sizes_that_do_not_go_together_are_told(changed, keys, says):
    with pytest.raises(ModelError, match=rf"changed-head\.gguf: {says}"):
        LilicorrHead(changed(keys))


def test_every_tensor_is_needed_in_its_shape_and_type(changed, head):
    for name, array in head.tensors.items():
        wrong = {"missing": None, "longer": np.concatenate([array, array]), "whole numbers": array.astype(np.int32)}
        for fault, value in wrong.items():
            with pytest.raises(ModelError, match=rf"changed-head\.gguf: .*{name}"):
                LilicorrHead(changed(tensors={name: value}))
                pytest.fail(fault)


def test_a_tensor_too_many_is_an_error(changed, head):
    for name in ("lilicorr.confidence.weight", "blk.4.attn_gate.weight", "lilicorr.out_head.scale"):
        with pytest.raises(UnsupportedModelError, match=f"the tensor {name} is not known"):
            LilicorrHead(changed(tensors={name: np.ones(4, np.float32)}))


def test_files_that_end_too_early(lilicorr_files, tmp_path):
    for name, opens in (("lilicorr-head", LilicorrHead), ("lilicorr-unified", LilicorrHead), ("lilicorr-unified", open_model)):
        data = lilicorr_files[name].read_bytes()
        path = tmp_path / "short.gguf"
        for size in [0, 3, 4, 24, 1000, 5000, 20_000, len(data) // 2, len(data) - 20_000, len(data) - 33]:
            path.write_bytes(data[:size])
            with pytest.raises(ModelError, match=r"short\.gguf"):
                opens(path)
    with pytest.raises(ModelError, match="gone.gguf"):
        LilicorrHead(tmp_path / "gone.gguf")
    with pytest.raises(ModelError):
        LilicorrHead(tmp_path)


def test_drafts_of_several_files_or_without_what_convolutions_need(lilicorr_maker, lilicorr_files, tmp_path):
    conv = lilicorr_maker.read(lilicorr_files["conv-unified"])
    path = tmp_path / "draft.gguf"
    faults = {
        "one file": ({"split.count": 2}, {}),
        "tokenizer": ({"tokenizer.ggml.tokens": None}, {}),
        "embedding_length|hyperparameter": ({"dflash.embedding_length": None}, {}),
        "conv": ({"dflash.conv_kernel_size": None}, {}),
        "conv_group_size": ({"dflash.conv_group_size": 7}, {}),
        "blk.1.attn_conv_base": ({}, {"blk.1.attn_conv_base": None}),
        "fc.weight": ({}, {"fc.weight": None}),
    }
    for why, (keys, tensors) in faults.items():
        with pytest.raises(LocalLLMError, match=why):
            open_model(lilicorr_maker.write(conv.changed(keys, tensors), path))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_bytes_never_end_the_process(lilicorr_files, tmp_path, seed):
    """Headers with a few bytes changed: an error, or a head that computes."""
    source = random.Random(seed)
    data = bytearray(lilicorr_files[source.choice(["lilicorr-head", "hd-head"])].read_bytes())
    for _ in range(source.randint(1, 4)):
        data[source.randrange(0, 4000)] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    try:
        LilicorrHead(path).close()
    except LocalLLMError as error:
        assert str(error)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_tensor_tables_of_drafts_never_end_the_process(lilicorr_files, tmp_path, seed):
    """The table begins behind the vocabulary."""
    source = random.Random(seed)
    data = bytearray(lilicorr_files["conv-unified"].read_bytes())
    begin = data.index(b"fc.weight")
    for _ in range(source.randint(1, 3)):
        data[source.randrange(begin - 8, begin + 4500)] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    try:
        open_model(path).close()
    except LocalLLMError as error:
        assert str(error)
