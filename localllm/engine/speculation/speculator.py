"""Asks for drafts where they pay, and hears what became of them."""

from __future__ import annotations

import logging
import time

from localllm.engine.scheduler import Chunk
from localllm.engine.sequence import Sequence, State
from localllm.engine.speculation.config import MODEL_KINDS, SpeculationConfig
from localllm.engine.speculation.sources import ModelSource, NgramSource, Source, Wanted
from localllm.engine.speculation.tally import Tally
from localllm.engine.speculation.throttle import StepCosts, Throttle

logger = logging.getLogger("localllm.engine")

# A step in which a sequence takes in so many tokens says more of prompts than of answers.
PROMPT_TOKENS = 32
# Of so many drafted tokens at least this part is right if a draft knows its model at all.
USELESS_TOKENS, USELESS_SHARE = 256, 0.01


class Speculator:
    """Drafts for the running sequences of one engine.

    Args:
        config: SpeculationConfig whose kind is not "none".
        sources: Sources, in the order in which they are asked.
        replays: bool, whether the right part of a draft that is wrong somewhere has to be computed again.

    Attributes:
        tally: Tally of all requests.
    """

    def __init__(self, config: SpeculationConfig, sources: list[Source], replays: bool) -> None:
        self._config = config
        self._sources = sources
        self._n_max = max(source.n_max for source in sources)
        self._replays = replays
        self._n_decoding = 0
        self._costs = StepCosts()
        self._throttles: dict[Sequence, Throttle] = {}
        self._asked: dict[Sequence, Source] = {}
        self._told = False
        self.tally = Tally()

    def propose(self, running: list[Sequence], limit: int) -> None:
        """Gives each sequence a `draft` of what may follow its tokens; [] where none is wanted or found.

        Args:
            running: the sequences under way.
            limit: int, most tokens of a sequence.
        """
        self._n_decoding = sum(sequence.decoding for sequence in running)
        for gone in [sequence for sequence in self._throttles if sequence.state is not State.RUNNING]:
            del self._throttles[gone]
        self._asked.clear()
        wanted: list[Wanted] = []
        for sequence in running:
            sequence.draft = []
            if sequence.decoding and sequence.request.speculate:
                n_max = self._room(sequence, limit)
                if n_max >= max(1, self._config.n_min):
                    wanted.append(Wanted(sequence, n_max))
        if wanted:
            begin = time.perf_counter()
            self._ask(wanted)
            seconds = time.perf_counter() - begin
            self._costs.drafted(len(wanted), seconds)
            self._spent([one.sequence for one in wanted], seconds)

    def verified(
        self,
        chunks: list[Chunk],
        n_accepted: dict[Sequence, int],
        n_tokens: dict[Sequence, int],
        seconds: float,
        follow_seconds: float,
    ) -> None:
        """A batch was decoded.

        Args:
            chunks: what was in it.
            n_accepted: tokens of each sequence's draft that were right.
            n_tokens: tokens that each sequence got.
            seconds: float, how long it took.
            follow_seconds: float, how long a draft's context took to take it in, which it does whether or not it drafts.
        """
        n_all = sum(chunk.n_tokens for chunk in chunks)
        if all(chunk.sample and chunk.count < PROMPT_TOKENS for chunk in chunks):
            self._costs.observe(n_all, seconds + follow_seconds)
        self._spent([chunk.sequence for chunk in chunks], follow_seconds)
        self.tally.verify_seconds += seconds if any(chunk.draft for chunk in chunks) else 0.0
        for chunk in chunks:
            sequence = chunk.sequence
            n_right, n_new = n_accepted.get(sequence, 0), n_tokens.get(sequence, 0)
            # Where the answer ended within its draft, the rest of that was not checked.
            n_checked = len(chunk.draft) if n_new > n_right else n_right
            if chunk.decode and sequence.request.speculate:
                for tally in (sequence.tally, self.tally):
                    tally.step(n_new, n_checked, n_right)
            if chunk.draft:
                sequence.tally.verify_seconds += seconds * chunk.n_tokens / n_all
                self._asked[sequence].checked(sequence, n_right)
                self._throttles[sequence].observe(n_checked, n_right, sequence.n_generated)
        self._tell_of_useless_drafts()

    def rolled_back(self, sequence: Sequence, seconds: float) -> None:
        """Taking back what was wrong for a sequence took so long."""
        for tally in (sequence.tally, self.tally):
            tally.rollback_seconds += seconds

    def close(self) -> None:
        for source in self._sources:
            source.close()

    # ---- inside

    def _ask(self, wanted: list[Wanted]) -> None:
        """Asks one source after the other, each for what those before it have found nothing for."""
        for source in self._sources:
            for one, draft in zip(wanted, source.propose(wanted), strict=True):
                if draft and len(draft) >= self._config.n_min:
                    one.sequence.draft = draft
                    self._asked[one.sequence] = source
            wanted = [one for one in wanted if not one.sequence.draft]
            if not wanted:
                return

    def _tell_of_useless_drafts(self) -> None:
        """Once, if next to nothing of what a model drafted was right: before, only sizes and vocabularies can be compared."""
        n_drafted, n_right = sum(self.tally.drafted), sum(self.tally.accepted)
        if self._told or self._config.model_kind is None or n_drafted < USELESS_TOKENS:
            return
        self._told = True
        if n_right < USELESS_SHARE * n_drafted:
            name = self._config.draft or "the draft"
            logger.warning("%d of %d drafted tokens were right; was %s made for this model?", n_right, n_drafted, name)

    def _spent(self, sequences: list[Sequence], seconds: float) -> None:
        self.tally.draft_seconds += seconds
        for sequence in sequences:
            sequence.tally.draft_seconds += seconds / len(sequences)

    def _room(self, sequence: Sequence, limit: int) -> int:
        # One token is chosen in any case; what is drafted beyond the end is computed for nothing.
        room = limit - len(sequence.tokens)
        if sequence.n_left is not None:
            room = min(room, sequence.n_left - 1)
        throttle = self._throttles.get(sequence)
        if throttle is None:
            throttle = self._throttles[sequence] = Throttle(self._n_max, self._replays)
        if self._config.throttle and room > 0:
            return min(room, throttle.n_tokens(sequence.n_generated, self._extra))
        return min(room, self._n_max)

    def _extra(self, n_tokens: int) -> float:
        return self._costs.extra(self._n_decoding, n_tokens)


def sources_of(config: SpeculationConfig, ngrams: NgramSource | None, model: ModelSource | None) -> list[Source]:
    """The sources in the order of the kinds; all n-gram kinds are one, at the place of the first."""
    order: list[Source] = []
    for kind in config.kinds:
        source: Source | None = model if kind in MODEL_KINDS else ngrams
        assert source is not None
        if source not in order:
            order.append(source)
    return order
