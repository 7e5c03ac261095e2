"""What the embedder's thread works with: it takes requests in, packs batches, and delivers."""

from __future__ import annotations

import array
import collections
import itertools
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from localllm.engine.config import ContextConfig
from localllm.engine.packing import Packer, Piece
from localllm.engine.pooler import POOLINGS, Pooler, Pooling, Work
from localllm.engine.stats import EmbedderStats
from localllm.engine.worker import Worker
from localllm.errors import (
    ContextOverflowError,
    InvalidRequestError,
    LocalLLMError,
    NativeError,
    QueueFullError,
)
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Model


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to make vectors or scores of.

    Attributes:
        texts: token ids of each text, at least one text of at least one token.
        pooling: "mean", "cls", "last", "none", or, for scores, "rank".
    """

    texts: tuple[Sequence[int], ...]
    pooling: Pooling

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise InvalidRequestError(f"pooling: {self.pooling!r} is not one of {', '.join(map(repr, POOLINGS))}")
        if not self.texts:
            raise InvalidRequestError("texts: empty; there is nothing to compute")
        object.__setattr__(self, "texts", tuple(_ids(place, text) for place, text in enumerate(self.texts)))


def _ids(place: int, text: Sequence[int]) -> array.array[int]:
    try:
        ids = array.array("i", text)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"texts[{place}]: must be token ids ({error})") from error
    if not ids:
        raise InvalidRequestError(f"texts[{place}]: no tokens; there is nothing to compute")
    return ids


@dataclass(frozen=True)
class Rows:
    """What a request gives.

    Attributes:
        values: array of floats, row after row, in the order of the texts.
        row: int, floats per row.
        counts: rows of each text: 1, or, with pooling "none", one per token.
    """

    values: array.array[float]
    row: int
    counts: tuple[int, ...]


class _Pending(Future[Rows]):
    """A future that does not wait in a child of the process: nobody would set it there."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> Rows:
        self._worker.require_own_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._worker.require_own_process()
        return super().exception(timeout)


class _Job:
    """A request under way."""

    def __init__(self, number: int, request: EmbedRequest, row: int, worker: Worker) -> None:
        self.id = number
        self.request = request
        self.future: Future[Rows] = _Pending(worker)
        self.counts = tuple(len(text) if request.pooling == "none" else 1 for text in request.texts)
        self.values = array.array("f", bytes(4 * row * sum(self.counts)))
        self.row = row
        self.left = len(request.texts)
        self.unsound: int | None = None
        address, _ = self.values.buffer_info()
        self._addresses = [address + 4 * row * before for before in itertools.accumulate(self.counts, initial=0)]

    def work(self, piece: Piece) -> Work:
        at = piece.text
        return Work(piece, self.request.texts[at], self.request.pooling, self._addresses[at], self.row * self.counts[at])


class EmbedCore:
    """What the thread works with. It does not know the Embedder, so that one that nobody holds can be collected."""

    def __init__(self, model: Model, config: ContextConfig, rank: bool) -> None:
        self.pooler = Pooler(model, config, rank)
        self.rank = rank
        self.packer = Packer(self.pooler.n_batch, self.pooler.n_slots, self.pooler.n_cells, self.pooler.whole)
        self.max_queue = config.max_queue
        self.n_vocab: int = model.native.llama_vocab_n_tokens(model.vocab)
        self._ids = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._started: set[int] = set()
        self._inbox: collections.deque[_Job] = collections.deque()
        self._cancelled: collections.deque[int] = collections.deque()
        self.worker = Worker("model", self.pooler.switch)
        self._wake = self.worker.wake
        self.n_requests = self.n_texts = self.n_batches = self.n_tokens = 0

    # ---- called from any thread

    def submit(self, request: EmbedRequest) -> Future[Rows]:
        self.worker.require_own_process()
        self._check(request)
        with self._wake:
            self.worker.require_open()
            waiting = len(self._jobs) - len(self._started)
            if self.max_queue and waiting >= self.max_queue:
                raise QueueFullError(f"{waiting} requests are waiting already (max_queue={self.max_queue})")
            job = _Job(next(self._ids), request, self.pooler.row, self.worker)
            self._jobs[job.id] = job
            self._inbox.append(job)
            self._wake.notify()
        # The future stays pending until the result is there, so that it can be cancelled at any time.
        # In a cycle the future, whose answer others may keep, would keep the context, and with it the weights.
        cancel, job_id = weakref.WeakMethod(self._cancel), job.id

        def ended(future: Future[Rows]) -> None:
            if future.cancelled() and (alive := cancel()) is not None:
                alive(job_id)

        job.future.add_done_callback(ended)
        return job.future

    def _check(self, request: EmbedRequest) -> None:
        if (request.pooling == "rank") != self.rank:
            raise InvalidRequestError(f"pooling: {request.pooling!r} is not what this context was made for")
        limit = self.pooler.limit
        for place, text in enumerate(request.texts):
            if len(text) > limit:
                message = f"texts[{place}]: {len(text)} tokens, the limit is {limit}"
                raise ContextOverflowError(message, len(text), limit)
            for token in (min(text), max(text)):
                if not 0 <= token < self.n_vocab:
                    raise InvalidRequestError(f"texts[{place}]: token {token} is not in the vocabulary of {self.n_vocab}")

    def _cancel(self, job_id: int) -> None:
        if self.worker.forked:
            return
        with self._wake:
            if job_id not in self._jobs:
                return
            self._cancelled.append(job_id)
            self.worker.abort_if_all(self._is_over)
            self._wake.notify()

    def _is_over(self, job_id: int) -> bool:
        job = self._jobs.get(job_id)
        return job is None or job.future.cancelled()

    def has_requests(self) -> bool:
        """Whether there are requests."""
        return bool(self._jobs)

    def stats(self) -> EmbedderStats:
        self.worker.require_own_process()
        with self._wake:
            n_waiting, n_running = len(self._jobs) - len(self._started), len(self._started)
        return EmbedderStats(
            n_waiting=n_waiting,
            n_running=n_running,
            n_requests=self.n_requests,
            n_texts=self.n_texts,
            n_batches=self.n_batches,
            n_tokens=self.n_tokens,
        )

    # ---- the embedder's thread

    def loop(self) -> None:
        self.worker.loop(self._take_work, self._step, self._fail_all)

    def _take_work(self) -> bool:
        """Waits until there is something to do, and takes in new and cancelled requests. False: the embedder is closing."""
        with self._wake:
            while not self._inbox and not self._cancelled and self.packer.idle and not self.worker.closing:
                self.worker.rest()
            if self.worker.closing:
                return False
            arrived, self._inbox = self._inbox, collections.deque()
            cancelled, self._cancelled = self._cancelled, collections.deque()
        for job in arrived:
            self.packer.add(job.id, [len(text) for text in job.request.texts])
        for job_id in cancelled:
            self._remove(job_id)
        return True

    def _step(self) -> None:
        pieces = self.packer.plan()
        job_ids = frozenset(piece.job for piece in pieces)
        if not self.worker.begin_batch(job_ids):
            return
        with self._wake:
            self._started |= job_ids
            # A future can be cancelled while its cancellation is not queued yet.
            self.worker.abort_if_all(self._is_over)
        try:
            sound = self.pooler.run([self._jobs[piece.job].work(piece) for piece in pieces])
        except LocalLLMError as error:
            self._recover(job_ids, error)
            return
        finally:
            self.worker.end_batch()
        self.packer.computed()
        self.n_batches += 1
        self.n_tokens += sum(piece.count for piece in pieces)
        for piece, is_sound in zip(pieces, sound, strict=True):
            self._note(piece, is_sound)
        for job_id in sorted(job_ids):
            if self._jobs[job_id].left == 0:
                self._deliver(self._jobs[job_id])

    def _note(self, piece: Piece, is_sound: bool) -> None:
        job = self._jobs[piece.job]
        if not is_sound and job.unsound is None:
            job.unsound = piece.text
        if piece.ends:
            job.left -= 1
            self.n_texts += 1

    def _recover(self, job_ids: frozenset[int], error: LocalLLMError) -> None:
        """After a failed batch: its requests end, the others begin again where something of them was in the context."""
        jobs = [job for job_id in sorted(job_ids) if (job := self._remove(job_id)) is not None]
        if isinstance(error, NativeError) and error.status == localllm_h.LM_ABORTED:
            # All of them are cancelled; the sequences of the others are as they were.
            return
        self.packer.abandon()
        self.pooler.reset()
        for job in jobs:
            _resolve(job.future, error=error)

    def _deliver(self, job: _Job) -> None:
        self._remove(job.id)
        if job.unsound is not None:
            message = f"texts[{job.unsound}]: the model's output is not a number"
            _resolve(job.future, error=NativeError(message, localllm_h.LM_DECODE_FAILED))
        else:
            _resolve(job.future, Rows(job.values, job.row, job.counts))

    def _remove(self, job_id: int) -> _Job | None:
        with self._wake:
            job = self._jobs.pop(job_id, None)
            self._started.discard(job_id)
        for slot in self.packer.remove(job_id):
            self.pooler.forget(slot)
        self.n_requests += job is not None
        return job

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            jobs, self._jobs = list(self._jobs.values()), {}
            self._inbox.clear()
        for job in jobs:
            _resolve(job.future, error=error)


def _resolve(future: Future[Rows], rows: Rows | None = None, error: Exception | None = None) -> None:
    """Sets a result or an error, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    elif rows is not None:
        future.set_result(rows)
