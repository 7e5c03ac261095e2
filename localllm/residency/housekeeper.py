"""The thread that unloads what has been idle for long enough. It sleeps until something is due, or until it is woken."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("localllm")

# The system's waits take no more than some hundred years, and a model may be kept for longer; looking costs nothing.
_LONGEST_PAUSE_SECONDS = 3600.0
_PAUSE_AFTER_FAILURE_SECONDS = 60.0


class Housekeeper:
    """There is a thread while anything is loaded.

    Args:
        tidy: does what is due now; gives the seconds until it has to be called again, None for until somebody wakes it, or a
            negative number if there is nothing left to do at all.
    """

    def __init__(self, tidy: Callable[[], float | None]) -> None:
        self._tidy = tidy
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        """Makes sure that there is a thread."""
        with self._lock:
            self._calls.put(None)  # one that is about to end, as there was nothing left, looks again
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="localllm-residency", daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Lets it look again. Takes no locks: may be called from anywhere, collected objects and other threads included."""
        self._calls.put(None)

    def stop(self) -> None:
        """Ends the thread, and waits for what it is doing."""
        with self._lock:
            thread, self._stopping = self._thread, True
        if thread is not None and thread is not threading.current_thread():
            self.wake()
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                pause = self._tidy()
            except Exception:
                logger.exception("unloading idle models failed")
                pause = _PAUSE_AFTER_FAILURE_SECONDS  # what was due then still is
            with self._lock:
                if self._stopping or (pause is not None and pause < 0 and self._calls.empty()):
                    self._thread = None
                    return
            try:
                self._calls.get(timeout=None if pause is None else min(max(pause, 0.0), _LONGEST_PAUSE_SECONDS))
            except queue.Empty:
                continue
            self._drain()

    def _drain(self) -> None:
        while not self._calls.empty():
            self._calls.get()
