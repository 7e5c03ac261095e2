"""What "auto" means, what does not fit, and what is said about it before anything is allocated."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from localllm import ContextConfig, Embedder, Engine, LocalModel, ModelConfig, SpeculationConfig, loaded_models
from localllm.engine.params import model_params
from localllm.errors import DoesNotFitError, InvalidRequestError
from localllm.hub.gguf import read_header, read_model
from localllm.hub.memory import ContextOptions, estimate, projector_bytes
from localllm.native.library import load
from localllm.native.memory import Device, Fit, MemoryUse
from localllm.residency import estimated, fitting, measured
from localllm.residency.estimated import by_header
from localllm.residency.fitting import require_room_for_projector
from localllm.residency.measured import by_llama_cpp, use_of_context, use_of_weights, with_drafting
from localllm.residency.placement import Placement, Plan, Room, Wanted, margin, needed
from localllm.residency.policy import HOST, TOTAL
from localllm.residency.registry import registry

MIB = 1 << 20
BIG = Room({HOST: 1 << 40})


@pytest.fixture
def free(monkeypatch):
    """A function that says how much memory the machine has left."""
    return lambda n_bytes: monkeypatch.setattr(registry, "free_bytes", lambda: n_bytes)


def test_auto_is_the_trained_length_where_there_is_room(smollm2, free):
    free(8 << 30)
    with LocalModel(smollm2, n_ctx="auto", n_gpu_layers="auto", kept_sequences=0, n_batch=32, n_ubatch=32) as model:
        assert model.placement is None
        assert model.engine.n_ctx == 8192
        placement = model.placement
    assert (placement.n_ctx, placement.n_ctx_train, placement.n_gpu_layers) == (8192, 8192, -1)
    assert "all the 8192 tokens" in placement.reason and placement.free_bytes == 8 << 30


def test_auto_is_as_much_of_it_as_leaves_a_margin(smollm2, free, caplog):
    header = read_header(smollm2)
    options = {"n_batch": 32, "n_ubatch": 32, "kept_sequences": 0, "parallel": 4}
    half = estimate(header, ContextOptions(n_ctx=4096, repacked=estimated._repacked(), **options)).total_bytes
    free(half + margin(half + 256 * MIB))
    caplog.set_level(logging.INFO, "localllm")
    with LocalModel(smollm2, n_ctx="auto", **options) as model:
        n_ctx = model.engine.n_ctx
        memory, room = model.engine.memory, registry.free_bytes() or 0
        assert model.complete("The capital of France is", temperature=0, max_tokens=2).text == " Paris."
    assert n_ctx % 256 == 0 and 4096 - 512 <= n_ctx <= 4096
    assert memory.total_bytes <= 1.01 * (room - margin(room))
    assert f"n_ctx={n_ctx}, as much as fits of the 8192 tokens" in caplog.text


def test_auto_never_grows_while_the_handle_lives_and_shrinks_if_it_must(smollm2, free, clock, settle):
    small = {"n_batch": 32, "n_ubatch": 32, "kept_sequences": 0, "parallel": 1}
    with LocalModel(smollm2, n_ctx="auto", keep_alive=0, **small) as model:
        sizes = []
        for n_bytes in (480 * MIB, 8 << 30, 420 * MIB):
            free(n_bytes)
            model.complete("x", max_tokens=1)
            sizes.append(model.placement.n_ctx)
            settle()
            registry.expire()
            assert not model.loaded
    assert 512 <= sizes[2] < sizes[0] == sizes[1] < 8192


SMALL = {"n_batch": 32, "n_ubatch": 32, "kept_sequences": 0, "parallel": 1}


@pytest.fixture
def other(smollm2, tmp_path):
    """The same model as another file."""
    path = tmp_path / "other.gguf"
    shutil.copyfile(smollm2, path)
    return path


@pytest.fixture
def fill(rest):
    """A function that makes a model which is loaded, and idle by now."""

    def fill(path, **options):
        model = LocalModel(path, **{"n_ctx": 8192, **SMALL, **options})
        model.complete("x", max_tokens=1)
        rest(model.engine)
        return model

    return fill


@pytest.mark.parametrize(("options", "stays"), [({}, False), ({"pinned": True}, True)])
def test_idle_models_make_way_for_auto_and_pinned_ones_do_not(smollm2, other, fill, options, stays):
    idle = fill(other, **options)
    registry.set_budget(sum(one.n_bytes for one in loaded_models()) + 130 * MIB)
    with LocalModel(smollm2, n_ctx="auto", **SMALL) as model:
        model.complete("x", max_tokens=1)
        assert (model.placement.n_ctx < 8192, idle.loaded) == (stays, stays)
    idle.close()


def test_idle_models_that_are_not_in_the_way_stay(smollm2, models, fill):
    idle = fill(models["qwen3"], n_ctx=256)
    registry.set_budget(1 << 34)
    with LocalModel(smollm2, n_ctx="auto", **SMALL) as model:
        model.complete("x", max_tokens=1)
        assert model.placement.n_ctx == 8192 and idle.loaded
    idle.close()


def test_nothing_idle_makes_way_for_auto_if_the_memory_is_not_checked(smollm2, other, fill, free):
    idle = fill(other)
    free(500 * MIB)
    with LocalModel(smollm2, n_ctx="auto", check_memory=False, **SMALL) as model:
        model.complete("x", max_tokens=1)
        assert 512 <= model.placement.n_ctx < 8192 and idle.loaded
    idle.close()


def test_what_cannot_fit_is_refused_before_anything_is_allocated(local, free, mapped):
    free(20 * MIB)
    model = local(n_ctx=200_000)
    with pytest.raises(DoesNotFitError) as caught:
        assert model.engine
    text = str(caught.value)
    assert "n_ctx=200000" in text and "of this machine's memory" in text and "20.0 MiB" in text and "check_memory=False" in text
    best = int(text.split(" at most would fit")[0].rpartition("n_ctx=")[2])
    assert mapped() == [] and loaded_models() == []
    assert caught.value.needed_bytes > caught.value.free_bytes == 20 * MIB
    # It is the largest that fits.
    fits = local(n_ctx=best)
    assert fits.engine.n_ctx == best
    fits.close()
    with pytest.raises(DoesNotFitError):
        local(n_ctx=best + 256).engine  # noqa: B018


def test_it_can_be_forced(local, free):
    free(1)
    with pytest.raises(DoesNotFitError, match="no n_ctx would fit"):
        assert local().engine
    assert local(check_memory=False).engine.n_ctx == 256


def test_idle_models_make_way_when_the_machine_has_no_more(local, monkeypatch, mapped, rest):
    first, second, third = local("qwen3"), local("qwen3moe"), local("gemma3", n_ctx=16384)
    first.complete("one", max_tokens=1)
    rest(first.engine)
    monkeypatch.setattr(registry, "free_bytes", lambda: MIB // 2 if first.loaded else 4 * MIB)
    with pytest.raises(DoesNotFitError, match="this machine's memory"):
        assert third.engine  # not even if the first made way, so it does not
    assert mapped() == ["qwen3"]
    assert second.complete("one", max_tokens=1).tokens and mapped() == ["qwen3moe"]


def test_a_system_that_does_not_tell_refuses_nothing(local, free):
    free(None)
    assert local(n_ctx=2048).engine.n_ctx == 2048


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        ({"n_ctx": 8192}, True), ({"n_ctx": 4096}, False), ({"n_ctx": 0}, False), ({"n_ctx": "auto"}, False),
        ({"n_ctx": 8192, "rope_freq_scale": 0.5}, False), ({"n_ctx": 8192, "rope_freq_base": 1e6}, False),
    ],
)  # fmt: skip
def test_a_context_beyond_what_was_learned_is_warned_of(local, options, is_warned):
    model = local(kept_sequences=0, **options)
    assert model.header.context_length == 4096
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert model.engine
    texts = [str(one.message) for one in caught if "trained for" in str(one.message)]
    assert bool(texts) == is_warned
    assert all("n_ctx=8192" in text and "4096 tokens" in text for text in texts)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_lengths_that_are_bounded_anyway_are_no_matter(local, name):
    model = local(name, n_ctx=2 * 4096)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name == "bert":
            model.embed("one")
        else:
            model.complete("one", max_tokens=1)


def test_an_engine_by_itself_wants_numbers(models):
    path = str(models["qwen3"])
    for make in (
        lambda: Engine(path, context=ContextConfig(n_ctx="auto")),
        lambda: Engine(path, ModelConfig(n_gpu_layers="auto")),
        lambda: Embedder(path, context=ContextConfig(n_ctx="auto")),
    ):
        with pytest.raises(InvalidRequestError, match="^n_(ctx|gpu_layers): 'auto'"):
            make()
    for kind, name in ((ContextConfig, "n_ctx"), (ModelConfig, "n_gpu_layers")):
        with pytest.raises(InvalidRequestError, match=f"^{name}:"):
            kind(**{name: "most"})


def test_defaults_are_what_they_were():
    assert (ContextConfig().n_ctx, ModelConfig().n_gpu_layers) == (4096, "all")


# ---- the numbers


@pytest.mark.parametrize("purpose", ["engine", "embedder"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35", "mamba2"])
@pytest.mark.parametrize("options", [{}, {"n_ctx": 1024, "parallel": 2, "kept_sequences": 0, "flash_attention": "off"}])
def test_a_plan_is_what_is_taken(models, name, purpose, options):
    header = read_header(models[name])
    context = ContextConfig(n_threads=1, **options)
    wanted = Wanted(models[name], header, ModelConfig(), context, purpose)
    plan = fitting.plan(load(), wanted, BIG)
    assert plan.context_use[TOTAL] + plan.weights_use[TOTAL] == plan.placement.needed_bytes
    made = Engine(str(models[name]), context=context) if purpose == "engine" else Embedder(str(models[name]), context=context)
    with made:
        taken = use_of_context(made.memory)
        mapped = use_of_weights(made.memory, True)
    # Vectors have a row of outputs more, and scratch memory is most of what these tiny ones take.
    assert plan.context_use[TOTAL] == pytest.approx(taken[TOTAL], rel=0.05 if purpose == "engine" else 0.25)
    assert plan.weights_use[TOTAL] == pytest.approx(mapped[TOTAL], rel=0.01) or purpose == "embedder"
    assert mapped[HOST] <= mapped[TOTAL]


def test_llama_cpps_own_choice_is_a_plan_too(smollm2):
    """What is used where there is a GPU; here there is none, and everything lies in the machine's own memory."""
    header, native = read_header(smollm2), load()
    for n_ctx, layers in (("auto", "auto"), (2048, 3)):
        wanted = Wanted(smollm2, header, ModelConfig(n_gpu_layers=layers), ContextConfig(n_ctx=n_ctx), "engine")
        by_llama, by_plan = (make(native, wanted, BIG) for make in (by_llama_cpp, fitting.plan))
        assert by_llama.placement.n_ctx == by_plan.placement.n_ctx == (8192 if n_ctx == "auto" else 2048)
        assert by_llama.placement.needed_bytes == pytest.approx(by_plan.placement.needed_bytes, rel=0.02)
        assert by_llama.context_use[HOST] == pytest.approx(by_plan.context_use[HOST], rel=0.02)
        assert (by_llama.fit is not None) == ("auto" in (n_ctx, layers))
    # A second context over the same weights: they are not laid out anew, and "auto" is what there is room for.
    wanted = Wanted(smollm2, header, ModelConfig(n_gpu_layers="auto"), ContextConfig(n_ctx="auto"), "engine", loaded_layers=5)
    tight = by_llama_cpp(native, wanted, Room({HOST: 170 * MIB + margin(0)}))
    assert (tight.placement.n_gpu_layers, tight.fit) == (5, None) and 2048 < tight.placement.n_ctx < 8192
    step = by_llama_cpp(native, replace(wanted, context=ContextConfig(n_ctx=tight.placement.n_ctx + 256)), BIG)
    assert tight.context_use[HOST] <= 170 * MIB < 1.02 * step.context_use[HOST]


@pytest.mark.parametrize("loaded_layers", [None, 5])
@pytest.mark.parametrize("budget", [200 * MIB, 250 * MIB, 1 << 34])
def test_llama_cpps_own_choice_keeps_to_the_budget(smollm2, loaded_layers, budget):
    header, native = read_header(smollm2), load()
    model, context = ModelConfig(n_gpu_layers="auto"), ContextConfig(n_ctx="auto", kept_sequences=0, parallel=1)
    wanted = Wanted(smollm2, header, model, context, "engine", loaded_layers)
    for room in (Room({HOST: 8 << 30, TOTAL: budget}), Room({HOST: 8 << 30, TOTAL: budget - 10 * MIB}, {TOTAL: 10 * MIB})):
        made = by_llama_cpp(native, wanted, room)
        takes = needed(made, wanted)[TOTAL]
        n_ctx = made.placement.n_ctx
        assert 512 <= n_ctx <= 8192 and (takes <= budget or n_ctx == 512)
        assert (n_ctx == 8192) == (budget == 1 << 34)
        longer = by_llama_cpp(native, replace(wanted, context=replace(context, n_ctx=n_ctx + 512)), room)
        assert n_ctx == 8192 or needed(longer, wanted)[TOTAL] > budget
        # The same as without a GPU, which here there is none of.
        assert n_ctx == pytest.approx(by_header(wanted, room).placement.n_ctx, rel=0.1)
        assert not made.is_cramped


def test_drafts_are_spread_over_the_devices_of_the_model():
    use = {TOTAL: 100, HOST: 40, "CUDA0": 60}
    devices = tuple(Device(name, is_gpu, 0, 0) for name, is_gpu in (("CUDA0", True), ("CUDA1", True), ("RPC", False)))
    memory = MemoryUse((), 0, 512)
    assert with_drafting(use, 11, replace(memory, devices=devices)) == {TOTAL: 111, HOST: 40, "CUDA0": 66, "CUDA1": 6}
    assert with_drafting(use, 11, replace(memory, devices=devices[2:])) == {TOTAL: 111, HOST: 51, "CUDA0": 60}
    assert with_drafting(use, 0, memory) == use


@pytest.mark.parametrize("n_ctx", [512, "auto"])
def test_llama_cpps_own_choice_counts_the_draft(models, monkeypatch, n_ctx):
    header, native = read_header(models["qwen3"]), load()
    context = ContextConfig(n_ctx=n_ctx, kept_sequences=0, parallel=1)
    drafting = replace(context, speculation=SpeculationConfig(kind="draft-simple", draft=models["qwen3"]))
    margins = []
    monkeypatch.setattr(measured, "Fit", lambda *given, **named: margins.append(named["margin_bytes"]) or Fit(*given, **named))
    model = ModelConfig(n_gpu_layers="auto")
    wanted, wants_draft = (Wanted(models["qwen3"], header, model, one, "engine") for one in (context, drafting))
    plain, whole = (by_llama_cpp(native, one, BIG) for one in (wanted, wants_draft))
    n_bytes = estimated.drafting_bytes(wants_draft, whole.placement.n_ctx)
    assert n_bytes > header.file_bytes > 0 == estimated.drafting_bytes(wanted, plain.placement.n_ctx)
    alone = measured.use_of_context(measured.measure(*_measured_with(native, wants_draft, whole)))
    assert whole.context_use[HOST] == alone[HOST] + n_bytes
    assert whole.placement.needed_bytes - n_bytes == pytest.approx(plain.placement.needed_bytes, rel=0.05)
    least = 512 if n_ctx == 512 else min(512, header.context_length)
    assert margins[1] - margins[0] == estimated.drafting_bytes(wants_draft, least)


def _measured_with(native, wanted, plan):
    """Arguments of `measure` for a plan without its draft."""
    context = measured._native_context(native, replace(wanted.context, n_ctx=plan.placement.n_ctx), wanted)
    return native, str(wanted.path), model_params(native, plan.model), context


def test_a_cramped_choice_is_told(smollm2):
    header, native = read_header(smollm2), load()
    wanted = Wanted(smollm2, header, ModelConfig(n_gpu_layers="auto"), ContextConfig(n_ctx="auto"), "engine", n_ctx_most=1024)
    assert not by_llama_cpp(native, wanted, BIG).is_cramped
    assert by_llama_cpp(native, wanted, BIG).placement.n_ctx == 1024


@pytest.mark.parametrize(
    ("place", "is_by_header", "expected"),
    [
        ("CUDA0", False, "of CUDA0, 8,192.0 MiB can be had. a smaller n_ctx, or n_gpu_layers, needs less of it; check_memory"),
        (HOST, False, "of this machine's memory, 8,192.0 MiB can be had. a smaller n_ctx needs less of it; check_memory=False"),
        (TOTAL, False, "of the memory budget, 8,192.0 MiB can be had. a smaller n_ctx needs less of it; raise the budget"),
        (HOST, True, "n_ctx=[0-9]+ at most would fit; check_memory=False"),
    ],
)
def test_only_what_was_looked_for_is_said_of_n_ctx(smollm2, place, is_by_header, expected):
    context = ContextConfig(n_ctx=1_000_000)
    wanted = Wanted(smollm2, read_header(smollm2), ModelConfig(), context, "engine")
    placement = Placement(1_000_000, 8192, -1, 10 << 30, 1 << 40, "")
    use = {TOTAL: 10 << 30, HOST: 0, place: 10 << 30}
    plan = Plan(wanted.model, context, use, {TOTAL: MIB, HOST: 0}, placement, by_header=is_by_header)
    error = fitting.does_not_fit(wanted, plan, {HOST: 1 << 40, place: 8 << 30}, "")
    assert re.search(expected, str(error)) and "no n_ctx would fit" not in str(error)
    assert error.free_bytes == 8 << 30


def test_a_file_that_does_not_say_what_it_was_trained_for(smollm2):
    header = read_header(smollm2)
    kept = {key: value for key, value in header.metadata.items() if not key.endswith(".context_length")}
    wanted = Wanted(smollm2, replace(header, metadata=kept), ModelConfig(), ContextConfig(n_ctx="auto"), "engine")
    reasons = [by_header(wanted, Room({HOST: n_bytes})).placement.reason for n_bytes in (1 << 40, 480 * MIB)]
    end = "4096 tokens that are taken where a file does not say what it was trained for"
    assert reasons[0] == f"n_ctx=4096, all the {end}" and reasons[1].endswith(f", as much as fits of the {end}")


ONCE_MORE = """
import resource, sys, threading
from localllm import LocalModel, loaded_models
from localllm.residency.registry import registry
first = LocalModel(sys.argv[1], n_ctx=65536, n_threads=1, kept_sequences=0)
worker, rested = first.engine.activity.worker, threading.Event()
told = worker.on_rest
worker.on_rest = lambda: (told(), rested.set())
first.complete("one", max_tokens=1)
second = LocalModel(sys.argv[2], n_ctx=65536, n_threads=1, kept_sequences=0, check_memory=False)
while not first.engine.activity.resting:
    rested.wait(30)
    rested.clear()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
# Room for threads and the like, but not for a second context.
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
print(len(second.complete("one", max_tokens=2).tokens), first.loaded, second.loaded)
stream = second.stream_complete("one", temperature=0, ignore_eos=True)
next(stream)
try:
    first.engine
except Exception as error:
    print(type(error).__name__, second.loaded, bool(next(stream).tokens))
stream.close()
"""


def test_after_a_failed_allocation_everything_idle_makes_way_and_it_is_tried_once_more(models):
    done = subprocess.run(
        [sys.executable, "-c", ONCE_MORE, str(models["qwen3"]), str(models["qwen3moe"])],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["2 False True", "ModelLoadError True True"], done.stderr


def test_a_projector_that_does_not_fit_is_told_before_it_is_loaded(models):
    path = models["qwen3vl-mmproj"]
    header = read_model(path)
    needed = projector_bytes(header)
    assert needed > header.n_tensor_bytes > 0
    for free in (None, needed):
        require_room_for_projector(path, header, free)
    with pytest.raises(DoesNotFitError, match="qwen3vl-mmproj.*: the projector needs .* MiB .*check_memory=False") as caught:
        require_room_for_projector(path, header, needed - 1)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
