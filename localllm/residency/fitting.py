"""How a model is loaded on this machine: what "auto" means, what it will take, and whether that is there.

On a machine without a GPU the file's header says what is needed (hub/memory.py) and the kernel what is free, control groups
included. With a GPU llama.cpp measures, layer by layer, and chooses itself (liblocalllm's lm_fit).
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from localllm.errors import DoesNotFitError
from localllm.hub.gguf import Header
from localllm.hub.memory import projector_bytes
from localllm.native.library import Native
from localllm.residency.estimated import by_header, most_cells
from localllm.residency.measured import by_llama_cpp, has_gpu
from localllm.residency.placement import MAX_CTX, Plan, Room, Wanted, needed
from localllm.residency.policy import HOST, TOTAL, Use, lacking

logger = logging.getLogger("localllm")


def plan(native: Native, wanted: Wanted, room: Room) -> Plan:
    """Decides how something is loaded; whether there is room for that, and what makes way, is `policy.victims`' to say.

    Args:
        native: Native.
        wanted: Wanted.
        room: Room; "auto" counts on what is idle.

    Raises:
        ModelError: llama.cpp refuses the file or the options.
        InvalidRequestError: An option does not go with the model.
    """
    on_gpu = wanted.model.n_gpu_layers != 0 and has_gpu(native)
    made = by_llama_cpp(native, wanted, room) if on_gpu else by_header(wanted, room)
    logger.info(
        "%s: %s; needs about %d MiB, %d MiB are free", wanted.path, made.placement.reason,
        made.placement.needed_bytes >> 20, room.free.get(HOST, 0) >> 20,
    )  # fmt: skip
    return made


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
    if plan.by_header:
        best = most_cells(wanted, room, MAX_CTX, whole_weights=False)
        remedies = [f"n_ctx={best} at most would fit" if best else "no n_ctx would fit"]
    else:
        remedies = [f"a smaller n_ctx{'' if place in (TOTAL, HOST) else ', or n_gpu_layers,'} needs less of it"]
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


def require_room_for_projector(path: Path, projector: Header, free_bytes: int | None) -> None:
    """Raises DoesNotFitError if a projector takes more than is free.

    Args:
        path, projector: Path and Header of it.
        free_bytes: int, of the machine's memory; None: not known.
    """
    n_bytes = projector_bytes(projector)
    if free_bytes is not None and n_bytes > free_bytes:
        raise DoesNotFitError(
            f"{path}: the projector needs {mib(n_bytes)} of this machine's memory, {mib(free_bytes)} can be had. "
            "Unload other models, take a smaller one with mmproj=..., or load it all the same with check_memory=False",
            n_bytes,
            free_bytes,
        )


def mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
