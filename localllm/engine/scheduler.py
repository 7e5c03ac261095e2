"""Which sequences put how many tokens into the next batch. Pure policy: no native calls, no clock.

Every running sequence that has an answer under way gets its one token first, so no stream waits for another's prompt. What is
left of the batch goes to prompts, in order of arrival: a whole batch if nobody is streaming, else the rest of a micro-batch, so
that a long prompt delays the running streams by no more than that. A batch holds sequences of one steering; turns.py says of
which.

A waiting request starts when a place is free and its tokens fit into the cells that are left or can be freed of idle prefixes. It
goes on from the longest prefix that is resident. If a running sequence is about to compute more of the same prefix, the request
waits for that instead of computing it a second time; others behind it may start meanwhile.

Rows of a picture or sound share no batch with tokens: while both are wanted, batches of the one and of the other take turns.

Drafts (guesses of what follows, see engine/speculation) ride behind the token that they follow, in the room that is left. What
was wrong is taken back afterwards: by cutting it off where the memory allows that, else by going back to a copy from before the
draft, from where the right part is computed again.

When the running sequences outgrow the cells, idle prefixes go first, then the youngest sequence gives its own back and waits
until another one has ended; starting it at once would only have it evicted again.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, replace

from localllm.engine.cache.lookup import Holder, Lookup, common_prefix
from localllm.engine.cache.resident import MIN_CHECKPOINT_TOKENS, Residents, checkpoint_lengths
from localllm.engine.media import MediaRun, next_run, whole
from localllm.engine.sequence import Sequence, State
from localllm.engine.turns import Turns

# A shorter common prefix is computed again sooner than waited for.
MIN_SHARED_TOKENS = 32


@dataclass(frozen=True)
class Chunk:
    """Tokens `sequence.tokens[start : start + count]` for the next batch, and a draft behind them.

    `sample`: the last one asks for a token, and each of the draft for one more. `decode`: it goes on with an answer. `run`: the
    tokens are these rows of a picture or sound.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool
    draft: tuple[int, ...] = ()
    decode: bool = False
    run: MediaRun | None = None

    @property
    def n_tokens(self) -> int:
        return self.count + len(self.draft)


class Scheduler:
    """Queue, places and batches.

    Args:
        parallel: int, sequences that run together.
        residents: Residents, the slots and cells of the context.
        n_batch: int, most tokens in a batch.
        n_ubatch: int, most prompt tokens in a batch while answers are streaming.
        n_rollback: int, computed tokens that can be cut off a sequence again; None: any number.
    """

    def __init__(self, parallel: int, residents: Residents, n_batch: int, n_ubatch: int, n_rollback: int | None = None) -> None:
        self.parallel = parallel
        self.residents = residents
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self.n_rollback = n_rollback
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._crowded = False
        self._had_rows = False
        self._turns = Turns(n_batch, n_ubatch)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Puts a request into the queue: by priority, then in order of arrival."""
        if not self.residents.cuttable and self.residents.keep:
            request = sequence.request
            places = (*(request.boundaries or (len(request.prompt) - 1,)), *(run.end for run in request.media))
            lengths = checkpoint_lengths(len(request.prompt), places)
            sequence.checkpoints = tuple(length for length in lengths if whole(request.media, length) == length)
        bisect.insort(self.waiting, sequence, key=lambda other: (-other.request.priority, other.id))

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out for good; what it has computed stays resident."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self._crowded = False
            self._drop_spare(sequence)
            if sequence.unsettled or sequence.shifted or not self.end_whole(sequence):
                self.residents.abandon(sequence.slot)
            else:
                self.residents.leave(sequence.slot, sequence.tokens[: sequence.n_computed], sequence.steering.key)
            sequence.slot = -1
        sequence.state = State.FINISHED

    def end_whole(self, sequence: Sequence) -> bool:
        """Takes back what a sequence has computed of a picture that is not complete. False: its state cannot be cut."""
        if sequence.n_usable < sequence.n_computed:
            if not self.residents.cuttable:
                return False
            sequence.n_computed = sequence.n_usable
            self.residents.cut(sequence.slot, sequence.n_computed)
        return True

    def requeue(self, sequence: Sequence) -> None:
        """Sends a running sequence back to wait; it goes on later from a copy in RAM, or computes its tokens again."""
        self.running.remove(sequence)
        self._drop_spare(sequence)
        usable = not (sequence.cancelled or sequence.unsettled or sequence.shifted) and self.end_whole(sequence)
        known = sequence.tokens[: sequence.n_computed] if usable else ()
        self.residents.abandon(sequence.slot, known, sequence.steering.key)
        self._crowded = True
        self._wait_again(sequence)

    def requeue_all(self) -> None:
        """The context was lost: everything that runs starts again."""
        slots = [slot for sequence in self.running for slot in (sequence.slot, sequence.spare) if slot >= 0]
        for sequence in self.running:
            self._wait_again(sequence)
        self.running.clear()
        self.residents.clear(slots)

    def youngest(self) -> Sequence:
        """The running sequence of the lowest priority, among these the latest to arrive."""
        return max(self.running, key=lambda other: (-other.request.priority, other.id))

    def admit(self) -> list[Sequence]:
        """Starts waiting requests, first in line first, while places and cells last. Returns those that started."""
        started: list[Sequence] = []
        if self._crowded and self.running:
            return started
        for sequence in list(self.waiting):
            if len(self.running) >= self.parallel:
                break
            # The last token is computed in any case, with the whole picture if it is one's.
            end = whole(sequence.request.media, len(sequence.tokens) - 1) + 1
            found = self.residents.look_up(sequence.tokens[:end], self._holders(sequence), sequence.steering.key)
            if self._should_wait(sequence, found.length):
                continue
            if not self._start(sequence, found):
                break
            started.append(sequence)
        return started

    def plan(self) -> list[Chunk]:
        """The next batch: at most one chunk per sequence, none empty. Empty if nothing runs. Makes room for it first."""
        for sequence in self.running:
            self._drop_spare(sequence)
            if sequence.request.context_shift is not None and len(sequence.tokens) > self.residents.n_cells:
                self._shift(sequence, sequence.request.context_shift)
        chunks = self._chunks()
        while sum(chunk.count for chunk in chunks) > self.residents.n_free_cells:
            if not self.residents.evict():
                if len(self.running) < 2:
                    break
                self.requeue(self.youngest())
                chunks = self._chunks()
        return self._with_drafts(chunks)

    def computed(self, chunks: list[Chunk], n_accepted: Mapping[Sequence, int] | None = None) -> None:
        """A planned batch has been decoded.

        Args:
            chunks: from `plan`.
            n_accepted: how many tokens of its draft each sequence goes on with; a sequence that is not named: none.
        """
        if chunks:
            n_prompt = sum(chunk.count for chunk in chunks if not chunk.decode)
            self._turns.took(chunks[0].sequence.steering.key, n_prompt)
            self._had_rows = chunks[0].run is not None
        for chunk in chunks:
            sequence = chunk.sequence
            self.residents.grow(sequence.slot, chunk.n_tokens)
            sequence.replaying = sequence.unsettled = False
            self._settle(chunk, n_accepted.get(sequence, 0) if n_accepted else 0)
            if sequence.n_computed in sequence.checkpoints:
                known = sequence.tokens[: sequence.n_computed]
                self.residents.checkpoint(sequence.slot, known, sequence.steering.key)

    # ---- inside

    def _chunks(self) -> list[Chunk]:
        if not self.running:
            return []
        key, n_prompt = self._turns.next(self.running)
        group = [sequence for sequence in self.running if sequence.steering.key == key]
        looking = [sequence for sequence in group if sequence.run is not None]
        if looking and n_prompt > 0 and (not self._had_rows or len(looking) == len(group)):
            return [self._rows_of(looking[0], streaming=len(looking) < len(group))]
        chunks = [
            Chunk(sequence, sequence.n_computed, sequence.n_pending, sample=True, decode=True)
            for sequence in group
            if sequence.decoding
        ]
        n_decode = sum(chunk.count for chunk in chunks)
        room = min(self.n_batch - n_decode, n_prompt)
        if chunks:
            # One token more than a micro-batch would be a second pass over all weights.
            room = min(room, max(1, self.n_ubatch - n_decode))
        for sequence in group:
            if room > 0 and not sequence.decoding and sequence.run is None:
                count = min(sequence.n_pending, room, _up_to_checkpoint(sequence), _up_to_media(sequence))
                chunks.append(Chunk(sequence, sequence.n_computed, count, sample=count == sequence.n_pending))
                room -= count
        return chunks

    def _rows_of(self, sequence: Sequence, streaming: bool) -> Chunk:
        """A picture's rows, which share no batch with tokens; in pieces where they can be, as prompts are."""
        run, start = sequence.run, sequence.n_computed
        assert run is not None
        count = run.end - start
        if run.causal:
            count = min(count, self.n_ubatch if streaming else self.n_batch)
        return Chunk(sequence, start, count, sample=count == sequence.n_pending, run=run)

    def _with_drafts(self, chunks: list[Chunk]) -> list[Chunk]:
        """The same batch with as much of the drafts as it has room for. They push nothing else out."""
        if not any(chunk.sequence.draft for chunk in chunks):
            return chunks
        used = sum(chunk.count for chunk in chunks)
        # A memory that cannot be cut at will can be cut within one micro-batch.
        most = self.n_batch if self.residents.cuttable else self.n_ubatch
        room = min(most - used, self.residents.n_free_cells - used)
        result = []
        for chunk in chunks:
            sequence = chunk.sequence
            draft = tuple(sequence.draft[: max(0, room)]) if sequence.decoding else ()
            if draft and self.n_rollback is not None and len(draft) > self.n_rollback:
                if not sequence.unsettled:
                    sequence.spare = self.residents.spare(sequence.slot, chunk.start)
                draft = draft if sequence.spare >= 0 else draft[: self.n_rollback]
            room -= len(draft)
            result.append(replace(chunk, draft=draft) if draft else chunk)
        return result

    def _settle(self, chunk: Chunk, n_accepted: int) -> None:
        """Moves a sequence on by what was right in its chunk, and takes the rest back."""
        sequence = chunk.sequence
        sequence.draft = []
        wrong = n_accepted < len(chunk.draft)
        if wrong and sequence.spare >= 0:
            self.residents.abandon(sequence.slot)
            sequence.slot, sequence.spare = sequence.spare, -1
            sequence.replaying = True
            return
        self._drop_spare(sequence)
        sequence.n_computed += chunk.count + n_accepted
        if wrong:
            self.residents.cut(sequence.slot, sequence.n_computed)
            sequence.unsettled = self.n_rollback is not None

    def _shift(self, sequence: Sequence, n_keep: int) -> None:
        """Makes room in a full context: drops half of what is behind the first `n_keep` tokens."""
        n_discard = (sequence.n_computed - n_keep) // 2
        if self.residents.shift(sequence.slot, n_keep, n_discard):
            sequence.n_computed -= n_discard
            sequence.shifted = True
        else:
            # Its cells are others' too, and cannot move: it computes what is left again.
            sequence.n_computed = n_keep if self.residents.cuttable else 0
            self.residents.cut(sequence.slot, sequence.n_computed)
            sequence.shifted = sequence.unsettled = sequence.replaying = False
        del sequence.tokens[n_keep : n_keep + n_discard]
        sequence.n_dropped += n_discard
        sequence.checkpoints = ()

    def _drop_spare(self, sequence: Sequence) -> None:
        if sequence.spare >= 0:
            self.residents.abandon(sequence.spare)
            sequence.spare = -1

    def _wait_again(self, sequence: Sequence) -> None:
        sequence.slot = sequence.spare = -1
        sequence.n_computed = 0
        sequence.draft = []
        sequence.replaying = sequence.unsettled = sequence.shifted = False
        sequence.state = State.WAITING
        self.add(sequence)

    def _alike(self, sequence: Sequence) -> list[Sequence]:
        """What runs with the same adapters: others' states are of no use to it."""
        return [other for other in self.running if other.steering.key == sequence.steering.key]

    def _holders(self, sequence: Sequence) -> list[Holder]:
        usable = (other for other in self._alike(sequence) if not (other.unsettled or other.shifted))
        return [Holder(other.slot, other.tokens, other.n_usable) for other in usable if other.n_usable == other.n_computed]

    def _should_wait(self, sequence: Sequence, resident: int) -> bool:
        """Whether somebody is about to compute so much of the same prefix that it pays to wait for it."""
        for other in self._alike(sequence) if self.residents.keep else ():
            if other.n_pending > 1 and not other.shifted:
                common = min(common_prefix(other.tokens, sequence.tokens), len(sequence.tokens) - 1)
                if not self.residents.cuttable:
                    # Such a state is of use only where it is kept.
                    common = max((length for length in other.checkpoints if length <= common), default=0)
                there = max(resident, other.n_computed)
                # Having waited for most of a long prefix, one waits for the rest of it, too.
                if common >= there + MIN_SHARED_TOKENS or common > there >= MIN_SHARED_TOKENS:
                    return True
        return False

    def _start(self, sequence: Sequence, found: Lookup) -> bool:
        # One cell more for everybody, whose next token needs it.
        reserved = sum(other.n_pending for other in self.running) + len(self.running) + 1
        place = self.residents.start(sequence.tokens, found.donor, reserved if self.running else 0)
        if place is None:
            return False
        self.waiting.remove(sequence)
        sequence.slot, sequence.n_computed = place
        # What it goes on from stays resident, and serves nearly as well as a state a few tokens on.
        nearest = sequence.n_computed + MIN_CHECKPOINT_TOKENS
        sequence.checkpoints = tuple(length for length in sequence.checkpoints if length >= nearest)
        if sequence.n_generated == 0:
            sequence.n_cached = sequence.n_computed
            sequence.cached_from = found.donor.tier if found.donor and sequence.n_computed else ""
            sequence.cache_miss = found.missed if sequence.n_computed == found.length else "room"
        sequence.state = State.RUNNING
        self.running.append(sequence)
        return True


def _up_to_checkpoint(sequence: Sequence) -> int:
    """Tokens until the next length at which the state is to be kept; all, if there is none."""
    ahead = (length - sequence.n_computed for length in sequence.checkpoints if length > sequence.n_computed)
    return min(ahead, default=sequence.n_pending)


def _up_to_media(sequence: Sequence) -> int:
    """Tokens until the next picture or sound; all, if there is none."""
    run = next_run(sequence.request.media, sequence.n_computed)
    return run.start - sequence.n_computed if run else sequence.n_pending
