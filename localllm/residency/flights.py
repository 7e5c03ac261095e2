"""Several threads that want the same thing at once: one makes it, the others wait for it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from localllm.errors import LocalLLMError

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None


class Flights(Generic[T]):
    """What is being made now, by key. Things with different keys are made at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}

    def get(self, key: Hashable, find: Callable[[], T | None], make: Callable[[], T]) -> T:
        """The thing that belongs to a key.

        Args:
            key: Hashable.
            find: gives it if it is there already; called with a lock held, so it must be quick.
            make: makes it, and puts it where `find` finds it.

        Raises:
            Exception: Whatever `make` raised, in every thread that waited for it (of our own errors each gets a copy); the next
                call tries anew.
        """
        while True:
            with self._lock:
                if (found := find()) is not None:
                    return found
                flight = self._flights.get(key)
                mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight()
            if mine:
                return self._make(key, flight, make)
            flight.ended.wait()
            if flight.result is not None:
                return flight.result
            if isinstance(flight.error, Exception):
                raise _copy(flight.error)
            # Ctrl-C, say, in the thread that made it: that was meant for that one.

    def _make(self, key: Hashable, flight: _Flight[T], make: Callable[[], T]) -> T:
        try:
            flight.result = make()
            return flight.result
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.ended.set()


def _copy(error: Exception) -> Exception:
    """The same error without its traceback, which tells of another thread, and would keep what that one has in its hands."""
    return copy.copy(error) if isinstance(error, LocalLLMError) else error
