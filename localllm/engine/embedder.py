"""Texts to vectors or scores: a thread that owns contexts for it, and batches whatever is asked for at the same time."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import os
import threading
import weakref
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

from localllm.engine.config import ContextConfig
from localllm.engine.packing import chunks, pack
from localllm.engine.params import context_params
from localllm.errors import ClosedError, InvalidRequestError, QueueFullError, UnsupportedModelError
from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.handles import Context, Model

Pooling = Literal["none", "mean", "cls", "last", "rank"]
Row: TypeAlias = "array[float]"  # of type "f"

_POOLING: dict[Pooling, int] = {
    "none": llama_h.LLAMA_POOLING_TYPE_NONE,
    "mean": llama_h.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_h.LLAMA_POOLING_TYPE_CLS,
    "last": llama_h.LLAMA_POOLING_TYPE_LAST,
    "rank": llama_h.LLAMA_POOLING_TYPE_RANK,
}
# Texts in one batch: each is a sequence of the context, which costs nothing but a row of output.
MAX_SEQUENCES = 64


@dataclass(frozen=True)
class _Job:
    """A text that waits for its rows: one, or one for each token if nothing is pooled."""

    tokens: tuple[int, ...]
    pooling: Pooling
    rows: Future[list[Row]]


class Embedder:
    """A model that turns texts into rows of numbers.

    Models that look at the whole text at once (BERT and its kind) take a text in one micro-batch; others in several, the
    parts of a pooled row being put together as the pooling says.

    Args:
        model: Model; the embedder closes it when it is closed.
        config: ContextConfig. `n_ctx` limits a text (0, or more than the model was trained for: the trained length);
            `parallel` and the cache's options do not matter here.
        ranks: bool, whether the file has a classification head ("cls." tensors), by which it can rank.

    Raises:
        UnsupportedModelError: An encoder-decoder model.
        ModelLoadError: llama.cpp cannot make a context.
    """

    def __init__(self, model: Model, config: ContextConfig, ranks: bool = False) -> None:
        native, pointer = model.native, model.pointer
        self.model = model
        if native.llama_model_has_encoder(pointer) and native.llama_model_has_decoder(pointer):
            raise UnsupportedModelError(f"{model.path}: an encoder-decoder model gives no embeddings here")
        self._core = _Core(model, config, ranks)
        self._thread = threading.Thread(target=self._core.loop, name="localllm-embedder", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._thread, model)

    @property
    def n_ctx(self) -> int:
        """Most tokens of a text."""
        return self._core.n_ctx

    @property
    def n_batches(self) -> int:
        """Batches computed so far."""
        return self._core.n_batches

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive or self._core.closing

    @property
    def pooling(self) -> Pooling:
        """What the file asks for; if that is nothing, "rank" with a head for it, else "mean"."""
        return self._core.default_pooling

    def rows(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[list[Row]]:
        """The rows of several texts, in their order: one each, or one for each token with pooling "none".

        Args:
            texts: token ids; none of them empty or longer than `n_ctx`.
            pooling: str.

        Raises:
            InvalidRequestError: A token is not in the vocabulary, or the pooling is unknown.
            UnsupportedModelError: Pooling "rank" with a model that has no head for it.
            QueueFullError: `max_queue` texts are waiting.
            ClosedError: The embedder is closed.
            NativeError: A batch failed.
        """
        futures = self._core.submit(texts, pooling)
        try:
            return [future.result() for future in futures]
        finally:
            _cancel(futures)

    async def arows(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[list[Row]]:
        """Like `rows`, for coroutines; cancelling the task takes back what has not been computed yet."""
        futures = self._core.submit(texts, pooling)
        try:
            return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
        finally:
            _cancel(futures)

    def close(self) -> None:
        """Stops the thread and frees contexts and model. Texts that wait fail with ClosedError."""
        self._finalizer()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Core:
    """What the thread works with. It does not know the Embedder, so that one which nobody holds can be collected."""

    def __init__(self, model: Model, config: ContextConfig, ranks: bool) -> None:
        native, pointer = model.native, model.pointer
        metadata = model.metadata()
        architecture = metadata.get("general.architecture", "")
        trained: int = native.llama_model_n_ctx_train(pointer)
        self.model, self.native, self.path = model, native, model.path
        self.n_ctx = min(config.n_ctx or trained, trained)
        self.n_vocab: int = native.llama_vocab_n_tokens(model.vocab)
        self.ranks = ranks
        self.default_pooling: Pooling = "rank" if ranks else "mean"
        stored = metadata.get(f"{architecture}.pooling_type")
        for name, value in _POOLING.items():
            # "None" says of a generator only that it was not made for this.
            if stored == str(value) and name not in ("none", "rank"):
                self.default_pooling = name
        causal = metadata.get(f"{architecture}.attention.causal") != "false" and not native.llama_model_has_encoder(pointer)
        n_batch = min(config.n_ubatch, self.n_ctx) if causal else max(config.n_ubatch, self.n_ctx)
        # Micro-batches are of equal sequences in these, so one of several texts would be cut.
        alone = bool(native.llama_model_is_recurrent(pointer) or native.llama_model_is_hybrid(pointer))
        self.n_sequences = 1 if alone else min(MAX_SEQUENCES, n_batch)
        # llama.cpp plans its memory with as many tokens of each sequence.
        self.n_batch = -(-n_batch // self.n_sequences) * self.n_sequences
        self._params = context_params(native, config, trained)
        self._params.embeddings = True
        self._params.n_seq_max = self.n_sequences
        self._params.n_batch = self._params.n_ubatch = self._params.n_outputs_max = self.n_batch
        self._params.n_ctx = max(self.n_ctx, self.n_batch)
        self._contexts: dict[Pooling, Context] = {}
        self.max_queue = config.max_queue
        self.n_batches = 0
        self.pid = os.getpid()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._wake = threading.Condition()
        self.closing = False
        self._make(self.default_pooling)

    # ---- called from any thread

    def submit(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[Future[list[Row]]]:
        if os.getpid() != self.pid:
            raise ClosedError(
                "this model was loaded before the process forked, and its thread is not here. Load it after the fork"
            )
        if pooling not in get_args(Pooling):
            raise InvalidRequestError(f"pooling: {pooling!r} is not one of {', '.join(map(repr, get_args(Pooling)))}")
        if pooling == "rank" and not self.ranks:
            raise UnsupportedModelError(f"{self.path}: this model has no head that ranks")
        jobs = [_Job(tuple(tokens), pooling, Future()) for tokens in texts]
        for at, job in enumerate(jobs):
            if not 0 < len(job.tokens) <= self.n_ctx:
                raise InvalidRequestError(f"texts[{at}]: {len(job.tokens)} tokens, must be 1 to {self.n_ctx}")
            if not 0 <= min(job.tokens) <= max(job.tokens) < self.n_vocab:
                raise InvalidRequestError(f"texts[{at}]: a token is not in the vocabulary of {self.n_vocab}")
        with self._wake:
            if self.closing:
                raise ClosedError("the model is closed")
            if self.max_queue and len(self._jobs) >= self.max_queue:
                raise QueueFullError(f"{len(self._jobs)} texts are waiting already (max_queue={self.max_queue})")
            self._jobs.extend(jobs)
            self._wake.notify()
        return [job.rows for job in jobs]

    def stop(self) -> None:
        with self._wake:
            self.closing = True
            self._wake.notify()

    # ---- the thread

    def loop(self) -> None:
        while batch := self._next():
            running = [job for job in batch if job.rows.set_running_or_notify_cancel()]
            if not running:
                continue
            try:
                rows = self._compute(running)
            except Exception as error:
                for job in running:
                    job.rows.set_exception(error)
                continue
            finally:
                logs.forward(self.native)
            for job, given in zip(running, rows, strict=True):
                job.rows.set_result(given)
        with self._wake:
            left, self._jobs = list(self._jobs), collections.deque()
        for job in left:
            if job.rows.set_running_or_notify_cancel():
                job.rows.set_exception(ClosedError("the model was closed"))

    def _next(self) -> list[_Job]:
        """The texts of the next batch, all of one pooling; none when it is time to stop."""
        with self._wake:
            while not self._jobs and not self.closing:
                self._wake.wait()
            if self.closing:
                return []
            pooling = self._jobs[0].pooling
            lengths: list[int] = []
            for job in islice(self._jobs, self.n_sequences + 1):
                if job.pooling != pooling:
                    break
                lengths.append(len(job.tokens))
            return [self._jobs.popleft() for _ in range(pack(lengths, self.n_batch, self.n_sequences))]

    def _compute(self, jobs: list[_Job]) -> list[list[Row]]:
        pooling = jobs[0].pooling
        context = self._contexts.get(pooling) or self._make(pooling)
        if len(jobs) == 1 and len(jobs[0].tokens) > self.n_batch:
            return [self._compute_long(context, jobs[0])]
        rows = self._run(context, [job.tokens for job in jobs], 0, pooling)
        if pooling != "none":
            return [[row] for row in rows]
        given = iter(rows)
        return [list(islice(given, len(job.tokens))) for job in jobs]

    def _compute_long(self, context: Context, job: _Job) -> list[Row]:
        """A text of several micro-batches."""
        parts = [
            (length, self._run(context, [job.tokens[start : start + length]], start, job.pooling))
            for start, length in chunks(len(job.tokens), self.n_batch)
        ]
        if job.pooling == "none":
            return [row for _, rows in parts for row in rows]
        if job.pooling == "cls":
            return parts[0][1]
        if job.pooling != "mean":
            return parts[-1][1]
        n = len(job.tokens)
        columns = zip(*(rows[0] for _, rows in parts), strict=True)
        weights = [length / n for length, _ in parts]
        return [array("f", (sum(x * w for x, w in zip(column, weights, strict=True)) for column in columns))]

    def _run(self, context: Context, texts: Sequence[Sequence[int]], start: int, pooling: Pooling) -> list[Row]:
        n = sum(map(len, texts))
        n_rows = n if pooling == "none" else len(texts)
        slots = [ctypes.pointer(llama_h.llama_seq_id(slot)) for slot in range(len(texts))]
        batch = llama_h.llama_batch(
            n_tokens=n,
            token=(llama_h.llama_token * n)(*(token for text in texts for token in text)),
            embd=None,
            pos=(llama_h.llama_pos * n)(*(start + at for text in texts for at in range(len(text)))),
            n_seq_id=(ctypes.c_int32 * n)(*([1] * n)),
            seq_id=(ctypes.POINTER(llama_h.llama_seq_id) * n)(*(slots[at] for at, text in enumerate(texts) for _ in text)),
            logits=(ctypes.c_int8 * n)(*([1] * n)),
        )
        width = self._width(context)
        out = (ctypes.c_float * (n_rows * width.value))()
        call = self.native.lm_embed
        self.native.check(call(context.pointer, ctypes.byref(batch), start == 0, out, n_rows, ctypes.byref(width)), self.path)
        self.n_batches += 1
        return [array("f", out[at * width.value : (at + 1) * width.value]) for at in range(n_rows)]

    def _width(self, context: Context) -> ctypes.c_int32:
        width = ctypes.c_int32()
        batch = llama_h.llama_batch()
        self.native.check(
            self.native.lm_embed(context.pointer, ctypes.byref(batch), True, None, 0, ctypes.byref(width)), self.path
        )
        return width

    def _make(self, pooling: Pooling) -> Context:
        self._params.pooling_type = _POOLING[pooling]
        self._contexts[pooling] = Context(self.model, self._params)
        return self._contexts[pooling]

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()


def _cancel(futures: Sequence[Future[Any]]) -> None:
    for future in futures:
        future.cancel()


def _shut_down(core: _Core, thread: threading.Thread, model: Model) -> None:
    if os.getpid() != core.pid:
        return
    core.stop()
    if thread is not threading.current_thread():
        thread.join()
    core.close()
    model.close()
