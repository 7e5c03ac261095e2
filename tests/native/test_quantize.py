"""Writing models in other types: what the native calls refuse, and that they can be stopped."""

from __future__ import annotations

import ctypes
import json

import pytest

from localllm.errors import InvalidRequestError, ModelLoadError, NativeError, UnsupportedModelError
from localllm.native.bindings import localllm as localllm_h
from localllm.native.library import load


def quantize(path, output, type_name=b"Q8_0", n_threads=1, metadata=b"{}", abort=None) -> None:
    def name(given):
        return given if given is None else str(given).encode()

    load().check(load().lm_quantize(name(path), name(output), type_name, n_threads, metadata, abort))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": None}, "^path: "),
        ({"output": None}, "^output: "),
        ({"type_name": None}, "^type: "),
        ({"type_name": b"IQ1_S"}, "^type: 'IQ1_S' is none"),
        ({"n_threads": 0}, "^n_threads: "),
        ({"n_threads": 513}, "^n_threads: "),
        ({"metadata": None}, "^metadata: "),
        ({"metadata": b"{"}, "json"),
        ({"metadata": b"[1]"}, "^metadata: "),
        ({"metadata": b"[" * 100_000}, "nested"),
        ({"metadata": b'{"a": 1}'}, "^metadata: 'a' must be a string"),
        ({"metadata": b'{"": "x"}'}, "^metadata: "),
        ({"metadata": json.dumps({"k" * 128: "x"}).encode()}, "^metadata: "),
        ({"metadata": json.dumps({"k": "x" * 128}).encode()}, "^metadata: "),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(models, tmp_path, changes, words):
    with pytest.raises(InvalidRequestError, match=words):
        quantize(**{"path": models["qwen3"], "output": tmp_path / "new.gguf", **changes})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["gemma3-mmproj", "qwen3-lora", "qwen35-mtp-head", "qwen3-vocab-only"])
def test_what_is_no_model_is_refused(models, tmp_path, model):
    with pytest.raises(UnsupportedModelError):
        quantize(models[model], tmp_path / "new.gguf")
    with pytest.raises(UnsupportedModelError):
        load().json_call("lm_quantize_plan", str(models[model]).encode())
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_missing_are_errors(tmp_path):
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises((ModelLoadError, NativeError)):
            quantize(path, tmp_path / "new.gguf")
        with pytest.raises(ModelLoadError):
            load().json_call("lm_quantize_plan", str(path).encode())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(models, tmp_path):
    with pytest.raises(NativeError):
        quantize(models["qwen3"], tmp_path / "missing" / "new.gguf")


def test_a_flag_stops_it_and_later_calls_do_not_see_it(models, tmp_path):
    with pytest.raises(NativeError, match="cancelled") as raised:
        quantize(models["qwen3"], tmp_path / "new.gguf", abort=ctypes.byref(ctypes.c_int32(1)))
    assert raised.value.status == localllm_h.LM_ABORTED
    quantize(models["qwen3"], tmp_path / "new.gguf", abort=ctypes.byref(ctypes.c_int32(0)))
    quantize(models["qwen3"], tmp_path / "new.gguf")


def test_every_mixture_is_planned_for_every_tensor(models):
    plans = load().json_call("lm_quantize_plan", str(models["qwen3moe"]).encode())
    assert sorted(plans) == sorted(load().json_call("lm_quantize_types"))
    (names,) = {tuple(sorted(plan)) for plan in plans.values()}
    assert "output_norm.weight" in names
    assert {plan["output_norm.weight"] for plan in plans.values()} == {"F32"}
