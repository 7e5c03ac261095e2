"""The packer against what it promises, over random jobs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine.packing import Packer


def run(packer: Packer, jobs: dict[int, list[int]], arrivals: dict[int, list[int]] | None = None) -> list[list]:
    """Runs jobs to their end, some arriving later (batch number -> jobs), and gives the batches."""
    left = {job: len(lengths) for job, lengths in jobs.items()}
    late = {job for ids in (arrivals or {}).values() for job in ids}
    for job, lengths in jobs.items():
        if job not in late:
            packer.add(job, lengths)
    batches: list[list] = []
    while not packer.idle or any(number >= len(batches) for number in arrivals or {}):
        for job in (arrivals or {}).get(len(batches), []):
            packer.add(job, jobs[job])
        pieces = packer.plan()
        batches.append(pieces)
        assert pieces or packer.idle
        packer.computed()
        for piece in pieces:
            left[piece.job] -= piece.ends
            if left[piece.job] == 0:
                assert packer.remove(piece.job) == []
        assert len(batches) < 10_000
    return batches


def check(batches: list[list], jobs: dict[int, list[int]], n_batch: int, n_slots: int, n_cells: int, whole: bool) -> None:
    """Every token of every text exactly once and in order, within the limits."""
    done: dict[tuple[int, int], int] = {}
    held: dict[int, tuple[int, int]] = {}
    for pieces in batches:
        total = sum(piece.count for piece in pieces)
        assert total <= n_batch or (whole and len(pieces) == 1)
        assert len({piece.slot for piece in pieces}) == len(pieces)
        for piece in pieces:
            text = (piece.job, piece.text)
            assert piece.count > 0 and piece.length == jobs[piece.job][piece.text]
            assert piece.start == done.get(text, 0)
            assert held.setdefault(piece.slot, text) == text, "a slot holds one text at a time"
            assert not whole or (piece.start, piece.count) == (0, piece.length)
            done[text] = piece.start + piece.count
        assert len(held) <= n_slots
        assert whole or sum(jobs[job][at] for job, at in held.values()) <= n_cells
        held = {slot: text for slot, text in held.items() if done[text] < jobs[text[0]][text[1]]}
    assert done == {(job, at): length for job, lengths in jobs.items() for at, length in enumerate(lengths)}


JOBS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=6)


@given(JOBS, st.integers(1, 60), st.integers(1, 8), st.integers(40, 100), st.booleans(), st.data())
@settings(max_examples=400)
def test_every_token_is_computed_once_in_order_and_within_the_limits(lists, n_batch, n_slots, n_cells, whole, data):
    jobs = dict(enumerate(lists))
    late = {job: data.draw(st.integers(0, 5)) for job in jobs if data.draw(st.booleans())}
    arrivals = {number: [job for job in late if late[job] == number] for number in set(late.values())}
    batches = run(Packer(n_batch, n_slots, n_cells, whole), jobs, arrivals)
    check(batches, jobs, n_batch, n_slots, n_cells, whole)


@given(JOBS, st.integers(1, 60), st.integers(1, 8), st.booleans(), st.data())
@settings(max_examples=200)
def test_jobs_that_are_removed_or_lose_their_batch_leave_the_others_whole(lists, n_batch, n_slots, whole, data):
    packer, jobs = Packer(n_batch, n_slots, 100, whole), dict(enumerate(lists))
    for job, lengths in jobs.items():
        packer.add(job, lengths)
    left = {job: len(lengths) for job, lengths in jobs.items()}
    finished: set[tuple[int, int]] = set()
    while not packer.idle:
        pieces = packer.plan()
        event = data.draw(st.sampled_from(["computed", "computed", "computed", "abandon", "remove"]))
        if event == "abandon":
            for job in {piece.job for piece in pieces[:1]}:
                packer.remove(job)
                left.pop(job)
            packer.abandon()
            continue
        packer.computed()
        for piece in pieces:
            if piece.ends:
                assert (piece.job, piece.text) not in finished
                finished.add((piece.job, piece.text))
                left[piece.job] -= 1
        if event == "remove":
            job = pieces[0].job
            packer.remove(job)
            left.pop(job)
        for job in [job for job, count in left.items() if count == 0]:
            packer.remove(job)
            left.pop(job)
    assert not left and sorted(packer._free) == list(range(n_slots)) and not packer._live


@pytest.mark.parametrize("whole", [True, False])
def test_a_late_single_text_does_not_wait_for_a_list_of_thousands(whole):
    jobs = {0: [64] * 2000, 1: [5]}
    batches = run(Packer(64, 8, 1000, whole), jobs, {3: [1]})
    (at,) = [number for number, pieces in enumerate(batches) for piece in pieces if piece.job == 1]
    assert at <= 4


def test_a_long_text_in_parts_leaves_room_for_a_short_one():
    batches = run(Packer(64, 8, 10_000, whole=False), {0: [5000], 1: [5]}, {10: [1]})
    assert 1 in {piece.job for piece in batches[10]} and len(batches) == -(-5005 // 64)


def test_a_long_text_is_not_kept_out_by_short_ones():
    jobs = {0: [1000], **{job: [50] * 400 for job in range(1, 5)}}
    batches = run(Packer(100, 16, 1000, whole=False), jobs, {3: [0]})
    assert min(number for number, pieces in enumerate(batches) for piece in pieces if piece.job == 0) <= 20


def test_batches_are_full():
    mixed = {0: [1 + (7 * n) % 500 for n in range(500)]}
    for whole in (True, False):
        batches = run(Packer(512, 64, 4096, whole), mixed)
        assert len(batches) <= 1.05 * sum(mixed[0]) / 512 + 1, whole
    assert len(run(Packer(512, 64, 4096, whole=True), {0: [8] * 640})) == 10
