"""The embedder: one thread that owns a context for vectors or scores, and the ways to give it work."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from types import TracebackType

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.embed_core import EmbedCore, EmbedRequest, Rows
from localllm.engine.params import model_params
from localllm.engine.pooler import Head, Pooling, own_pooling
from localllm.engine.stats import EmbedderStats
from localllm.engine.worker import Activity
from localllm.native.handles import Model
from localllm.native.library import load
from localllm.native.memory import MemoryUse


class Embedder:
    """A model with a context for vectors, or for scores, and its thread. Requests from anywhere share its batches.

    Args:
        model: str, a GGUF file; or a Model that is loaded already, which then stays open.
        config: ModelConfig, for a file.
        context: ContextConfig; of it n_ctx (most tokens of a text), n_ubatch (tokens of a batch; longer texts go alone, or, where
            the model looks back only, in parts), threads, flash_attention and the like, max_queue, and parallel for recurrent
            models.
        rank: bool, scores by the model's classification head; else vectors.

    Raises:
        ModelError: The file cannot be loaded.
        UnsupportedModelError: The model gives no vectors, or with `rank` no scores.
        NativeLibraryError: The native libraries cannot be used.

    Attributes:
        activity: Activity, whether there is something to do.
    """

    def __init__(
        self,
        model: str | Model,
        config: ModelConfig | None = None,
        context: ContextConfig | None = None,
        *,
        rank: bool = False,
    ) -> None:
        self.model = model if isinstance(model, Model) else Model(model, model_params(load(), config or ModelConfig()))
        owned = None if self.model is model else self.model
        try:
            self._core = EmbedCore(self.model, context or ContextConfig(), rank)
        except BaseException:
            if owned:
                owned.close()
            raise
        self.pooling: Pooling = own_pooling(self.model)
        self._thread = threading.Thread(target=self._core.loop, name="localllm-embedder", daemon=True)
        self._thread.start()
        # At interpreter exit finalizers run newest first: the thread has ended when context and model are released.
        self.activity = Activity(self._core.worker, self._core.has_requests)
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._thread, owned)

    @property
    def limit(self) -> int:
        """Most tokens of a text."""
        return self._core.pooler.limit

    @property
    def row(self) -> int:
        """Floats per vector, or scores per text."""
        return self._core.pooler.row

    @property
    def head(self) -> Head | None:
        """The classification head; None for vectors."""
        return self._core.pooler.head

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive or self._core.worker.closing

    @property
    def memory(self) -> MemoryUse:
        """What its context and the weights take, by llama.cpp's own numbers."""
        return self._core.pooler.memory

    def submit(self, request: EmbedRequest) -> Future[Rows]:
        """Queues a request. Cancelling the future stops the work, at any time before the result is there.

        In a child of the process, which has no thread to wait for, the future's `result` and `exception` raise ClosedError.

        Raises:
            ContextOverflowError: A text has more tokens than `limit`.
            InvalidRequestError: A token is not in the vocabulary, or vectors are asked of a context for scores.
            QueueFullError: `max_queue` requests are waiting.
            ClosedError: The embedder is closed.
        """
        return self._core.submit(request)

    def run(self, request: EmbedRequest) -> Rows:
        """The rows of a request; raises as `submit` does, or whatever ended the request."""
        future = self.submit(request)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C, say: nobody waits for it any more.
            future.cancel()
            raise

    async def arun(self, request: EmbedRequest) -> Rows:
        """Like `run`, for coroutines: never blocks the loop; cancelling the task stops the work."""
        return await asyncio.wrap_future(self.submit(request))

    def stats(self) -> EmbedderStats:
        """What the embedder has done so far and has to do.

        Raises:
            ClosedError: The process has forked, and this is the child.
        """
        return self._core.stats()

    def close(self) -> None:
        """Stops the thread and frees the context, and a model that it loaded itself. Requests under way fail with ClosedError."""
        self._finalizer()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _shut_down(core: EmbedCore, thread: threading.Thread, model: Model | None) -> None:
    if core.worker.forked:
        return
    core.worker.stop()
    if thread is not threading.current_thread():
        thread.join()
    core.pooler.close()
    if model:
        model.close()
