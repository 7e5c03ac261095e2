"""What became of drafts, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SpeculationStats:
    """Drafts of one request, or of an engine.

    Attributes:
        n_passes: int, batches of the model in which answers went on, counted for each answer.
        n_tokens: int, tokens that these gave.
        drafted, accepted: tuples of int: how many first, second, ... tokens of drafts were checked, and how many of these were
            right. What stands behind the end of an answer is not checked.
        draft_seconds: float, guessing, and keeping the draft's own context in step.
        verify_seconds: float, batches with a draft in them; a request has a share of it by its tokens.
        rollback_seconds: float, taking back what was wrong.
    """

    n_passes: int
    n_tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float
    rollback_seconds: float

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted)

    @property
    def acceptance(self) -> float:
        """The part of all drafted tokens that was right; 0 without any."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a batch of the model gave an answer; 1 without drafts, 0 without an answer."""
        return self.n_tokens / self.n_passes if self.n_passes else 0.0


@dataclass
class Tally:
    """The same while it is counted."""

    n_passes: int = 0
    n_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rollback_seconds: float = 0.0

    def step(self, n_tokens: int, n_drafted: int, n_accepted: int) -> None:
        """An answer went on by so many tokens, after a draft of `n_drafted`."""
        self.n_passes += 1
        self.n_tokens += n_tokens
        missing = n_drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for at in range(n_drafted):
            self.drafted[at] += 1
            self.accepted[at] += at < n_accepted

    def stats(self) -> SpeculationStats:
        return SpeculationStats(**{**vars(self), "drafted": tuple(self.drafted), "accepted": tuple(self.accepted)})
