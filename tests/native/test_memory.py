"""What llama.cpp says that a model and a context take, before and after loading, and what the header alone says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

import pytest

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.errors import ClosedError, InvalidRequestError, ModelError, UnsupportedModelError
from localllm.hub.gguf import read_header
from localllm.hub.memory import ContextOptions, estimate
from localllm.native.handles import Context, Model
from localllm.native.library import load
from localllm.native.memory import Fit, MemoryUse, measure, memory_of

GIB = 1 << 30


@pytest.fixture(scope="module")
def native():
    return load()


@pytest.fixture(scope="module")
def files(models, trained, smollm2) -> dict[str, Path]:
    names = (
        "qwen3",
        "qwen3moe",
        "qwen3-embedding",
        "gemma3",
        "gemma4",
        "qwen35",
        "qwen35-no-mtp",
        "mamba2",
        "lfm2",
        "gpt2",
        "bert",
    )
    return {**{name: models[name] for name in names}, "trained": trained, "smollm2": smollm2}


def params(native, options: ContextOptions):
    """What llama.cpp is told for options of an estimate."""
    config = ContextConfig(
        n_ctx=options.n_ctx, parallel=options.parallel, n_ubatch=options.n_ubatch, type_k=options.type_k, type_v=options.type_v,
        flash_attention="on" if options.flash_attention else "off", swa_full=options.swa_full,
    )  # fmt: skip
    context = context_params(native, config, 0)
    context.n_seq_max = options.n_sequences
    context.n_outputs_max = max(context.n_batch, options.n_sequences)
    return context


def dry(native, path: Path, options: ContextOptions) -> MemoryUse:
    return measure(native, str(path), model_params(native, ModelConfig()), params(native, options))


CASES = [
    ContextOptions(n_ctx=n_ctx, parallel=parallel, kept_sequences=kept, type_k=type_k, type_v=type_v, flash_attention=flash)
    for n_ctx in (512, 4096, 16384)
    for parallel, kept in ((1, 0), (4, 16))
    for type_k, type_v, flash in (
        ("f16", "f16", True), ("f16", "f16", False), ("q8_0", "q8_0", True), ("f32", "bf16", True), ("f32", "f32", True),
    )
]  # fmt: skip
# Of the graphs of encoders and of Mamba, and of caches in 32 bits, the estimate knows less; and scratch memory is most of what
# these tiny ones take.
FAR = {"bert": 0.04, "mamba2": 0.03}


def test_the_header_alone_says_what_llama_cpp_measures(native, files):
    """Caches and states to the byte, all together to 2%."""
    wrong, n_compared = {}, 0
    for name, path in files.items():
        header = read_header(path)
        for options in CASES:
            try:
                found = estimate(header, options)
            except InvalidRequestError:
                assert options.type_k == "q8_0"
                continue
            taken = dry(native, path, options)
            n_compared += 1
            most = max(FAR.get(name, 0.02), 0.03 if "f32" in (options.type_k, options.type_v) else 0)
            is_near = abs(found.total_bytes - taken.total_bytes) <= most * taken.total_bytes
            if found.kv_bytes + found.state_bytes != taken.context_bytes or not is_near:
                wrong[name, options.n_ctx, options.parallel, options.type_k, options.flash_attention] = (found, taken)
    assert not wrong
    assert n_compared > 200


@pytest.mark.parametrize("name", ["qwen3", "qwen35", "lfm2", "gemma3", "smollm2"])
def test_what_was_measured_is_what_is_taken(native, files, name):
    options = ContextOptions(n_ctx=1024, kept_sequences=0)
    before = dry(native, files[name], options)
    model = Model(str(files[name]), model_params(native, ModelConfig()))
    context = Context(model, params(native, options))
    after = memory_of(context)
    assert (before.context_bytes, before.compute_bytes) == (after.context_bytes, after.compute_bytes)
    assert before.total_bytes == before.host_bytes and before.n_ctx == after.n_ctx == 1024
    # What is mapped is a part of the file; what is laid out is every tensor, rounded up.
    assert before.model_bytes == pytest.approx(after.model_bytes, rel=0.01)
    context.close()
    with pytest.raises(ClosedError):
        memory_of(context)
    model.close()


def test_of_a_file_only_the_header_is_needed(native, smollm2, tmp_path):
    header = read_header(smollm2)
    sparse = tmp_path / "sparse.gguf"
    with smollm2.open("rb") as file:
        sparse.write_bytes(file.read(header.data_offset_bytes))
    os.truncate(sparse, header.file_bytes)
    assert sparse.stat().st_blocks * 512 < header.file_bytes / 10
    options = ContextOptions(n_ctx=2048)
    assert dry(native, sparse, options) == dry(native, smollm2, options)


def test_what_is_no_model_is_refused_before_llama_cpp_sees_it(native, models, hostile, makers, tmp_path):
    with pytest.raises(UnsupportedModelError, match="projector"):
        dry(native, models["qwen35-mmproj"], ContextOptions())
    with pytest.raises(ModelError):
        dry(native, tmp_path / "none.gguf", ContextOptions())
    for path in hostile.values():
        with contextlib.suppress(ModelError):
            dry(native, path, ContextOptions(n_ctx=256))


@pytest.mark.parametrize(("field", "value"), [("n_seq_max", 0), ("n_seq_max", 100_000), ("n_batch", 0), ("n_ubatch", 0)])
def test_options_that_would_end_the_process_are_refused(native, models, field, value):
    context = params(native, ContextOptions())
    setattr(context, field, value)
    with pytest.raises(InvalidRequestError):
        measure(native, str(models["qwen3"]), model_params(native, ModelConfig()), context)
    with pytest.raises(InvalidRequestError):
        Fit(native, str(models["qwen3"]), model_params(native, ModelConfig()), context, margin_bytes=0, n_ctx_min=256)


def fit(native, path: Path, n_ctx: int, margin_bytes: int, n_ctx_min: int = 512) -> Fit:
    context = params(native, ContextOptions())
    context.n_ctx = n_ctx
    return Fit(
        native, str(path), model_params(native, ModelConfig()), context, margin_bytes=margin_bytes, n_ctx_min=n_ctx_min
    )  # fmt: skip


def test_llama_cpp_chooses_the_context_where_none_is_given(native, smollm2):
    roomy = fit(native, smollm2, 0, GIB // 8)
    assert (roomy.fits, roomy.n_ctx) == (True, 8192)
    tight = fit(native, smollm2, 0, 1 << 50)
    assert (tight.fits, tight.n_ctx) == (False, 512)
    given = fit(native, smollm2, 1024, GIB // 8)
    assert given.n_ctx == 1024
    model, context = model_params(native, ModelConfig()), params(native, ContextOptions())
    roomy.apply(model, context)
    assert context.n_ctx == 8192 and model.n_gpu_layers == roomy.n_gpu_layers
    roomy.close()
    with pytest.raises(ClosedError):
        roomy.apply(model, context)


def test_fitting_and_loading_at_once(native, models, smollm2, caplog):
    """Fitting puts its own function in place of the log's: whoever loads meanwhile must not run into it."""
    failed = []

    def loads() -> None:
        try:
            for _ in range(10):
                Model(str(models["qwen3"]), model_params(native, ModelConfig())).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=loads) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert fit(native, models["qwen3"], 0, 0).fits
    for thread in threads:
        thread.join()
    assert not failed
    # The log is ours again.
    with pytest.raises(ModelError, match="unknown|architecture|foobar"):
        Model(str(models["foobar"]), model_params(native, ModelConfig()))


def test_nothing_is_printed(native, models, capfd):
    fit(native, models["qwen3"], 0, 1 << 50)
    dry(native, models["qwen3"], ContextOptions())
    with pytest.raises(ModelError):
        dry(native, models["foobar"], ContextOptions())
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_files_whose_names_are_not_utf_8(native, models, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf")
    try:
        Path(path).symlink_to(models["qwen3"])
    except OSError:
        pytest.skip("this file system takes no such name")
    model, context = model_params(native, ModelConfig()), context_params(native, ContextConfig(n_ctx=256), 0)
    assert measure(native, path, model, context).n_ctx == 256
    assert Fit(native, path, model, context, margin_bytes=0, n_ctx_min=256).n_ctx == 256
    assert Model(path, model).n_layer > 0
