"""Measurements of the machine: that they are there and make sense. How long anything takes is not looked at."""

from __future__ import annotations

import logging

import pytest

from localllm.engine.config import ModelConfig
from localllm.engine.params import model_params
from localllm.errors import InvalidRequestError
from localllm.hub.gguf import read_header
from localllm.hub.gguf_parse import TENSOR_TYPES
from localllm.hub.here import cpu_flags
from localllm.hub.memory import repacked_types
from localllm.native.handles import Model
from localllm.native.library import load

COMMON = {
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0"),
    *("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ2_S", "MXFP4"),
}


def listed() -> dict[str, dict]:
    return {entry["type"]: entry for entry in load().json_call("lm_speed_types")}


def test_all_common_types_are_listed_once():
    found = load().json_call("lm_speed_types")
    assert set(listed()) >= COMMON and len(listed()) == len(found)
    assert set(listed()) <= {name for name, _, _ in TENSOR_TYPES.values()}


@pytest.mark.parametrize("name", ["F32", "Q4_0", "Q4_1", "IQ2_S"])
def test_a_type_has_rates_and_lies_where_the_list_says(name):
    found = load().json_call("lm_speed_matrix", name.encode(), 1)
    assert found["flops_per_second"] > 1e6 and found["bytes_per_second"] > 1e4
    assert {key: found[key] for key in ("type", "repacked", "buffer")} == listed()[name]


def test_the_rest_of_a_layer_costs_something():
    found = load().json_call("lm_speed_layer", 1)
    assert set(found) == {"layer_seconds", "attention_seconds", "batch_attention_seconds", "pass_seconds"}
    assert all(0 < value < 1 for value in found.values())


@pytest.mark.parametrize("n_threads", [0, -1, 513])
def test_impossible_threads_are_refused(n_threads):
    with pytest.raises(InvalidRequestError, match="n_threads"):
        load().json_call("lm_speed_matrix", b"Q4_0", n_threads)
    with pytest.raises(InvalidRequestError, match="n_threads"):
        load().json_call("lm_speed_layer", n_threads)


@pytest.mark.parametrize("name", [b"Q8_K", b"q4_0", b"", b"I32", None])
def test_types_that_are_not_listed_are_refused(name):
    with pytest.raises(InvalidRequestError, match="^type: "):
        load().json_call("lm_speed_matrix", name, 1)


def test_the_table_of_repacked_types_agrees_with_the_library():
    flags = cpu_flags()
    found = {name for name, entry in listed().items() if entry["repacked"]}
    # A build may use fewer instructions than the CPU has.
    assert found in (repacked_types(flags), repacked_types(["avx2"]), frozenset())


def test_a_model_is_loaded_to_where_the_list_says(smollm2, tmp_path, caplog):
    """SmolLM2 as Q4_1, and as Q4_0, which most CPUs repack."""
    copy = tmp_path / "q4_0.gguf"
    native = load()
    native.check(native.lm_quantize(str(smollm2).encode(), str(copy).encode(), b"Q4_0", 2, b"{}", None))
    places = listed()
    for path in (smollm2, copy):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "localllm.native"):
            Model(str(path), model_params(native, ModelConfig(n_gpu_layers=0, load_mode="none"))).close()
        buffers = {line.split(" model buffer")[0].split()[-1] for line in caplog.messages if "model buffer size" in line}
        expected = {places[tensor.type]["buffer"] for tensor in read_header(path).tensors if len(tensor.shape) > 1}
        assert expected <= buffers
        assert ("CPU_REPACK" in buffers) == any(places[name]["repacked"] for name in read_header(path).tensor_types)
