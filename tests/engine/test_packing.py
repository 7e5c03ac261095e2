"""Which texts share a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.packing import chunks, pack


@pytest.mark.parametrize(
    ("lengths", "n_tokens", "n_sequences", "n"),
    [([3, 3, 3], 9, 8, 3), ([3, 3, 4], 9, 8, 2), ([20, 1], 9, 8, 1), ([1, 20], 9, 8, 1), ([1] * 9, 9, 4, 4), ([9], 9, 1, 1)],
)
def test_texts_are_taken_in_order_while_they_fit(lengths, n_tokens, n_sequences, n):
    assert pack(lengths, n_tokens, n_sequences) == n


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 64), st.integers(1, 16))
def test_every_text_gets_its_batch_and_none_is_larger_than_it_must_be(lengths, n_tokens, n_sequences):
    left = list(lengths)
    while left:
        n = pack(left, n_tokens, n_sequences)
        batch, left = left[:n], left[n:]
        assert 1 <= n <= n_sequences
        assert sum(batch) <= n_tokens or n == 1
        if left and n < n_sequences and sum(batch) <= n_tokens:
            assert sum(batch) + left[0] > n_tokens, "the next one would have fitted"


@given(st.integers(1, 5000), st.integers(1, 600))
def test_parts_of_a_text_follow_each_other_and_are_even(n, most):
    parts = chunks(n, most)
    assert [start for start, _ in parts] == [sum(length for _, length in parts[:at]) for at in range(len(parts))]
    sizes = [length for _, length in parts]
    assert sum(sizes) == n and min(sizes) >= 1 and max(sizes) <= most and max(sizes) - min(sizes) <= 1
