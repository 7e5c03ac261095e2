"""Who holds how many KV cells, when sequences share them. Pure bookkeeping, no native calls.

llama.cpp's unified cache gives one cell to all sequences that have the same token at the same place because one was copied from
the other. A cell is free when the last of them lets go. The ledger follows that in runs of cells, so that a fork costs nothing
per token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class _Run:
    """Cells that the same slots hold, one after the other in each of them."""

    length: int
    holders: set[int]


class CellLedger:
    """Cells in use by slot.

    Attributes:
        n_used: int, cells that at least one slot holds.
    """

    def __init__(self) -> None:
        self.n_used = 0
        self._slots: dict[int, list[_Run]] = {}

    def length(self, slot: int) -> int:
        """Cells of a slot, shared ones included."""
        return sum(run.length for run in self._slots.get(slot, ()))

    def n_freed_by_clearing(self, slot: int) -> int:
        """Cells that no other slot holds."""
        return sum(run.length for run in self._slots.get(slot, ()) if len(run.holders) == 1)

    def n_held_only_by(self, slots: set[int]) -> int:
        """Cells that none but these slots hold."""
        runs = {id(run): run for slot in slots for run in self._slots.get(slot, ())}
        return sum(run.length for run in runs.values() if run.holders <= slots)

    def append(self, slot: int, n_cells: int) -> None:
        """New cells at the end of a slot."""
        runs = self._slots.setdefault(slot, [])
        self.n_used += n_cells
        if runs and runs[-1].holders == {slot}:
            runs[-1].length += n_cells
        elif n_cells:
            runs.append(_Run(n_cells, {slot}))

    def fork(self, source: int, target: int, length: int) -> None:
        """Lets an empty slot share the first cells of another."""
        assert not self._slots.get(target), "only an empty slot can share another's beginning"
        shared = self._split(source, length)
        for run in shared:
            run.holders.add(target)
        self._slots[target] = list(shared)

    def cut(self, slot: int, length: int) -> None:
        """Takes away what a slot has beyond `length` cells."""
        kept = self._split(slot, length)
        for run in self._slots.get(slot, [])[len(kept) :]:
            run.holders.discard(slot)
            if not run.holders:
                self.n_used -= run.length
        self._slots[slot] = kept

    def remove(self, slot: int, start: int, n_cells: int) -> None:
        """Takes cells out of the middle of a slot."""
        first = len(self._split(slot, start))
        last = len(self._split(slot, start + n_cells))
        runs = self._slots[slot]
        for run in runs[first:last]:
            run.holders.discard(slot)
            if not run.holders:
                self.n_used -= run.length
        del runs[first:last]

    def holders(self, slot: int, start: int) -> set[int]:
        """The other slots that hold any of a slot's cells from `start` on."""
        at, found = 0, set()
        for run in self._slots.get(slot, ()):
            at += run.length
            if at > start:
                found |= run.holders
        return found - {slot}

    def clear(self, slot: int) -> None:
        """Takes all cells away from a slot."""
        if slot in self._slots:
            self.cut(slot, 0)
            del self._slots[slot]

    def _split(self, slot: int, length: int) -> list[_Run]:
        """The runs that make up the first `length` cells of a slot; a run that spans the place becomes two."""
        runs = self._slots.get(slot, [])
        at = 0
        for index, run in enumerate(runs):
            if at == length:
                return runs[:index]
            if at + run.length > length:
                rest = _Run(run.length - (length - at), set(run.holders))
                run.length = length - at
                for holder in run.holders:
                    others = self._slots[holder]
                    others.insert(others.index(run) + 1, rest)
                return self._slots[slot][: index + 1]
            at += run.length
        assert at == length, "a slot has fewer cells than asked for"
        return list(runs)
