"""How a model is loaded where there is a GPU: llama.cpp measures, layer by layer, and chooses itself (liblocalllm's lm_fit)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.native.bindings import llama as llama_h
from localllm.native.library import Native
from localllm.native.memory import Fit, MemoryUse, measure
from localllm.residency.estimated import context_options, drafting_bytes
from localllm.residency.placement import CELLS, MAPPED, MIN_CTX, UNKNOWN_CTX, Placement, Plan, Room, Wanted, needed
from localllm.residency.policy import HOST, TOTAL, Use, add, lacking

_GPU_MARGIN_BYTES = 1 << 30  # llama.cpp's own default for fitting (common_params::fit_params_target)


def has_gpu(native: Native) -> bool:
    """Whether llama.cpp finds a device with memory of its own."""
    return any(device["type"] in ("gpu", "igpu") for device in native.json_call("lm_devices"))


def by_llama_cpp(native: Native, wanted: Wanted, room: Room) -> Plan:
    """Layers, and the context if that is to be chosen, by llama.cpp's fitting; else measured as they were given."""
    if wanted.loaded_layers is not None:
        return _over_loaded(native, wanted, wanted.loaded_layers, room)
    auto_layers = wanted.model.n_gpu_layers == "auto"
    model = dataclasses.replace(wanted.model, n_gpu_layers="all") if auto_layers else wanted.model
    native_model = model_params(native, model)
    if not (auto_layers or wanted.is_auto):
        return _measured(native, wanted, (model, native_model), wanted.context, room, "as was asked for")
    native_context = _native_context(native, _with_cells(wanted, 0), wanted)
    if wanted.is_auto:
        native_context.n_ctx = wanted.n_ctx_most
    least = min(MIN_CTX, wanted.n_ctx_train or MIN_CTX)
    fit = Fit(
        native, str(wanted.path), native_model, native_context, margin_bytes=_margin(wanted, least), n_ctx_min=least,
    )  # fmt: skip
    fit.apply(native_model, native_context)
    by = "chosen by llama.cpp" if fit.fits else "as llama.cpp found nothing that leaves its devices a margin"

    def made(n_ctx: int) -> Plan:
        return _measured(native, wanted, (model, native_model), _with_cells(wanted, n_ctx), room, by)

    n_layers = wanted.header.block_count - wanted.header.n_layer_nextn
    cramped = not fit.fits or 0 <= fit.n_gpu_layers <= n_layers or bool(fit.overrides)
    cramped = cramped or (wanted.is_auto and fit.n_ctx < wanted.n_ctx_auto)
    return dataclasses.replace(_longest(wanted, made, fit.n_ctx, room.roomy), fit=fit, is_cramped=cramped)


def _margin(wanted: Wanted, least: int) -> int:
    """What llama.cpp's fitting leaves free on every device: the usual margin, and what drafting takes, which it knows nothing of.

    Where the context is to be chosen, that is for the shortest one: the plan counts the draft of the one that was chosen, and is
    made shorter if that is too much.

    Args:
        wanted: Wanted.
        least: int, tokens of the shortest context.
    """
    n_ctx = wanted.context.n_ctx
    return _GPU_MARGIN_BYTES + drafting_bytes(wanted, n_ctx if isinstance(n_ctx, int) else least)


def _over_loaded(native: Native, wanted: Wanted, layers: int, room: Room) -> Plan:
    """A further context over weights that stay where they are."""
    model = dataclasses.replace(wanted.model, n_gpu_layers="all" if layers < 0 else layers)
    native_model = model_params(native, model)

    def made(n_ctx: int) -> Plan:
        by = "over weights that are loaded already"
        return _measured(native, wanted, (model, native_model), _with_cells(wanted, n_ctx), room, by)

    return _longest(wanted, made, wanted.n_ctx_auto, room.roomy)


def _with_cells(wanted: Wanted, n_ctx: int) -> ContextConfig:
    """Its context, with a number for "auto"."""
    return dataclasses.replace(wanted.context, n_ctx=n_ctx) if wanted.is_auto else wanted.context


def _longest(wanted: Wanted, made: Callable[[int], Plan], n_ctx: int, room: Use) -> Plan:
    """The plan of the longest context that there is room for, if its length is ours to choose; at least 512 tokens.

    Args:
        wanted: Wanted.
        made: gives the Plan of a length.
        n_ctx: int, the longest.
        room: Use.
    """
    whole = made(n_ctx)
    least = min(MIN_CTX, n_ctx)
    if not wanted.is_auto or n_ctx == least or not lacking(needed(whole, wanted), room):
        return whole
    # What a context takes grows evenly with its length, or less: between two that were measured a line tells, or is too careful.
    shortest = made(least)
    low, high = needed(shortest, wanted), needed(whole, wanted)
    grows = [place for place in lacking(high, room) if high[place] > low[place]]
    shares = [(room[place] - low[place]) / (high[place] - low[place]) for place in grows]
    cells = int(least + max(0.0, min(shares, default=0.0)) * (n_ctx - least)) // CELLS * CELLS
    while cells > least:
        if not lacking(needed(found := made(cells), wanted), room):
            return found
        cells = cells // 2 // CELLS * CELLS
    return shortest


def _measured(
    native: Native,
    wanted: Wanted,
    models: tuple[ModelConfig, llama_h.llama_model_params],
    context: ContextConfig,
    room: Room,
    by: str,
) -> Plan:
    """The plan for a context, and for weights and llama.cpp's parameters of the same, as llama.cpp measures them."""
    taken = measure(native, str(wanted.path), models[1], _native_context(native, context, wanted))
    layers = models[1].n_gpu_layers
    reason = f"n_ctx={taken.n_ctx}, n_gpu_layers={layers}, {by}"
    n_drafting = drafting_bytes(wanted, taken.n_ctx)
    n_bytes = taken.total_bytes + n_drafting
    placement = Placement(taken.n_ctx, wanted.n_ctx_train, layers, n_bytes, room.free.get(HOST, 0), reason)
    mapped = wanted.model.load_mode in MAPPED
    return Plan(
        models[0], context, with_drafting(use_of_context(taken), n_drafting, taken), use_of_weights(taken, mapped), placement
    )


def _native_context(native: Native, config: ContextConfig, wanted: Wanted) -> llama_h.llama_context_params:
    params = context_params(native, config, wanted.n_ctx_train or UNKNOWN_CTX)
    options = context_options(wanted, config.n_ctx if isinstance(config.n_ctx, int) else 0)
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


def with_drafting(use: Use, n_bytes: int, memory: MemoryUse) -> dict[str, int]:
    """Use of a context together with what drafting takes, evenly on the model's devices, as a draft is spread over them, too.

    Args:
        use: Use of the context alone.
        n_bytes: int, of the draft.
        memory: MemoryUse of the model, which knows its devices.
    """
    places = [device.name for device in memory.devices if device.is_gpu] or [HOST]
    share = -(-n_bytes // len(places))
    return add(add(use, {TOTAL: n_bytes}), dict.fromkeys(places, share))


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
