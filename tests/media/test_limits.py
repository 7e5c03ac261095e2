"""Bounds of media: each is checked, and named when it is none."""

from __future__ import annotations

from dataclasses import fields

import pytest

from localllm.errors import InvalidRequestError
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits

NUMBERS = [field.name for field in fields(MediaLimits) if field.type != "bool"]
WHOLE = [field.name for field in fields(MediaLimits) if field.type == "int"]
SWITCHES = [field.name for field in fields(MediaLimits) if field.type == "bool"]


def test_addresses_are_not_fetched_and_lead_nowhere_private_unless_asked_for():
    assert not DEFAULT_LIMITS.allow_urls and not DEFAULT_LIMITS.allow_private_addresses


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, True, "9", None, float("nan"), float("inf")])
def test_what_is_no_bound_is_an_error_that_names_it(name, value):
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        MediaLimits(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_counted_has_no_fractions(name):
    with pytest.raises(InvalidRequestError, match=f"^{name}: 1.5 is no whole number"):
        MediaLimits(**{name: 1.5})


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_switch_is_on_or_off(name, value):
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        MediaLimits(**{name: value})


@pytest.mark.parametrize("name", ["max_seconds", "fetch_seconds", "decode_seconds"])
def test_seconds_may_be_whole_or_not(name):
    assert getattr(MediaLimits(**{name: 2}), name) == 2
    assert getattr(MediaLimits(**{name: 0.5}), name) == 0.5
