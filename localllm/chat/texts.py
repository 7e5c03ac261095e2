"""Texts that a caller gives, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from localllm.errors import InvalidRequestError

_MAX_DEPTH = 1000
_MAX_SHOWN = 20


def require_text(where: str, value: Any) -> None:
    """Raises InvalidRequestError, which begins with `where`, if a value is no text."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}: must be text, not {type(value).__name__}")


def require_whole_characters(where: str, value: Any) -> None:
    """Raises InvalidRequestError if a text, or one in a tree of lists and mappings, has half of a character (a lone surrogate).

    Args:
        where: str, the value's place, with which the message begins.
        value: text, a list or a mapping; of other values there is nothing to say. One that holds itself is nested too deeply.
    """
    todo: list[tuple[str, Any, int]] = [(where, value, 0)]
    while todo:
        place, one, depth = todo.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(f"{where}: nested too deeply")
        if isinstance(one, str):
            _check(place, one)
        elif isinstance(one, Mapping):
            for key, entry in one.items():
                if isinstance(key, str):
                    _check(place, key)
                todo.append((f"{place}.{key}", entry, depth + 1))
        elif isinstance(one, (list, tuple)):
            todo += ((f"{place}[{at}]", entry, depth + 1) for at, entry in enumerate(one))


def json_object(text: str) -> dict[str, Any] | None:
    """What a text says that is a JSON object; None if it is none, or one that was cut off.

    Raises:
        ValueError: It holds a number that JSON does not have, or that is too large for a program to read.
    """
    try:
        found = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_whole_number)
    except (json.JSONDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:_MAX_SHOWN]} is no finite number")
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # Python reads no more than some thousand digits
        raise ValueError(f"{text[:_MAX_SHOWN]}... has {len(text)} digits, which are too many") from error


def _check(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InvalidRequestError(
            f"{ascii(where)[1:-1]}: has half of a character, {half!r}, at place {error.start}; "
            "text.encode(errors='replace').decode() puts a '?' there"
        ) from error
