"""At which positions the tokens of each slot stand.

A picture may take many cells at few positions (M-RoPE: as many as the longer of its sides has). What the cache calls a length
counts cells; llama.cpp cuts and copies by position.
"""

from __future__ import annotations

import struct
from typing import Any

_BEND = struct.Struct("<ii")
_COUNT = struct.Struct("<I")


class Places:
    """The bends of each slot: lengths behind which positions lag, and by how many.

    Args:
        bent: bool, whether there are any: the model has M-RoPE.
    """

    def __init__(self, bent: bool) -> None:
        self.bent = bent
        self._slots: dict[int, tuple[tuple[int, int], ...]] = {}

    def position(self, slot: int, length: int) -> int:
        """Where the token behind the first `length` ones stands."""
        return length - sum(lag for end, lag in self._slots.get(slot, ()) if end <= length)

    def passed(self, slot: int, end: int, n_tokens: int, n_positions: int) -> None:
        """A picture of so many cells that ends at `end` took so many positions."""
        if n_tokens != n_positions:
            assert self.bent, "only M-RoPE puts several cells at one position"
            self._slots[slot] = (*self._slots.get(slot, ()), (end, n_tokens - n_positions))

    def fork(self, source: int, target: int, length: int) -> None:
        """A slot shares the beginning of another."""
        self._set(target, self._slots.get(source, ()), length)

    def cut(self, slot: int, length: int) -> None:
        """A slot ends earlier."""
        self._set(slot, self._slots.get(slot, ()), length)

    def clear(self, slot: int) -> None:
        """A slot is empty."""
        self._slots.pop(slot, None)

    def pack(self, slot: int) -> bytes:
        """What goes behind a saved state; nothing where there are no bends."""
        bends = self._slots.get(slot, ())
        return b"".join((*(_BEND.pack(*bend) for bend in bends), _COUNT.pack(len(bends)))) if self.bent else b""

    def unpack(self, slot: int, data: memoryview) -> memoryview:
        """Takes that in again, for an empty slot; returns what stands before it.

        Raises:
            ValueError: It is not what `pack` has written.
        """
        if not self.bent:
            return data
        if len(data) < _COUNT.size:
            raise ValueError("shorter than its end")
        (count,) = _COUNT.unpack_from(data, len(data) - _COUNT.size)
        start = len(data) - _COUNT.size - count * _BEND.size
        if start < 0:
            raise ValueError("its end is longer than the whole")
        bends: list[Any] = [_BEND.unpack_from(data, start + at * _BEND.size) for at in range(count)]
        if any(end <= 0 or lag <= 0 for end, lag in bends) or bends != sorted(bends):
            raise ValueError("its pictures are in no order")
        self._set(slot, tuple(bends), 2**31)
        return data[:start]

    def _set(self, slot: int, bends: tuple[tuple[int, int], ...], length: int) -> None:
        kept = tuple(bend for bend in bends if bend[0] <= length)
        if kept:
            self._slots[slot] = kept
        else:
            self._slots.pop(slot, None)
