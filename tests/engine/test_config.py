from __future__ import annotations

import math

import numpy
import pytest

from localllm.engine.checks import shown
from localllm.engine.config import SAMPLERS, ContextConfig, ModelConfig, SamplingParams
from localllm.engine.params import model_params
from localllm.engine.request import Request
from localllm.errors import InvalidRequestError
from localllm.native.library import load

WRONG = [
    (SamplingParams, "temperature", -0.1),
    (SamplingParams, "temperature", math.nan),
    (SamplingParams, "temperature", math.inf),
    (SamplingParams, "temperature", "hot"),
    (SamplingParams, "temperature", True),
    (SamplingParams, "top_k", -1),
    (SamplingParams, "top_k", 1.5),
    (SamplingParams, "top_k", 2**31),
    (SamplingParams, "top_p", 1.01),
    (SamplingParams, "min_p", -0.01),
    (SamplingParams, "typical_p", 2),
    (SamplingParams, "top_n_sigma", -2),
    (SamplingParams, "xtc_probability", 1.5),
    (SamplingParams, "xtc_threshold", -1),
    (SamplingParams, "repeat_penalty", 0),
    (SamplingParams, "repeat_penalty", -1),
    (SamplingParams, "frequency_penalty", math.inf),
    (SamplingParams, "penalty_last_n", -2),
    (SamplingParams, "penalty_last_n", 2**30),
    (SamplingParams, "dry_multiplier", -1),
    (SamplingParams, "dry_sequence_breakers", "abc"),
    (SamplingParams, "dry_sequence_breakers", [""]),
    (SamplingParams, "mirostat", 3),
    (SamplingParams, "adaptive_target", 1.1),
    (SamplingParams, "adaptive_decay", 1.0),
    (SamplingParams, "min_keep", -1),
    (SamplingParams, "seed", -1),
    (SamplingParams, "seed", 2**32 - 1),
    (SamplingParams, "seed", 1.0),
    (SamplingParams, "ignore_eos", 1),
    (SamplingParams, "grammar", None),
    (SamplingParams, "n_probs", 101),
    (SamplingParams, "logit_bias", [(1, math.nan)]),
    (SamplingParams, "logit_bias", [(1, math.inf)]),
    (SamplingParams, "logit_bias", [(-1, 1.0)]),
    (SamplingParams, "logit_bias", ["x"]),
    (SamplingParams, "logit_bias", {"x": 1.0}),
    (SamplingParams, "logit_bias", {"-5": 1.0}),
    (SamplingParams, "samplers", ["top_q"]),
    (SamplingParams, "samplers", ["top_k", "top_k"]),
    (SamplingParams, "samplers", "top_k"),
    (ContextConfig, "n_ctx", -1),
    (ContextConfig, "n_ctx", 4096.0),
    (ContextConfig, "parallel", 0),
    (ContextConfig, "parallel", 257),
    (ContextConfig, "n_batch", 0),
    (ContextConfig, "n_batch", 2),
    (ContextConfig, "n_threads", 513),
    (ContextConfig, "flash_attention", "yes"),
    (ContextConfig, "type_k", "q3_k"),
    (ContextConfig, "swa_full", "no"),
    (ContextConfig, "max_queue", -1),
    (ModelConfig, "n_gpu_layers", -1),
    (ModelConfig, "n_gpu_layers", "some"),
    (ModelConfig, "split_mode", "rows"),
    (ModelConfig, "load_mode", "fast"),
    (ModelConfig, "tensor_split", (-1.0,)),
    (ModelConfig, "tensor_split", None),
    (ModelConfig, "tensor_split", 5),
    (ModelConfig, "tensor_split", "1"),
    (ModelConfig, "tensor_split", [True]),
    (ModelConfig, "tensor_split", [math.nan]),
    (ModelConfig, "tensor_split", [10**400]),
    (ModelConfig, "metadata_overrides", None),
    (ModelConfig, "metadata_overrides", 5),
    (ModelConfig, "metadata_overrides", "ab"),
    (ModelConfig, "metadata_overrides", [1]),
    (ModelConfig, "metadata_overrides", ["ab"]),
    (ModelConfig, "metadata_overrides", [("a", 1), ("a", 2)]),
    (ModelConfig, "metadata_overrides", {5: 1}),
    (ModelConfig, "metadata_overrides", {"a\0b": 1}),
    (ModelConfig, "metadata_overrides", {"\ud800": 1}),
    (ModelConfig, "metadata_overrides", {"a": "\0"}),
    (ModelConfig, "metadata_overrides", {"a": 2**63}),
    (ModelConfig, "metadata_overrides", {"a": 10**5000}),
    (ModelConfig, "metadata_overrides", {"a": math.nan}),
    (ModelConfig, "metadata_overrides", {"a": [1]}),
    (ContextConfig, "cache_dir", None),
    (ContextConfig, "cache_dir", "a\0b"),
    (ContextConfig, "cache_dir", b"x"),
    (ContextConfig, "rope_freq_base", math.inf),
    (ContextConfig, "rope_freq_base", 10**400),
    (ContextConfig, "n_ctx", 10**5000),
    (ContextConfig, "speculation", ["none"]),
    (ContextConfig, "type_k", numpy.array(["f16", "f16"])),
    (SamplingParams, "temperature", 10**400),
    (SamplingParams, "temperature", -(10**5000)),
    (SamplingParams, "logit_bias", [(1, 10**400)]),
    (SamplingParams, "logit_bias", [(1, 1e300)]),
    (SamplingParams, "logit_bias", [(1, True)]),
    (SamplingParams, "logit_bias", [(10**5000, 1.0)]),
    (SamplingParams, "samplers", [["top_k"]]),
    (SamplingParams, "samplers", [None]),
    (ModelConfig, "metadata_overrides", (("", 1),)),
    (ModelConfig, "metadata_overrides", (("x" * 128, 1),)),
    (ModelConfig, "metadata_overrides", (("x", None),)),
    (ModelConfig, "metadata_overrides", (("x", "y" * 128),)),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG, ids=lambda value: getattr(value, "__name__", shown(value)[:20]))
def test_a_wrong_value_is_an_error_that_begins_with_the_field(kind, field, value):
    with pytest.raises(InvalidRequestError, match=f"^{field}:"):
        kind(**{field: value})


@pytest.mark.parametrize("kind", [SamplingParams, ContextConfig, ModelConfig, Request])
def test_an_unknown_field_is_an_error(kind):
    with pytest.raises(TypeError, match="temprature"):
        kind(temprature=1)


def test_quantised_values_need_flash_attention():
    with pytest.raises(InvalidRequestError, match="^type_v:"):
        ContextConfig(type_v="q8_0", flash_attention="off")


def test_lists_are_frozen_and_dicts_of_biases_taken():
    params = SamplingParams(samplers=["top_k", "temperature"], logit_bias={5: -math.inf})
    assert params.samplers == ("top_k", "temperature") and params.logit_bias == ((5, -math.inf),)
    assert hash(params) == hash(SamplingParams(samplers=["top_k", "temperature"], logit_bias={5: -math.inf}))
    assert SamplingParams(logit_bias={"5": -math.inf}).logit_bias == params.logit_bias  # as JSON has it


def test_metadata_overrides_are_a_dict_or_pairs_and_count_by_type():
    given = {"tokenizer.ggml.add_bos_token": False, "n": numpy.int64(3), "x": numpy.float32(0.5), "name": "text"}
    by_dict, by_list = (
        ModelConfig(metadata_overrides=given),
        ModelConfig(metadata_overrides=[list(pair) for pair in given.items()]),
    )
    assert by_dict == by_list and hash(by_dict) == hash(by_list)
    assert [(key, type(value)) for key, value in by_dict.overrides] == [
        ("tokenizer.ggml.add_bos_token", bool), ("n", int), ("x", float), ("name", str)
    ]  # fmt: skip


def test_numbers_of_numpy_are_shares_and_a_path_is_a_folder(tmp_path):
    assert ModelConfig(tensor_split=numpy.array([1, 2], dtype="float32")).tensor_split == (1.0, 2.0)
    assert ContextConfig(cache_dir=tmp_path).cache_dir == str(tmp_path)


def test_more_shares_than_devices_are_an_error():
    with pytest.raises(InvalidRequestError, match="^tensor_split: 1000 shares"):
        model_params(load(), ModelConfig(tensor_split=[1] * 1000))


def test_the_window_is_what_any_stage_looks_back_on():
    assert SamplingParams().window == 64
    assert SamplingParams(penalty_last_n=256).window == 256
    assert SamplingParams(dry_penalty_last_n=-1).window == -1


def test_every_sampler_may_be_named():
    assert SamplingParams(samplers=SAMPLERS).samplers == SAMPLERS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ()),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (1,)),
        ("stop", None),
        ("stop", 5),
        ("prompt", [1, 2]),
        ("prompt", (True,)),
        ("prompt", (1.5,)),
        ("prompt", (None,)),
        ("stop_tokens", None),
        ("stop_tokens", (1.5,)),
        ("stop_tokens", "12"),
        ("visible_tokens", (None,)),
        ("visible_tokens", "<a>"),
        ("boundaries", None),
        ("boundaries", (-5,)),
        ("boundaries", (2,)),
        ("special", None),
        ("special", 1),
        ("grammar", None),
        ("grammar", "root"),
        ("priority", None),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", "soon"),
        ("timeout", float("nan")),
        ("timeout", 1e9),
        ("context_shift", 1.5),
        ("speculate", None),
    ],
)
def test_a_wrong_request_is_refused(field, value):
    with pytest.raises(InvalidRequestError, match=f"^{field}:"):
        Request(**{"prompt": (1,), field: value})
