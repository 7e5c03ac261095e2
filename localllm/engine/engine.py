"""The engine: one thread that owns a context, and the ways to give it work from threads and coroutines."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from localllm.engine.cache.saved import unpack
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.core import Core
from localllm.engine.params import model_params
from localllm.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    Generation,
    Request,
    Sink,
    TokenLogprob,
)
from localllm.engine.speculation.choice import load_draft, settle, wants_heads
from localllm.engine.stats import EngineStats
from localllm.engine.steering import UNSTEERED
from localllm.engine.worker import Activity
from localllm.errors import StateError, UnsupportedModelError
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.native.memory import MemoryUse


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None: ...


V = TypeVar("V", bound=Closable)


class Engine:
    """A model with its context and its thread.

    Args:
        path: str, a GGUF file; or a Model that is loaded already, which then stays open.
        model: ModelConfig, for a file.
        context: ContextConfig.
        draft: Model that guesses for this one, loaded already, which then stays open; None: what `context` names.

    Raises:
        ModelError: The file cannot be loaded.
        UnsupportedModelError: The draft does not go with the model.
        NativeLibraryError: The native libraries cannot be used.

    Attributes:
        activity: Activity, whether there is something to do.
    """

    def __init__(
        self,
        path: str | Model,
        model: ModelConfig | None = None,
        context: ContextConfig | None = None,
        draft: Model | None = None,
    ) -> None:
        context, model = context or ContextConfig(), model or ModelConfig()
        owned: list[Closable] = []
        try:
            if isinstance(path, Model):
                self.model = path
            else:
                model = replace(model, mtp=model.mtp or wants_heads(context))
                self.model = Model(path, model_params(load(), model))
                owned.append(self.model)
            _require_generator(self.model)
            if draft is None and (draft := load_draft(context, model)) is not None:
                owned.append(draft)
            self.config, draft = settle(context, self.model, draft)
            self._core = Core(self.model, self.config, draft)
        except BaseException:
            for loaded in owned:
                loaded.close()
            raise
        self._thread = threading.Thread(target=self._core.loop, name="localllm-engine", daemon=True)
        self._thread.start()
        # At interpreter exit finalizers run newest first: the thread has ended when context and model are released.
        self.activity = Activity(self._core.worker, self._core.has_requests)
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._thread, owned)
        self._owned, self._attached = owned, dict[Hashable, Closable]()
        self._attaching = threading.Lock()

    @property
    def n_ctx(self) -> int:
        """KV cells, in tokens."""
        return self._core.runner.n_ctx

    @property
    def limit(self) -> int:
        """Most tokens of a prompt and its answer: `n_ctx`, or fewer where the model has a table of learned positions (GPT-2)."""
        return self._core.runner.limit

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive or self._core.worker.closing

    @property
    def memory(self) -> MemoryUse:
        """What its context and the weights take, by llama.cpp's own numbers."""
        return self._core.runner.memory

    def attached(self, key: Hashable, make: Callable[[], V]) -> V:
        """What belongs to this engine and is closed with it, made when it is asked for first: a projector, say.

        Raises:
            ClosedError: The engine is closed.
            What `make` raises.
        """
        with self._attaching:
            self._core.worker.require_open()
            if key not in self._attached:
                self._attached[key] = made = make()
                self._owned.insert(0, made)  # closed before the weights
            return cast(V, self._attached[key])

    def submit(self, request: Request, sink: Sink) -> int:
        """Queues a request.

        Args:
            request: Request.
            sink: called on the engine's thread with every Delta and, last and once, a Finished or Failed. It must be quick. An
                exception out of it, SystemExit and KeyboardInterrupt included, is logged to "localllm.engine" and ends this
                request only: the sink still gets its Finished("cancelled").

        Adapters that the engine has not loaded yet are loaded first, which may take a while (`astream` waits without blocking).

        Returns:
            int, the request's id for `cancel`.

        Raises:
            ContextOverflowError: The prompt does not fit the context.
            ModelError: An adapter cannot be used, or not with this model.
            InvalidRequestError: A token is not in the vocabulary.
            QueueFullError: `max_queue` requests are waiting.
            ClosedError: The engine is closed.
        """
        return self._core.submit(request, sink, self._core.steering(request))

    def cancel(self, request_id: int) -> None:
        """Ends a request as soon as possible; its sink gets a Finished("cancelled"). Unknown or ended ids are ignored."""
        self._core.cancel(request_id)

    def stream(self, request: Request) -> Generator[Delta | Finished, None, None]:
        """Yields what a request gives, as it comes; the last item is a Finished. Closing the iterator cancels the request.

        Raises:
            LocalLLMError: As `submit` does at once, or whatever ended the request.
            ClosedError: The engine was closed meanwhile, or the process has forked and this is the child.
        """
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request_id = self.submit(request, events.put)
        stream = self._drain(request_id, events)
        next(stream)
        return stream

    def _drain(self, request_id: int, events: queue.SimpleQueue[Event]) -> Generator[Any, None, None]:
        try:
            # Taken by `stream`: only a generator that has begun runs its `finally` when it is dropped unread.
            yield None
            while True:
                # Before each wait: a child of the process that reads on has no thread to wait for.
                self._core.worker.require_own_process()
                event = events.get()
                if isinstance(event, Failed):
                    raise event.error
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.cancel(request_id)

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Finished, None]:
        """Like `stream`, for coroutines: never blocks the loop. Cancelling the task or closing the iterator stops the work."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        # The sink may live as long as the thread, and must not keep the engine, whose end would end the thread.
        core = self._core

        def sink(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:
                # The loop was closed with the request under way: nobody is left to read it.
                core.cancel(request_id)

        # Files are read: not on the loop.
        steering = await asyncio.to_thread(self._core.steering, request) if request.steered else UNSTEERED
        request_id = self._core.submit(request, sink, steering)
        try:
            while True:
                self._core.worker.require_own_process()
                event = await events.get()
                if isinstance(event, Failed):
                    raise event.error
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.cancel(request_id)

    def generate(self, request: Request) -> Generation:
        """The whole answer to a request; raises as `stream` does."""
        return _collect(list(self.stream(request)))

    async def agenerate(self, request: Request) -> Generation:
        """The whole answer to a request; raises as `astream` does."""
        return _collect([event async for event in self.astream(request)])

    def generate_all(self, requests: Sequence[Request]) -> list[Generation]:
        """The answers to several requests, which share batches and the cells of common beginnings; in their order.

        Raises:
            LocalLLMError: As `generate`, for the first that fails; the others are cancelled.
        """
        streams: list[Generator[Delta | Finished, None, None]] = []
        try:
            for request in requests:
                streams.append(self.stream(request))
            return [_collect(list(stream)) for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    async def agenerate_all(self, requests: Sequence[Request]) -> list[Generation]:
        """Like `generate_all`, for coroutines."""
        tasks = [asyncio.ensure_future(self.agenerate(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def save_state(self, request: Request) -> bytes:
        """The state after the prompt of a request, to go on from later, also in another process.

        What is resident already is not computed again. Asking later for a prompt that begins with this one continues from
        the state once it was loaded; models whose state cannot be cut need the whole of it.

        Args:
            request: Request; its prompt and adapters count.

        Returns:
            bytes for `load_state`.

        Raises:
            StateError: Nothing is kept here (`prefix_cache=False`), or there was no room.
            LocalLLMError: As `submit`, and whatever ended the request.
        """
        if not self.config.prefix_cache:
            raise StateError("states are saved from the prefix cache, which is off (prefix_cache=False)")
        core, steering = self._core, self._core.steering(request)
        result: Future[bytes] = Future()

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                result.set_exception(event.error)
            elif isinstance(event, Finished):
                # Here, on the engine's thread, nobody can have taken the state away yet.
                try:
                    result.set_result(core.export(request.prompt, steering))
                except BaseException as error:
                    result.set_exception(error)

        core.submit(replace(request, max_tokens=1, speculate=False, stop=(), grammar={}), sink, steering)
        return result.result()

    def load_state(self, data: bytes | bytearray | memoryview, request: Request | None = None) -> tuple[int, ...]:
        """Makes a saved state resident, as if its prompt had just been asked.

        Args:
            data: bytes of `save_state` (or a bytearray or memoryview).
            request: Request, whose adapters the state was computed with; None: none.

        Returns:
            The token ids of the prompt.

        Raises:
            InvalidRequestError: `data` is something else than bytes.
            StateError: The bytes are damaged, or belong to another model, other options, adapters or another version; or there is
                no room. The cache is as it was.
        """
        steering = self._core.steering(request) if request else UNSTEERED
        saved = unpack(self._core.state_facts(steering), data)
        self._core.import_state(saved, steering)
        return saved.ids

    def stats(self) -> EngineStats:
        """What the engine has done so far and holds now.

        Raises:
            ClosedError: The process has forked, and this is the child.
        """
        return self._core.stats()

    def close(self) -> None:
        """Stops the thread and frees the context, and a model that it loaded itself. Requests under way fail with ClosedError."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _shut_down(core: Core, thread: threading.Thread, owned: list[Closable]) -> None:
    if core.worker.forked:
        return
    core.worker.stop()
    if thread is not threading.current_thread():
        thread.join()
    core.runner.close()
    core.adapters.close()
    for one in owned:
        one.close()


def _require_generator(model: Model) -> None:
    """Refuses models that give no text."""
    native = model.native
    metadata = model.metadata()
    name = metadata.get("general.architecture", "?")
    if native.llama_model_has_encoder(model.pointer) and native.llama_model_has_decoder(model.pointer):
        raise UnsupportedModelError(f"{model.path}: {name} is an encoder-decoder model; only decoder models generate text here")
    # A pooled output (all but "none", 0) or attention in both directions is no text generator.
    pooled = metadata.get(f"{name}.pooling_type", "0") != "0"
    if not native.llama_model_has_decoder(model.pointer) or pooled or metadata.get(f"{name}.attention.causal") == "false":
        raise UnsupportedModelError(f"{model.path}: {name} gives embeddings or scores, no text; use embed or rerank")


def _collect(events: list[Delta | Finished]) -> Generation:
    finished = events[-1]
    assert isinstance(finished, Finished)
    deltas = [event for event in events if isinstance(event, Delta)]
    logprobs: tuple[TokenLogprob, ...] = tuple(entry for delta in deltas for entry in delta.logprobs)
    return Generation(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=logprobs,
        finish_reason=finished.reason,
        usage=finished.usage,
        timings=finished.timings,
        seed=finished.seed,
        deltas=tuple(deltas),
        speculation=finished.speculation,
    )
