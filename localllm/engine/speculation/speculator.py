"""Asks the drafter for the sequences whose drafts pay, and tells it what became of them."""

from __future__ import annotations

from dataclasses import dataclass

from localllm.engine.config import SpeculationConfig
from localllm.engine.sequence import Sequence, State
from localllm.engine.speculation.throttle import StepCosts, Throttle
from localllm.native.handles import Drafter, Model, Proposal


@dataclass
class _Track:
    """What is remembered of one sequence: its place with the drafter, how many of its tokens that knows, after
    how many were dropped, its throttle, and how much of the last draft was right (-1: not checked)."""

    slot: int
    n_known: int
    n_dropped: int
    throttle: Throttle
    n_accepted: int = -1


class Speculator:
    """Drafts for the running sequences of one engine.

    Args:
        model: Model.
        config: SpeculationConfig whose kind is not "none".
        n_sequences: int, most sequences that run together.
        replays: bool, whether the right part of a draft that is wrong somewhere has to be computed again.
    """

    def __init__(self, model: Model, config: SpeculationConfig, n_sequences: int, replays: bool) -> None:
        self._config = config
        self._replays = replays
        self._n_decoding = 0
        self._drafter = Drafter(model, config.options(), n_sequences, config.n_max)
        self._costs = StepCosts()
        self._free = list(range(n_sequences))
        self._tracks: dict[Sequence, _Track] = {}

    def propose(self, running: list[Sequence], limit: int) -> None:
        """Gives each sequence a `draft` of what may follow its tokens; [] where none is wanted or found.

        Args:
            running: the sequences under way.
            limit: int, most tokens of a sequence.
        """
        self._n_decoding = sum(sequence.decoding for sequence in running)
        for gone in [sequence for sequence in self._tracks if sequence.state is not State.RUNNING]:
            self._free.append(self._tracks.pop(gone).slot)
        asked: list[tuple[Sequence, _Track]] = []
        proposals: list[Proposal] = []
        for sequence in running:
            sequence.draft = []
            if not sequence.decoding or not sequence.request.speculate:
                continue
            track = self._tracks.get(sequence) or self._begin(sequence)
            if track.n_dropped != sequence.n_dropped:
                self._drafter.begin(track.slot, sequence.tokens)
                track.n_known, track.n_dropped, track.n_accepted = len(sequence.tokens), sequence.n_dropped, -1
            n_max = self._n_max(sequence, track, limit)
            if n_max >= max(1, self._config.n_min):
                proposals.append(Proposal(track.slot, sequence.tokens[track.n_known :], track.n_accepted, n_max))
                asked.append((sequence, track))
        for (sequence, track), draft in zip(asked, self._drafter.propose(proposals) if proposals else (), strict=True):
            track.n_known, track.n_accepted = len(sequence.tokens), -1
            sequence.draft = draft if len(draft) >= self._config.n_min else []

    def stepped(self, n_tokens: int, seconds: float) -> None:
        """A step without a prompt took so long."""
        self._costs.observe(n_tokens, seconds)

    def checked(self, sequence: Sequence, n_drafted: int, n_accepted: int) -> None:
        """A draft was compared with what the model chose: so many of its tokens were right."""
        track = self._tracks[sequence]
        track.n_accepted = n_accepted
        track.throttle.observe(n_drafted, n_accepted, sequence.n_generated)

    def close(self) -> None:
        self._drafter.close()

    # ---- inside

    def _begin(self, sequence: Sequence) -> _Track:
        track = _Track(self._free.pop(), len(sequence.tokens), sequence.n_dropped, Throttle(self._config.n_max, self._replays))
        self._drafter.begin(track.slot, sequence.tokens)
        self._tracks[sequence] = track
        return track

    def _n_max(self, sequence: Sequence, track: _Track, limit: int) -> int:
        # One token is chosen in any case; what is drafted beyond the end is computed for nothing.
        room = limit - len(sequence.tokens)
        if sequence.n_left is not None:
            room = min(room, sequence.n_left - 1)
        if self._config.throttle and room > 0:
            return min(room, track.throttle.n_tokens(sequence.n_generated, self._extra))
        return min(room, self._config.n_max)

    def _extra(self, n_tokens: int) -> float:
        return self._costs.extra(self._n_decoding, n_tokens)
