"""What this process has loaded: weights once per file and options, contexts once per use of them.

Nothing here keeps anything alive: handles hold their residents, residents their engines, engines their model.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from localllm.engine import checks
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.params import context_params, model_params
from localllm.errors import ClosedError, ModelLoadError, NativeError
from localllm.hub.gguf import Header, read_model
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.residency import fitting, limits
from localllm.residency.failures import is_out_of_memory
from localllm.residency.flights import Flights
from localllm.residency.housekeeper import Housekeeper
from localllm.residency.inventory import Inventory
from localllm.residency.listing import Listing, LoadedModel, others
from localllm.residency.measured import device_room
from localllm.residency.placement import Plan, Room, Wanted, needed
from localllm.residency.policy import HOST, TOTAL, Use, add, expired, next_on_device, victims
from localllm.residency.resident import Holder, Lease, Resident, Spec

logger = logging.getLogger("localllm")

# An engine that was handed out, without a request yet, is about to get one.
_GRACE_SECONDS = 5.0


class Registry:
    """Callable from any thread.

    Args:
        clock: gives seconds; for how long something has been idle.
        free_bytes: gives what is free of the machine's memory; None if the system does not tell.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, free_bytes: Callable[[], int | None] | None = None) -> None:
        self.clock = clock
        self.free_bytes = free_bytes or limits.free_bytes
        self.budget_bytes: int | None = None
        self._start_over()

    def _start_over(self) -> None:
        """Nothing is loaded, nobody holds a lock, and there is no thread."""
        self._there = Inventory(lambda: self.clock())
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._publishing = threading.RLock()
        self._loading: Flights[Engine | Embedder] = Flights()
        self._loading_weights: Flights[Model] = Flights()
        self._reserved: dict[object, Use] = {}
        self._n_loading, self._ending = 0, False
        self._listing = Listing()
        self._housekeeper = Housekeeper(self._tidy)

    def forked(self) -> None:
        """This is a child of the process: what the parent has loaded stays its own, and its threads are not here."""
        atexit.unregister(self.stop)
        residents = self._there.residents
        self._start_over()
        for resident in residents:
            resident.unloading = False
            resident.leases.clear()
            if resident.value is None:
                self._there.keep(resident)

    # ---- what handles ask for

    def resident(self, spec: Spec) -> Resident:
        """The resident for a file as it is now, and these options; nothing is loaded.

        Raises:
            ModelNotFoundError: The file is gone.
        """
        weights_key = spec.weights_key
        with self._lock:
            found = self._there.resident(spec, weights_key)
            if (value := found.loaded) is not None:
                value.activity.on_rest(functools.partial(_rested, weakref.ref(found), self))
            return found

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
                if (lease := self._leased(resident)) is not None:
                    return lease
            fresh = object()
            try:
                find, make = functools.partial(_loaded, resident), functools.partial(self._load, resident, fresh, check_memory)
                self._loading.get(resident.key, find, make)
                with self._lock:
                    if (lease := self._leased(resident)) is not None:
                        return lease
            finally:
                resident.leases.discard(fresh)

    def lease_at_hand(self, resident: Resident) -> Lease[Any] | None:
        """The same if it is loaded, and if nothing has to be waited for; else None."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._leased(resident)
        finally:
            self._lock.release()

    def _leased(self, resident: Resident) -> Lease[Any] | None:
        """With the lock held."""
        value = resident.loaded
        if value is None or resident.unloading:
            return None
        resident.last_used = self.clock()
        return Lease(resident, value, self._released)

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
        self.budget_bytes = None if n_bytes is None else checks.whole("budget", n_bytes, least=0)
        with self._claims() as claimed:
            with self._lock:
                if not self._there.holdings():
                    return
                chosen = victims(self._there.holdings(), self._there.weights(), {TOTAL: 0}, self._room(None).free)
                if chosen is None:  # what is busy or pinned stays, and is too much by itself
                    self._claim_idle(claimed)
                else:
                    self._claim(chosen, claimed)
            self._unload(claimed)

    def _room(self, token: object, kept: Hashable = None) -> Room:
        """What is possible, but for what loads under way will take (without the one of this token); the weights `kept` stay."""
        budget, free = limits.budget_bytes(self.budget_bytes), self.free_bytes()
        room = dict(device_room(load()))
        if free is not None:
            room[HOST] = free
        with self._lock:
            reserved = add(*(use for owner, use in self._reserved.items() if owner is not token))
            if budget is not None:
                room[TOTAL] = budget - self._there.used().get(TOTAL, 0)
            idle = self._there.freeable(kept)
        return Room({place: n_bytes - reserved.get(place, 0) for place, n_bytes in room.items()}, idle)

    # ---- loading

    @contextlib.contextmanager
    def native_loading(self) -> Iterator[None]:
        """While llama.cpp loads: the process does not end in the middle of it, and once it ends, nothing is begun.

        Raises:
            ClosedError: It ends.
        """
        with self._changed:
            if self._ending:
                raise ClosedError("the process is about to end: nothing is loaded any more")
            self._n_loading += 1
            # Registered after the native owners' own, so it is called before they release anything.
            atexit.unregister(self.stop)
            atexit.register(self.stop)
        try:
            yield
        finally:
            with self._changed:
                self._n_loading -= 1
                self._changed.notify_all()

    def _load(self, resident: Resident, fresh: object, check_memory: bool) -> Engine | Embedder:
        with self.native_loading():
            return self._load_now(resident, fresh, check_memory)

    def _load_now(self, resident: Resident, fresh: object, check_memory: bool) -> Engine | Embedder:
        token = object()
        try:
            model, plan = self._admit(resident, token, check_memory)
            value = self._open_or_evict(resident, model, plan, token)
            with self._changed:
                resident.value, resident.plan = value, plan
                self._there.add_context(resident, value, plan)
                resident.leases.add(fresh)
                resident.last_used = self.clock()
        finally:
            with self._changed:
                self._reserved.pop(token, None)
                self._changed.notify_all()
        value.activity.on_rest(functools.partial(_rested, weakref.ref(resident), self))
        weakref.finalize(value, self._housekeeper.wake).atexit = False
        self._housekeeper.start()
        self.publish()
        return value

    def _open_or_evict(self, resident: Resident, model: Model | None, plan: Plan, token: object) -> Engine | Embedder:
        """Once more after a failed allocation: the system had less than it said, or memory of a device is in pieces."""
        try:
            return self._open(resident, model, plan, token)
        except (ModelLoadError, NativeError, MemoryError) as error:
            if not is_out_of_memory(error, resident.spec.path):
                raise
            logger.info("%s: %s; everything idle is unloaded, and it is tried once more", resident.spec.path, error)
            failed = error
        with self._claims() as claimed:
            with self._lock:
                self._claim_idle(claimed)
            if not claimed:
                raise failed
            self._unload(claimed)
        return self._open(resident, model, plan, token)

    def _admit(self, resident: Resident, token: object, check_memory: bool) -> tuple[Model | None, Plan]:
        """Makes room: the weights if they are there, and how to load the rest. What was idle may be gone then.

        If there is no room whatever makes way, nothing does.
        """
        header = read_model(resident.spec.path)
        while True:
            model = self._model(resident.weights_key)
            kept = resident.weights_key if model else None
            wanted = self._wanted(resident, header, model)
            room = self._room(token, kept)
            plan = fitting.plan(load(), wanted, room if check_memory else room.beside)
            with self._claims() as claimed:
                with self._changed:
                    room = self._room(token, kept)
                    room = room if check_memory else room.budget
                    chosen = self._chosen(wanted, plan, room, kept)
                    if chosen is None:
                        if self._waited(token):
                            continue
                        raise fitting.does_not_fit(wanted, plan, room.most, self._there.held())
                    self._reserved[token] = needed(plan, wanted)
                    self._claim(chosen, claimed)
                if not chosen:
                    fitting.warn_of_length(wanted, plan)
                    return model, plan
                del model
                self._unload(claimed)

    def _chosen(self, wanted: Wanted, plan: Plan, room: Room, kept: Hashable) -> list[object] | None:
        """What makes way for a plan, the weights `kept` not among it; None: there is no room whatever does."""
        holdings, weights = self._there.holdings(), self._there.weights()
        chosen = victims(holdings, weights, needed(plan, wanted), room.free, kept)
        if chosen == [] and plan.is_cramped:
            return next_on_device(holdings, weights, kept)
        return chosen

    def _wanted(self, resident: Resident, header: Header, model: Model | None) -> Wanted:
        spec = resident.spec
        layers = self._there.layers(model) if model else None
        n_ctx_most = resident.plan.placement.n_ctx if resident.plan else 0
        return Wanted(spec.path, header, spec.model, spec.context, spec.purpose, layers, n_ctx_most)

    def _waited(self, token: object) -> bool:
        """Whether others were loading or unloading, so that there may be room now. Gives up the lock, which is held, for it."""
        if self._reserved.pop(token, None) is not None:
            self._changed.notify_all()
        if not self._reserved and not any(resident.unloading for resident in self._there.residents):
            return False
        self._changed.wait()
        return True

    def _open(self, resident: Resident, model: Model | None, plan: Plan, token: object) -> Engine | Embedder:
        spec = resident.spec
        if model is None:
            key = resident.weights_key
            make = functools.partial(self._load_weights, resident, plan)
            model = self._loading_weights.get(key, functools.partial(self._model, key), make)
            with self._lock:
                self._reserved[token] = plan.context_use  # the weights are counted as loaded
        if spec.purpose == "engine":
            return Engine(model, plan.model, plan.context)
        return Embedder(model, context=plan.context, rank=spec.purpose == "ranker")

    def _model(self, key: Hashable) -> Model | None:
        with self._lock:
            return self._there.model(key)

    def _load_weights(self, resident: Resident, plan: Plan) -> Model:
        native = load()
        params = model_params(native, plan.model)
        if plan.fit:
            plan.fit.apply(params, context_params(native, plan.context, 0))
        model = Model(str(resident.spec.path), params)
        with self._lock:
            self._there.add_model(resident.weights_key, model, plan)
        # They may outlive every context, and then nobody else tells that they go.
        weakref.finalize(model, self._housekeeper.wake).atexit = False
        self._housekeeper.start()
        return model

    # ---- unloading

    @contextlib.contextmanager
    def _claims(self) -> Iterator[list[Resident]]:
        """Residents that nobody can take; afterwards they can be loaded again, whatever has happened."""
        claimed: list[Resident] = []
        try:
            yield claimed
        finally:
            with self._changed:
                for resident in claimed:
                    resident.unloading = False
                if claimed:
                    self._changed.notify_all()

    def _claim(self, chosen: list[object], claimed: list[Resident]) -> None:
        """Claims what was chosen; with the lock held. What is in use by now is left out."""
        for resident in chosen:
            if isinstance(resident, Resident) and not resident.busy and not resident.unloading:
                claimed.append(resident)
                resident.unloading = True

    def _claim_idle(self, claimed: list[Resident]) -> None:
        self._claim([one.id for one in self._there.holdings() if one.evictable], claimed)

    def _unload(self, claimed: list[Resident]) -> None:
        for resident in claimed:
            value, resident.value = resident.value, None
            if value is not None:
                logger.info("%s: unloaded, as it was idle", resident.spec.path)
                value.close()
            del value  # with it the weights go, if this was their last use
        if claimed:
            self.publish()

    def expire(self) -> float | None:
        """Unloads what has been idle for as long as it may.

        Returns:
            float, seconds until something is due again; None: not before something changes.
        """
        with self._claims() as claimed:
            with self._lock:
                terms = [term for resident in self._there.residents if (term := resident.term()) is not None]
                over, pause = expired(terms, self.clock())
                self._claim(over, claimed)
            self._unload(claimed)
        return pause

    def _tidy(self) -> float | None:
        pause = self.expire()
        self.publish()
        with self._lock:
            anything = self._there.holdings() or self._there.weights() or self._reserved
        return pause if anything else -1.0

    # ---- what there is

    def loaded(self) -> list[LoadedModel]:
        """Everything that is loaded: contexts, and the weights that they share."""
        with self._lock:
            return self._there.entries()

    def publish(self) -> None:
        """Brings the file for `localllm ps` up to date."""
        with self._publishing:
            self._listing.write(self.loaded())

    def stop(self) -> None:
        """The process ends: waits for what is being loaded, and for the thread."""
        with self._changed:
            self._ending = True
            while self._n_loading:
                self._changed.wait()
        self._housekeeper.stop()
        with self._publishing:
            self._listing.remove()


def _loaded(resident: Resident) -> Engine | Embedder | None:
    return None if resident.unloading else resident.loaded


def _rested(resident: weakref.ref[Resident], registry: Registry) -> None:
    if (found := resident()) is not None:
        registry.rested(found)


registry = Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=registry.forked)


def set_memory_budget(n_bytes: int | None) -> None:
    """The most that weights and contexts of this process may take together; what is idle makes way, least recently used first.

    Busy and pinned ones stay. What cannot fit whatever makes way is a DoesNotFitError, and changes nothing. Bytes are llama.cpp's
    own numbers, of all devices together, weights that are mapped from a file included.

    Args:
        n_bytes: int; what is idle and too much already is unloaded at once. None: what LOCALLLM_MEMORY_BUDGET says, else no more
            than the machine has.

    Raises:
        InvalidRequestError: Not a whole number of at least 0.
    """
    registry.set_budget(n_bytes)


def loaded_models(*, everywhere: bool = False) -> list[LoadedModel]:
    """What LocalModels have loaded: an entry for each context, and one for the weights that contexts of a file share.

    An Engine or Embedder that a program has made by itself is in no list.

    Args:
        everywhere: bool, also what other processes of this user hold.
    """
    return [*registry.loaded(), *(others() if everywhere else ())]
