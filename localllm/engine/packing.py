"""Which tokens of which texts go into the next batch. Pure policy: it knows nothing of llama.cpp.

Jobs (lists of texts) take turns, so that one text asked for beside a list of thousands is in one of the next batches. Within a
job the longest text that fits goes first, which fills batches well whatever the lengths are.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Piece:
    """Tokens `start` to `start + count` of a text of `length` tokens, in the sequence `slot`."""

    job: int
    text: int
    slot: int
    start: int
    count: int
    length: int

    @property
    def ends(self) -> bool:
        """Whether the text is done with it."""
        return self.start + self.count == self.length


@dataclass
class _Text:
    job: int
    text: int
    length: int
    slot: int
    done: int = 0
    planned: int = 0

    @property
    def left(self) -> int:
        return self.length - self.done - self.planned


@dataclass
class _Job:
    id: int
    waiting: list[tuple[int, int]] = field(default_factory=list)  # (length, -place), shortest first
    current: _Text | None = None

    def take(self, most: int | None = None) -> tuple[int, int]:
        """The longest waiting text, of at most `most` tokens; the earliest of those equally long."""
        end = len(self.waiting) if most is None else bisect.bisect_right(self.waiting, (most, 0))
        length, place = self.waiting.pop(end - 1)
        return length, -place


class Packer:
    """Queue and batches.

    Args:
        n_batch: int, most tokens in a batch.
        n_slots: int, most texts under way.
        n_cells: int, most tokens that the texts under way may have together; no text may be longer.
        whole: bool, a text must be computed in one batch, which may then be longer than n_batch, with this text alone.
    """

    def __init__(self, n_batch: int, n_slots: int, n_cells: int, whole: bool) -> None:
        self.n_batch = n_batch
        self.n_cells = n_cells
        self.whole = whole
        self._jobs: dict[int, _Job] = {}
        self._turns: collections.deque[_Job] = collections.deque()
        self._free = list(range(n_slots - 1, -1, -1))
        self._live: dict[int, _Text] = {}  # by slot
        self._blocked: _Job | None = None

    @property
    def idle(self) -> bool:
        return not self._jobs

    def add(self, job: int, lengths: Sequence[int]) -> None:
        """Puts a job into the queue; its texts have so many tokens, each at least one."""
        entry = _Job(job, sorted((length, -place) for place, length in enumerate(lengths)))
        self._jobs[job] = entry
        self._turns.append(entry)

    def remove(self, job: int) -> list[int]:
        """Takes out a job, done or not. Returns the slots that hold something of it."""
        entry = self._jobs.pop(job, None)
        if entry is None:
            return []
        self._turns.remove(entry)
        if self._blocked is entry:
            self._blocked = None
        slots = [slot for slot, text in self._live.items() if text.job == job]
        for slot in slots:
            self._release(slot)
        return slots

    def plan(self) -> list[Piece]:
        """The next batch; empty only if no job has anything left. `computed` or `abandon` must follow."""
        batch: dict[int, _Text] = {}
        room = self.n_batch
        turns = list(self._turns)
        while room > 0 and turns:
            served = []
            for place, job in enumerate(turns):
                # Texts that may be split share the room, so that a long one does not keep the others waiting.
                share = room if self.whole else -(-room // (len(turns) - place))
                count = self._advance(job, share, batch)
                if count:
                    room -= count
                    served.append(job)
                if room <= 0:
                    break
            turns = served
        self._turns.rotate(-1)
        return [Piece(each.job, each.text, each.slot, each.done, each.planned, each.length) for each in batch.values()]

    def computed(self) -> None:
        """The planned batch has been computed."""
        for slot, text in list(self._live.items()):
            text.done += text.planned
            text.planned = 0
            if text.done == text.length:
                self._release(slot)

    def abandon(self) -> None:
        """The planned batch failed, and nothing is left of what was computed before: texts under way begin again."""
        for slot, text in list(self._live.items()):
            job = self._jobs[text.job]
            bisect.insort(job.waiting, (text.length, -text.text))
            job.current = None
            self._release(slot)

    # ---- inside

    def _advance(self, job: _Job, room: int, batch: dict[int, _Text]) -> int:
        """Plans tokens of a job; returns how many."""
        text = job.current or self._start(job, room, alone=not batch)
        if text is None:
            return 0
        count = text.left if self.whole else min(text.left, room)
        text.planned += count
        batch[text.slot] = text
        job.current = text if text.left else None
        return count

    def _start(self, job: _Job, room: int, alone: bool) -> _Text | None:
        if not job.waiting or not self._free or self._blocked not in (None, job):
            return None
        if self.whole:
            if not alone and job.waiting[0][0] > room:
                return None
            length, place = job.take(None if alone else room)
        else:
            if sum(text.length for text in self._live.values()) + job.waiting[-1][0] > self.n_cells:
                # Nothing else starts until there is room for it: else short texts could keep a long one out for ever.
                self._blocked = job
                return None
            self._blocked = None
            length, place = job.take()
        text = _Text(job.id, place, length, self._free.pop())
        self._live[text.slot] = text
        return text

    def _release(self, slot: int) -> None:
        del self._live[slot]
        self._free.append(slot)
