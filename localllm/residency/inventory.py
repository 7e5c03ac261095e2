"""What is loaded in this process, by itself: nothing is loaded or unloaded here, and nothing is kept alive."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.native.handles import Model
from localllm.residency.fitting import mib
from localllm.residency.listing import LoadedModel
from localllm.residency.measured import use_of_context, use_of_weights
from localllm.residency.placement import MAPPED, Plan
from localllm.residency.policy import TOTAL, Holding, Use, add
from localllm.residency.resident import Resident, Spec, WeightsKey

Context = Engine | Embedder


@dataclass(frozen=True)
class Weights:
    """A loaded model: what tells it from others, its Use, whether it is mapped from its file, and layers on GPUs (-1: all)."""

    key: Hashable
    use: Use
    mapped: bool
    n_gpu_layers: int


@dataclass(frozen=True)
class Known:
    """What was loaded for whom: a Spec, what tells its weights from others, and the Plan."""

    spec: Spec
    weights_key: Hashable
    plan: Plan


class Inventory:
    """Not locked: the registry's lock is held for every call.

    Args:
        clock: gives seconds; those of `Resident.last_used`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._residents: weakref.WeakValueDictionary[Hashable, Resident] = weakref.WeakValueDictionary()
        self._models: weakref.WeakValueDictionary[Hashable, Model] = weakref.WeakValueDictionary()
        self._weights: weakref.WeakKeyDictionary[Model, Weights] = weakref.WeakKeyDictionary()
        # Also those that only the program holds: nobody can unload them, but they are there.
        self._contexts: weakref.WeakKeyDictionary[Context, Known] = weakref.WeakKeyDictionary()

    # ---- what comes

    def resident(self, spec: Spec, weights_key: WeightsKey) -> Resident:
        """The resident for a spec. What the program still holds of it, after its last handle was closed, is used again."""
        key = (weights_key, spec.context, spec.purpose)
        found = self._residents.get(key)
        if found is None:
            found = self._residents[key] = Resident(spec, key, weights_key)
            for value, known in list(self._contexts.items()):
                same = (known.weights_key, known.spec.context, known.spec.purpose) == key
                if same and not value.closed and self._resident_of(value) is None:
                    found.value, found.plan, found.last_used = value, known.plan, self._clock()
        return found

    def keep(self, resident: Resident) -> None:
        """A resident that was made before, of which nothing is loaded here."""
        self._residents[resident.key] = resident

    def add_model(self, key: Hashable, model: Model, plan: Plan) -> None:
        """Weights were loaded; how much they take is measured with the first context over them."""
        self._models[key] = model
        mapped, layers = plan.model.load_mode in MAPPED, plan.placement.n_gpu_layers
        self._weights[model] = Weights(key, plan.weights_use, mapped, layers)

    def add_context(self, resident: Resident, value: Context, plan: Plan) -> None:
        """A context was made."""
        self._contexts[value] = Known(resident.spec, resident.weights_key, plan)
        weights = self._weights.get(value.model)
        if weights is not None:
            self._weights[value.model] = replace(weights, use=use_of_weights(value.memory, weights.mapped))

    # ---- what there is

    @property
    def residents(self) -> list[Resident]:
        return list(self._residents.values())

    def model(self, key: Hashable) -> Model | None:
        """Weights that are loaded."""
        found = self._models.get(key)
        return None if found is None or found.closed else found

    def layers(self, model: Model) -> int:
        """How many of its layers are on GPUs; -1: all."""
        return self._weights[model].n_gpu_layers

    def holdings(self) -> list[Holding]:
        """Contexts, as the policy sees them."""
        return [
            resident.holding(use) if resident else Holding(value, use, known.weights_key, 0.0, False)
            for value, known in self._open_contexts()
            for resident, use in ((self._resident_of(value), use_of_context(value.memory)),)
        ]

    def weights(self) -> dict[object, Use]:
        """Use of weights by what tells them from others."""
        return {weights.key: weights.use for model, weights in list(self._weights.items()) if not model.closed}

    def used(self) -> dict[str, int]:
        """All of it together."""
        return add(*(one.use for one in self.holdings()), *self.weights().values())

    def freeable(self, kept: Hashable) -> dict[str, int]:
        """What would be free if everything idle made way, but for the weights `kept`."""
        holdings = self.holdings()
        staying = {one.weights for one in holdings if not one.evictable} | {kept}
        going = {one.weights for one in holdings} - staying
        weights = (use for key, use in self.weights().items() if key in going)
        return add(*(one.use for one in holdings if one.evictable), *weights)

    def entries(self) -> list[LoadedModel]:
        """Contexts, and the weights that they share, for the user."""
        offset = time.time() - self._clock()
        entries: list[LoadedModel] = []
        over: dict[Hashable, list[LoadedModel]] = {}
        for value, known in self._open_contexts():
            entry = _context_entry(value, known.spec, self._resident_of(value), offset)
            entries.append(entry)
            over.setdefault(known.weights_key, []).append(entry)
        for model, weights in list(self._weights.items()):
            if not model.closed:
                entries.append(_weights_entry(model.path, weights, over.get(weights.key, []), time.time()))
        return sorted(entries, key=lambda entry: (entry.path, entry.purpose != "weights", entry.purpose))

    def held(self) -> str:
        """What holds memory, in words for an error; "" for nothing."""
        parts = []
        for entry in self.entries():
            state = "".join(f", {word}" for word, is_so in (("busy", entry.busy), ("pinned", entry.pinned)) if is_so)
            parts.append(f"{entry.reference} ({entry.purpose}, {mib(entry.n_bytes)}{state})")
        return f"loaded are {', '.join(parts)}; close what is not needed" if parts else ""

    # ---- inside

    def _open_contexts(self) -> list[tuple[Context, Known]]:
        return [(value, known) for value, known in list(self._contexts.items()) if not value.closed]

    def _resident_of(self, value: Context) -> Resident | None:
        """Whose it is; None: the program alone holds it."""
        return next((one for one in self.residents if one.value is value), None)


def _context_entry(value: Context, spec: Spec, resident: Resident | None, offset: float) -> LoadedModel:
    """`offset` makes seconds since the epoch of the clock's."""
    return LoadedModel(
        reference=spec.reference,
        path=str(spec.path),
        purpose=spec.purpose,
        n_bytes=use_of_context(value.memory)[TOTAL],
        n_ctx=value.memory.n_ctx,
        busy=resident.busy if resident else value.activity.busy,
        last_used=resident.last_used + offset if resident else time.time(),
        keep_alive=resident.keep_alive if resident else None,
        pinned=resident.pinned if resident else False,
        pid=os.getpid(),
    )


def _weights_entry(path: str, weights: Weights, contexts: Sequence[LoadedModel], now: float) -> LoadedModel:
    """Weights are there for as long as any of the contexts over them."""
    terms = [entry.keep_alive for entry in contexts]
    return LoadedModel(
        reference=contexts[0].reference if contexts else path,
        path=path,
        purpose="weights",
        n_bytes=weights.use.get(TOTAL, 0),
        n_ctx=0,
        busy=any(entry.busy for entry in contexts),
        last_used=max((entry.last_used for entry in contexts), default=now),
        keep_alive=None if None in terms or not terms else max(term for term in terms if term is not None),
        pinned=any(entry.pinned for entry in contexts),
        pid=os.getpid(),
    )
