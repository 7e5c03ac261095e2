"""Which prefixes are where, in slots of the context or copied out to RAM, and who may go on from there. Pure policy.

A sequence that has ended leaves its cells where they are. A new one that begins alike takes the slot over, or shares its cells
(llama_memory_seq_cp) when the slot's own tail is worth keeping or still in use. What has to be done in llama.cpp is written
down as actions, in order, for the runner to carry out before the next batch.

A namespace is the key of the adapters that a state was computed with: prefixes of different ones have nothing in common but
slots, cells and budgets.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from localllm.engine.cache.cells import CellLedger
from localllm.engine.cache.lookup import DEVICE, DISK, NO_CACHE, RAM, Donor, Holder, Lookup, look_up
from localllm.engine.cache.radix import Entry, RadixTree

# What is shorter is computed again sooner than copied out.
MIN_SAVED_TOKENS = 64
# Idle cells that others' batches hardly notice.
FREE_IDLE_CELLS = 256


@dataclass(frozen=True)
class Action:
    """What llama.cpp has to do: "forget" a slot, "cut" it to a length, "fork" the beginning of `source` into it, "restore" it
    from the bytes of `entry`, "save" it as the state after `ids` in `namespace`, or "shift": drop `count` tokens behind
    `length`, and move up what follows.
    """

    kind: Literal["forget", "cut", "fork", "restore", "save", "shift"]
    slot: int
    length: int = 0
    source: int = -1
    entry: Entry | None = None
    ids: tuple[int, ...] = ()
    namespace: bytes = b""
    count: int = 0


class Residents:
    """The slots of one context.

    Args:
        n_slots: int, sequences that the context can hold, running or idle.
        n_cells: int, KV cells, in tokens.
        cuttable: bool, whether a prefix of a state can be had by removing the rest: true for plain attention, false for
            recurrent, hybrid and sliding-window models, which can only be continued where they are.
        keep: bool, false: nothing stays when a sequence ends, and nothing is shared.
        ram_bytes: int, for copies in RAM.
        disk: bool, whether there are copies in files.
        pays: tells whether restoring so many bytes is quicker than computing so many tokens.
    """

    def __init__(
        self,
        n_slots: int,
        n_cells: int,
        cuttable: bool,
        keep: bool = True,
        ram_bytes: int = 0,
        disk: bool = False,
        pays: Callable[[int, int], bool] = lambda n_bytes, n_tokens: True,
    ) -> None:
        self.n_cells = n_cells
        self.cuttable = cuttable
        self.keep = keep
        self.ledger = CellLedger()
        self.tree = RadixTree({RAM: ram_bytes})
        self.actions: list[Action] = []
        self.n_evicted = self.n_saved = self.n_restored = 0
        self._pays = pays
        self._n_slots = n_slots
        self._ram_bytes = ram_bytes
        self._disk = disk
        self._free = list(range(n_slots))

    @property
    def n_free_cells(self) -> int:
        return self.n_cells - self.ledger.n_used

    def take_actions(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions

    def look_up(self, ids: Sequence[int], holders: Iterable[Holder], namespace: bytes = b"") -> Lookup:
        """Where most of `ids` can be had, but for the last one, which has to be computed to choose what follows it.

        `holders` are of the same namespace.
        """
        if not self.keep:
            return NO_CACHE
        return look_up(self.tree, tuple(ids[:-1]), holders, namespace, self.cuttable, self._pays)

    def start(self, ids: Sequence[int], donor: Donor | None, n_reserved: int) -> tuple[int, int] | None:
        """A slot for a new sequence.

        Args:
            ids: all its known tokens.
            donor: of `look_up`, or None.
            n_reserved: cells that running sequences are going to need.

        Returns:
            (slot, tokens that it holds already), or None if there is no room. Idle prefixes are evicted for it, the least
            recently used first, the donor last.
        """
        length = donor.length if donor else 0
        entry = donor.entry if donor else None
        if entry is not None:
            entry.pins += 1
        try:
            if 2 * length < len(ids):
                self._clear_the_way(len(ids) - length)
            # A copy comes back whole, before it can be cut.
            whole = len(entry) if entry is not None and donor is not None and donor.slot < 0 else 0
            roomy = self._make_room(max(len(ids), whole) - (0 if whole else length) + n_reserved)
        finally:
            if entry is not None:
                entry.pins -= 1
        if not roomy and donor is not None:
            return self.start(ids, None, n_reserved)
        if not roomy:
            return None
        if donor is None:
            slot = self._free_slot(None)
            return None if slot is None else (slot, 0)
        if entry is not None:
            self.tree.touch(entry)
            if donor.slot < 0:
                return self._restore(entry, length)
            # Nothing is lost: what goes on from here can be cut back to it. Other states are gone once they go on.
            if self.cuttable and len(entry) == length:
                return self._take_over(entry, length), length
        slot = self._free_slot(entry)
        if slot is not None:
            self.ledger.fork(donor.slot, slot, length)
            self.actions.append(Action("fork", slot, length, donor.slot))
            return slot, length
        return None if entry is None else (self._take_over(entry, length), length)

    def grow(self, slot: int, n_cells: int) -> None:
        """A running sequence has computed more tokens."""
        self.ledger.append(slot, n_cells)

    def cut(self, slot: int, length: int) -> None:
        """Takes back what a running sequence has computed beyond `length`, known or not."""
        self.ledger.cut(slot, min(length, self.ledger.length(slot)))
        self.actions.append(Action("cut", slot, length))

    def leave(self, slot: int, ids: Sequence[int], namespace: bytes = b"") -> None:
        """A sequence has ended; the slot holds the state after `ids`, which stays if it can be of use."""
        known = tuple(ids)
        if not self.keep or not known or self._covered(known, DEVICE, namespace):
            self._forget(slot)
            return
        if self.cuttable:
            for match in list(self.tree.matches(known, namespace)):
                if match.entry.tier == DEVICE and len(match.entry) == match.length:
                    self.drop(match.entry)
        self.tree.add(Entry(DEVICE, known, slot, len(known), exact=not self.cuttable, namespace=namespace))

    def checkpoint(self, slot: int, ids: Sequence[int], namespace: bytes = b"") -> None:
        """Keeps the state that a running sequence is in, after `ids`, as an idle prefix of its own.

        A copy shares all attention cells; only the recurrent part is stored twice, in a state that the context has anyway.
        """
        known = tuple(ids)
        if not self.keep or self._covered(known, DEVICE, namespace):
            return
        copy = self._free_slot(None)
        if copy is None:
            return
        self.ledger.fork(slot, copy, len(known))
        self.actions.append(Action("fork", copy, len(known), slot))
        self.tree.add(Entry(DEVICE, known, copy, len(known), exact=True, namespace=namespace))

    def spare(self, slot: int, n_cells: int) -> int:
        """A slot with the state that a running sequence is in, to come back to; -1: there is none to spare.

        It costs no cells; `abandon` gives it back.
        """
        copy = self._free_slot(None)
        if copy is None:
            return -1
        self.ledger.fork(slot, copy, n_cells)
        self.actions.append(Action("fork", copy, n_cells, slot))
        return copy

    def vacant(self, n_cells: int) -> int | None:
        """An empty slot with cells for a state from outside; None if there is no room. `leave` or `abandon` has to follow."""
        if not self._make_room(n_cells):
            return None
        slot = self._free_slot(None)
        if slot is not None:
            self.ledger.append(slot, n_cells)
        return slot

    def abandon(self, slot: int, ids: Sequence[int] = (), namespace: bytes = b"") -> None:
        """A sequence has to give its slot back with all cells. `ids`: what it holds, if that is worth a copy in RAM."""
        known = tuple(ids)
        if self.keep and self._ram_bytes and len(known) >= MIN_SAVED_TOKENS and not self._covered(known, RAM, namespace):
            self.actions.append(Action("save", slot, len(known), ids=known, namespace=namespace))
        self._forget(slot)

    def stashed(self, action: Action, data: object, n_bytes: int) -> None:
        """A "save" was carried out."""
        if self.tree.add(Entry(RAM, action.ids, data, n_bytes, exact=not self.cuttable, namespace=action.namespace)):
            self.n_saved += 1

    def shift(self, slot: int, n_keep: int, n_discard: int) -> bool:
        """Drops tokens in the middle of a running sequence, whose later tokens move up.

        Returns:
            bool, False if another running sequence shares the cells that would move; nothing is changed then.
        """
        sharing = self.ledger.holders(slot, n_keep)
        idle = [entry for entry in self.tree.tier(DEVICE) if entry.payload in sharing]
        if len(idle) < len(sharing):
            return False
        for entry in idle:
            self.drop(entry)
        self.ledger.remove(slot, n_keep, n_discard)
        self.actions.append(Action("shift", slot, n_keep, count=n_discard))
        return True

    def evict(self) -> bool:
        """Frees the least recently used idle prefix. False if there is none that may go."""
        for entry in self.tree.tier(DEVICE):
            if not entry.pins:
                self.n_evicted += 1
                self.drop(entry)
                return True
        return False

    def next_to_save(self) -> Entry | None:
        """The idle prefix to copy to RAM: the one that would be evicted next, if cells or slots are getting scarce; else one that
        is in others' way, but for the latest, which is the likeliest to go on.
        """
        idle = self.tree.tier(DEVICE)
        if not self._ram_bytes or not idle:
            return None
        scarce = 2 * self.n_free_cells < self.n_cells or 4 * len(self._free) < self._n_slots
        for entry in idle if scarce else idle[:-1] if self._n_idle(idle) > FREE_IDLE_CELLS else ():
            if len(entry) >= MIN_SAVED_TOKENS and not entry.unsavable and not self._covered(entry.ids, RAM, entry.namespace):
                return entry
        return None

    def next_to_store(self) -> Entry | None:
        """The idle prefix to write to a file: one that no file holds yet, the least recently used first."""
        for entry in self.tree.tier(DEVICE) if self._disk else ():
            if len(entry) >= MIN_SAVED_TOKENS and not entry.unstorable and not self._covered(entry.ids, DISK, entry.namespace):
                return entry
        return None

    def found(self, ids: tuple[int, ...], payload: object, n_bytes: int, exact: bool, namespace: bytes = b"") -> None:
        """A file holds a prefix."""
        if len(ids) <= self.n_cells and exact != self.cuttable:
            self.tree.add(Entry(DISK, ids, payload, n_bytes, exact=exact, namespace=namespace))

    def saved(self, entry: Entry, data: object, n_bytes: int) -> None:
        """A copy of an idle prefix was made."""
        self.n_saved += 1
        copy = Entry(RAM, entry.ids, data, n_bytes, exact=entry.exact, namespace=entry.namespace)
        if not self.tree.add(copy):
            entry.unsavable = True
        elif self.cuttable:
            for match in list(self.tree.matches(entry.ids, entry.namespace)):
                other = match.entry
                if other is not copy and other.tier == RAM and len(other) == match.length:
                    self.tree.remove(other)

    def lost(self, entry: Entry, slot: int) -> None:
        """A copy could not be restored into a slot: it is of no use, and the slot is empty."""
        self.tree.remove(entry)
        self.ledger.clear(slot)

    def drop(self, entry: Entry) -> None:
        """Frees an idle prefix."""
        self.tree.remove(entry)
        self._forget(entry.payload)

    def clear(self, running: Iterable[int] = ()) -> None:
        """Forgets everything: the context was made anew. `running` slots go back, too."""
        for entry in self.tree.tier(DEVICE):
            self.drop(entry)
        for slot in running:
            self._forget(slot)
        self.actions.clear()

    # ---- inside

    def _n_idle(self, idle: list[Entry]) -> int:
        """Cells that only ended sequences hold."""
        return self.ledger.n_held_only_by({entry.payload for entry in idle})

    def _clear_the_way(self, n_new: int) -> None:
        """A new text of so many tokens takes the place of idle prefixes that have a copy, if those are more than a few cells.

        Attention looks at every cell in use and masks those of others, which on a CPU makes a batch up to a tenth slower for
        2,000 idle cells. Bringing them back from RAM takes less time than one step.
        """
        idle = self.tree.tier(DEVICE)
        n_idle, n_freed = self._n_idle(idle), 0
        for entry in idle:
            if n_freed >= n_new or n_idle - n_freed <= FREE_IDLE_CELLS:
                return
            if not entry.pins and self._covered(entry.ids, RAM, entry.namespace):
                n_freed += self.ledger.n_freed_by_clearing(entry.payload)
                self.n_evicted += 1
                self.drop(entry)

    def _covered(self, ids: tuple[int, ...], tier: str, namespace: bytes) -> bool:
        """Whether a prefix in that tier already gives all that this one could give."""
        for match in self.tree.matches(ids, namespace):
            if match.length < len(ids):
                return False
            if match.entry.tier == tier and (self.cuttable or len(match.entry) == len(ids)):
                return True
        return False

    def _make_room(self, n_cells: int) -> bool:
        while self.n_free_cells < n_cells:
            if not self.evict():
                return False
        return True

    def _free_slot(self, spare: Entry | None) -> int | None:
        """An empty slot, by eviction if need be, but not of `spare`."""
        if not self._free:
            victim = next((entry for entry in self.tree.tier(DEVICE) if entry is not spare and not entry.pins), None)
            if victim is None:
                return None
            self.n_evicted += 1
            self.drop(victim)
        return self._free.pop(0)

    def _restore(self, entry: Entry, length: int) -> tuple[int, int] | None:
        slot = self._free_slot(None)
        if slot is None:
            return None
        self.n_restored += 1
        self.ledger.append(slot, len(entry))
        self.actions.append(Action("restore", slot, len(entry), entry=entry))
        if length < len(entry):
            self.cut(slot, length)
        return slot, length

    def _take_over(self, entry: Entry, length: int) -> int:
        slot: int = entry.payload
        self.tree.remove(entry)
        if length < len(entry):
            self.cut(slot, length)
        return slot

    def _forget(self, slot: int) -> None:
        self.ledger.clear(slot)
        self.actions.append(Action("forget", slot))
        bisect.insort(self._free, slot)


# Nearer to each other, or to the beginning, checkpoints save less than they cost.
MIN_CHECKPOINT_TOKENS = 32


def checkpoint_lengths(n_prompt: int, boundaries: Iterable[int]) -> tuple[int, ...]:
    """Where to keep the state of a prompt that cannot be cut later.

    Args:
        n_prompt: tokens of the prompt.
        boundaries: positions where its messages begin; none: before its last token, so that the same prompt can be asked again.

    Returns:
        Ascending lengths, spaced but for the last two: from the one an answer can be had again, from the other another
        question can be asked, however short the first one was.
    """
    chosen: list[int] = []
    for length in sorted({place for place in boundaries if 0 < place < n_prompt} or {n_prompt - 1}, reverse=True):
        if length >= MIN_CHECKPOINT_TOKENS and (len(chosen) < 2 or chosen[-1] - length >= MIN_CHECKPOINT_TOKENS):
            chosen.append(length)
    return tuple(reversed(chosen))
