"""Checks of the fields of frozen data classes, which replace a value by the plain one that it stands for.

Every message begins with the field's name; each function raises InvalidRequestError.
"""

from __future__ import annotations

import numbers
from typing import Any, get_args

from localllm.engine import checks
from localllm.errors import InvalidRequestError


def freeze(owner: object, name: str) -> None:
    """A list or tuple of texts, as a tuple."""
    value = getattr(owner, name)
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InvalidRequestError(f"{name}: must be a list or tuple of texts")
    if not all(isinstance(item, str) for item in value):
        raise InvalidRequestError(f"{name}: must hold texts only")
    object.__setattr__(owner, name, tuple(value))


def number(owner: object, name: str, low: float, high: float) -> None:
    """A number from `low` to `high`; NaN is none."""
    value: Any = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequestError(f"{name}: must be a number, not {type(value).__name__}")
    # Compared as it is: a huge integer has no float.
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not low <= number <= high:
        raise InvalidRequestError(f"{name}: {checks.shown(number)} is outside the range {low:g} to {high:g}")
    object.__setattr__(owner, name, number)


def integer(owner: object, name: str, low: int, high: int) -> None:
    """An integer from `low` to `high`, as int; True and False are none."""
    value: Any = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidRequestError(f"{name}: must be an integer, not {type(value).__name__}")
    if not low <= int(value) <= high:
        raise InvalidRequestError(f"{name}: {checks.shown(value)} is outside the range {low} to {high}")
    object.__setattr__(owner, name, int(value))


def boolean(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: must be True or False, not {value!r}")


def choice(name: str, value: object, literal: object) -> None:
    """One of the texts of a Literal."""
    choices = get_args(literal)
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequestError(f"{name}: {value!r} is not one of {', '.join(map(repr, choices))}")
