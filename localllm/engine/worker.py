"""What a thread with a context has, whatever it computes: an end, a process, and a batch that can be stopped."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from localllm.errors import ClosedError
from localllm.native.bindings import llama as llama_h
from localllm.native.handles import Context
from localllm.native.library import Native

logger = logging.getLogger("localllm.engine")


class Switch:
    """Stops the computation of the contexts that it was fitted to; callable from any thread."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._value = ctypes.c_int32(0)

    def fit(self, context: Context) -> None:
        """Lets a context look at it."""
        stop = ctypes.cast(self._native.lm_abort_if_set, llama_h.ggml_abort_callback)
        self._native.llama_set_abort_callback(context.pointer, stop, ctypes.addressof(self._value))

    def abort(self) -> None:
        """Stops what runs now."""
        self._value.value = 1

    def allow(self) -> None:
        """Takes an `abort` back that came too late or has had its effect."""
        self._value.value = 0


class Worker:
    """The state of such a thread that others see.

    Args:
        noun: str, what it belongs to, for messages.
        switch: Switch of its contexts.

    Attributes:
        wake: Condition, held whenever something changes that the thread waits for.
        closing: bool, it takes no work any more.
        resting: bool, the thread has nothing to do, not even something to keep for later, and waits.
        on_rest: called on the thread, with `wake` held, whenever it begins to rest; must be quick and take no locks. Or None.
    """

    def __init__(self, noun: str, switch: Switch) -> None:
        self.wake = threading.Condition()
        self.closing = False
        self.resting = False
        self.on_rest: Callable[[], None] | None = None
        self._noun = noun
        self._switch = switch
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._in_batch: frozenset[int] = frozenset()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the thread runs in."""
        return os.getpid() != self._pid

    def require_own_process(self) -> None:
        """Raises ClosedError in a child: nobody would do the work."""
        if self.forked:
            raise ClosedError(
                f"this {self._noun} was loaded before the process forked, and its thread is not here. Load models after the "
                'fork, or start processes with multiprocessing\'s "spawn" method'
            )

    def require_open(self) -> None:
        """Raises ClosedError once it is closing. With `wake` held."""
        if self.closing:
            raise self._closed()

    def rest(self) -> None:
        """Waits, for however long, until something changes. With `wake` held, on the thread."""
        self.resting = True
        if self.on_rest:
            self.on_rest()
        self.wake.wait()
        self.resting = False

    def begin_batch(self, ids: frozenset[int]) -> bool:
        """Requests that are about to be computed; false: it is closing, and they are not."""
        with self.wake:
            if self.closing:
                return False
            self._in_batch = ids
            # Together, so that nobody can ask for an end of this batch and have it befall the next one.
            self._switch.allow()
            return True

    def end_batch(self) -> None:
        """The batch is computed, or has failed."""
        with self.wake:
            self._in_batch = frozenset()

    def abort_if_all(self, is_over: Callable[[int], bool]) -> None:
        """Stops the batch that runs now if none of its requests is wanted any more. With `wake` held."""
        if self._in_batch and all(map(is_over, self._in_batch)):
            self._switch.abort()

    def stop(self) -> None:
        """Asks the thread to end, at once."""
        with self.wake:
            self.closing = True
            self._switch.abort()
            self.wake.notify()

    def loop(self, take_work: Callable[[], bool], step: Callable[[], None], fail_all: Callable[[Exception], None]) -> None:
        """The thread: steps while there is work to take; at its end, all that is left fails with a ClosedError."""
        try:
            while take_work():
                step()
        except BaseException as error:
            # A mistake of ours, a broken context, or somebody's code that ends threads: nobody may be left waiting for an answer.
            logger.exception("the thread of the %s ended", self._noun)
            with self.wake:
                self.closing = True
                self._failure = error
        fail_all(self._closed())

    def _closed(self) -> ClosedError:
        if self._failure is None:
            return ClosedError(f"the {self._noun} is closed")
        closed = ClosedError(f"the {self._noun} is closed: its thread ended with {self._failure!r}; open it again")
        closed.__cause__ = self._failure
        return closed


@dataclass(frozen=True)
class Activity:
    """Whether an engine or embedder has something to do.

    Args:
        worker: Worker.
        has_requests: tells whether there are requests under way or waiting.
    """

    worker: Worker
    has_requests: Callable[[], bool]

    @property
    def busy(self) -> bool:
        """Whether there are requests under way or waiting."""
        return not self.worker.closing and self.has_requests()

    @property
    def resting(self) -> bool:
        """Whether there is nothing to do at all, not even copies to make of what a prefix cache keeps."""
        return self.worker.resting and not self.busy

    def on_rest(self, call: Callable[[], None] | None) -> None:
        """Sets what is called whenever it begins to rest, on its thread; it must be quick and take no locks. None: nothing."""
        self.worker.on_rest = call
