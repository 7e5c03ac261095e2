"""Figures from answers. Pure: it is told what was answered, and how long it took."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localllm.engine.request import Generation
from localllm.engine.speculation.tally import SpeculationStats
from localllm.errors import LocalLLMError

#: The answers of one round: of each group of requests that were asked at once.
Round = Sequence[Sequence[Generation]]


@dataclass(frozen=True)
class PromptResult:
    """What one kind came to with one prompt; see Result. Tokens are those of the last round.

    Attributes:
        prompt_tokens, completion_tokens: int.
        tokens_per_second: float, of the answer, the others at the same time not counted; None: it had no second token.
        ratio: float, to plain decoding.
        tokens_per_pass: float.
        same_text: bool, in every round what plain decoding said in it.
    """

    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float | None
    ratio: float | None
    tokens_per_pass: float
    same_text: bool


@dataclass(frozen=True)
class Result:
    """What one kind of speculation came to. Rates are medians over the rounds, of all requests together.

    Attributes:
        name: str, as it was given; "none" is plain decoding.
        kind: str, what it came to: the kinds that were asked, joined by "+"; "" if it failed.
        error: why there are no figures, or None.
        prefill_tokens_per_second: float, tokens of prompts, until all answers have begun.
        tokens_per_second: float, tokens of answers after the first of each; None: no answer had a second one.
        ratio: float, the median of the ratios to plain decoding in the same round; below 1 speculation loses.
        ratios: these, of each round.
        tokens_per_pass: float, tokens that a batch of the model gave an answer; 1 without drafts.
        speculation: SpeculationStats of all rounds; None for plain decoding.
        draft_share, verify_share, rollback_share: float, parts of the whole time, prompts included, that went into guessing (with
            keeping the draft's own context in step), into batches with a draft in them, and into taking back what was wrong.
        n_same: int, prompts whose text was that of plain decoding in every round.
        prompts: a PromptResult for each prompt.
    """

    name: str
    kind: str = ""
    error: LocalLLMError | None = None
    prefill_tokens_per_second: float | None = None
    tokens_per_second: float | None = None
    ratio: float | None = None
    ratios: tuple[float, ...] = ()
    tokens_per_pass: float = 0.0
    speculation: SpeculationStats | None = None
    draft_share: float = 0.0
    verify_share: float = 0.0
    rollback_share: float = 0.0
    n_same: int = 0
    prompts: tuple[PromptResult, ...] = ()

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The part of first, second, ... tokens of drafts that was right, of those that were checked."""
        stats = self.speculation
        return tuple(right / n for right, n in zip(stats.accepted, stats.drafted, strict=True)) if stats else ()


def result(name: str, kind: str, rounds: Sequence[Round], plain: Sequence[Round], n_prompts: int) -> Result:
    """The figures of one kind.

    Args:
        name, kind: str, see Result.
        rounds: its answers in each round, to the prompts in turn, begun anew when all were asked.
        plain: those of plain decoding in the same rounds.
        n_prompts: int.
    """
    speeds = [decode_rate(each) for each in rounds]
    ratios = _ratios(speeds, [decode_rate(each) for each in plain])
    prompts = tuple(_prompt(at, n_prompts, rounds, plain) for at in range(n_prompts))
    answers = [answer for each in rounds for group in each for answer in group]
    stats = added(answer.speculation for answer in answers if answer.speculation)
    seconds = sum(_seconds(group) for each in rounds for group in each) or 1.0
    n_passes = stats.n_passes if stats else sum(max(len(answer.tokens) - 1, 0) for answer in answers)
    n_more = stats.n_tokens if stats else n_passes
    return Result(
        name,
        kind,
        prefill_tokens_per_second=_median(prefill_rate(each) for each in rounds),
        tokens_per_second=_median(speeds),
        ratio=_median(ratios),
        ratios=tuple(ratios),
        tokens_per_pass=n_more / n_passes if n_passes else 0.0,
        speculation=stats,
        draft_share=stats.draft_seconds / seconds if stats else 0.0,
        verify_share=stats.verify_seconds / seconds if stats else 0.0,
        rollback_share=stats.rollback_seconds / seconds if stats else 0.0,
        n_same=sum(prompt.same_text for prompt in prompts),
        prompts=prompts,
    )


def decode_rate(answers: Round) -> float | None:
    """Tokens per second from the first token of a group to its last; the first token of each answer is its prompt's."""
    n_tokens = sum(max(len(answer.tokens) - 1, 0) for group in answers for answer in group)
    seconds = sum(max(map(_end, group)) - min(map(_first, group)) for group in answers)
    return n_tokens / seconds if n_tokens and seconds > 0 else None


def prefill_rate(answers: Round) -> float | None:
    """Tokens of prompts per second until each answer of a group has its first token."""
    n_tokens = sum(answer.usage.prompt_tokens for group in answers for answer in group)
    seconds = sum(max(map(_first, group)) - min(answer.timings.queue_seconds for answer in group) for group in answers)
    return n_tokens / seconds if seconds > 0 else None


def added(stats: Iterable[SpeculationStats]) -> SpeculationStats | None:
    """The statistics of several answers together; None of none."""
    all_stats = list(stats)
    if not all_stats:
        return None

    def places(name: str) -> tuple[int, ...]:
        return tuple(map(sum, itertools.zip_longest(*(getattr(one, name) for one in all_stats), fillvalue=0)))

    names = ("n_passes", "n_tokens", "draft_seconds", "verify_seconds", "rollback_seconds")
    sums = {name: sum(getattr(one, name) for one in all_stats) for name in names}
    return SpeculationStats(drafted=places("drafted"), accepted=places("accepted"), **sums)


def _prompt(at: int, n_prompts: int, rounds: Sequence[Round], plain: Sequence[Round]) -> PromptResult:
    mine, theirs = ([_answers_to(at, n_prompts, each) for each in given] for given in (rounds, plain))
    speeds = [_own_rate(answers[0]) for answers in mine]
    stats = added(answer.speculation for answers in mine for answer in answers if answer.speculation)
    last = mine[-1][0]
    return PromptResult(
        last.usage.prompt_tokens,
        len(last.tokens),
        _median(speeds),
        _median(_ratios(speeds, [_own_rate(answers[0]) for answers in theirs])),
        stats.tokens_per_pass if stats else float(len(last.tokens) > 1),
        [[answer.text for answer in answers] for answers in mine] == [[answer.text for answer in answers] for answers in theirs],
    )


def _answers_to(at: int, n_prompts: int, answers: Round) -> list[Generation]:
    return [answer for group in answers for answer in group][at::n_prompts]


def _ratios(mine: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    return [one / other for one, other in zip(mine, theirs, strict=True) if one is not None and other]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _own_rate(answer: Generation) -> float | None:
    n_tokens, seconds = len(answer.tokens) - 1, answer.timings.decode_seconds
    return n_tokens / seconds if n_tokens > 0 and seconds > 0 else None


def _first(answer: Generation) -> float:
    """Seconds from asking to the first token."""
    return answer.timings.queue_seconds + answer.timings.prefill_seconds


def _end(answer: Generation) -> float:
    return _first(answer) + answer.timings.decode_seconds


def _seconds(group: Sequence[Generation]) -> float:
    return max(map(_end, group)) - min(answer.timings.queue_seconds for answer in group)
