"""The thread that unloads what was idle for long enough, without models."""

from __future__ import annotations

import threading

import pytest

from localllm.residency.housekeeper import Housekeeper


class Tidy:
    """Gives these pauses in turn, then that there is nothing left to do."""

    def __init__(self, *pauses):
        self.pauses = list(pauses)
        self.looked = threading.Semaphore(0)

    def __call__(self):
        self.looked.release()
        pause = self.pauses.pop(0) if self.pauses else -1.0
        if isinstance(pause, Exception):
            raise pause
        return pause

    def was_called(self):
        return self.looked.acquire(timeout=20)


@pytest.mark.parametrize("pause", [None, 60.0, 1e10, 1e30, RuntimeError("once")])
def test_it_looks_again_whenever_it_is_woken_however_long_it_was_to_sleep(pause):
    tidy = Tidy(pause, pause)
    keeper = Housekeeper(tidy)
    keeper.start()
    assert tidy.was_called()
    for _ in range(2):
        keeper.wake()
        assert tidy.was_called()
    keeper.stop()


def test_what_is_due_at_once_is_looked_at_at_once():
    tidy = Tidy(0.0, 0.0, 0.0)
    keeper = Housekeeper(tidy)
    keeper.start()
    assert all(tidy.was_called() for _ in range(4))
    keeper.stop()


def test_it_starts_anew_after_there_was_nothing_left():
    tidy = Tidy()
    keeper = Housekeeper(tidy)
    for _ in range(3):
        keeper.start()
        assert tidy.was_called()
        if (thread := keeper._thread) is not None:
            thread.join(20)
        while tidy.looked.acquire(blocking=False):
            pass
    keeper.stop()
