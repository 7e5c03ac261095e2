"""What is to be loaded, what is possible, and how something is placed in memory: data alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.hub.gguf import Header
from localllm.native.memory import Fit
from localllm.residency.policy import HOST, TOTAL, Use, add

Purpose = Literal["engine", "embedder", "ranker"]
CELLS = 256  # llama.cpp rounds the number of cells up to a multiple of this
MIN_CTX = 512  # fewer tokens are of no use to anybody who did not ask for them
UNKNOWN_CTX = 4096  # where a file does not say what its model was trained for
MAX_CTX = 1 << 27
# What "auto" leaves free of the machine's memory: for everybody else, and for what grows while it runs.
_MARGIN = 0.1
_MARGIN_BYTES = 256 << 20
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
        by_header: bool, it was computed from the header, as everything lies in the machine's own memory; else it was measured.
        is_cramped: bool, llama.cpp chose less than everything, as its devices have too little that is free now.
    """

    model: ModelConfig
    context: ContextConfig
    context_use: Use
    weights_use: Use
    placement: Placement
    fit: Fit | None = None
    by_header: bool = False
    is_cramped: bool = False


@dataclass(frozen=True)
class Room:
    """What is possible.

    Attributes:
        free: Use, now: HOST, devices, and TOTAL where there is a budget.
        idle: Use, what would be free as well if everything idle made way.
    """

    free: Use
    idle: Use = field(default_factory=dict)

    @property
    def budget(self) -> Room:
        """The same with no bound but the budget."""
        return Room({place: self.free[place] for place in self.free if place == TOTAL}, self.idle)

    @property
    def beside(self) -> Room:
        """The same if idle ones make way for the budget alone."""
        return Room(self.free, {place: self.idle[place] for place in self.idle if place == TOTAL})

    @property
    def most(self) -> dict[str, int]:
        """With everything idle gone."""
        return {place: n_bytes + self.idle.get(place, 0) for place, n_bytes in self.free.items()}

    @property
    def roomy(self) -> dict[str, int]:
        """Of that, what "auto" takes: a margin of the machine's memory is left to others."""
        return {place: n_bytes - (margin(n_bytes) if place == HOST else 0) for place, n_bytes in self.most.items()}


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
    def n_ctx_auto(self) -> int:
        """The most that "auto" comes to."""
        whole = min(self.n_ctx_train or UNKNOWN_CTX, MAX_CTX)
        return min(whole, self.n_ctx_most or whole)

    @property
    def is_auto(self) -> bool:
        return self.context.n_ctx == "auto"


def margin(free_bytes: int) -> int:
    """What "auto" leaves of free memory: a tenth of it, at least 256 MiB."""
    return max(_MARGIN_BYTES, int(free_bytes * _MARGIN))


def needed(plan: Plan, wanted: Wanted) -> Use:
    """What loading adds to what is there."""
    return plan.context_use if wanted.weights_loaded else add(plan.context_use, plan.weights_use)
