"""Estimates of memory against what llama.cpp itself takes, for files and for architectures without a file."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.engine import Engine
from localllm.engine.params import context_params, model_params
from localllm.errors import InvalidRequestError
from localllm.hub.geometry import geometry
from localllm.hub.gguf import Header, TensorInfo, read_header
from localllm.hub.memory import Companions, ContextOptions, estimate, estimate_other, repacked_types
from localllm.native.handles import Context, Model
from localllm.native.library import load

MIB = 2**20
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def architectures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hub_architectures", HERE / "architectures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(path: Path, options: ContextOptions, caplog: Any, architectures: ModuleType) -> dict[str, float]:
    """What llama.cpp says that a model and a context take, in MiB, of which two digits after the point are known."""
    caplog.set_level(logging.DEBUG, "localllm.native")
    caplog.clear()
    native = load()
    model = Model(str(path), model_params(native, ModelConfig()))
    config = ContextConfig(
        n_ctx=options.n_ctx, parallel=options.parallel, n_ubatch=options.n_ubatch, type_k=options.type_k, type_v=options.type_v,
        flash_attention="on" if options.flash_attention else "off", swa_full=options.swa_full,
    )  # fmt: skip
    params = context_params(native, config, 0)
    params.kv_unified = options.unified
    context = Context(model, params)
    lines = [record.getMessage() for record in caplog.records]
    kinds = ("CPU_Mapped model", "CPU_REPACK model", "KV", "RS", "compute", "output")
    found = {kind: architectures.said(lines, kind) for kind in kinds}
    context.close()
    model.close()
    return found


@pytest.fixture(scope="module")
def files(models, trained, smollm2) -> dict[str, Path]:
    names = ("qwen3", "qwen3moe", "gemma3", "gemma4", "qwen35", "mamba2", "lfm2", "gpt2", "bert")
    return {**{name: models[name] for name in names}, "trained": trained, "smollm2": smollm2}


OPTIONS = {
    "usual": ContextOptions(kept_sequences=0),
    "short": ContextOptions(kept_sequences=0, n_ctx=512, parallel=1),
    "no-flash-attention": ContextOptions(kept_sequences=0, flash_attention=False),
    "small-batches": ContextOptions(kept_sequences=0, n_ubatch=128),
    "split": ContextOptions(kept_sequences=0, n_ctx=16384, unified=False),
    "full-windows": ContextOptions(kept_sequences=0, swa_full=True, n_ctx=8192),
    "quantised": ContextOptions(kept_sequences=0, type_k="q8_0", type_v="q8_0"),
}
# How far the estimate of the total may be from the truth, where that is more than 2%: the scratch memory of these tiny models is
# most of what they take, and of the graphs of encoders and of Mamba with small batches the estimate knows less.
FAR = {("bert", "usual"): 0.04, ("bert", "short"): 0.04, ("bert", "split"): 0.04, ("bert", "full-windows"): 0.04,
       ("bert", "no-flash-attention"): 0.04, ("bert", "small-batches"): 0.25, ("mamba2", "small-batches"): 0.05}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_an_estimate_is_what_llama_cpp_takes(files, caplog, architectures, case):
    compared = []
    for name, path in files.items():
        header, options = read_header(path), OPTIONS[case]
        try:
            found = estimate(header, options)
        except InvalidRequestError:
            assert case == "quantised"
            continue
        taken = measure(path, options, caplog, architectures)
        # Each buffer is told of with two digits after the point, and windows have a second one.
        assert found.kv_bytes / MIB == pytest.approx(taken["KV"], abs=0.011), name
        assert found.state_bytes / MIB == pytest.approx(taken["RS"], abs=0.006), name
        assert found.weights_bytes / MIB == pytest.approx(taken["CPU_Mapped model"], abs=0.006), name
        total = sum(taken.values())
        assert found.total_bytes / MIB == pytest.approx(total, rel=FAR.get((name, case), 0.02)), (name, found, taken)
        compared.append(name)
    assert compared == (["mamba2", "trained", "smollm2"] if case == "quantised" else list(files))


ARCHITECTURES = [
    # one cache for all
    "llama", "gpt2", "falcon", "phi3", "qwen2", "qwen3", "granite", "glm4", "deci", "command-r", "smollm3", "openelm",
    "t5encoder", "llama4+experts", "qwen3moe+experts", "olmoe+experts", "gpt-oss+experts", "minimax-m2+experts", "nanbeige",
    # windows
    "afmoe+experts", "cohere2", "cohere2moe+experts", "exaone4", "exaone-moe+experts", "gemma2", "gemma3", "gemma3n", "gemma4",
    "granite_swa", "laguna+experts", "maple+experts", "mellum+experts", "mimo2+experts", "muse-glimmer", "olmo2", "plamo3",
    "smallthinker+experts", "spark2_5", "step35+experts",
    # one key for all heads, with an indexer or without
    "deepseek2+experts", "deepseek32+experts", "deepseek4+experts", "glm-dsa+experts", "hy_v4+experts", "minimax-m3+experts",
    "mistral4+experts",
    # states, alone or with a cache
    "mamba", "mamba2", "rwkv6", "rwkv7", "arwkv7", "falcon-h1", "jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe+experts",
    "nemotron_h", "nemotron_h_moe+experts", "qwen3next+experts", "qwen35", "qwen35moe+experts", "kimi-linear+experts",
    "kimi-k3+experts", "bailingmoe3+experts", "minimax-01+experts",
    # none
    "modern-bert", "neo-bert", "eurobert", "gemma-embedding", "dream", "llada", "llada-moe+experts", "rnd1+experts",
]  # fmt: skip


def test_caches_and_states_of_all_kinds_of_architectures(architectures):
    ran = subprocess.run(
        [sys.executable, str(HERE / "architectures.py"), *ARCHITECTURES], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    measured = dict(json.loads(line) for line in ran.stdout.splitlines())
    assert list(measured) == ARCHITECTURES
    wrong = {}
    for name in ARCHITECTURES:
        architecture, _, sparse = name.partition("+")
        keys = architectures.metadata(architecture, bool(sparse))
        own = {f"{architecture}.{key}": tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
        header = Header("x", 3, {"general.architecture": architecture, **own}, (), 0, 0)
        for context, (kv, state) in zip(architectures.CONTEXTS, measured[name], strict=True):
            n_ctx, parallel, unified, flash = context
            options = ContextOptions(
                n_ctx=n_ctx,
                parallel=parallel,
                unified=unified,
                flash_attention=flash,
                n_ubatch=architectures.N_UBATCH,
                kept_sequences=0,
            )
            found = estimate(header, options)
            if abs(found.kv_bytes / MIB - kv) > 0.021 or abs(found.state_bytes / MIB - state) > 0.006:
                wrong[name, context] = (found.kv_bytes / MIB, kv, found.state_bytes / MIB, state)
    assert not wrong


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "gemma3", "qwen35", "lfm2", "trained"])
def test_the_defaults_are_those_of_an_engine(files, caplog, architectures, name):
    caplog.set_level(logging.DEBUG, "localllm.native")
    with Engine(str(files[name])):
        lines = [record.getMessage() for record in caplog.records]
    kinds = ("CPU_Mapped model", "KV", "RS", "compute", "output")
    taken = sum(architectures.said(lines, kind) for kind in kinds)
    found = estimate(read_header(files[name]))
    assert found.total_bytes / MIB == pytest.approx(taken, rel=0.02)
    assert (found.kv_bytes + found.state_bytes) / MIB == pytest.approx(
        architectures.said(lines, "KV") + architectures.said(lines, "RS"), abs=0.016
    )


def test_the_known_numbers_of_smollm2(smollm2):
    header = read_header(smollm2)
    for n_ctx, mib in ((2048, 45), (8192, 180)):
        assert estimate(header, ContextOptions(n_ctx=n_ctx, parallel=1)).kv_bytes == mib * MIB
    # With few rows of logits the widest thing is gone.
    many, few = (estimate(header, ContextOptions(n_outputs=n)).compute_bytes for n in (0, 4))
    assert many > 96 * MIB and few < 24 * MIB


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_repacked_is_counted_beside(caplog, architectures, tmp_path, builder, tied):
    # A model of types that this CPU repacks, if it repacks any; with an output matrix of its own, or the embeddings for one.
    kept = builder.load("qwen3")
    tensors = {
        name: ["q4_0", *entry[1:]] for name, entry in kept["tensors"].items() if entry[0] == "f16" and entry[1][0] % 32 == 0
    }
    if tied:
        tensors.pop("output.weight", None)
    path = builder.build("qwen3", tmp_path, tensors=tensors, drop=["output.weight"] if tied else [])
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    options = ContextOptions(n_ctx=512, repacked=repacked_types(flags.split()))
    taken = measure(path, options, caplog, architectures)
    header = read_header(path)
    found = estimate(header, options)
    assert found.repack_bytes / MIB == pytest.approx(taken["CPU_REPACK model"], abs=0.006)
    twice = next(tensor.n_bytes for tensor in header.tensors if tensor.name == "token_embd.weight") if tied else 0
    assert found.weights_bytes == header.n_tensor_bytes + twice * bool(found.repack_bytes)


@pytest.mark.parametrize(
    ("flags", "some", "not_these"),
    [
        (["avx2", "fma"], {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}, {"Q4_1", "Q8_0", "Q6_K", "Q2_K"}),
        (["avx2", "avx512f"], {"Q2_K", "Q4_0"}, {"Q8_0"}),
        (["asimd", "asimddp", "i8mm"], {"Q8_0", "Q6_K", "Q5_K", "Q4_0"}, {"Q4_1", "Q2_K"}),
        (["sse4_2"], set(), {"Q4_0"}),
    ],
)
def test_types_that_a_cpu_repacks(flags, some, not_these):
    found = repacked_types(flags)
    assert some <= found and not found & not_these


def test_layers_that_predict_further_tokens_cost_only_where_they_are_used(trained):
    header = read_header(trained)
    without, with_them = estimate(header), estimate(header, ContextOptions(mtp=True))
    assert with_them.weights_bytes == header.n_tensor_bytes > without.weights_bytes
    assert with_them.kv_bytes == 2 * without.kv_bytes  # one such layer, and one of the trunk has a cache
    assert with_them.state_bytes == without.state_bytes


def test_earlier_states_are_kept_where_that_is_possible(models):
    hybrid, recurrent = (read_header(models[name]) for name in ("qwen35", "mamba2"))
    once, thrice = ContextOptions(), ContextOptions(n_rollback=2)
    assert estimate(hybrid, thrice).state_bytes == 3 * estimate(hybrid, once).state_bytes > 0
    assert estimate(recurrent, thrice).state_bytes == estimate(recurrent, once).state_bytes > 0


def test_companions_add_what_they_take(models):
    model, draft, projector = (read_header(models[name]) for name in ("qwen35", "qwen3", "qwen35-mmproj"))
    alone = estimate(model)
    both = estimate(model, companions=Companions(projector, draft))
    assert alone.companions_bytes == 0
    # The picture that it looks at has 8 x 8 patches at least, and as many as fit 4096 tokens at most.
    picture = both.companions_bytes - projector.n_tensor_bytes - estimate(draft).total_bytes
    assert picture == 4 * 4096 * (5 * 32 + 2 * 64) * 4
    assert both.total_bytes == alone.total_bytes + both.companions_bytes


def test_another_quantization_of_the_same_model(smollm2):
    header = read_header(smollm2)
    found = estimate(header, ContextOptions(repacked=frozenset({"Q4_1"})))
    assert estimate_other(found, header, header.file_bytes) == dataclasses.replace(found, repack_bytes=0)
    other = estimate_other(found, header, header.file_bytes + 10**7)
    assert (other.weights_bytes, other.kv_bytes) == (found.weights_bytes + 10**7, found.kv_bytes)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"type_k": "q4_k"}, "type_k"), ({"type_v": "q8_0", "flash_attention": False}, "flash attention"),
        ({"n_ctx": -1}, "n_ctx"),
        ({"parallel": 0}, "parallel"), ({"n_ubatch": True}, "n_ubatch"), ({"n_batch": 1.5}, "n_batch"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(options, part):
    with pytest.raises(InvalidRequestError, match=part):
        ContextOptions(**options)


def test_a_quantised_cache_wants_whole_blocks_in_every_head(models):
    with pytest.raises(InvalidRequestError, match="type_k: q8_0 has blocks of 32 values, but a head of this model has 16"):
        estimate(read_header(models["qwen3"]), ContextOptions(type_k="q8_0"))


def test_the_length_that_the_model_was_trained_for(models):
    header = read_header(models["qwen3"])
    assert estimate(header, ContextOptions(n_ctx=0)) == estimate(header, ContextOptions(n_ctx=header.context_length))


@pytest.mark.parametrize(
    "key", ["block_count", "attention.head_count", "attention.key_length", "embedding_length", "nextn_predict_layers"]
)
@pytest.mark.parametrize("value", [-1, 2**63, "x", (1, 2), True, None, 0])
def test_metadata_that_makes_no_sense_is_no_crash(key, value):
    metadata = {
        "general.architecture": "gemma3",
        "gemma3.block_count": 4,
        "gemma3.attention.head_count": 2,
        "gemma3.embedding_length": 64,
    }
    metadata[f"gemma3.{key}"] = value
    tensors = (TensorInfo("token_embd.weight", (64, 10), "F16", 1280, 0),)
    header = Header("x", 3, metadata, tensors, 0, 0)
    assert estimate(header).total_bytes >= 0 and geometry(header).layers is not None
