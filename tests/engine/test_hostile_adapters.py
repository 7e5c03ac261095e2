"""Files that are no adapters, or not for this model: a typed error with file and reason, and an engine that goes on as before."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm import ControlVector, Lora, Request, SamplingParams
from localllm.errors import LocalLLMError, ModelError, NativeError, UnsupportedModelError

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
Q = "blk.0.attn_q.weight"


def ask(engine: Any, **adapters: Any) -> tuple[int, ...]:
    return engine.generate(Request(prompt=(5, 6, 7, 8), max_tokens=6, sampling=GREEDY, **adapters)).tokens


def metadata(recipe: Any, **changes: Any) -> Any:
    """A copy with metadata changed; "__" stands for a dot, None takes a key away."""
    changed = copy.deepcopy(recipe)
    for key, entry in changes.items():
        name = key.replace("__", ".")
        changed["metadata"].pop(name, None)
        if entry is not None:
            changed["metadata"][name] = entry
    return changed


def tensors(recipe: Any, **changes: Any) -> Any:
    """A copy with the tensors of blk.0.attn_q changed ("lora_a", "lora_b"); None takes one away."""
    changed = copy.deepcopy(recipe)
    for part, entry in changes.items():
        changed["tensors"].pop(f"{Q}.{part}", None)
        if entry is not None:
            changed["tensors"][f"{Q}.{part}"] = entry
    return changed


def renamed(recipe: Any, old: str, new: str) -> Any:
    return {**recipe, "tensors": {name.replace(old, new): entry for name, entry in recipe["tensors"].items()}}


NORMAL = {"normal": [0.0, 0.1]}
# What is wrong -> (change of a sound adapter's recipe, part of the message)
LORAS = {
    "architecture": (lambda r: metadata(r, general__architecture=["string", "llama"]), "for the architecture 'llama'"),
    "architecture-number": (lambda r: metadata(r, general__architecture=["uint32", 7]), "for the architecture ''"),
    "type-number": (lambda r: metadata(r, general__type=["uint32", 7]), "no LoRA adapter"),
    "no-type": (lambda r: metadata(r, general__type=None), "no LoRA adapter"),
    "other-adapter": (lambda r: metadata(r, adapter__type=["string", "ia3"]), "the type 'ia3'"),
    "adapter-type-number": (lambda r: metadata(r, adapter__type=["uint32", 1]), "the type ''"),
    "alpha-nan": (lambda r: metadata(r, adapter__lora__alpha=["float32", float("nan")]), "alpha is no finite number"),
    "alpha-infinite": (lambda r: metadata(r, adapter__lora__alpha=["float32", float("inf")]), "alpha is no finite number"),
    "alpha-text": (lambda r: metadata(r, adapter__lora__alpha=["string", "8"]), "alpha is no finite number"),
    "alora": (lambda r: metadata(r, adapter__alora__invocation_tokens=["[uint32]", [5, 6]]), "activated LoRA"),
    "alora-text": (lambda r: metadata(r, adapter__alora__invocation_tokens=["string", "x"]), "activated LoRA"),
    "no-tensors": (lambda r: {**r, "tensors": {}}, "no LoRA tensors"),
    "only-a": (lambda r: tensors(r, lora_b=None), "only one of lora_a and lora_b"),
    "only-b": (lambda r: tensors(r, lora_a=None), "only one of lora_a and lora_b"),
    "ranks": (lambda r: tensors(r, lora_b=["f32", [3, 64], NORMAL]), "the ranks of 'blk.0.attn_q.weight' differ: 2 in A, 3 in B"),
    "inputs": (lambda r: tensors(r, lora_a=["f32", [32, 2], NORMAL]), "made for another model"),
    "outputs": (lambda r: tensors(r, lora_b=["f32", [2, 65], NORMAL]), "made for another model"),
    "transposed": (lambda r: tensors(r, lora_a=["f32", [2, 64], NORMAL]), "made for another model"),
    "experts": (lambda r: tensors(r, lora_a=["f32", [64, 2, 4], NORMAL]), "made for another model"),
    "row": (lambda r: tensors(r, lora_a=["f32", [64], NORMAL]), "the ranks"),
    "integers": (lambda r: tensors(r, lora_a=["i32", [64, 2], {"constant": 1}]), "nothing can be multiplied"),
    "doubles": (lambda r: tensors(r, lora_b=["f64", [2, 64], {"constant": 1}]), "nothing can be multiplied"),
    "nan": (lambda r: tensors(r, lora_a=["f32", [64, 2], {"constant": float("nan")}]), "no finite numbers"),
    "infinite": (lambda r: tensors(r, lora_b=["f32", [2, 64], {"constant": float("inf")}]), "no finite numbers"),
    "other-tensor": (lambda r: renamed(r, "attn_q", "attn_x"), "which the model does not have"),
    "other-layer": (lambda r: renamed(r, "blk.3", "blk.9"), "which the model does not have"),
    "suffix": (lambda r: renamed(r, ".lora_a", ".lora_c"), "no part of a LoRA adapter"),
    "twice": (lambda r: renamed(r, "attn_q.weight.lora_a", "attn_q.weight.lora_a.lora_a"), "LoRA|lora"),
    "norm": (
        lambda r: {**r, "tensors": {**r["tensors"], "blk.0.attn_norm.weight": ["f32", [64], NORMAL]}},
        "it replaces 'blk.0.attn_norm.weight'",
    ),
    "norm-pair": (lambda r: renamed(r, "attn_q.weight", "attn_norm.weight"), "no matrix"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(builder, makers) -> Any:
    return makers.lora(builder.load("qwen3"), ("blk.*.attn_q.weight",))


@pytest.mark.parametrize("fault", LORAS)
def test_a_faulty_lora_is_refused_with_the_reason(qwen3, builder, sound, fault):
    change, reason = LORAS[fault]
    path = builder.save(f"faulty-lora-{fault}", change(sound))
    before = ask(qwen3)
    with pytest.raises(ModelError, match=reason) as caught:
        ask(qwen3, loras=(Lora(path),))
    assert str(path) in str(caught.value)
    assert ask(qwen3) == before


def test_the_sound_one_is_not_refused(qwen3, builder, sound):
    assert ask(qwen3, loras=(Lora(builder.save("sound-lora", sound)),)) != ask(qwen3)


CONTROLS = {
    "hint": (lambda r: metadata(r, controlvector__model_hint=["string", "llama"]), "for the architecture 'llama'"),
    "architecture": (lambda r: metadata(r, general__architecture=["string", "qwen3"]), "no control vector"),
    "no-tensors": (lambda r: {**r, "tensors": {}}, "no directions"),
    "layer-0": (lambda r: renamed(r, "direction.1", "direction.0"), "no control vector"),
    "layer-4": (lambda r: renamed(r, "direction.1", "direction.4"), "beyond the model's 4 layers"),
    "layer-huge": (lambda r: renamed(r, "direction.1", "direction.99999999999999999999"), "no control vector"),
    "layer-negative": (lambda r: renamed(r, "direction.1", "direction.-1"), "no control vector"),
    "layer-text": (lambda r: renamed(r, "direction.1", "direction.x"), "no control vector"),
    "name": (lambda r: renamed(r, "direction", "dir"), "no control vector"),
    "short": (lambda r: {**r, "tensors": {"direction.1": ["f32", [32], NORMAL]}}, "needs 64 values"),
    "matrix": (lambda r: {**r, "tensors": {"direction.1": ["f32", [64, 2], NORMAL]}}, "needs 64 values"),
    "half": (lambda r: {**r, "tensors": {"direction.1": ["f16", [64], NORMAL]}}, "needs 64 values"),
    "nan": (lambda r: {**r, "tensors": {"direction.1": ["f32", [64], {"constant": float("nan")}]}}, "no finite numbers"),
}


@pytest.mark.parametrize("fault", CONTROLS)
def test_a_faulty_control_vector_is_refused_with_the_reason(qwen3, builder, makers, fault):
    change, reason = CONTROLS[fault]
    path = builder.save(f"faulty-control-{fault}", change(makers.control(builder.load("qwen3"))))
    with pytest.raises(ModelError, match=reason) as caught:
        ask(qwen3, control_vectors=(ControlVector(path),))
    assert str(path) in str(caught.value)


def test_files_of_other_kinds_are_no_adapters(qwen3, models, builder, makers, sound):
    others = [models[name] for name in ("qwen3", "qwen3-vocab-only", "gemma3-mmproj", "qwen35-mtp-head", "bert")]
    lora, control = builder.save("sound-lora", sound), builder.save("sound-control", makers.control(builder.load("qwen3")))
    for path in (*others, control):
        with pytest.raises(UnsupportedModelError, match="no LoRA adapter") as caught:
            ask(qwen3, loras=(Lora(path),))
        assert str(path) in str(caught.value)
    for path in (*others, lora):
        with pytest.raises(UnsupportedModelError, match="no control vector") as caught:
            ask(qwen3, control_vectors=(ControlVector(path),))
        assert str(path) in str(caught.value)


def test_an_adapter_of_another_model_is_refused(engine_for, builder, makers, sound):
    path = builder.save("sound-lora", sound)
    control = builder.save("sound-control", makers.control(builder.load("qwen3")))
    for name in ("gemma3", "qwen35", "qwen3-one-layer"):
        engine = engine_for(name)
        with pytest.raises(ModelError):
            ask(engine, loras=(Lora(path),))
        with pytest.raises(LocalLLMError):
            ask(engine, control_vectors=(ControlVector(control),))
        assert len(ask(engine)) == 6


def test_weights_that_llama_cpp_would_pass_over_or_die_of_are_refused(engine_for, builder, makers):
    """Convolutions are not multiplied; an embedding that is the output, too, has two uses that one adapter cannot serve."""
    for name, target, reason in (
        ("mamba2", "blk.*.ssm_conv1d.weight", "'blk.*.ssm_conv1d.weight', to which llama.cpp applies no adapters"),
        ("qwen35", "blk.*.ssm_conv1d.weight", "'blk.*.ssm_conv1d.weight', to which llama.cpp applies no adapters"),
        ("lfm2", "blk.*.shortconv.conv.weight", "to which llama.cpp applies no adapters"),
        ("gemma3", "token_embd.weight", "uses as its output"),
    ):
        engine = engine_for(name)
        path = builder.save(f"{name}-wrong-lora", makers.lora(builder.load(name), (target,)))
        with pytest.raises(UnsupportedModelError, match=reason):
            ask(engine, loras=(Lora(path),))
        assert len(ask(engine)) == 6 and engine.stats().n_adapters == 0
    with pytest.raises(UnsupportedModelError, match="no control vectors to this model"):
        ask(engine_for("qwen3-one-layer"), control_vectors=(ControlVector(path),))


def test_damaged_models_are_no_adapters(qwen3, hostile):
    for fault, path in hostile.items():
        for adapter in ({"loras": (Lora(path),)}, {"control_vectors": (ControlVector(path),)}):
            with pytest.raises(ModelError) as caught:
                ask(qwen3, **adapter)
            assert path.name in str(caught.value), fault
    assert len(ask(qwen3)) == 6


def test_a_truncated_adapter_is_an_error_wherever_it_ends(qwen3, builder, makers, sound, tmp_path):
    lora, control = builder.save("sound-lora", sound), builder.save("sound-control", makers.control(builder.load("qwen3")))
    for kind, whole in (("loras", lora), ("control_vectors", control)):
        data = whole.read_bytes()
        for size in [*range(0, len(data) - 32, max(1, len(data) // 40)), len(data) - 32]:
            path = tmp_path / f"{kind}-{size}.gguf"
            path.write_bytes(data[:size])
            make = Lora if kind == "loras" else ControlVector
            with pytest.raises(ModelError) as caught:
                ask(qwen3, **{kind: (make(path),)})
            assert path.name in str(caught.value)
    assert len(ask(qwen3)) == 6


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), head=st.booleans())
def test_a_changed_bit_anywhere_is_an_error_or_another_adapter(qwen3, builder, sound, tmp_path, at, bit, head):
    data = bytearray(Path(builder.save("sound-lora", sound)).read_bytes())
    place = int(at * (1024 if head else len(data)))
    data[place] ^= 1 << bit
    path = tmp_path / f"{place}-{bit}.gguf"
    path.write_bytes(bytes(data))
    try:
        assert len(ask(qwen3, loras=(Lora(path, 1e-3),))) == 6
    except ModelError as error:
        assert path.name in str(error)
    except NativeError as error:
        # A sound file with a huge weight.
        assert "not a number" in str(error) and len(ask(qwen3)) == 6


def test_one_bad_adapter_among_good_ones_changes_nothing(engine_for, builder, sound, tmp_path):
    engine = engine_for("qwen3")
    before = ask(engine)
    good = builder.save("sound-lora", sound)
    for loras in ((Lora(good), Lora(tmp_path / "none")), (Lora(tmp_path / "none"), Lora(good))):
        with pytest.raises(ModelError):
            ask(engine, loras=loras)
    assert engine.stats().n_requests == 1 and ask(engine) == before
