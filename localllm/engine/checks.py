"""Checks of values that callers give; every message begins with the option's name."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable
from typing import Any

from localllm.errors import InvalidRequestError

# "Any" in single precision.
MAX_FLOAT = 1e30


def whole(name: str, value: object, *, least: int | None = None) -> int:
    """An integer of any kind, as int; True and False are none.

    Raises:
        InvalidRequestError: It is none, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidRequestError(f"{name}: must be an integer, not {value!r}")
    if least is not None and value < least:
        raise InvalidRequestError(f"{name}: must be {least} or more, not {shown(value)}")
    return int(value)


def real(name: str, value: object) -> float:
    """A number of any kind that single precision can hold, as float.

    Raises:
        InvalidRequestError: It is none, NaN, or beyond +-1e30.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequestError(f"{name}: must be a number, not {value!r}")
    # A huge integer has no float.
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not -MAX_FLOAT <= number <= MAX_FLOAT:
        raise InvalidRequestError(f"{name}: {shown(number)} is outside the range {-MAX_FLOAT:g} to {MAX_FLOAT:g}")
    return float(number)


def items(name: str, value: object) -> tuple[Any, ...]:
    """What a list, tuple or other iterable holds; a text, a mapping or None is none."""
    if isinstance(value, (str, bytes, bytearray, dict)) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{name}: must be a list or tuple, not {type(value).__name__}")
    return tuple(value)


def path(name: str, value: object) -> str:
    """A path, as text.

    Raises:
        InvalidRequestError: It is neither text nor a path, or holds a zero character, which no file system can take.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidRequestError(f"{name}: must be text or a path, not {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise InvalidRequestError(f"{name}: {text!r} is no path")
    return text


def shown(value: object) -> str:
    """A value for a message, shortened. Python refuses to write integers of thousands of digits at all."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} or more"
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__} with a huge number"
    return text if len(text) <= 80 else text[:77] + "..."
