"""Who guesses: the text so far, or a draft model that follows the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from localllm.engine.sequence import Sequence, State
from localllm.engine.speculation.config import SpeculationConfig
from localllm.engine.speculation.twin import Twin
from localllm.native.follower import DraftRequest
from localllm.native.handles import Drafter, Model, Proposal


@dataclass(frozen=True)
class Wanted:
    """A draft of at most so many tokens for a sequence."""

    sequence: Sequence
    n_max: int


class Source(Protocol):
    """One way to guess.

    Attributes:
        n_max: int, most tokens of a draft.
    """

    n_max: int

    def propose(self, wanted: list[Wanted]) -> list[list[int]]:
        """A draft for each, in their order; [] where none is found."""
        ...

    def checked(self, sequence: Sequence, n_accepted: int) -> None:
        """So many tokens of its last draft for the sequence were right."""
        ...

    def close(self) -> None: ...


@dataclass
class _Place:
    """Where a sequence is with the n-gram drafter, how many of its tokens that knows, after how many were dropped, and how much
    of the last draft was right (-1: not checked)."""

    slot: int
    n_known: int
    n_dropped: int
    n_accepted: int = -1


class NgramSource:
    """Looks for the newest tokens earlier in the sequence.

    Args:
        model: Model.
        config: SpeculationConfig with n-gram kinds.
        n_sequences: int, most sequences that run together.
    """

    def __init__(self, model: Model, config: SpeculationConfig, n_sequences: int) -> None:
        options = config.ngram_options()
        self.n_max: int = options["n_max"]
        self._drafter = Drafter(model, options, n_sequences, self.n_max)
        self._free = list(range(n_sequences))
        self._places: dict[Sequence, _Place] = {}

    def propose(self, wanted: list[Wanted]) -> list[list[int]]:
        for gone in [sequence for sequence in self._places if sequence.state is not State.RUNNING]:
            self._free.append(self._places.pop(gone).slot)
        proposals = []
        for one in wanted:
            place = self._place(one.sequence)
            news = one.sequence.tokens[place.n_known :]
            proposals.append(Proposal(place.slot, news, place.n_accepted, min(one.n_max, self.n_max)))
        drafts = self._drafter.propose(proposals)
        for one in wanted:
            place = self._places[one.sequence]
            place.n_known, place.n_accepted = len(one.sequence.tokens), -1
        return drafts

    def checked(self, sequence: Sequence, n_accepted: int) -> None:
        self._places[sequence].n_accepted = n_accepted

    def close(self) -> None:
        self._drafter.close()

    def _place(self, sequence: Sequence) -> _Place:
        place = self._places.get(sequence)
        if place is None:
            place = self._places[sequence] = _Place(self._free.pop(), 0, sequence.n_dropped)
        elif place.n_dropped == sequence.n_dropped:
            return place
        self._drafter.begin(place.slot, sequence.tokens)
        place.n_known, place.n_dropped, place.n_accepted = len(sequence.tokens), sequence.n_dropped, -1
        return place


class ModelSource:
    """Asks the draft that follows the target.

    Args:
        twin: gives the Twin of the context in use.
    """

    def __init__(self, twin: Callable[[], Twin]) -> None:
        self._twin = twin
        self.n_max = twin().n_max

    def propose(self, wanted: list[Wanted]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in wanted]
        # What is to be computed again stands between the state and the newest token: nothing can be guessed behind a gap.
        ready = [(at, one) for at, one in enumerate(wanted) if one.sequence.n_pending == 1]
        requests = [
            DraftRequest(one.sequence.slot, one.sequence.n_computed, one.sequence.tokens[-1], min(one.n_max, self.n_max))
            for _, one in ready
        ]
        for (at, _), draft in zip(ready, self._twin().propose(requests) if requests else (), strict=True):
            drafts[at] = draft
        return drafts

    def checked(self, sequence: Sequence, n_accepted: int) -> None:
        """The runner has told the follower itself, before the next batch."""

    def close(self) -> None:
        """The twin goes with its context."""
