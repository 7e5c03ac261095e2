"""Bounds of numbers, against Python's own comparison."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.chat.constraints.numbers import Bound, integer, integers, number


def as_regex(gbnf: str) -> re.Pattern[str]:
    """Literals, classes, groups and repetitions mean the same in both."""
    parts = re.findall(r'"((?:\\.|[^"])*)"|(\[[^\]]*\]|[(){}|?*]|\{[^}]*\})|([0-9,]+)|\s+', gbnf)
    return re.compile("".join(re.escape(literal) if literal else other or number for literal, other, number in parts))


BOUNDS = st.one_of(
    st.none(),
    st.builds(Bound, st.decimals(-2000, 2000, places=3).map(Decimal.normalize), st.booleans()),
    st.builds(Bound, st.integers(-120, 120).map(Decimal), st.booleans()),
)
NUMBERS = st.one_of(st.decimals(-2100, 2100, places=4), st.integers(-130, 130).map(Decimal))


def within(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low.value or (low.inclusive and value == low.value)
    return above and (high is None or value < high.value or (high.inclusive and value == high.value))


@given(BOUNDS, BOUNDS, st.lists(NUMBERS, min_size=20, max_size=20))
@settings(max_examples=500)
def test_numbers_match_if_they_are_within_the_bounds(low, high, values):
    try:
        pattern = as_regex(number(low, high))
    except ValueError:
        assert low and high and not any(within(value, low, high) for value in (low.value, (low.value + high.value) / 2))
        return
    near = [bound.value + Decimal(step).scaleb(-3) for bound in (low, high) if bound for step in range(-12, 13)]
    for value in [*values, *near]:
        shortest = f"{value.normalize():f}"
        assert bool(pattern.fullmatch(shortest)) == within(value, low, high), (shortest, low, high)
        assert within(value, low, high) or not pattern.fullmatch(f"{value:f}"), "however it is written"


@given(st.integers(0, 3000), st.one_of(st.none(), st.integers(0, 3000)))
@settings(max_examples=300)
def test_integers(low, high):
    found = integers(low, high)
    pattern = as_regex(" | ".join(found)) if found else re.compile("(?!)")
    for value in {0, 1, 9, 10, 99, 100, 101, 999, 1000, low - 1, low, low + 1, (high or 0) - 1, high or 0, (high or 0) + 1, 5000}:
        assert bool(pattern.fullmatch(str(value))) == (value >= low and (high is None or value <= high)), (value, found)


@pytest.mark.parametrize("text", ["", "1.", ".5", "01", "1e3", "+1", "--1", "1.2.3", "-"])
def test_what_is_no_number_never_matches(text):
    for low, high in (
        (None, None),
        (Bound(Decimal(0), True), None),
        (Bound(Decimal("-0.5"), False), Bound(Decimal("1.25"), True)),
    ):
        assert not as_regex(number(low, high)).fullmatch(text)


HUGE = st.one_of(st.integers(-200, 200), st.integers(-(10**35), 10**35), st.sampled_from([10**15, 10**16, 2**63, 2**64, 10**25]))


@given(st.one_of(st.none(), HUGE), st.one_of(st.none(), HUGE))
@settings(max_examples=300)
def test_whole_numbers_of_any_size(low, high):
    try:
        pattern = as_regex(integer(low, high))
    except ValueError:
        assert low is not None and high is not None and low > high
        return
    near = [bound + step for bound in (low, high) if bound is not None for step in (-10, -1, 0, 1, 10)]
    for value in [*near, 0, 1, -1, 10**15, -(10**15)]:
        within = (low is None or value >= low) and (high is None or value <= high)
        assert bool(pattern.fullmatch(str(value))) == within, (value, low, high)


@pytest.mark.parametrize("exponent", [14, 15, 16, 17, 25, 80])
def test_bounds_beyond_the_digits_that_are_written_freely(exponent):
    for text in (f"1e{exponent}", f"7.25e{exponent}"):
        value = Decimal(text)
        for pattern in (as_regex(integer(int(value), None)), as_regex(number(Bound(value, True), None))):
            assert pattern.fullmatch(f"{value:f}") and pattern.fullmatch("8" + "0" * exponent)
            assert not pattern.fullmatch("9" * exponent) and not pattern.fullmatch("-" + "9" * exponent)
        pattern = as_regex(number(None, Bound(value.copy_negate(), True)))
        assert pattern.fullmatch(f"-{value:f}") and not pattern.fullmatch("-" + "9" * exponent) and not pattern.fullmatch("0")


def test_the_largest_float_is_no_bound():
    largest = Bound(Decimal("1.7976931348623157e308"), True)
    assert number(Bound(largest.value.copy_negate(), True), largest) == number(None, None)
    assert integer(-int(largest.value), int(largest.value)) == integer(None, None)


def test_bounds_keep_all_their_digits():
    low = Decimal("-1234567890123456789012345678901234567890")
    pattern = as_regex(number(Bound(low, True), None))
    assert pattern.fullmatch(f"{low:f}") and not pattern.fullmatch(f"{low:f}"[:-1] + "1")
