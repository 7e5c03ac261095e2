"""GBNF for one of many texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

# Brackets within brackets; llama.cpp's parser calls itself for each.
_MAX_DEPTH = 50


def literal(text: str) -> str:
    """A text as GBNF writes it."""
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escaped.get(character, character) for character in text) + '"'


def one_of(texts: Iterable[str]) -> str:
    """A GBNF expression for one of some texts.

    What they have in common at their beginnings is written once: llama.cpp follows each alternative by itself, and compares
    each with all others.
    """
    return _one_of(sorted(set(texts)), 0)


def _one_of(texts: list[str], depth: int) -> str:
    if depth == _MAX_DEPTH:
        return " | ".join(map(literal, texts))
    parts = []
    for _, group in itertools.groupby(texts, key=lambda text: text[:1]):
        same = list(group)
        if len(same) == 1:
            parts.append(literal(same[0]))
            continue
        # Of sorted texts the first and the last have in common what all have.
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(same[0], same[-1], strict=False))
        n = sum(1 for _ in pairs)
        parts.append(f"{literal(same[0][:n])} ({_one_of([text[n:] for text in same], depth + 1)})")
    return " | ".join(parts)
