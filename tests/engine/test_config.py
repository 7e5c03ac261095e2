from __future__ import annotations

import math

import pytest

from localllm.engine.config import SAMPLERS, ContextConfig, ModelConfig, SamplingParams
from localllm.engine.request import Request
from localllm.errors import InvalidRequestError

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
    (ModelConfig, "metadata_overrides", (("", 1),)),
    (ModelConfig, "metadata_overrides", (("x" * 128, 1),)),
    (ModelConfig, "metadata_overrides", (("x", None),)),
    (ModelConfig, "metadata_overrides", (("x", "y" * 128),)),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG, ids=lambda value: getattr(value, "__name__", repr(value)[:20]))
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
    ],
)
def test_a_wrong_request_is_refused(field, value):
    with pytest.raises(InvalidRequestError, match=f"^{field}:"):
        Request(**{"prompt": (1,), field: value})
