"""How a model is loaded where all of it lies in the machine\'s own memory: by its header and what the kernel says is free."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from localllm.engine.config import SpeculationConfig
from localllm.hub.geometry import geometry
from localllm.hub.gguf import Header, read_model
from localllm.hub.here import cpu_flags
from localllm.hub.memory import Companions, ContextOptions, MemoryEstimate, estimate, repacked_types
from localllm.residency.placement import CELLS, MAPPED, MIN_CTX, UNKNOWN_CTX, Placement, Plan, Room, Wanted
from localllm.residency.policy import HOST, TOTAL, Use, add, lacking

_EMBEDDER_SLOTS = 64  # as engine/pooler.py has them


def by_header(wanted: Wanted, room: Room) -> Plan:
    trained = wanted.n_ctx_train
    if wanted.is_auto:
        n_ctx = _auto(wanted, room)
        whole = trained or UNKNOWN_CTX
        part = "all the" if n_ctx >= whole else "as much as fits of the"
        known = "that it was trained for" if trained else "that are taken where a file does not say what it was trained for"
        reason = f"n_ctx={n_ctx}, {part} {whole} tokens {known}"
    else:
        n_ctx = wanted.context.n_ctx if isinstance(wanted.context.n_ctx, int) else 0
        reason = f"n_ctx={n_ctx or trained}, {'as was asked for' if n_ctx else 'what it was trained for'}"
    context = dataclasses.replace(wanted.context, n_ctx=n_ctx)
    model = wanted.model if wanted.model.n_gpu_layers != "auto" else dataclasses.replace(wanted.model, n_gpu_layers="all")
    context_use, weights_use = _uses(wanted, n_ctx)
    layers = -1 if model.n_gpu_layers == "all" else model.n_gpu_layers
    assert isinstance(layers, int)
    total = context_use[TOTAL] + weights_use[TOTAL]
    placement = Placement(n_ctx or trained, trained, layers, total, room.free.get(HOST, 0), reason)
    return Plan(model, context, context_use, weights_use, placement, by_header=True)


def _uses(wanted: Wanted, n_ctx: int) -> tuple[dict[str, int], dict[str, int]]:
    """Use of the context, and of the weights."""
    options, draft = context_options(wanted, n_ctx), _draft(wanted)
    found = estimate(wanted.header, options, Companions(draft=draft))
    context = found.kv_bytes + found.state_bytes + found.compute_bytes + _drafting_bytes(wanted, draft, options, found)
    mapped = wanted.model.load_mode in MAPPED
    # Pages of the file can be read again; what is in another order than the file's cannot.
    fixed = found.repack_bytes if mapped else found.weights_bytes
    return {TOTAL: context, HOST: context}, {TOTAL: found.weights_bytes, HOST: fixed}


def context_options(wanted: Wanted, n_ctx: int) -> ContextOptions:
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
        n_rollback=speculation.snapshots if speculation.kind != "none" else 0,
        mtp=wanted.model.mtp,
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


def _draft(wanted: Wanted) -> Header | None:
    """The draft's header, which its engine loads and frees with itself."""
    speculation = wanted.context.speculation
    assert isinstance(speculation, SpeculationConfig)
    return read_model(Path(speculation.draft)) if speculation.draft and wanted.purpose == "engine" else None


def drafting_bytes(wanted: Wanted, n_ctx: int) -> int:
    """What drafting takes beside the target and its context: a draft's weights and context, or that of the heads.

    Args:
        wanted: Wanted.
        n_ctx: int, tokens of the target; 0: as many as it was trained for.
    """
    options, draft = context_options(wanted, n_ctx), _draft(wanted)
    return _drafting_bytes(wanted, draft, options, estimate(wanted.header, options, Companions(draft=draft)))


def _drafting_bytes(wanted: Wanted, draft: Header | None, options: ContextOptions, found: MemoryEstimate) -> int:
    if draft is None and not options.mtp:
        return 0
    own = found.companions_bytes if draft is not None else found.compute_bytes  # the heads have a context of their own
    return own + _features_bytes(wanted, draft, options)


def _features_bytes(wanted: Wanted, draft: Header | None, options: ContextOptions) -> int:
    """What the target keeps of a batch for its draft: an F32 vector of each token for each layer that the draft looks at."""
    layers = draft.get("target_layers") if draft is not None else None
    return options.n_batch * wanted.header.embedding_length * 4 * (len(layers) if isinstance(layers, (list, tuple)) else 1)


@functools.cache
def _repacked() -> frozenset[str]:
    return repacked_types(cpu_flags())


def _auto(wanted: Wanted, room: Room) -> int:
    """n_ctx: the trained length, or what of it fits with a margin; at least 512, whether they fit or not."""
    most = wanted.n_ctx_auto
    # Here the weights count, too: a context that pushes them out of memory would have them read again for each token.
    return max(min(MIN_CTX, most), most_cells(wanted, room.roomy, most, whole_weights=True))


def most_cells(wanted: Wanted, room: Use, most: int, *, whole_weights: bool) -> int:
    """The largest n_ctx, of at most `most`, that there is room for; 0: none."""

    def fits(n_ctx: int) -> bool:
        context, weights = _uses(wanted, n_ctx)
        if whole_weights:
            weights = {**weights, HOST: weights[TOTAL]}
        return not lacking(context if wanted.weights_loaded else add(context, weights), room)

    if fits(most):
        return most
    low, high = 0, most // CELLS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * CELLS) else (low, middle - 1)
    return low * CELLS
