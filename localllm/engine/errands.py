"""Work that other threads need done on the engine's thread, between two steps."""

from __future__ import annotations

import collections
from collections.abc import Callable
from concurrent.futures import Future


class Errands:
    """A queue of functions to call. Not locked: whoever uses it holds the engine's lock, but for `run_one`."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Callable[[], None], Future[None]]] = collections.deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, work: Callable[[], None]) -> Future[None]:
        """Queues a function; the future tells when it was called and what it raised."""
        done: Future[None] = Future()
        self._waiting.append((work, done))
        return done

    def run_one(self) -> None:
        """Calls the first of the queue, if there is one. On the engine's thread; an exception goes to who asked.

        One at a time, so that running answers wait for one only.
        """
        if not self._waiting:
            return
        work, done = self._waiting.popleft()
        try:
            work()
        except BaseException as error:  # also what would end the thread: whoever asked waits for it
            done.set_exception(error)
        else:
            done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing will be called any more."""
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)
