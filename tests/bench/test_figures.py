"""Figures of answers that are made up, so that each can be computed by hand."""

from __future__ import annotations

import pytest

from localllm.bench.figures import added, result
from localllm.engine.request import Generation, Timings, Usage
from localllm.engine.speculation.tally import SpeculationStats


def answer(text: str, prompt: int, seconds: tuple[float, float, float], stats: SpeculationStats | None = None) -> Generation:
    """An answer with a token for each letter; `seconds` in the queue, on the prompt, on the answer."""
    usage = Usage(prompt_tokens=prompt, completion_tokens=len(text))
    return Generation(text, tuple(range(len(text))), (), "length", usage, Timings(*seconds), 0, speculation=stats)


def stats(n_passes: int, n_tokens: int, drafted: tuple[int, ...], accepted: tuple[int, ...], *seconds: float) -> SpeculationStats:
    return SpeculationStats(n_passes, n_tokens, drafted, accepted, *seconds)


PLAIN = [[[answer("abcde", 10, (0, 1, 4))], [answer("xyz", 20, (0, 2, 4))]]] * 3


def test_rates_are_tokens_after_the_first_and_ratios_are_of_the_same_round():
    fast = [[[answer("abcde", 10, (0, 1, 4 / factor))], [answer("xyz", 20, (0, 4, 4 / factor))]] for factor in (1, 2, 8)]
    plain, quick = result("none", "none", PLAIN, PLAIN, 2), result("a", "a", fast, PLAIN, 2)
    assert (plain.tokens_per_second, plain.prefill_tokens_per_second, plain.ratio) == (6 / 8, 30 / 3, 1.0)
    assert (quick.tokens_per_second, quick.prefill_tokens_per_second) == (2 * 6 / 8, 30 / 5)
    assert (quick.ratio, quick.ratios) == (2.0, (1.0, 2.0, 8.0))
    assert [(one.prompt_tokens, one.completion_tokens, one.ratio) for one in quick.prompts] == [(10, 5, 2.0), (20, 3, 2.0)]
    assert plain.speculation is None and (plain.tokens_per_pass, plain.acceptance) == (1.0, ())


def test_requests_at_once_count_from_the_first_token_of_any_to_the_last():
    group = [[[answer("abcde", 10, (0.5, 0.5, 4)), answer("abc", 10, (0.5, 1.5, 2))]]]
    both = result("none", "none", group, group, 2)
    assert both.tokens_per_second == (4 + 2) / 4 and both.prefill_tokens_per_second == 20 / 1.5
    assert [one.tokens_per_second for one in both.prompts] == [1.0, 1.0]


def test_statistics_add_up_place_by_place():
    one, two = stats(4, 9, (4, 3, 2), (4, 1, 0), 1, 2, 0.5), stats(6, 6, (1,), (0,), 1, 0, 0)
    assert added([one, two]) == stats(10, 15, (5, 3, 2), (4, 1, 0), 2, 2, 0.5)
    assert added([]) is None


def test_shares_are_parts_of_the_whole_time_prompts_included():
    rounds = [[[answer("abcde", 10, (7, 1, 3), stats(2, 4, (2, 2), (2, 1), 0.4, 2, 0.2))], [answer("xyz", 20, (0, 2, 4))]]]
    found = result("a", "draft-mtp", rounds, PLAIN[:1], 2)
    assert (found.draft_share, found.verify_share, found.rollback_share) == pytest.approx((0.04, 0.2, 0.02))
    assert found.tokens_per_pass == 2.0 and found.acceptance == (1.0, 0.5)


@pytest.mark.parametrize(("texts", "n_same"), [(("abcde", "xyz"), 2), (("abcdf", "xyz"), 1), (("abcd", "xy"), 0)])
def test_a_text_is_the_same_only_if_it_is_in_every_round(texts, n_same):
    other = [[answer(text, 10, (0, 1, 1))] for text in texts]
    found = result("a", "a", [*PLAIN[:2], other], PLAIN, 2)
    assert found.n_same == n_same == sum(one.same_text for one in found.prompts)


def test_prompts_that_were_repeated_to_fill_a_group_are_one():
    group = [[[answer("ab", 1, (0, 1, 1)), answer("cd", 1, (0, 1, 1)), answer("ab", 1, (0, 1, 1))]]]
    off = [[[*group[0][0][:2], answer("ax", 1, (0, 1, 1))]]]
    assert [one.same_text for one in result("a", "a", off, group, 2).prompts] == [False, True]


def test_answers_of_one_token_have_no_rate():
    short = [[[answer("a", 10, (0, 1, 0))]]]
    found = result("a", "a", short, short, 1)
    assert (found.tokens_per_second, found.ratio, found.ratios, found.tokens_per_pass) == (None, None, (), 0.0)
    assert found.prefill_tokens_per_second == 10.0
