"""The engine: one thread that owns a context, and the ways to give it work from threads and coroutines."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any

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
from localllm.engine.stats import EngineStats
from localllm.errors import (
    UnsupportedModelError,
)
from localllm.native.handles import Model
from localllm.native.library import load


class Engine:
    """A model with its context and its thread.

    Args:
        path: str, a GGUF file; or a Model that is loaded already, which then stays open.
        model: ModelConfig, for a file.
        context: ContextConfig.

    Raises:
        ModelError: The file cannot be loaded.
        NativeLibraryError: The native libraries cannot be used.
    """

    def __init__(self, path: str | Model, model: ModelConfig | None = None, context: ContextConfig | None = None) -> None:
        self.config = context or ContextConfig()
        self.model = path if isinstance(path, Model) else Model(path, model_params(load(), model or ModelConfig()))
        owned = None if self.model is path else self.model
        try:
            _require_generator(self.model)
            self._core = Core(self.model, self.config)
        except BaseException:
            if owned:
                owned.close()
            raise
        self._thread = threading.Thread(target=self._core.loop, name="localllm-engine", daemon=True)
        self._thread.start()
        # At interpreter exit finalizers run newest first: the thread has ended when context and model are released.
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._thread, owned)

    @property
    def n_ctx(self) -> int:
        """KV cells, in tokens."""
        return self._core.runner.n_ctx

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive or self._core.closing

    def submit(self, request: Request, sink: Sink) -> int:
        """Queues a request.

        Args:
            request: Request.
            sink: called on the engine's thread with every Delta and, last and once, a Finished or Failed. It must be quick.

        Returns:
            int, the request's id for `cancel`.

        Raises:
            ContextOverflowError: The prompt does not fit the context.
            InvalidRequestError: A token is not in the vocabulary.
            QueueFullError: `max_queue` requests are waiting.
            ClosedError: The engine is closed.
        """
        return self._core.submit(request, sink)

    def cancel(self, request_id: int) -> None:
        """Ends a request as soon as possible; its sink gets a Finished("cancelled"). Unknown or ended ids are ignored."""
        self._core.cancel(request_id)

    def stream(self, request: Request) -> Generator[Delta | Finished, None, None]:
        """Yields what a request gives, as it comes; the last item is a Finished. Closing the iterator cancels the request.

        Raises:
            LocalLLMError: As `submit` does at once, or whatever ended the request.
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

        def sink(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:
                # The loop was closed with the request under way: nobody is left to read it.
                self.cancel(request_id)

        request_id = self.submit(request, sink)
        try:
            while True:
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

    def stats(self) -> EngineStats:
        """What the engine has done so far and holds now."""
        return self._core.stats()

    def close(self) -> None:
        """Stops the thread and frees the context, and a model that it loaded itself. Requests under way fail with ClosedError."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _shut_down(core: Core, thread: threading.Thread, model: Model | None) -> None:
    if os.getpid() != core.pid:
        return
    core.stop()
    if thread is not threading.current_thread():
        thread.join()
    core.runner.close()
    if model:
        model.close()


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
    )
