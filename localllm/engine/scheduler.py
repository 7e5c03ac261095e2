"""Which sequences put how many tokens into the next batch. Pure policy: no native calls, no clock.

Every running sequence that has an answer under way gets its one token first, so no stream waits for another's prompt. What is
left of the batch goes to prompts, in order of arrival: a whole batch if nobody is streaming, else one micro-batch, so that a
long prompt delays the running streams by no more than that. Waiting requests start when a slot is free and their tokens fit
into the cells that are left. When the running sequences outgrow the cells, the youngest one gives its own back and waits
until another one has ended; starting it at once would only have it evicted again.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from localllm.engine.sequence import Sequence, State


@dataclass(frozen=True)
class Chunk:
    """Tokens `sequence.tokens[start : start + count]` for the next batch; `sample`: the last one asks for a token."""

    sequence: Sequence
    start: int
    count: int

    @property
    def sample(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)


class Scheduler:
    """Queue, slots and batches.

    Args:
        parallel: int, slots.
        n_cells: int, KV cells that all sequences share, in tokens.
        n_batch: int, most tokens in a batch.
        n_ubatch: int, most prompt tokens in a batch while answers are streaming.
    """

    def __init__(self, parallel: int, n_cells: int, n_batch: int, n_ubatch: int) -> None:
        self.n_cells = n_cells
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_slots = list(range(parallel))
        self._crowded = False

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def n_free_cells(self) -> int:
        """Cells left when every running sequence has computed all it knows."""
        return self.n_cells - sum(len(sequence.tokens) for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Puts a new request into the queue: by priority, then in order of arrival."""
        bisect.insort(self.waiting, sequence, key=lambda other: (-other.request.priority, other.id))

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out for good; its slot is free again."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._release(sequence)
            self._crowded = False
        sequence.state = State.FINISHED

    def requeue(self, sequence: Sequence) -> None:
        """Sends a running sequence back to wait; it will compute its tokens again, answer so far included."""
        self._release(sequence)
        self._crowded = True
        sequence.state = State.WAITING
        self.add(sequence)

    def overflowing(self) -> Sequence | None:
        """The running sequence to give up because the cells do not suffice for all: lowest priority, then latest arrival.

        None if they suffice, or if there is only one.
        """
        if self.n_free_cells >= 0 or len(self.running) < 2:
            return None
        return self.youngest()

    def youngest(self) -> Sequence:
        """The running sequence of the lowest priority, among these the latest to arrive."""
        return max(self.running, key=lambda other: (-other.request.priority, other.id))

    def admit(self) -> list[Sequence]:
        """Starts waiting requests, first in line first, while slots and cells last. Returns those that started."""
        started: list[Sequence] = []
        if self._crowded and self.running:
            return started
        # One cell more for every running sequence, whose next token needs it.
        while self.waiting and self._free_slots and len(self.waiting[0].tokens) <= self.n_free_cells - len(self.running):
            sequence = self.waiting.pop(0)
            sequence.slot = self._free_slots.pop(0)
            sequence.state = State.RUNNING
            self.running.append(sequence)
            started.append(sequence)
        return started

    def plan(self) -> list[Chunk]:
        """The next batch: one chunk per sequence, none empty. Empty if nothing runs."""
        chunks = [Chunk(sequence, sequence.n_computed, 1) for sequence in self.running if sequence.decoding]
        room = min(self.n_batch - len(chunks), self.n_ubatch if chunks else self.n_batch)
        for sequence in self.running:
            if room > 0 and not sequence.decoding:
                count = min(sequence.n_pending, room)
                chunks.append(Chunk(sequence, sequence.n_computed, count))
                room -= count
        return chunks

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        bisect.insort(self._free_slots, sequence.slot)
        sequence.slot = -1
        sequence.n_computed = 0
