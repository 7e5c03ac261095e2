"""Which texts share a batch. Pure policy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def pack(lengths: Sequence[int], n_tokens: int, n_sequences: int) -> int:
    """How many of the next texts go into one batch: as many as fit, in their order, at least one.

    Args:
        lengths: tokens of each text, in the order of arrival.
        n_tokens: int, most tokens of a batch.
        n_sequences: int, most texts of a batch.
    """
    room = n_tokens
    for count, length in enumerate(lengths):
        room -= length
        if count == n_sequences or room < 0:
            return max(1, count)
    return len(lengths)


def chunks(n: int, most: int) -> list[tuple[int, int]]:
    """A text of n tokens in parts of at most so many, as even as can be: (start, length) of each."""
    n_parts = -(-n // most)
    bounds = [n * part // n_parts for part in range(n_parts + 1)]
    return [(start, end - start) for start, end in itertools.pairwise(bounds)]
