"""A time by which several things must have been done."""

from __future__ import annotations

import time


class OutOfTimeError(Exception):
    """The time for everything is over."""


class Deadline:
    """When everything must have been done.

    Args:
        seconds: float, from now.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, above 0.

        Raises:
            OutOfTimeError: There are none.
        """
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise OutOfTimeError
        return seconds
