"""JSON that comes from files and servers: read so that nothing in it surprises what looks at it afterwards."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_MOST_DIGITS = 19  # of integers of 64 bits


def parsed(data: str | bytes) -> Any:
    """What a text of JSON says. Its numbers are finite, and its integers such as 64 bits hold, or nearly.

    Raises:
        ValueError: It is no JSON (RFC 8259), is nested too deeply, or has other numbers.
    """
    try:
        return json.loads(data, parse_int=_integer, parse_float=_number, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError("it has an integer of too many digits")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("it has a number that is too large")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
