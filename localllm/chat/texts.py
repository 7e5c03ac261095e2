"""Texts that a caller gives, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.errors import InvalidRequestError

_MAX_DEPTH = 1000


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


def _check(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InvalidRequestError(
            f"{ascii(where)[1:-1]}: has half of a character, {half!r}, at place {error.start}; "
            "text.encode(errors='replace').decode() puts a '?' there"
        ) from error
