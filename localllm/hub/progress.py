"""How a transfer is watched, slowed down and stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from localllm.errors import DownloadCancelledError
from localllm.hub.options import check_number

Phase = Literal["waiting", "checking", "downloading", "retrying", "finished"]

_WINDOW_SECONDS = 5.0
_EVENT_SECONDS = 0.1
_FASTEST = 1e30  # bytes per second; what no network reaches


@dataclass(frozen=True)
class Progress:
    """How far the transfer of one file is.

    Attributes:
        phase: "waiting" (another process fetches the file), "checking" (what is already there is hashed), "downloading",
            "retrying" (the connection broke, or the copy was damaged) or "finished".
        file: str, the file's path in its repository.
        done_bytes: int, bytes of the file that are there; falls back to 0 if it has to be fetched again.
        total_bytes: int, size of the file.
        bytes_per_second: float, over the last seconds; 0 until there is something to tell.
        seconds_left: float or None, at this rate; None if it is not known.
    """

    phase: Phase
    file: str
    done_bytes: int
    total_bytes: int
    bytes_per_second: float
    seconds_left: float | None


ProgressCallback = Callable[[Progress], None]


class CancelToken:
    """Stops what it was given to, from any thread and at once, also while it waits for the network."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """May be called more than once."""
        with self._lock:
            self._event.set()
            actions = list(self._actions)
        for action in actions:
            action()

    def check(self) -> None:
        """Raises DownloadCancelledError if it is cancelled."""
        if self._event.is_set():
            raise DownloadCancelledError("the download was cancelled; what was received is kept, and continued next time")

    def sleep(self, seconds: float) -> None:
        """Waits; a cancellation ends it with a DownloadCancelledError."""
        self._event.wait(seconds)
        self.check()

    @contextlib.contextmanager
    def calling(self, action: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a cancellation calls `action`, in the thread that cancels; at once if it is cancelled already."""
        with self._lock:
            self._actions.append(action)
            cancelled = self._event.is_set()
        if cancelled:
            action()
        try:
            yield
        finally:
            with self._lock:
                self._actions.remove(action)


class RateCap:
    """An upper bound on bytes per second for all transfers that share it.

    Args:
        bytes_per_second: float, more than 0.

    Raises:
        InvalidRequestError: It is no such number.
    """

    def __init__(self, bytes_per_second: float) -> None:
        check_number("bytes_per_second", bytes_per_second, most=_FASTEST)
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def delay_seconds(self, n_bytes: int, now: float) -> float:
        """Books `n_bytes` that have arrived at the time `now`, and says how long to wait before more are read."""
        with self._lock:
            self._free_at = max(self._free_at, now) + n_bytes / self.bytes_per_second
            return self._free_at - now


class Meter:
    """Turns the growth of one file into events, no more than ten a second beside those that open a phase."""

    def __init__(self, file: str, total_bytes: int, callback: ProgressCallback | None) -> None:
        self._file = file
        self._total_bytes = total_bytes
        self._callback = callback
        self._phase: Phase | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._told_at = 0.0

    def tell(self, phase: Phase, done_bytes: int) -> None:
        if self._callback is None:
            return
        now = time.monotonic()
        if phase != self._phase or (self._samples and done_bytes < self._samples[-1][1]):
            self._samples.clear()
        elif phase != "finished" and now - self._told_at < _EVENT_SECONDS:
            return
        self._phase, self._told_at = phase, now
        self._samples.append((now, done_bytes))
        while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        rate = _rate(self._samples)
        left = (self._total_bytes - done_bytes) / rate if rate > 0 else None
        self._callback(Progress(phase, self._file, done_bytes, self._total_bytes, rate, 0.0 if phase == "finished" else left))


def _rate(samples: deque[tuple[float, int]]) -> float:
    (begin, first), (end, last) = samples[0], samples[-1]
    return max(0.0, (last - first) / (end - begin)) if end > begin else 0.0
