"""Vectors as they are handed out."""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from localllm.engine.request import Usage


@dataclass(frozen=True)
class Embeddings:
    """Vectors of texts, in the order of the texts. They lie in one array; lists are made when they are asked for.

    `embeddings[i]` is a view on the vector of text i: `.tolist()` makes a list of it, `numpy.asarray` an array without copying.
    With pooling "none" it has two dimensions, tokens and their vectors.

    Attributes:
        values: array("f"), row after row.
        dimensions: int, floats per vector.
        tokens: tokens of each text, as they were computed: with the instruction and special tokens, after truncation.
        truncated: for each text, whether it was cut.
        pooling: "mean", "cls", "last", or "none": one vector per token.
    """

    values: array.array[float]
    dimensions: int
    tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    pooling: Literal["mean", "cls", "last", "none"]

    @property
    def vectors(self) -> list[list[float]]:
        """All vectors as lists of floats: one per text; with pooling "none" one per token, those of a text together."""
        width = self.dimensions
        return [self.values[at : at + width].tolist() for at in range(0, len(self.values), width)]

    @property
    def usage(self) -> Usage:
        """Tokens of all texts."""
        return Usage(sum(self.tokens), 0)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> memoryview[float]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index}: there are {len(self)} texts")
        index %= len(self)
        first, n_rows = (sum(self.tokens[:index]), self.tokens[index]) if self.pooling == "none" else (index, 1)
        return self._view(first, n_rows)

    def __iter__(self) -> Iterator[memoryview[float]]:
        counts = self.tokens if self.pooling == "none" else (1,) * len(self)
        for first, n_rows in zip(itertools.accumulate(counts, initial=0), counts, strict=False):
            yield self._view(first, n_rows)

    def _view(self, first: int, n_rows: int) -> memoryview[float]:
        size = self.values.itemsize * self.dimensions
        part = memoryview(self.values).cast("B")[first * size : (first + n_rows) * size]
        return part.cast("f", (n_rows, self.dimensions)) if self.pooling == "none" else part.cast("f")
