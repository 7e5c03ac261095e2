"""JSON that is still being written, closed where it stands."""

from __future__ import annotations

import json
from typing import Any

_CLOSERS = {"{": "}", "[": "]"}
_MAX_DEPTH = 200  # of containers; Python's reader goes as deep as its stack, about 1,000


class PartialJson:
    """Reads JSON piece by piece, each character once.

    What it gives at any time is what has been written for certain: texts up to where they are, but no number, word or name of
    a field that may go on.
    """

    def __init__(self) -> None:
        self._text = ""
        self._n_read = 0
        self._open = ""  # what closes the containers that are open, the innermost first
        self._is_string = self._is_name = self._is_escaped = self._expects_name = False
        self._n_hex = 0  # digits of \uXXXX still to come
        self._in_pair = False  # between the halves of a surrogate pair
        self._n_safe, self._closing = 0, ""  # so much of the text, with this behind it, is JSON

    def add(self, piece: str) -> None:
        """More of the text."""
        self._text += piece
        for place in range(self._n_read, len(self._text)):
            self._read(place, self._text[place])
        self._n_read = len(self._text)

    @property
    def value(self) -> Any:
        """The value so far; None if nothing of it has been written, or if no program reads it: numbers of thousands of digits."""
        try:
            return json.loads(self._text[: self._n_safe] + self._closing) if self._n_safe else None
        except ValueError:
            return None

    def _read(self, place: int, char: str) -> None:
        if self._is_string:
            self._read_string(place, char)
        elif char == '"':
            self._is_string, self._is_name = True, self._expects_name
        elif char in _CLOSERS:
            self._open = _CLOSERS[char] + self._open
            self._expects_name = char == "{"
            self._mark(place + 1)
        elif char in "}]":
            self._open = self._open[1:]
            self._expects_name = False
            self._mark(place + 1)
        elif char == ",":
            self._expects_name = self._open.startswith("}")
            self._mark(place)
        elif char == ":":
            self._expects_name = False

    def _read_string(self, place: int, char: str) -> None:
        if self._n_hex:
            self._n_hex -= 1
            if self._n_hex == 0:
                code = self._text[place - 3 : place + 1].lower()
                self._in_pair = not self._in_pair and code[0] == "d" and code[1] in "89ab"
        elif self._is_escaped:
            self._is_escaped = False
            self._n_hex = 4 if char == "u" else 0
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_string = self._in_pair = False
        if self._is_name or self._is_escaped or self._n_hex or self._in_pair:
            self._is_name = self._is_name and self._is_string
            return
        self._mark(place + 1, '"' if self._is_string else "")

    def _mark(self, n_safe: int, closing: str = "") -> None:
        if len(self._open) > _MAX_DEPTH:
            return
        self._n_safe, self._closing = n_safe, closing + self._open
