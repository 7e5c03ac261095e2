"""When drafts pay, and how long they should be: arithmetic, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.speculation.throttle import MAX_PAUSE_TOKENS, PROBE_TOKENS, StepCosts, Throttle


def linear(share: float):
    """A machine on which each further token costs a share of a step."""
    return lambda n_tokens: share * n_tokens


def answer(throttle: Throttle, n_tokens: int, extra, right) -> tuple[float, int]:
    """Plays an answer of so many tokens; `right(position, drafted)` says how many are right. Gives steps' cost and drafts."""
    at, cost, n_drafts = 0, 0.0, 0
    while at < n_tokens:
        drafted = throttle.n_tokens(at, extra)
        accepted = 0
        cost += 1
        if drafted:
            n_drafts += 1
            accepted = right(at, drafted)
            cost += extra(drafted)
        at += 1 + accepted
        if drafted:
            throttle.observe(drafted, accepted, at)
    return cost, n_drafts


def test_where_all_is_right_drafts_grow_to_the_most_and_pay():
    throttle = Throttle(48)
    cost, _ = answer(throttle, 1000, linear(0.43), lambda at, drafted: drafted)
    assert throttle.n_tokens(1000, linear(0.43)) == 48
    assert 1000 / cost > 2.1, "what is possible is 49 / (1 + 48 * 0.43)"


def test_where_nothing_is_right_little_is_lost():
    for share in (0.1, 0.43, 0.8):
        cost, n_drafts = answer(Throttle(48), 1000, linear(share), lambda at, drafted: 0)
        assert cost < 1030 and n_drafts < 20


def test_pauses_grow_and_a_change_for_the_better_is_noticed():
    throttle = Throttle(48)
    answer(throttle, 2000, linear(0.43), lambda at, drafted: 0)
    cost, _ = answer(throttle, 4000, linear(0.43), lambda at, drafted: drafted if at > 2000 else 0)
    assert cost < 2000 + MAX_PAUSE_TOKENS + 2000 / 2


@pytest.mark.parametrize(("share", "most"), [(0.0, 48), (0.02, 48), (0.43, 8), (0.8, 2), (1.0, PROBE_TOKENS)])
def test_the_dearer_a_token_the_shorter_the_draft(share, most):
    """With 9 of 10 right, p^k falls below the cost of a token at ln(cost) / ln(0.9)."""
    throttle = Throttle(48)
    for _ in range(60):
        throttle.observe(9, 9, 0)
        throttle.observe(9, 8, 0)
        throttle.observe(1, 0, 0)
    assert 0.85 < throttle.acceptance < 0.95
    assert throttle.n_tokens(0, linear(share)) <= most


def test_computing_the_right_part_again_makes_drafts_shorter():
    lengths = []
    for replays in (False, True):
        throttle = Throttle(48, replays)
        for _ in range(10):
            throttle.observe(8, 6, 0)
        lengths.append(throttle.n_tokens(0, linear(0.1)))
    assert lengths[0] > lengths[1] > 0


def test_after_a_pause_one_short_draft_is_tried():
    throttle = Throttle(48)
    for at in range(20):
        throttle.observe(8, 0, at)
    assert throttle.n_tokens(20, linear(0.43)) == PROBE_TOKENS
    throttle.observe(PROBE_TOKENS, 0, 21)
    assert throttle.n_tokens(22, linear(0.43)) == 0
    assert throttle.n_tokens(21 + MAX_PAUSE_TOKENS, linear(0.43)) == PROBE_TOKENS


def test_costs_are_those_of_the_steps_seen_and_a_guess_beyond_them():
    costs = StepCosts()
    assert costs.extra(1, 8) == 8 * 0.25
    costs.observe(1, 0.010)
    assert costs.extra(1, 8) == 8 * 0.25, "only one size is known"
    costs.observe(9, 0.050)
    assert costs.extra(1, 8) == pytest.approx(3.0, abs=0.2), "sizes up to 12 share a place"
    assert costs.extra(1, 0) == 0
    costs.observe(4, 0.040)
    assert costs.extra(4, 8) == pytest.approx(4 * (0.050 / 0.040 - 1))
    assert costs.extra(1, 100) > costs.extra(1, 8)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-6, 10)), max_size=30), st.integers(1, 64), st.integers(0, 300))
def test_costs_are_never_negative_and_always_a_number(steps, n_sequences, n_more):
    costs = StepCosts()
    for n_tokens, seconds in steps:
        costs.observe(n_tokens, seconds)
    assert 0 <= costs.extra(n_sequences, n_more) < float("inf")


@given(
    outcomes=st.lists(st.tuples(st.integers(1, 48), st.floats(0, 1)), max_size=60),
    share=st.floats(0, 2),
    n_max=st.integers(1, 48),
)
def test_a_draft_is_never_longer_than_the_most(outcomes, share, n_max):
    throttle = Throttle(n_max)
    for at, (n_drafted, part) in enumerate(outcomes):
        drafted = min(n_drafted, n_max)
        throttle.observe(drafted, round(part * drafted), at)
        assert 0 <= throttle.n_tokens(at, linear(share)) <= n_max
