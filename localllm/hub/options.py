"""Checks of options that callers give to the model manager; every message begins with the option's name."""

from __future__ import annotations

from localllm.errors import InvalidRequestError

MOST_SECONDS = 1e6  # more than that no timeout of a socket can be (milliseconds in a C int)


def check_whole(name: str, value: object, least: int) -> None:
    """Raises InvalidRequestError for all but an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequestError(f"{name}: {value!r} is not an integer of at least {least}")


def check_number(name: str, value: object, *, most: float, zero: bool = False) -> None:
    """Raises InvalidRequestError for all but a number above 0, or 0 itself if `zero`, and no more than `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value <= most or (zero and value == 0)):
        raise InvalidRequestError(f"{name}: {value!r} is not a number {'of at least' if zero else 'above'} 0, and up to {most:g}")


def check_kind(name: str, value: object, *kinds: type) -> None:
    """Raises InvalidRequestError for what is of none of these types; True and False are no integers."""
    sound = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    if not sound:
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InvalidRequestError(f"{name}: must be {names}, not {value!r}")
