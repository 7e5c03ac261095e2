"""Regular expressions to GBNF. llama.cpp's own conversion takes fewer of them, and lets quotes into JSON strings."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from localllm.errors import GrammarError

# Python's own parser of patterns; it moved in 3.11.
_HOME = ("re._constants", "re._parser") if sys.version_info >= (3, 11) else ("sre_constants", "sre_parse")
_c: Any = importlib.import_module(_HOME[0])
_p: Any = importlib.import_module(_HOME[1])

_LAST = 0x10FFFF
Ranges = list[tuple[int, int]]

_CLASSES: dict[Any, Ranges] = {
    _c.CATEGORY_DIGIT: [(0x30, 0x39)],
    _c.CATEGORY_SPACE: [(0x09, 0x0D), (0x20, 0x20)],
    _c.CATEGORY_WORD: [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
_NEGATED = {
    _c.CATEGORY_NOT_DIGIT: _c.CATEGORY_DIGIT,
    _c.CATEGORY_NOT_SPACE: _c.CATEGORY_SPACE,
    _c.CATEGORY_NOT_WORD: _c.CATEGORY_WORD,
}
# Characters that a JSON string cannot hold as they are.
_ESCAPED: Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]
_NOTHING = '"" [^\\U00000000-\\U0010FFFF]'
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
# More repetitions make llama.cpp's grammars slow; its parser refuses them at 2,000.
MAX_REPEAT = 1000


def from_regex(pattern: str, *, json_string: bool = False) -> str:
    """A GBNF expression for the texts that match the whole of a pattern.

    Args:
        pattern: str, in the syntax of Python's `re`; `\\d`, `\\s` and `\\w` mean ASCII characters. With `json_string` a match
            anywhere in the text counts, as in JSON Schema: "^" and "$" tie it to the ends.
        json_string: bool, write the text as a JSON string with its quotes.

    Raises:
        GrammarError: It is no pattern, or has what a grammar cannot express: looking around, references to groups, word
            boundaries, or anchors in the middle.
    """
    try:
        parsed = _p.parse(pattern, re.ASCII)
        pattern.encode()
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise GrammarError(f"pattern {pattern!r}: {error}") from error
    tree, flags = list(parsed), parsed.state.flags
    if flags & ~(re.ASCII | re.VERBOSE | re.DOTALL):
        raise GrammarError(f"pattern {pattern!r}: of flags only 'a', 's' and 'x' can be expressed")
    starts = bool(tree) and tree[0][0] is _c.AT and tree[0][1] in (_c.AT_BEGINNING, _c.AT_BEGINNING_STRING)
    ends = bool(tree) and tree[-1][0] is _c.AT and tree[-1][1] in (_c.AT_END, _c.AT_END_STRING)
    writer = _Writer(pattern, _json_class if json_string else _plain_class, bool(flags & re.DOTALL))
    body = writer.sequence(tree[starts : len(tree) - ends if ends else None])
    if not json_string:
        return body
    anything = f"({writer.ranges([(0, _LAST)])})*"
    return " ".join(['"\\""', *([] if starts else [anything]), f"({body})", *([] if ends else [anything]), '"\\""'])


class _Writer:
    def __init__(self, pattern: str, write: Callable[[Ranges], str], dot_is_all: bool) -> None:
        self._pattern = pattern
        self.ranges = write
        self._handlers: dict[Any, Callable[[Any], str]] = {
            _c.LITERAL: lambda code: self.ranges([(code, code)]),
            _c.NOT_LITERAL: lambda code: self.ranges(_inverted([(code, code)])),
            _c.ANY: lambda _: self.ranges(_inverted([] if dot_is_all else [(0x0A, 0x0A), (0x0D, 0x0D)])),
            _c.IN: self._class,
            _c.BRANCH: lambda value: " | ".join(self.sequence(branch) or '""' for branch in value[1]),
            _c.SUBPATTERN: self._group,
            _c.MAX_REPEAT: self._repeat,
            _c.MIN_REPEAT: self._repeat,
        }

    def sequence(self, items: Iterable[Any]) -> str:
        parts = []
        for kind, value in items:
            handler = self._handlers.get(kind)
            if handler is None:
                raise GrammarError(f"pattern {self._pattern!r}: a grammar has nothing like {str(kind).lower()!r}")
            parts.append(f"({handler(value)})")
        return " ".join(parts)

    def _class(self, items: list[Any]) -> str:
        found: Ranges = []
        negate = False
        for kind, value in items:
            if kind is _c.NEGATE:
                negate = True
            elif kind is _c.LITERAL:
                found.append((value, value))
            elif kind is _c.RANGE:
                found.append(value)
            elif value in _CLASSES:
                found += _CLASSES[value]
            elif value in _NEGATED:
                found += _inverted(_CLASSES[_NEGATED[value]])
            else:
                raise GrammarError(f"pattern {self._pattern!r}: a grammar has nothing like {str(value).lower()!r}")
        return self.ranges(_inverted(found) if negate else found)

    def _group(self, value: Any) -> str:
        _, add_flags, del_flags, body = value
        if add_flags or del_flags:
            raise GrammarError(f"pattern {self._pattern!r}: flags within a pattern cannot be expressed")
        return self.sequence(body) or '""'

    def _repeat(self, value: Any) -> str:
        least, most, body = value
        unlimited = most is _c.MAXREPEAT or most == _c.MAXREPEAT
        if least > MAX_REPEAT or (not unlimited and most > MAX_REPEAT):
            raise GrammarError(f"pattern {self._pattern!r}: more than {MAX_REPEAT} repetitions cannot be expressed")
        count = {(0, True): "*", (1, True): "+"}.get((int(least), unlimited), f"{{{least},{'' if unlimited else most}}}")
        return f"({self.sequence(body) or chr(34) * 2}){count}"


def _merged(ranges: Ranges) -> Ranges:
    result: Ranges = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(high, result[-1][1])
        else:
            result.append((low, high))
    return result


def _inverted(ranges: Ranges) -> Ranges:
    result, at = [], 0
    for low, high in _merged(ranges):
        if at < low:
            result.append((at, low - 1))
        at = high + 1
    return [*result, (at, _LAST)] if at <= _LAST else result


def _plain_class(ranges: Ranges) -> str:
    return "[" + "".join(_span(low, high) for low, high in _merged(ranges)) + "]" if ranges else _NOTHING


def _json_class(ranges: Ranges) -> str:
    """Characters as a JSON string holds them: as they are, or escaped."""
    inside = _inverted([*_inverted(ranges), *_ESCAPED])
    escaped = [code for low, high in _merged(ranges) for code in range(low, min(high, 0x5C) + 1) if _must_escape(code)]
    parts = [_plain_class(inside)] if inside else []
    parts += [f'"\\\\{_in_literal(_SHORT[code])}"' if code in _SHORT else f'"\\\\u{code:04x}"' for code in escaped]
    return " | ".join(parts) or _NOTHING


def _must_escape(code: int) -> bool:
    return any(low <= code <= high for low, high in _ESCAPED)


def _in_literal(character: str) -> str:
    return f"\\{character}" if character in '"\\' else character


def _span(low: int, high: int) -> str:
    return f"\\U{low:08X}" if low == high else f"\\U{low:08X}-\\U{high:08X}"
