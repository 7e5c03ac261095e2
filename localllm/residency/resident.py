"""One context over weights that may be loaded, unloaded and loaded again, and who uses it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeAlias, TypeVar

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.errors import ModelNotFoundError
from localllm.residency.placement import Plan, Purpose
from localllm.residency.policy import Holding, Term, Use

V = TypeVar("V", bound=Engine | Embedder)
# A file: its path with links followed, time of change (ns), size (bytes); then how it is loaded, and the types of its overrides.
WeightsKey: TypeAlias = tuple[str, int, int, ModelConfig, tuple[type, ...]]


class Holder(Protocol):
    """Who keeps something loaded: a handle with its terms."""

    keep_alive: float | None
    pinned: bool


@dataclass(frozen=True)
class Spec:
    """What is loaded, and how.

    Attributes:
        reference: str, what the first handle calls the model.
        path: Path of the file.
        model, context: ModelConfig and ContextConfig, with "auto" where it was given.
        purpose: what for.
    """

    reference: str
    path: Path
    model: ModelConfig
    context: ContextConfig
    purpose: Purpose

    @property
    def weights_key(self) -> WeightsKey:
        """The file as it is now, and how its weights are loaded.

        Raises:
            ModelNotFoundError: It is gone.
        """
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ModelNotFoundError(f"{self.path}: {error.strerror or 'cannot be found'}") from error
        # True and 1 are equal, and yet different metadata.
        types = tuple(type(value) for _, value in self.model.overrides)
        return os.path.realpath(self.path), stat.st_mtime_ns, stat.st_size, self.model, types


class Resident:
    """What the registry knows of one context. The registry's lock is held for changes of everything but what is said below.

    Attributes:
        value: Engine or Embedder; None while it is not loaded.
        plan: Plan of the last loading.
        unloading: bool, it is being unloaded; nobody may take it.
        leases: set, one entry for each use under way; entries are taken out without the lock.
        last_used, kept_until: float, seconds of the registry's clock; set without the lock.
        handles: Holders that want it; `Registry.hold` adds one.
        timed: bool, it is unloaded some time after it became idle; may be read without the lock.
    """

    def __init__(self, spec: Spec, key: Hashable, weights_key: WeightsKey) -> None:
        self.spec = spec
        self.key = key
        self.weights_key = weights_key
        self.value: Engine | Embedder | None = None
        self.plan: Plan | None = None
        self.unloading = False
        self.leases: set[object] = set()
        self.last_used = 0.0
        self.kept_until = 0.0
        self.handles: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.timed = False

    @property
    def loaded(self) -> Engine | Embedder | None:
        """What is loaded and not closed by hand."""
        value = self.value
        return value if value is not None and not value.closed else None

    @property
    def keep_alive(self) -> float | None:
        """The longest that any handle wants; None: for as long as there is a handle."""
        terms = [handle.keep_alive for handle in list(self.handles)]
        return None if not terms or None in terms else max(term for term in terms if term is not None)

    @property
    def pinned(self) -> bool:
        return any(handle.pinned for handle in list(self.handles))

    @property
    def busy(self) -> bool:
        value = self.loaded
        return bool(self.leases) or (value is not None and value.activity.busy)

    def holding(self, use: Use) -> Holding:
        """As the policy sees it; `use` of its context."""
        evictable = not (self.busy or self.pinned or self.unloading)
        return Holding(self, use, self.weights_key, self.last_used, evictable)

    def term(self) -> Term | None:
        """As the policy sees it; None: it is not unloaded when idle."""
        keep_alive, value = self.keep_alive, self.loaded
        self.timed = keep_alive is not None
        if keep_alive is None or value is None:
            return None
        idle = not self.leases and value.activity.resting and not self.unloading
        return Term(self, idle, self.last_used, keep_alive, self.kept_until)


class Lease(Generic[V]):
    """A use of a loaded model, which stays loaded until it is released, or collected.

    Attributes:
        value: Engine or Embedder.
    """

    def __init__(self, resident: Resident, value: V, released: Callable[[Resident], None]) -> None:
        self.value = value
        token = object()
        resident.leases.add(token)
        self._finalizer = weakref.finalize(self, _release, resident, token, released)
        self._finalizer.atexit = False

    def release(self) -> None:
        """Gives it back; later calls do nothing. Never blocks."""
        self._finalizer()

    def __enter__(self) -> Lease[V]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _release(resident: Resident, token: object, released: Callable[[Resident], None]) -> None:
    resident.leases.discard(token)
    released(resident)
