"""How a model is loaded on this machine: what "auto" means, what it will take, and whether that is there.

On a machine without a GPU the file's header says what is needed (hub/memory.py) and the kernel what is free, control groups
included. With a GPU llama.cpp measures, layer by layer, and chooses itself (liblocalllm's lm_fit).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localllm.engine.config import ContextConfig, ModelConfig, SpeculationConfig
from localllm.engine.params import context_params, model_params
from localllm.errors import DoesNotFitError
from localllm.hub.geometry import geometry
from localllm.hub.gguf import Header
from localllm.hub.here import cpu_flags
from localllm.hub.memory import ContextOptions, estimate, repacked_types
from localllm.native.bindings import llama as llama_h
from localllm.native.library import Native
from localllm.native.memory import Fit, MemoryUse, measure
from localllm.residency.policy import HOST, TOTAL, Use, add, lacking

logger = logging.getLogger("localllm")

Purpose = Literal["engine", "embedder", "ranker"]
_CELLS = 256  # llama.cpp rounds the number of cells up to a multiple of this
_MIN_CTX = 512  # fewer tokens are of no use to anybody who did not ask for them
_MAX_CTX = 1 << 27
# What "auto" leaves free, of the machine's memory and on each GPU: for everybody else, and for what grows while it runs.
_MARGIN = 0.1
_MARGIN_BYTES = 256 << 20
_GPU_MARGIN_BYTES = 1 << 30  # llama.cpp's own default for fitting (common_params::fit_params_target)
_EMBEDDER_SLOTS = 64  # as engine/pooler.py has them
MAPPED = ("auto", "mmap")  # load modes


@dataclass(frozen=True)
class Placement:
    """How a model was loaded, and what it was thought to take; see `LocalModel.placement`.

    Attributes:
        n_ctx: int, KV cells in tokens.
        n_ctx_train: int, the length that the model was trained for; 0: the file does not say.
        n_gpu_layers: int, layers on GPUs; -1 for all of them, which on a machine without a GPU is none.
        needed_bytes: int, weights and context together, as expected before loading.
        free_bytes: int, of the machine's memory, at that moment.
        reason: str, why it is so, in a sentence.
    """

    n_ctx: int
    n_ctx_train: int
    n_gpu_layers: int
    needed_bytes: int
    free_bytes: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """What will be loaded.

    Attributes:
        model, context: the configurations with every "auto" replaced, as far as they can say it.
        context_use, weights_use: Use of the two; the weights' also if they are there already.
        placement: Placement.
        fit: Fit that has to be applied to the weights' parameters, or None.
    """

    model: ModelConfig
    context: ContextConfig
    context_use: Use
    weights_use: Use
    placement: Placement
    fit: Fit | None = None


@dataclass(frozen=True)
class Wanted:
    """What is to be loaded.

    Attributes:
        path: Path of the file, or of the first one of a set.
        header: Header of all its files.
        model, context: ModelConfig and ContextConfig as they were given.
        purpose: what for.
        loaded_layers: int, the weights are there already, with so many layers on GPUs (-1: all); None: they are not.
        n_ctx_most: int, "auto" takes no more, as it was decided once already; 0: it was not.
    """

    path: Path
    header: Header
    model: ModelConfig
    context: ContextConfig
    purpose: Purpose
    loaded_layers: int | None = None
    n_ctx_most: int = 0

    @property
    def weights_loaded(self) -> bool:
        return self.loaded_layers is not None

    @property
    def n_ctx_train(self) -> int:
        return self.header.context_length

    @property
    def is_auto(self) -> bool:
        return self.context.n_ctx == "auto"


def plan(native: Native, wanted: Wanted, room: Use) -> Plan:
    """Decides how something is loaded; whether there is room is `require_room`'s to say.

    Args:
        native: Native.
        wanted: Wanted.
        room: Use that is possible now: HOST, and TOTAL where there is a budget.

    Raises:
        ModelError: llama.cpp refuses the file or the options.
        InvalidRequestError: An option does not go with the model.
    """
    on_gpu = wanted.model.n_gpu_layers != 0 and has_gpu(native)
    made = _by_llama_cpp(native, wanted, room) if on_gpu else _by_header(wanted, room)
    logger.info(
        "%s: %s; needs about %d MiB, %d MiB are free", wanted.path, made.placement.reason,
        made.placement.needed_bytes >> 20, room.get(HOST, 0) >> 20,
    )  # fmt: skip
    return made


def needed(plan: Plan, wanted: Wanted) -> Use:
    """What loading adds to what is there."""
    return plan.context_use if wanted.weights_loaded else add(plan.context_use, plan.weights_use)


def warn_of_length(wanted: Wanted, plan: Plan) -> None:
    """Warns of a context that is longer than the model has learned, unless its positions are stretched to it."""
    n_ctx, trained, context = plan.placement.n_ctx, wanted.n_ctx_train, wanted.context
    stretched = context.rope_freq_base > 0 or context.rope_freq_scale > 0
    stretched = stretched or any(".rope." in key for key, _ in wanted.model.overrides)
    # A text is never longer than its vector's model allows, nor a sequence than a table of learned positions.
    bounded = wanted.purpose != "engine" or any(tensor.name == "position_embd.weight" for tensor in wanted.header.tensors)
    if trained and n_ctx > trained and not stretched and not bounded:
        warnings.warn(
            f"{wanted.path}: n_ctx={n_ctx}, but the model was trained for {trained} tokens; what it says beyond them is likely "
            f"to be nonsense. Use n_ctx={trained} at most, or stretch its positions (rope_freq_base, rope_freq_scale)",
            UserWarning,
            stacklevel=2,
        )


def does_not_fit(wanted: Wanted, plan: Plan, room: Use, held: str) -> DoesNotFitError:
    """The error for a plan that there is no room for.

    Args:
        wanted, plan: what was to be loaded.
        room: Use, the most that is possible, with everything unloaded that can be.
        held: str, what holds memory here, "" for nothing.
    """
    use = needed(plan, wanted)
    short = lacking(use, room)
    place = next((place for place in (TOTAL, HOST) if place in short), next(iter(short), HOST))
    where = {TOTAL: "of the memory budget", HOST: "of this machine's memory"}.get(place, f"of {place}")
    n_bytes, free = use.get(place, 0), room.get(place, 0)
    best = _largest(wanted, room) if place in (TOTAL, HOST) and plan.fit is None else 0
    remedies = [f"n_ctx={best} at most would fit"] if best else ["no n_ctx would fit"]
    remedies.append(
        "raise the budget (localllm.set_memory_budget)" if place == TOTAL else "check_memory=False loads it all the same"
    )
    return DoesNotFitError(
        f"{wanted.path}: with n_ctx={plan.placement.n_ctx} it needs {mib(n_bytes)} {where}, {mib(max(0, free))} can be had"
        + (f"; {held}" if held else "")
        + f". {'; '.join(remedies)}",
        n_bytes,
        max(0, free),
    )


def mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"


# ---- without a GPU


def _by_header(wanted: Wanted, room: Use) -> Plan:
    trained = wanted.n_ctx_train
    if wanted.is_auto:
        n_ctx = _auto(wanted, room)
        whole = "all" if n_ctx >= trained else "as much as fits of"
        reason = f"n_ctx={n_ctx}, {whole} the {trained} tokens that it was trained for"
    else:
        n_ctx = wanted.context.n_ctx if isinstance(wanted.context.n_ctx, int) else 0
        reason = f"n_ctx={n_ctx or trained}, {'as was asked for' if n_ctx else 'what it was trained for'}"
    context = dataclasses.replace(wanted.context, n_ctx=n_ctx)
    model = wanted.model if wanted.model.n_gpu_layers != "auto" else dataclasses.replace(wanted.model, n_gpu_layers="all")
    context_use, weights_use = _uses(wanted, n_ctx)
    layers = -1 if model.n_gpu_layers == "all" else model.n_gpu_layers
    assert isinstance(layers, int)
    total = context_use[TOTAL] + weights_use[TOTAL]
    placement = Placement(n_ctx or trained, trained, layers, total, room.get(HOST, 0), reason)
    return Plan(model, context, context_use, weights_use, placement)


def _uses(wanted: Wanted, n_ctx: int) -> tuple[dict[str, int], dict[str, int]]:
    """Use of the context, and of the weights."""
    found = estimate(wanted.header, _options(wanted, n_ctx))
    context = found.kv_bytes + found.state_bytes + found.compute_bytes
    mapped = wanted.model.load_mode in MAPPED
    # Pages of the file can be read again; what is in another order than the file's cannot.
    fixed = found.repack_bytes if mapped else found.weights_bytes
    return {TOTAL: context, HOST: context}, {TOTAL: found.weights_bytes, HOST: fixed}


def _options(wanted: Wanted, n_ctx: int) -> ContextOptions:
    """What the estimate is told for a context as engine/runner.py and engine/pooler.py make it."""
    config = wanted.context
    kept = config.kept_sequences if config.prefix_cache else 0
    speculation = config.speculation
    assert isinstance(speculation, SpeculationConfig)
    common = ContextOptions(
        n_ctx=n_ctx,
        parallel=config.parallel,
        kept_sequences=kept,
        type_k=config.type_k,
        type_v=config.type_v,
        flash_attention=config.flash_attention != "off",
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        swa_full=config.swa_full,
        n_rollback=speculation.n_snapshots if speculation.kind != "none" else 0,
        repacked=_repacked() if wanted.model.use_extra_buffers else frozenset(),
    )
    if wanted.purpose == "engine":
        return common
    n_batch = min(config.n_ubatch, config.n_batch)
    keeps_states = any(layer.state_values for layer in geometry(wanted.header).layers)
    slots = min(config.parallel if keeps_states else _EMBEDDER_SLOTS, n_batch)
    return dataclasses.replace(
        common, n_ctx=max(n_ctx or wanted.n_ctx_train, n_batch), parallel=slots, kept_sequences=0,
        n_batch=n_batch, n_ubatch=n_batch, n_rollback=0,
    )  # fmt: skip


@functools.cache
def _repacked() -> frozenset[str]:
    return repacked_types(cpu_flags())


def _auto(wanted: Wanted, room: Use) -> int:
    """n_ctx: the trained length, or what of it fits with a margin; at least 512, whether they fit or not."""
    trained = min(wanted.n_ctx_train or 4096, _MAX_CTX)
    most = min(trained, wanted.n_ctx_most or trained)
    roomy = {place: n_bytes - (margin(n_bytes) if place == HOST else 0) for place, n_bytes in room.items()}
    # Here the weights count, too: a context that pushes them out of memory would have them read again for each token.
    return max(min(_MIN_CTX, most), _most_cells(wanted, roomy, most, whole_weights=True))


def margin(free_bytes: int) -> int:
    """What "auto" leaves of free memory: a tenth of it, at least 256 MiB."""
    return max(_MARGIN_BYTES, int(free_bytes * _MARGIN))


def _largest(wanted: Wanted, room: Use) -> int:
    """The largest n_ctx that there is room for; 0: none."""
    return _most_cells(wanted, room, _MAX_CTX, whole_weights=False)


def _most_cells(wanted: Wanted, room: Use, most: int, *, whole_weights: bool) -> int:
    def fits(n_ctx: int) -> bool:
        context, weights = _uses(wanted, n_ctx)
        if whole_weights:
            weights = {**weights, HOST: weights[TOTAL]}
        return not lacking(context if wanted.weights_loaded else add(context, weights), room)

    if fits(most):
        return most
    low, high = 0, most // _CELLS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * _CELLS) else (low, middle - 1)
    return low * _CELLS


# ---- with a GPU


def has_gpu(native: Native) -> bool:
    """Whether llama.cpp finds a device with memory of its own."""
    return any(device["type"] in ("gpu", "igpu") for device in native.json_call("lm_devices"))


def _by_llama_cpp(native: Native, wanted: Wanted, room: Use) -> Plan:
    """Layers, and the context if that is to be chosen, by llama.cpp's fitting; else measured as they were given."""
    if wanted.loaded_layers is not None:
        return _over_loaded(native, wanted, wanted.loaded_layers, room)
    auto_layers = wanted.model.n_gpu_layers == "auto"
    model = dataclasses.replace(wanted.model, n_gpu_layers="all") if auto_layers else wanted.model
    config = dataclasses.replace(wanted.context, n_ctx=0) if wanted.is_auto else wanted.context
    native_model, native_context = model_params(native, model), _native_context(native, config, wanted)
    fit = None
    if auto_layers or wanted.is_auto:
        if wanted.is_auto:
            native_context.n_ctx = wanted.n_ctx_most
        fit = Fit(
            native, str(wanted.path), native_model, native_context, margin_bytes=_GPU_MARGIN_BYTES,
            n_ctx_min=min(_MIN_CTX, wanted.n_ctx_train or _MIN_CTX),
        )  # fmt: skip
        fit.apply(native_model, native_context)
        if wanted.is_auto:
            config = dataclasses.replace(config, n_ctx=fit.n_ctx)
    by = "as was asked for"
    if fit:
        by = "chosen by llama.cpp" if fit.fits else "as llama.cpp found nothing that leaves its devices a margin"
    return _measured(native, wanted, (model, native_model), (config, native_context), room, by, fit)


def _over_loaded(native: Native, wanted: Wanted, layers: int, room: Use) -> Plan:
    """A further context over weights that stay where they are; "auto" halves its length until there is room for it."""
    model = dataclasses.replace(wanted.model, n_gpu_layers="all" if layers < 0 else layers)
    native_model = model_params(native, model)
    n_ctx = min(wanted.n_ctx_train or 4096, wanted.n_ctx_most or _MAX_CTX)
    while True:
        config = dataclasses.replace(wanted.context, n_ctx=n_ctx) if wanted.is_auto else wanted.context
        contexts = config, _native_context(native, config, wanted)
        made = _measured(native, wanted, (model, native_model), contexts, room, "over weights that are loaded already", None)
        if not wanted.is_auto or n_ctx <= _MIN_CTX or not lacking(made.context_use, room):
            return made
        n_ctx = max(_MIN_CTX, n_ctx // 2)


def _measured(
    native: Native,
    wanted: Wanted,
    models: tuple[ModelConfig, llama_h.llama_model_params],
    contexts: tuple[ContextConfig, llama_h.llama_context_params],
    room: Use,
    by: str,
    fit: Fit | None,
) -> Plan:
    """The plan for configurations and llama.cpp's parameters of the same, as llama.cpp measures them."""
    taken = measure(native, str(wanted.path), models[1], contexts[1])
    layers = models[1].n_gpu_layers
    reason = f"n_ctx={taken.n_ctx}, n_gpu_layers={layers}, {by}"
    placement = Placement(taken.n_ctx, wanted.n_ctx_train, layers, taken.total_bytes, room.get(HOST, 0), reason)
    mapped = wanted.model.load_mode in MAPPED
    return Plan(models[0], contexts[0], use_of_context(taken), use_of_weights(taken, mapped), placement, fit)


def _native_context(native: Native, config: ContextConfig, wanted: Wanted) -> llama_h.llama_context_params:
    params = context_params(native, config, wanted.n_ctx_train or 4096)
    options = _options(wanted, config.n_ctx if isinstance(config.n_ctx, int) else 0)
    params.n_seq_max = options.n_sequences
    params.n_batch, params.n_ubatch = min(options.n_batch, params.n_ctx), min(options.n_ubatch, params.n_ctx)
    params.n_outputs_max = max(params.n_batch, options.n_sequences)
    params.embeddings = wanted.purpose != "engine"
    return params


# ---- what is measured


def use_of_context(memory: MemoryUse) -> dict[str, int]:
    """Use of a context, without its weights."""
    places: dict[str, int] = {TOTAL: memory.context_bytes + memory.compute_bytes}
    places[HOST] = memory.host_bytes - memory.host_weights_bytes
    for buffer in memory.buffers:
        if not buffer.is_host:
            places[buffer.device] = places.get(buffer.device, 0) + buffer.context_bytes + buffer.compute_bytes
    return places


def use_of_weights(memory: MemoryUse, mapped: bool) -> dict[str, int]:
    """Use of the weights; `mapped` from a file, they are not counted as what the machine cannot do without."""
    places: dict[str, int] = {TOTAL: memory.model_bytes, HOST: 0}
    for buffer in memory.buffers:
        if not buffer.is_host:
            places[buffer.device] = places.get(buffer.device, 0) + buffer.model_bytes
        elif not mapped or buffer.buffer not in _MAPPED_BUFFERS:
            places[HOST] += buffer.model_bytes
    return places


_MAPPED_BUFFERS = ("CPU_Mapped",)


def device_room(native: Native) -> Mapping[str, int]:
    """What is free on every device with memory of its own."""
    devices = native.json_call("lm_devices")
    return {one["name"]: one["memory_free_bytes"] for one in devices if one["type"] in ("gpu", "igpu")}
