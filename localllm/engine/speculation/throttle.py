"""Whether drafts pay, and how long they should be. Pure policy: it is told what steps cost and what became of drafts.

A batch of more tokens takes longer, so a draft is worth its place only if enough of it is right. How much that is depends on the
machine, the model and on how many sequences share the batch, so it is measured. The unit of gains and costs is one token of
plain decoding.

If each drafted token is right with probability p as long as all before it were, a draft of k tokens brings p + p^2 + ... + p^k of
them (Leviathan et al., arXiv:2211.17192, section 3.1, without the token that every step brings).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

# What a token adds to a step larger than any seen so far. Too high a guess only delays the first long draft.
UNKNOWN_COST = 0.25
# Before anything is known: right in 85 of 100 cases, and open to be convinced of the contrary.
FIRST_RIGHT, FIRST_WRONG = 1.7, 0.3
# What a draft's outcome still weighs after the next one.
MEMORY = 0.9
FIRST_PAUSE_TOKENS = 16
MAX_PAUSE_TOKENS = 512
PROBE_TOKENS = 4
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class StepCosts:
    """How long a step takes, by the number of its tokens, and a draft; learned from those that were made."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._seconds: dict[int, float] = {}
        self._draft_seconds = 0.0

    def drafted(self, n_drafts: int, seconds: float) -> None:
        """A model has made so many drafts."""
        each = seconds / n_drafts
        self._draft_seconds += 0.2 * (each - self._draft_seconds) if self._draft_seconds else each

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A step that had no prompt in it."""
        size = _bucket(n_tokens)
        known = self._seconds.get(size)
        if known is None:
            bisect.insort(self._sizes, size)
            self._seconds[size] = seconds
        else:
            self._seconds[size] = known + 0.2 * (seconds - known)

    def extra(self, n_sequences: int, n_more: int) -> float:
        """What a draft of `n_more` tokens adds to a step of so many sequences, in tokens of plain decoding."""
        if not self._sizes:
            return n_more * UNKNOWN_COST
        size, largest = n_sequences + n_more, self._sizes[-1]
        plain = self._between(n_sequences)
        beyond = min(n_more, max(0, size - largest))
        more = max(0.0, self._between(size) / plain - 1) + self._draft_seconds / plain
        return more * n_sequences + beyond * UNKNOWN_COST

    def _between(self, n_tokens: int) -> float:
        """Seconds of a step of so many tokens, on the line between the sizes seen; outside of them, those of the nearest."""
        at = bisect.bisect_left(self._sizes, n_tokens)
        if at == len(self._sizes):
            return self._seconds[self._sizes[-1]]
        high = self._sizes[at]
        if at == 0:
            return self._seconds[high]
        low = self._sizes[at - 1]
        share = (n_tokens - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])


def _bucket(n_tokens: int) -> int:
    step = 1 if n_tokens <= 8 else 4 if n_tokens <= 32 else 16
    return -(-n_tokens // step) * step


class Throttle:
    """The length of one sequence's next draft: the one that promises most.

    While none promises anything, drafts pause, each time twice as long, and are then tried again with a short one.

    Args:
        n_max: int, most tokens of a draft.
        replays: bool, whether the right part of a draft that is wrong somewhere has to be computed again.
    """

    def __init__(self, n_max: int, replays: bool = False) -> None:
        self._n_max = n_max
        self._replays = replays
        self._right, self._wrong = FIRST_RIGHT, FIRST_WRONG
        self._pause = FIRST_PAUSE_TOKENS
        self._resume_at = 0
        self._probing = False

    @property
    def acceptance(self) -> float:
        """The probability that a drafted token is right, if all before it were."""
        return self._right / (self._right + self._wrong)

    def n_tokens(self, n_generated: int, extra: Callable[[int], float]) -> int:
        """Most tokens to draft now.

        Args:
            n_generated: tokens of the answer so far.
            extra: what a number of tokens adds to the step, in tokens of plain decoding.

        Returns:
            int, 0 during a pause.
        """
        if n_generated < self._resume_at:
            return 0
        gain, length = max((self._gain(length, extra), length) for length in (*_LENGTHS, self._n_max) if length <= self._n_max)
        self._probing = gain <= 0
        return min(PROBE_TOKENS, self._n_max) if self._probing else length

    def observe(self, n_drafted: int, n_accepted: int, n_generated: int) -> None:
        """A draft of so many tokens was checked, and so many of them were right; the answer has `n_generated` now."""
        self._right = MEMORY * self._right + n_accepted
        self._wrong = MEMORY * self._wrong + (n_accepted < n_drafted)
        if not self._probing:
            self._pause = FIRST_PAUSE_TOKENS
        elif n_accepted < n_drafted:
            self._resume_at = n_generated + self._pause
            self._pause = min(MAX_PAUSE_TOKENS, 2 * self._pause)

    def _gain(self, length: int, extra: Callable[[int], float]) -> float:
        p = self.acceptance
        right = length if p == 1 else p * (1 - p**length) / (1 - p)
        cost = extra(length)
        if self._replays:
            cost += (1 - p**length) * extra(1 + round(right))
        return right - cost
