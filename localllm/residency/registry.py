"""What this process has loaded: weights once per file and options, contexts once per use of them.

Nothing here keeps anything alive: handles hold their residents, residents their engines, engines their model.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.engine import checks
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.params import context_params, model_params
from localllm.errors import InvalidRequestError, ModelLoadError, NativeError
from localllm.hub.free_memory import free_memory
from localllm.hub.gguf import read_model
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.residency import fitting
from localllm.residency.fitting import Plan, Wanted
from localllm.residency.flights import Flights
from localllm.residency.housekeeper import Housekeeper
from localllm.residency.listing import Listing, LoadedModel
from localllm.residency.policy import HOST, TOTAL, Holding, Use, add, expired, victims
from localllm.residency.resident import Holder, Lease, Resident, Spec

logger = logging.getLogger("localllm")

BUDGET_VARIABLE = "LOCALLLM_MEMORY_BUDGET"
# An engine that was handed out, without a request yet, is about to get one.
_GRACE_SECONDS = 5.0


class Weights:
    """What the registry knows of a loaded model.

    Attributes:
        key: what tells it from others.
        plan: Plan that it was loaded by.
        use: Use of it; empty until a context over it has been measured.
    """

    def __init__(self, key: Hashable, plan: Plan, mapped: bool) -> None:
        self.key = key
        self.plan = plan
        self.mapped = mapped
        self.use: Use = plan.weights_use


@dataclass(frozen=True)
class Known:
    """What was loaded for whom: a Spec, what tells its weights from others, and the Plan."""

    spec: Spec
    weights_key: Hashable
    plan: Plan


class Registry:
    """Callable from any thread.

    Args:
        clock: gives seconds; for how long something has been idle.
        free_bytes: gives what is free of the machine's memory; None if the system does not tell.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, free_bytes: Callable[[], int | None] | None = None) -> None:
        self.clock = clock
        self.free_bytes = free_bytes or _free_bytes
        self.budget_bytes: int | None = None
        self._start_over()
        self._residents: weakref.WeakValueDictionary[Hashable, Resident] = weakref.WeakValueDictionary()
        self._models: weakref.WeakValueDictionary[Hashable, Model] = weakref.WeakValueDictionary()
        self._weights: weakref.WeakKeyDictionary[Model, Weights] = weakref.WeakKeyDictionary()
        # Also those that only the program holds: nobody can unload them, but they are there.
        self._contexts: weakref.WeakKeyDictionary[Engine | Embedder, Known] = weakref.WeakKeyDictionary()

    def _start_over(self) -> None:
        """Locks that nobody holds, and no thread."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._publishing = threading.RLock()
        self._loading: Flights[Engine | Embedder] = Flights()
        self._loading_weights: Flights[Model] = Flights()
        self._reserved: dict[object, Use] = {}
        self._listing = Listing()
        self._housekeeper = Housekeeper(self._tidy)

    def forked(self) -> None:
        """This is a child of the process: what the parent has loaded stays its own, and its threads are not here."""
        atexit.unregister(self.stop)
        self._start_over()
        for resident in list(self._residents.values()):
            resident.unloading = False
            resident.leases.clear()
        # A model of the child's own is loaded anew.
        self._residents = weakref.WeakValueDictionary()
        self._models = weakref.WeakValueDictionary()
        self._weights = weakref.WeakKeyDictionary()
        self._contexts = weakref.WeakKeyDictionary()

    # ---- what handles ask for

    def resident(self, spec: Spec) -> Resident:
        """The resident for a file as it is now, and these options; nothing is loaded.

        Raises:
            ModelNotFoundError: The file is gone.
        """
        weights_key = spec.weights_key
        key = (weights_key, spec.context, spec.purpose)
        with self._lock:
            found = self._residents.get(key)
            if found is None:
                found = self._residents[key] = Resident(spec, key, weights_key)
                self._adopt(found)
            return found

    def _adopt(self, resident: Resident) -> None:
        """What the program still holds of it, after the last handle was closed, is used again."""
        for value, known in list(self._contexts.items()):
            same = (known.weights_key, known.spec.context, known.spec.purpose) == resident.key
            if same and not value.closed and self._resident_of(value) is None:
                resident.value, resident.plan, resident.last_used = value, known.plan, self.clock()
                value.on_rest(functools.partial(_rested, weakref.ref(resident), self))

    def hold(self, resident: Resident, handle: Holder) -> None:
        """A handle wants it, on its terms, for as long as the handle lives or until it is let go."""
        with self._lock:
            resident.handles.add(handle)
            resident.timed = resident.keep_alive is not None
        weakref.finalize(handle, self._housekeeper.wake).atexit = False

    def let_go(self, resident: Resident, handle: Holder) -> None:
        """A handle does not want it any more."""
        with self._lock:
            resident.handles.discard(handle)
        self._housekeeper.wake()

    def lease(self, resident: Resident, *, check_memory: bool = True) -> Lease[Any]:
        """What a resident stands for, loaded if it was not, and not unloaded before the lease is released.

        Raises:
            DoesNotFitError: There is not enough memory, or the budget leaves none.
            ModelError: The file cannot be loaded.
            NativeLibraryError: The native libraries cannot be used.
        """
        while True:
            with self._changed:
                while resident.unloading:
                    self._changed.wait()
                if (value := resident.loaded) is not None:
                    resident.last_used = self.clock()
                    return Lease(resident, value, self._released)
            fresh = object()
            try:
                find, make = functools.partial(_loaded, resident), functools.partial(self._load, resident, fresh, check_memory)
                self._loading.get(resident.key, find, make)
                with self._lock:
                    if not resident.unloading and (value := resident.loaded) is not None:
                        return Lease(resident, value, self._released)
            finally:
                resident.leases.discard(fresh)

    def touch(self, resident: Resident) -> None:
        """It was handed out, and will be used in a moment."""
        resident.last_used = self.clock()
        resident.kept_until = resident.last_used + _GRACE_SECONDS
        self._wake_for(resident)

    def rested(self, resident: Resident) -> None:
        """Its last request has ended."""
        self._released(resident)

    def _released(self, resident: Resident) -> None:
        resident.last_used = self.clock()
        self._wake_for(resident)

    def _wake_for(self, resident: Resident) -> None:
        if resident.timed:
            self._housekeeper.wake()

    # ---- budget

    def set_budget(self, n_bytes: int | None) -> None:
        """The most that all of it may take together; None: whatever the machine has. What is idle makes way at once.

        Raises:
            InvalidRequestError: Not a whole number of at least 0.
        """
        self.budget_bytes = checked_budget("budget", n_bytes)
        room = self._room(None)
        with self._lock:
            chosen = victims(self._holdings(), self._weights_uses(), {TOTAL: 0}, room)
            if chosen is None:  # what is busy or pinned stays, everything else goes
                chosen = [one.id for one in self._holdings() if one.evictable]
            claimed = self._claim(chosen)
        self._unload(claimed)

    def _budget(self) -> int | None:
        if self.budget_bytes is not None:
            return self.budget_bytes
        text = os.environ.get(BUDGET_VARIABLE, "").strip()
        if not text:
            return None
        if not text.isascii() or not text.isdigit():
            raise InvalidRequestError(f"{BUDGET_VARIABLE}: {text!r} is not a whole number of bytes")
        return int(text)

    def _room(self, token: object) -> dict[str, int]:
        """What is possible now, without what loads under way will take (but for the one of this token)."""
        budget, free = self._budget(), self.free_bytes()
        room = dict(fitting.device_room(load()))
        with self._lock:
            reserved = add(*(use for owner, use in self._reserved.items() if owner is not token))
            if budget is not None:
                room[TOTAL] = budget - self._used().get(TOTAL, 0)
        if free is not None:
            room[HOST] = free
        return {place: n_bytes - reserved.get(place, 0) for place, n_bytes in room.items()}

    def _used(self) -> dict[str, int]:
        return add(*(one.use for one in self._holdings()), *self._weights_uses().values())

    def _holdings(self) -> list[Holding]:
        holdings = []
        for value, known in list(self._contexts.items()):
            if not value.closed:
                resident, use = self._resident_of(value), fitting.use_of_context(value.memory)
                holdings.append(resident.holding(use) if resident else Holding(value, use, known.weights_key, 0.0, False))
        return holdings

    def _weights_uses(self) -> dict[object, Use]:
        return {weights.key: weights.use for model, weights in list(self._weights.items()) if not model.closed}

    # ---- loading

    def _load(self, resident: Resident, fresh: object, check_memory: bool) -> Engine | Embedder:
        token = object()
        try:
            model, plan = self._admit(resident, token, check_memory)
            value = self._open_or_evict(resident, model, plan)
            with self._changed:
                resident.value, resident.plan = value, plan
                self._contexts[value] = Known(resident.spec, resident.weights_key, plan)
                resident.leases.add(fresh)
                resident.last_used, resident.loaded_at = self.clock(), time.time()
                self._reserved.pop(token, None)
                self._changed.notify_all()
        finally:
            with self._lock:
                self._reserved.pop(token, None)
        value.on_rest(functools.partial(_rested, weakref.ref(resident), self))
        weakref.finalize(value, self._housekeeper.wake).atexit = False
        # Registered after the native owners' own: at exit our thread has ended before they release anything.
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        self._housekeeper.start()
        self.publish()
        return value

    def _open_or_evict(self, resident: Resident, model: Model | None, plan: Plan) -> Engine | Embedder:
        """Once more after a failed allocation: the system had less than it said, or memory of a device is in pieces."""
        try:
            return self._open(resident, model, plan)
        except (ModelLoadError, NativeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            logger.info("%s: %s; everything idle is unloaded, and it is tried once more", resident.spec.path, error)
            failed = error
        if not self._evict_idle():
            raise failed
        return self._open(resident, model, plan)

    def _admit(self, resident: Resident, token: object, check_memory: bool) -> tuple[Model | None, Plan]:
        """Makes room: the weights if they are there, and how to load the rest. What was idle may be gone then.

        If there is no room whatever makes way, nothing does.
        """
        spec, header = resident.spec, read_model(resident.spec.path)
        while True:
            model = self._models.get(resident.weights_key)
            weights = None if model is None or model.closed else self._weights.get(model)
            wanted = Wanted(
                spec.path, header, spec.model, spec.context, spec.purpose, weights is not None,
                resident.plan.placement.n_ctx if resident.plan else 0,
            )  # fmt: skip
            plan = fitting.plan(load(), wanted, self._room(token))
            with self._lock:
                room, use = self._room(token), fitting.needed(plan, wanted)
                if not check_memory:
                    room = {place: n_bytes for place, n_bytes in room.items() if place == TOTAL}
                holdings = self._holdings()
                chosen = victims(holdings, self._weights_uses(), use, room, resident.weights_key if weights else None)
                if chosen is None:
                    freeable = add(*(one.use for one in holdings if one.evictable), *self._freeable_weights(holdings, resident))
                    most = add(room, {place: n_bytes for place, n_bytes in freeable.items() if place in room})
                    raise fitting.does_not_fit(wanted, plan, most, self._held())
                claimed = self._claim(chosen)
                self._reserved[token] = use
            if not chosen:
                fitting.warn_of_length(wanted, plan)
                return (model if weights else None), plan
            del model, weights
            self._unload(claimed)

    def _freeable_weights(self, holdings: Sequence[Holding], resident: Resident) -> list[Use]:
        staying = {one.weights for one in holdings if not one.evictable} | {resident.weights_key}
        going = {one.weights for one in holdings} - staying
        return [use for key, use in self._weights_uses().items() if key in going]

    def _open(self, resident: Resident, model: Model | None, plan: Plan) -> Engine | Embedder:
        spec = resident.spec
        if model is None:
            key = resident.weights_key
            make = functools.partial(self._load_weights, resident, plan)
            model = self._loading_weights.get(key, functools.partial(self._model, key), make)
        value: Engine | Embedder
        if spec.purpose == "engine":
            value = Engine(model, context=plan.context)
        else:
            value = Embedder(model, context=plan.context, rank=spec.purpose == "ranker")
        weights = self._weights.get(model)
        if weights is not None:
            weights.use = fitting.use_of_weights(value.memory, weights.mapped)
        return value

    def _model(self, key: Hashable) -> Model | None:
        found = self._models.get(key)
        return None if found is None or found.closed else found

    def _load_weights(self, resident: Resident, plan: Plan) -> Model:
        native = load()
        params = model_params(native, plan.model)
        if plan.fit:
            plan.fit.apply(params, context_params(native, plan.context, 0))
        model = Model(str(resident.spec.path), params)
        with self._lock:
            self._models[resident.weights_key] = model
            self._weights[model] = Weights(resident.weights_key, plan, plan.model.load_mode in fitting.MAPPED)
        return model

    # ---- unloading

    def _claim(self, chosen: list[object]) -> list[Resident]:
        """Residents that nobody can take any more; with the lock held. Those that are in use by now are left out."""
        claimed = [one for one in chosen if isinstance(one, Resident) and not one.busy and not one.unloading]
        for resident in claimed:
            resident.unloading = True
        return claimed

    def _unload(self, claimed: list[Resident]) -> None:
        try:
            for resident in claimed:
                value, resident.value = resident.value, None
                if value is not None:
                    logger.info("%s: unloaded, as it was idle", resident.spec.path)
                    value.close()
                del value  # with it the weights go, if this was their last use
        finally:
            with self._changed:
                for resident in claimed:
                    resident.unloading = False
                self._changed.notify_all()
        if claimed:
            self.publish()

    def _evict_idle(self) -> bool:
        with self._lock:
            claimed = self._claim([one.id for one in self._holdings() if one.evictable])
        self._unload(claimed)
        return bool(claimed)

    def expire(self) -> float | None:
        """Unloads what has been idle for as long as it may.

        Returns:
            float, seconds until something is due again; None: not before something changes.
        """
        with self._lock:
            terms = [term for resident in list(self._residents.values()) if (term := resident.term()) is not None]
            over, pause = expired(terms, self.clock())
            claimed = self._claim(over)
        self._unload(claimed)
        return pause

    def _tidy(self) -> float | None:
        pause = self.expire()
        self.publish()
        with self._lock:
            anything = any(resident.loaded for resident in list(self._residents.values())) or self._reserved
        return pause if anything else -1.0

    # ---- what there is

    def loaded(self) -> list[LoadedModel]:
        """Everything that is loaded: contexts, and the weights that they share."""
        offset = time.time() - self.clock()
        entries: list[LoadedModel] = []
        over: dict[Hashable, list[LoadedModel]] = {}
        with self._lock:
            weights = [(model.path, found) for model, found in list(self._weights.items()) if not model.closed]
            for value, known in list(self._contexts.items()):
                if not value.closed:
                    entry = _entry(value, known.spec, self._resident_of(value), offset)
                    entries.append(entry)
                    over.setdefault(known.weights_key, []).append(entry)
        entries += [_weights_entry(path, found, over.get(found.key, []), time.time()) for path, found in weights]
        return sorted(entries, key=lambda entry: (entry.path, entry.purpose != "weights", entry.purpose))

    def _resident_of(self, value: Engine | Embedder) -> Resident | None:
        """Whose it is; None: it is only held by the program, which has closed the handles."""
        return next((one for one in list(self._residents.values()) if one.value is value), None)

    def _held(self) -> str:
        """What holds memory, for an error."""
        parts = []
        for entry in self.loaded():
            state = ", ".join(word for word, is_so in (("busy", entry.busy), ("pinned", entry.pinned)) if is_so)
            parts.append(f"{entry.reference} ({entry.purpose}, {fitting.mib(entry.n_bytes)}{', ' + state if state else ''})")
        return f"loaded are {', '.join(parts)}; close what is not needed" if parts else ""

    def publish(self) -> None:
        """Brings the file for `localllm ps` up to date."""
        with self._publishing:
            self._listing.write(self.loaded())

    def stop(self) -> None:
        """The process ends."""
        self._housekeeper.stop()
        with self._publishing:
            self._listing.remove()


def _entry(value: Engine | Embedder, spec: Spec, resident: Resident | None, offset: float) -> LoadedModel:
    """Of a context; `offset` makes seconds since the epoch of the clock's."""
    return LoadedModel(
        reference=spec.reference,
        path=str(spec.path),
        purpose=spec.purpose,
        n_bytes=fitting.use_of_context(value.memory)[TOTAL],
        n_ctx=value.memory.n_ctx,
        busy=resident.busy if resident else value.busy,
        last_used=resident.last_used + offset if resident else time.time(),
        keep_alive=resident.keep_alive if resident else None,
        pinned=resident.pinned if resident else False,
        pid=os.getpid(),
    )


def _weights_entry(path: str, weights: Weights, contexts: Sequence[LoadedModel], now: float) -> LoadedModel:
    """Of weights, which are there for as long as any of the contexts over them."""
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


def _loaded(resident: Resident) -> Engine | Embedder | None:
    return None if resident.unloading else resident.loaded


def _rested(resident: weakref.ref[Resident], registry: Registry) -> None:
    if (found := resident()) is not None:
        registry.rested(found)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: llama.cpp only says so in words."""
    if isinstance(error, MemoryError) or (isinstance(error, NativeError) and error.status == localllm_h.LM_OUT_OF_MEMORY):
        return True
    return "alloc" in str(error).lower() or "out of memory" in str(error).lower()


def _free_bytes() -> int | None:
    try:
        return free_memory().free_bytes
    except OSError:
        return None


def checked_budget(name: str, n_bytes: object) -> int | None:
    """A budget in bytes.

    Raises:
        InvalidRequestError: Neither None nor a whole number of at least 0.
    """
    return None if n_bytes is None else checks.whole(name, n_bytes, least=0)


registry = Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=registry.forked)
