"""What the engine's thread works with: it takes requests in, steps, and delivers."""

from __future__ import annotations

import collections
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

from localllm.engine.adapters import Adapters
from localllm.engine.cache.disk import DiskStore, FolderBusy, Stored, state_key
from localllm.engine.cache.facts import open_store, state_facts
from localllm.engine.cache.lookup import DEVICE, RAM
from localllm.engine.cache.radix import Entry
from localllm.engine.cache.resident import Action, Residents
from localllm.engine.cache.saved import Saved, pack
from localllm.engine.checks import shown
from localllm.engine.config import ContextConfig, SpeculationConfig
from localllm.engine.errands import Errands
from localllm.engine.media import MediaRun
from localllm.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Request,
    Sink,
    StoppedBy,
    Timings,
    Usage,
)
from localllm.engine.runner import Runner, Sampled
from localllm.engine.scheduler import Chunk, Scheduler
from localllm.engine.sequence import Sequence
from localllm.engine.speculation.config import MODEL_KINDS
from localllm.engine.speculation.sources import ModelSource, NgramSource
from localllm.engine.speculation.speculator import Speculator, sources_of
from localllm.engine.speculation.twin import Twin
from localllm.engine.stats import EngineStats, Totals
from localllm.engine.steering import Steering
from localllm.engine.worker import Worker
from localllm.errors import (
    ContextOverflowError,
    InvalidRequestError,
    LocalLLMError,
    NativeError,
    QueueFullError,
    RequestTimeoutError,
    StateError,
)
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Model

logger = logging.getLogger("localllm.engine")

_REASONS: dict[int, FinishReason] = {
    localllm_h.LM_FINISH_EOG: "stop",
    localllm_h.LM_FINISH_STOP: "stop",
    localllm_h.LM_FINISH_LENGTH: "length",
}
_STOPPED_BY: dict[int, StoppedBy] = {localllm_h.LM_FINISH_EOG: "eog", localllm_h.LM_FINISH_STOP: "stop"}


class Core:
    """What the thread works with. It does not know the Engine, so that an Engine nobody holds can be collected."""

    def __init__(self, model: Model, config: ContextConfig, draft: Model | None = None) -> None:
        self.config = config
        self._draft = draft
        self.runner = Runner(model, config, draft)
        self.residents = Residents(
            self.runner.n_slots,
            self.runner.n_ctx,
            self.runner.cuttable,
            keep=config.prefix_cache,
            ram_bytes=config.cache_ram_bytes,
            disk=bool(config.cache_dir) and not config.cache_read_only,
            pays=self.runner.rates.restoring_pays,
        )
        self._store = open_store(model, config, draft)
        self._store_again = 0.0
        self._stored_keys: set[bytes] = set()
        self._look_for_stored(b"")
        self.adapters = Adapters(model, _weak(self._on_thread))
        self.scheduler = Scheduler(
            config.parallel, self.residents, self.runner.n_batch, self.runner.n_ubatch, self.runner.n_rollback
        )
        self._speculator = self._new_speculator(config)
        self.max_queue = config.max_queue
        self.n_vocab: int = model.native.llama_vocab_n_tokens(model.vocab)
        self._totals = Totals()
        self._ids = itertools.count()
        self._sequences: dict[int, Sequence] = {}
        self._inbox: collections.deque[Sequence] = collections.deque()
        self._cancelled: collections.deque[int] = collections.deque()
        self.worker = Worker("engine", self.runner.switch)
        self._wake = self.worker.wake
        self._errands = Errands()
        self._thread_id = 0

    def _new_speculator(self, config: ContextConfig) -> Speculator | None:
        assert isinstance(config.speculation, SpeculationConfig)
        if config.speculation.kind == "none":
            return None
        runner = self.runner
        ngrams = model = None
        if any(kind not in MODEL_KINDS for kind in config.speculation.kinds):
            ngrams = NgramSource(runner.model, config.speculation, config.parallel)
        if runner.twin is not None:
            model = ModelSource(lambda: cast(Twin, runner.twin))  # a new context has a new one
        replays = runner.n_rollback is not None and runner.n_rollback < config.speculation.most
        return Speculator(config.speculation, sources_of(config.speculation, ngrams, model), replays)

    # ---- called from any thread

    def steering(self, request: Request) -> Steering:
        """What a request's adapters do; loads those that are new, which may take a while."""
        self.worker.require_own_process()
        return self.adapters.steering(request.loras, request.control_vectors)

    def submit(self, request: Request, sink: Sink, steering: Steering) -> int:
        self.worker.require_own_process()
        self._check_length(len(request.prompt))
        for name in ("prompt", "stop_tokens", "visible_tokens"):
            tokens = [token for token in getattr(request, name) if isinstance(token, int)]
            for token in (min(tokens), max(tokens)) if tokens else ():
                # What stands for a picture is negative, and was checked with it.
                if not 0 <= token < self.n_vocab and not (name == "prompt" and token < 0 and request.media):
                    raise InvalidRequestError(f"{name}: token {shown(token)} is not in the vocabulary of {self.n_vocab}")
        self._check_media(request)
        if request.context_shift is not None:
            self._check_shift(request.context_shift)
        with self._wake:
            self.worker.require_open()
            waiting = len(self._inbox) + len(self.scheduler.waiting)
            if self.max_queue and waiting >= self.max_queue:
                raise QueueFullError(f"{waiting} requests are waiting already (max_queue={self.max_queue})")
            sequence = Sequence(next(self._ids), request, sink, list(request.prompt), steering=steering)
            if request.timeout is not None:
                sequence.timer = threading.Timer(request.timeout, self._stop, (sequence.id, True))
                sequence.timer.daemon = True
            self._sequences[sequence.id] = sequence
            self._inbox.append(sequence)
            self._wake.notify()
        if sequence.timer is not None:
            sequence.timer.start()
        return sequence.id

    def _check_media(self, request: Request) -> None:
        n_ids = sum(run.n_tokens for run in request.media)
        if request.media and n_ids != sum(token < 0 for token in request.prompt):
            raise InvalidRequestError("prompt: holds negative ids that stand for none of its media")
        limit = self.runner.n_ubatch
        for run in request.media:
            if not run.causal and run.n_tokens > limit:
                message = f"media {run.medium}: {run.n_tokens} tokens that see one another, n_ubatch is {limit}; raise it"
                raise ContextOverflowError(message, run.n_tokens, limit)

    def _check_length(self, n_tokens: int) -> None:
        limit = self.runner.limit
        if n_tokens <= limit:
            return
        if limit < self.runner.n_ctx:
            message = f"the prompt has {n_tokens} tokens, the model has learned {limit} positions and knows no others; shorten it"
        else:
            message = f"the prompt has {n_tokens} tokens, the context holds {limit}; shorten it or raise n_ctx"
        raise ContextOverflowError(message, n_tokens, limit)

    def _check_shift(self, n_keep: int) -> None:
        if not self.runner.can_shift:
            raise InvalidRequestError("context_shift: the memory of this model cannot drop tokens from the middle")
        if n_keep > self.runner.n_ctx - 2:
            raise InvalidRequestError(f"context_shift: {shown(n_keep)} tokens to keep leave no room in {self.runner.n_ctx}")

    def cancel(self, request_id: int) -> None:
        if not self.worker.forked:
            self._stop(request_id, timed_out=False)

    def _stop(self, request_id: int, timed_out: bool) -> None:
        with self._wake:
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.cancelled:
                return
            sequence.cancelled, sequence.timed_out = True, timed_out
            self._cancelled.append(request_id)
            self.worker.abort_if_all(self._is_cancelled)
            self._wake.notify()

    def has_requests(self) -> bool:
        """Whether there are requests, or other work that somebody waits for."""
        return bool(self._sequences or self._errands)

    def _on_thread(self, work: Callable[[], None]) -> None:
        """Runs a function between two steps, while nothing else uses the context, and waits for it."""
        self.worker.require_own_process()
        if threading.get_ident() == self._thread_id:
            work()
            return
        with self._wake:
            self.worker.require_open()
            done = self._errands.add(work)
            self._wake.notify()
        done.result()

    def _is_cancelled(self, request_id: int) -> bool:
        sequence = self._sequences.get(request_id)
        return sequence is None or sequence.cancelled

    def stats(self) -> EngineStats:
        self.worker.require_own_process()
        residents, rates = self.residents, self.runner.rates
        with self._wake:
            n_waiting = len(self._inbox) + len(self.scheduler.waiting)
        drafts = self._speculator.tally.stats() if self._speculator else None
        return EngineStats(
            n_waiting=n_waiting,
            n_running=len(self.scheduler.running),
            n_cells=residents.n_cells,
            n_cells_used=residents.ledger.n_used,
            n_resident=len(residents.tree.tier(DEVICE)),
            n_ram=len(residents.tree.tier(RAM)),
            ram_bytes=residents.tree.n_bytes(RAM),
            n_adapters=len(self.adapters),
            n_evicted=residents.n_evicted,
            n_saved=residents.n_saved,
            n_restored=residents.n_restored,
            saved_bytes=rates.saved_bytes,
            save_seconds=rates.save_seconds,
            restored_bytes=rates.restored_bytes,
            restore_seconds=rates.restore_seconds,
            prefill_tokens_per_second=rates.tokens_per_second,
            copy_bytes_per_second=rates.bytes_per_second,
            drafted_tokens=sum(drafts.drafted) if drafts else 0,
            accepted_tokens=sum(drafts.accepted) if drafts else 0,
            speculation=drafts,
            **self._totals.values(),
        )

    # ---- the engine's thread

    def loop(self) -> None:
        self._thread_id = threading.get_ident()
        self.worker.loop(self._take_work, self._step, self._fail_all)

    # ---- saved states

    def state_facts(self, steering: Steering) -> dict[str, Any]:
        """All that a state depends on, by name."""
        facts = state_facts(self.runner.model, self.config, self._draft)
        return {"model": state_key(self.runner.model.path, ()).hex(), "adapters": steering.key.hex(), **facts}

    def export(self, ids: tuple[int, ...], steering: Steering) -> bytes:
        """The state after `ids`, which a request for them has just left resident. On the engine's thread."""
        self._carry_out()
        for match in self.residents.tree.matches(ids, steering.key):
            entry = match.entry
            if entry.tier == DEVICE and match.length == len(ids) and (self.residents.cuttable or len(entry) == len(ids)):
                return pack(self.state_facts(steering), ids, self._saved_part(entry, len(ids)), not self.residents.cuttable)
        raise StateError("no state was kept to be saved; the prefix cache needs room for it (kept_sequences, n_ctx)")

    def _saved_part(self, entry: Entry, length: int) -> Any:
        if len(entry) == length:
            return self.runner.save(entry.payload)
        entry.pins += 1
        try:
            part = self.residents.spare(entry.payload, length)
        finally:
            entry.pins -= 1
        if part < 0:
            raise StateError("no sequence is free for a moment to take the state from; try again later")
        self._carry_out()
        try:
            return self.runner.save(part)
        finally:
            self.residents.abandon(part)

    def import_state(self, saved: Saved, steering: Steering) -> None:
        """Makes a state resident. From any thread.

        Raises:
            StateError: There is no room for it, or llama.cpp refuses it; nothing is changed but for idle prefixes that made way.
        """
        if not saved.ids or max(saved.ids) >= self.n_vocab or -1 in saved.ids:  # those below stand for pictures
            raise StateError("this state is damaged: it holds no tokens, or such that are not in the vocabulary")
        if len(saved.ids) > self.runner.n_ctx:
            raise StateError(f"this state holds {len(saved.ids)} tokens, the context {self.runner.n_ctx}; raise n_ctx")
        if not self.residents.keep:
            raise StateError("states can be loaded only with prefix_cache=True")

        def load() -> None:
            self._carry_out()
            slot = self.residents.vacant(len(saved.ids))
            if slot is None:
                raise StateError("the running requests leave no room for this state; try again later")
            self._carry_out()
            if not self.runner.restore(slot, saved.body, len(saved.ids)):
                self.residents.abandon(slot)
                raise StateError("llama.cpp refuses this state; it was saved by another build, or for another context")
            self.residents.leave(slot, saved.ids, steering.key)

        self._on_thread(load)

    def _carry_out(self) -> None:
        """Brings the slots to where the cache's books are."""
        for action in self.runner.apply(self.residents.take_actions(), self._copy_of, self.residents.stashed):
            self._start_over(action)

    def _take_work(self) -> bool:
        """Waits until there is something to do, and takes in new and cancelled requests. False: the engine is closing."""
        with self._wake:
            while self.scheduler.idle and not (self._inbox or self._cancelled or self._errands or self.worker.closing):
                if self.residents.next_to_save() is not None:
                    break
                pause = None if self.residents.next_to_store() is None else self._store_again - time.monotonic()
                if pause is None:
                    self.worker.rest()
                elif pause <= 0:
                    break
                else:
                    self._wake.wait(pause)
            if self.worker.closing:
                return False
            arrived, self._inbox = self._inbox, collections.deque()
            cancelled, self._cancelled = self._cancelled, collections.deque()
        self._errands.run_one()
        for sequence in arrived:
            self._look_for_stored(sequence.steering.key)
            self.scheduler.add(sequence)
        for request_id in cancelled:
            if request_id in self._sequences:
                self._end_stopped(self._sequences[request_id])
        return True

    def _step(self) -> None:
        for sequence in self.scheduler.admit():
            self._start(sequence)
        if self._speculator:
            self._speculator.propose(self.scheduler.running, self.runner.limit)
        chunks = self.scheduler.plan()
        failed = self.runner.apply(self.residents.take_actions(), self._copy_of, self.residents.stashed)
        if self._speculator and self.runner.rollbacks:
            for sequence in self.scheduler.running:
                if sequence.slot in self.runner.rollbacks:
                    self._speculator.rolled_back(sequence, self.runner.rollbacks[sequence.slot])
        if failed:
            for action in failed:
                self._start_over(action)
            return
        if not chunks:
            self._save_one()
            return
        if not self.worker.begin_batch(frozenset(chunk.sequence.id for chunk in chunks)):
            return
        try:
            if chunks[0].run is not None and not self._see(chunks[0]):
                return
            self.adapters.act(self.runner.context, chunks[0].sequence.steering)
            results = self.runner.run(chunks)
        except LocalLLMError as error:
            self._recover(chunks, error)
            return
        finally:
            self.worker.end_batch()
        for result in results:
            result.sequence.tokens.extend(result.tokens)
        accepted = {result.sequence: result.n_accepted for result in results}
        self.scheduler.computed(chunks, accepted)
        self._totals.n_steps += 1
        self._totals.computed_tokens += sum(chunk.n_tokens for chunk in chunks)
        if self._speculator:
            n_tokens = {result.sequence: len(result.tokens) for result in results}
            self._speculator.verified(chunks, accepted, n_tokens, self.runner.seconds, self.runner.follow_seconds)
        for result in results:
            self._deliver(result)

    def _see(self, chunk: Chunk) -> bool:
        """Gets the rows of a picture or sound. False: they cannot be made, and the request has failed."""
        sequence, run = chunk.sequence, chunk.run
        assert run is not None
        if chunk.start > run.start and sequence.rows is not None:
            return True
        begin = time.perf_counter()
        soon = () if any(other.decoding for other in self.scheduler.running) else self._soon(run)
        try:
            sequence.rows = run.source.rows(run, soon)
        except Exception as error:
            self._fail(sequence, error)
            return False
        self._totals.encode_seconds += time.perf_counter() - begin
        if sequence.rows.encoded:
            sequence.encoded.add(run.medium)
        return True

    def _soon(self, now: MediaRun) -> list[MediaRun]:
        """What is going to be looked at after a picture, by those who look already."""
        ahead = ((other, run) for other in self.scheduler.running for run in other.request.media if run.start >= other.n_computed)
        return [run for _, run in ahead if run is not now and run.source is now.source]

    def _start_over(self, failed: Action) -> None:
        """A sequence was to go on from a copy that is of no use: it computes everything, like without a cache."""
        assert failed.entry is not None
        self.residents.lost(failed.entry, failed.slot)
        for sequence in self.scheduler.running:
            if sequence.slot == failed.slot:
                sequence.n_computed = 0
                self._take_hit_back(sequence)

    def _take_hit_back(self, sequence: Sequence) -> None:
        if sequence.n_cached:
            self._totals.cached_tokens -= sequence.n_cached
            self._totals.cache_hits[sequence.cached_from] -= 1
            self._totals.cache_misses[sequence.cache_miss] -= sequence.cache_miss != ""
            self._totals.cache_misses["damaged"] += 1
            sequence.n_cached, sequence.cached_from, sequence.cache_miss = 0, "", "damaged"

    def _save_one(self) -> None:
        """Copies one idle prefix to RAM or to a file. One at a time, so that a new request waits for one copy at most."""
        if not self.scheduler.idle:
            return
        if (entry := self.residents.next_to_save()) is not None:
            data = self.runner.save(entry.payload)
            self.residents.saved(entry, data, len(data))
        elif self._store and (entry := self.residents.next_to_store()) is not None:
            try:
                self._store_one(self._store, entry)
            except FolderBusy:
                self._store_again = time.monotonic() + _STORE_PAUSE

    def _store_one(self, store: DiskStore, entry: Entry) -> None:
        if store.busy():
            raise FolderBusy  # before the state is copied out of the context
        stored = store.write(entry.ids, self.runner.save(entry.payload), entry.exact, entry.namespace)
        if stored is None:
            entry.unstorable = True
        else:
            self._found(stored)

    def _look_for_stored(self, key: bytes) -> None:
        """Finds the files that belong to a steering, when it is met for the first time."""
        if self._store is None or key in self._stored_keys:
            return
        if len(self._stored_keys) >= _MAX_STORED_KEYS:
            self._stored_keys.clear()
        self._stored_keys.add(key)
        for stored in self._store.load(key):
            self._found(stored)

    def _found(self, stored: Stored) -> None:
        self.residents.found(stored.ids, stored, stored.n_bytes, stored.exact, stored.steering)

    def _copy_of(self, entry: Entry) -> Any:
        if isinstance(entry.payload, Stored):
            return self._store.read(entry.payload) if self._store else None
        return entry.payload

    def _start(self, sequence: Sequence) -> None:
        if not sequence.started:
            sequence.started = time.perf_counter()
            self._totals.prompt_tokens += len(sequence.request.prompt)
            self._totals.cached_tokens += sequence.n_cached
            self._totals.cache_hits[sequence.cached_from] += sequence.n_cached > 0
            self._totals.cache_misses[sequence.cache_miss] += sequence.cache_miss != ""
        try:
            self.runner.start(sequence)
        except LocalLLMError as error:
            self._fail(sequence, error)

    def _recover(self, chunks: list[Chunk], error: LocalLLMError) -> None:
        """After a failed decode: whatever can go on, goes on."""
        status = error.status if isinstance(error, NativeError) else localllm_h.LM_DECODE_FAILED
        if status == localllm_h.LM_ABORTED:
            # All its sequences are cancelled and about to be removed. What was computed of the batch is not known.
            for chunk in chunks:
                self._take_back(chunk.sequence)
            return
        if status == localllm_h.LM_NO_SLOT:
            self._make_room()
            return
        for chunk in chunks:
            self._fail(chunk.sequence, error)
        # The context may hold anything now. A new one costs the others a new prefill, not their answer.
        self.scheduler.requeue_all()
        self.runner.reset()

    def _take_back(self, sequence: Sequence) -> None:
        """Leaves a sequence with what it is known to have computed."""
        sequence.rows = None
        if self.residents.cuttable:
            sequence.n_computed = sequence.n_usable
            self.residents.cut(sequence.slot, sequence.n_computed)
        else:
            self.scheduler.requeue(sequence)

    def _make_room(self) -> None:
        """llama.cpp found no cells although the scheduler counted enough (a sliding window has a cache of its own)."""
        if self.residents.evict():
            return
        victim = self.scheduler.youngest()
        if len(self.scheduler.running) > 1:
            self.scheduler.requeue(victim)
        elif victim.n_generated > 0:
            self._finish(victim, "length", localllm_h.LM_FINISH_LENGTH)
        else:
            needed = len(victim.tokens)
            message = f"no room in the KV cache for {needed} tokens; raise n_ctx"
            self._fail(victim, ContextOverflowError(message, needed, self.runner.n_ctx))

    def _deliver(self, result: Sampled) -> None:
        sequence = result.sequence
        if result.error is not None:
            self._fail(sequence, result.error)
            return
        if not sequence.first_token:
            sequence.first_token = time.perf_counter()
        if not sequence.cancelled:
            self._emit(sequence, Delta(result.text, tuple(result.tokens), result.logprobs))
        if result.finish != localllm_h.LM_FINISH_NONE:
            self._finish(sequence, _REASONS[result.finish], result.finish)

    def _finish(self, sequence: Sequence, reason: FinishReason, finish: int = 0) -> None:
        now = time.perf_counter()
        started, first = sequence.started or now, sequence.first_token or now
        stopped_by = _STOPPED_BY.get(finish, "")
        seed = sequence.answer.seed if sequence.answer else 0
        event = Finished(
            reason,
            Usage(
                prompt_tokens=len(sequence.request.prompt),
                completion_tokens=sequence.n_generated,
                cached_tokens=min(sequence.n_cached, len(sequence.request.prompt)),
                drafted_tokens=sum(sequence.tally.drafted),
                accepted_tokens=sum(sequence.tally.accepted),
                cached_from=sequence.cached_from,
                cache_miss=sequence.cache_miss,
                **self._media_usage(sequence),
            ),
            Timings(started - sequence.arrived, first - started, now - first),
            seed,
            stopped_by,
            sequence.tally.stats() if self._speculator and sequence.request.speculate else None,
        )
        self._end(sequence, event)

    def _media_usage(self, sequence: Sequence) -> dict[str, int]:
        """What was looked at; of a request that ended early, what it came to."""
        media = sequence.request.media
        reached = {run.medium for run in media if run.start < max(sequence.n_computed, sequence.n_cached)}
        n_tokens, n_encoded = sum(run.n_tokens for run in media), len(sequence.encoded)
        self._totals.media_tokens += n_tokens
        self._totals.media_encoded += n_encoded
        self._totals.media_cached += len(reached - sequence.encoded)
        return {"media_tokens": n_tokens, "media_encoded": n_encoded, "media_cached": len(reached - sequence.encoded)}

    def _end_stopped(self, sequence: Sequence) -> None:
        if not sequence.timed_out:
            self._finish(sequence, "cancelled")
            return
        n_tokens, seconds = sequence.n_generated, sequence.request.timeout
        where = f"{n_tokens} tokens of the answer were there" if sequence.started else "it had not begun"
        message = f"timeout: not answered within {seconds:g} seconds; {where}. Ask for fewer tokens, or allow more time"
        self._fail(sequence, RequestTimeoutError(message))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._end(sequence, Failed(error))

    def _end(self, sequence: Sequence, event: Event) -> None:
        if sequence.timer is not None:
            sequence.timer.cancel()
        self.scheduler.remove(sequence)
        self._totals.n_requests += 1
        with self._wake:
            self._sequences.pop(sequence.id, None)
        if sequence.answer is not None:
            sequence.answer.close()
            sequence.answer = None
            self.runner.forget(sequence)
        self._emit(sequence, event)

    def _emit(self, sequence: Sequence, event: Event) -> None:
        try:
            sequence.sink(event)
        except BaseException:
            # Somebody else's code on our thread: its failure, `sys.exit()` included, ends its own request, not everybody's.
            logger.exception("the sink of request %d failed; the request is cancelled", sequence.id)
            self.cancel(sequence.id)

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            sequences, self._sequences = list(self._sequences.values()), {}
            self._inbox.clear()
            self._errands.fail(error)
        for sequence in sequences:
            self._emit(sequence, Failed(error))
        for sequence in sequences:
            if sequence.timer is not None:
                sequence.timer.cancel()
            if sequence.answer is not None:
                sequence.answer.close()


def _weak(method: Callable[[Callable[[], None]], None]) -> Callable[[Callable[[], None]], None]:
    """The method without a hold on its object: in a cycle the object, and with it the weights, would outlive its last user."""
    found = weakref.WeakMethod(method)

    def call(work: Callable[[], None]) -> None:
        if (alive := found()) is not None:
            alive(work)

    return call


# Steerings whose files were looked for; beyond that, looking again costs less than remembering.
_MAX_STORED_KEYS = 1000

# Seconds until it is tried again to write into a folder that another process is writing into.
_STORE_PAUSE = 0.25
