"""Drafters, through their handle."""

from __future__ import annotations

import ctypes
import random

import pytest

from localllm.errors import InvalidRequestError
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Drafter, Proposal

KINDS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]


def drafter(qwen3, *chain: str, n_slots: int = 2, **options) -> Drafter:
    return Drafter(qwen3.model, {"chain": list(chain), "n_max": 8, "n_match": 3, "n_min": 1, **options}, n_slots, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stood_behind_the_same_tokens_is_proposed(qwen3, kind):
    text = list(range(100, 140))
    made = drafter(qwen3, kind)
    made.begin(0, [*text, *range(200, 230), *text[:12]])
    (draft,) = made.propose([Proposal(0, [], -1, 8)])
    assert draft and draft == text[12 : 12 + len(draft)]
    (draft,) = made.propose([Proposal(0, text[12:16], 4, 8)])
    assert draft == text[16 : 16 + len(draft)]


@pytest.mark.parametrize("kind", KINDS)
def test_slots_do_not_mix_unless_they_are_to(qwen3, kind):
    made = drafter(qwen3, kind)
    made.begin(0, list(range(100, 160)) * 2)
    made.begin(1, [*range(300, 340), *range(100, 110)])
    (draft,) = made.propose([Proposal(1, [], -1, 8)])
    assert bool(draft) == (kind == "ngram-mod")


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_begins_anew_with_a_shorter_text(qwen3, kind):
    """The peer's maps keep places of the old text, which would be read beyond the end of the new one."""
    made = drafter(qwen3, kind)
    for length in (200, 30, 90, 5, 1, 64):
        made.begin(0, [100 + at % 23 for at in range(length)])
        for step in range(40):
            (draft,) = made.propose([Proposal(0, [100 + (length + step) % 23], step % 3 - 1, 8)])
            assert len(draft) <= 8 and all(100 <= token < 123 for token in draft)


@pytest.mark.parametrize("kind", KINDS)
def test_places_of_media_are_never_proposed(qwen3, kind):
    text = [*range(100, 130), -5, -6, -7, *range(130, 160)]
    made = drafter(qwen3, kind)
    made.begin(0, [*text, *range(200, 220), *range(100, 126)])
    (draft,) = made.propose([Proposal(0, [126], -1, 8)])
    assert draft in ([127, 128, 129][: len(draft)], []) and all(token >= 0 for token in draft)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"chain": []}, "chain"),
        ({"chain": ["draft-mtp"]}, "chain"),
        ({"chain": ["nonsense"]}, "chain"),
        ({"n_max": 0}, "n_max"),
        ({"n_max": 5000}, "n_max"),
        ({"n_match": 0}, "n_match"),
        ({"n_match": 1.5}, "n_match"),
        ({"min_hits": 0}, "min_hits"),
        ({"n_min": -1}, "n_min"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_options_are_named(qwen3, options, name):
    with pytest.raises(InvalidRequestError, match=f"^{name}"):
        Drafter(qwen3.model, {"chain": ["ngram-simple"], **options}, 1, 8)


def test_wrong_proposals_are_refused_and_change_nothing(qwen3):
    made = drafter(qwen3, "ngram-simple", n_slots=2)
    made.begin(0, list(range(100, 130)) * 2)
    for wrong in (Proposal(1, [], -1, 8), Proposal(2, [], -1, 8), Proposal(-1, [], -1, 8), Proposal(0, [], -2, 8)):
        with pytest.raises(InvalidRequestError):
            made.propose([Proposal(0, [7, 8, 9], -1, 8), wrong])
    with pytest.raises(InvalidRequestError, match="^draft"):
        made.propose([Proposal(0, [], -1, 5000)])
    (draft,) = made.propose([Proposal(0, [], -1, 8)])
    assert draft == list(range(100, 108)), "7, 8, 9 were not taken in"
    with pytest.raises(InvalidRequestError, match="^tokens"):
        made.begin(0, [])


def test_any_tokens_at_all_leave_the_process_alive(qwen3):
    dice = random.Random(3)
    made = drafter(qwen3, *KINDS, n_slots=3)
    for _ in range(300):
        slot = dice.randrange(3)
        made.begin(slot, [dice.choice([-(2**31), -1, 0, 5, 6, 7, 2**31 - 1]) for _ in range(dice.randrange(1, 80))])
        for _ in range(5):
            news = [dice.choice([-1, 5, 6, 7, 2**31 - 1]) for _ in range(dice.randrange(4))]
            (draft,) = made.propose([Proposal(slot, news, dice.randrange(-1, 9), dice.randrange(9))])
            assert len(draft) <= 8 and all(0 <= token < 2**20 for token in draft)


def test_a_drafter_is_freed_once(qwen3):
    made = drafter(qwen3, "ngram-simple")
    pointer = made._owned.pointer
    made.close()
    made.close()
    assert made.native.lm_drafter_free(pointer) == localllm_h.LM_INVALID_ARGUMENT
    rows = (localllm_h.lm_proposal * 1)()
    assert made.native.lm_drafter_propose(pointer, ctypes.cast(rows, ctypes.POINTER(localllm_h.lm_proposal)), 1) != 0
