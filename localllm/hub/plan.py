"""What would be fetched for a reference, why, and whether it fits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.hub.choose import Machine
from localllm.hub.gguf import Header
from localllm.hub.manifest import KeptFile
from localllm.hub.memory import ContextOptions, MemoryEstimate
from localllm.hub.options import check_kind
from localllm.hub.speed import Rates, Speed


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What a plan is made for.

    Attributes:
        context: ContextOptions, the context that has to fit beside the weights.
        projector: bool, take a projector along; or str, the path of one in the repository.
        draft: bool, take a draft along.
        machine: Machine, None: this one as it is now, without its GPUs (`localllm.machine.this_machine` sees them, too).
        rates: Rates of the machine's CPU (`localllm.machine.rates`), from which speeds are expected; None: they are not told.

    Raises:
        InvalidRequestError: An option of another type.
    """

    context: ContextOptions = field(default_factory=ContextOptions)
    projector: bool | str = True
    draft: bool = True
    machine: Machine | None = None
    rates: Rates | None = None

    def __post_init__(self) -> None:
        check_kind("context", self.context, ContextOptions)
        check_kind("projector", self.projector, bool, str)
        check_kind("draft", self.draft, bool)
        check_kind("machine", self.machine, Machine, type(None))
        check_kind("rates", self.rates, Rates, type(None))


@dataclass(frozen=True)
class Alternative:
    """One quantization of the repository.

    Attributes:
        tag: str, what to write after the colon; a file's name where it has no tag.
        path: str, of its first file in the repository.
        n_bytes: int, of all its files.
        bits_per_weight: float, 0.0 if not known.
        needed_bytes: int, memory with the wanted context and companions; None if not known.
        fits: bool, None if not known.
        missing_files: int, that the repository lacks.
        chosen: bool.
        is_estimate: bool, bits, memory and speed are from its size, its name and another one's header: its own was not read.
        is_here: bool, all its files are on this machine.
        speed: Speed that is expected of the CPU, an estimate; None if its rates are not known, or GPUs compute.
    """

    tag: str
    path: str
    n_bytes: int
    bits_per_weight: float
    needed_bytes: int | None
    fits: bool | None
    missing_files: int
    chosen: bool
    is_estimate: bool
    is_here: bool
    speed: Speed | None = None


@dataclass(frozen=True)
class Plan:
    """What a pull would do.

    Attributes:
        reference: str, what was asked for, names replaced.
        repo, revision, commit: str, where it is; the repository by its present name.
        endpoint: str, of another server than the usual one; "" for the usual.
        tag: str, the quantization that was chosen; "" if its name does not say.
        files: KeptFiles, all that belong together; those of the model first.
        present_bytes: int, of these, on this machine already, parts of files included.
        disk_free_bytes: int, on the file system of the cache.
        reason: str, why this quantization.
        companions: what was taken along or not, and why, each a sentence.
        warnings: what the user should know, each a sentence.
        memory: MemoryEstimate.
        free_bytes: int, memory that the model may take; None if not known.
        fits: bool, None if not known.
        alternatives: Alternatives, in the repository's order.
        adapters: paths of LoRA adapters in the repository; never taken along.
        licence: str, by the header or the catalog; "" if neither tells.
        cache: Path, the cache that it would go to.
    """

    reference: str
    repo: str
    revision: str
    commit: str
    endpoint: str
    tag: str
    files: tuple[KeptFile, ...]
    present_bytes: int
    disk_free_bytes: int
    reason: str
    companions: tuple[str, ...]
    warnings: tuple[str, ...]
    memory: MemoryEstimate
    free_bytes: int | None
    fits: bool | None
    alternatives: tuple[Alternative, ...]
    adapters: tuple[str, ...]
    licence: str
    cache: Path
    header: Header = field(repr=False)

    @property
    def n_bytes(self) -> int:
        return sum(kept.file.n_bytes for kept in self.files)

    @property
    def fetch_bytes(self) -> int:
        """Still to be fetched."""
        return self.n_bytes - self.present_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "header"}
        for name in ("files", "alternatives"):
            data[name] = [dataclasses.asdict(one) for one in data[name]]
        memory = dataclasses.asdict(self.memory) | {"total_bytes": self.memory.total_bytes}
        sums = {"n_bytes": self.n_bytes, "fetch_bytes": self.fetch_bytes}
        return data | {"memory": memory, "cache": str(self.cache)} | sums


def smaller_for_disk(plan: Plan) -> str:
    """Which quantization the disk has room for, to be appended to what it has no room for; "" if there is none."""
    free, chosen = plan.disk_free_bytes, next(one for one in plan.alternatives if one.chosen)
    fitting = [one for one in plan.alternatives if one.n_bytes < min(free, chosen.n_bytes) and not one.missing_files]
    return f", or take {max(fitting, key=lambda one: one.n_bytes).tag}" if fitting else ""


def disk_warning(plan: Plan) -> str:
    """What to tell of a disk that has no room for a plan; "" if it has."""
    lacking = plan.fetch_bytes - plan.disk_free_bytes
    if lacking <= 0:
        return ""
    room = f"{plan.fetch_bytes:,} bytes are to be fetched, but {plan.disk_free_bytes:,} are free in {plan.cache}"
    return f"NO ROOM ON THE DISK: {room}; make room (localllm gc){smaller_for_disk(plan)}."
