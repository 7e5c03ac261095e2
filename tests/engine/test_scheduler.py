"""The scheduler is pure policy: simulated here without a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.request import Request
from localllm.engine.scheduler import Scheduler
from localllm.engine.sequence import Sequence, State


def make(number: int, n_prompt: int, max_tokens: int | None = None, priority: int = 0) -> Sequence:
    request = Request(prompt=tuple(range(n_prompt)), max_tokens=max_tokens, priority=priority)
    return Sequence(number, request, lambda event: None, list(request.prompt))


def compute(scheduler: Scheduler) -> list[tuple[int, int, bool]]:
    """One step as the engine does it: plan, move on, sample a token for each chunk that reaches its end."""
    while (victim := scheduler.overflowing()) is not None:
        scheduler.requeue(victim)
    scheduler.admit()
    chunks = scheduler.plan()
    done = [(chunk.sequence.id, chunk.count, chunk.sample) for chunk in chunks]
    for chunk in chunks:
        sample = chunk.sample
        chunk.sequence.n_computed += chunk.count
        if sample:
            chunk.sequence.tokens.append(7)
    return done


def test_a_prompt_alone_gets_whole_batches_and_samples_once_it_is_complete():
    scheduler = Scheduler(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 150))
    assert [compute(scheduler) for _ in range(4)] == [
        [(0, 64, False)],
        [(0, 64, False)],
        [(0, 22, True)],
        [(0, 1, True)],
    ]


def test_streams_go_first_and_a_long_prompt_takes_one_micro_batch_beside_them():
    scheduler = Scheduler(parallel=3, n_cells=1000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 4))
    scheduler.add(make(1, 4))
    assert compute(scheduler) == [(0, 4, True), (1, 4, True)]
    scheduler.add(make(2, 100))
    for _ in range(6):
        assert compute(scheduler) == [(0, 1, True), (1, 1, True), (2, 16, False)]
    assert compute(scheduler) == [(0, 1, True), (1, 1, True), (2, 4, True)]


def test_requests_join_at_the_next_step_and_wait_for_a_slot():
    scheduler = Scheduler(parallel=1, n_cells=1000, n_batch=64, n_ubatch=16)
    first, second = make(0, 4), make(1, 4)
    scheduler.add(first)
    scheduler.add(second)
    compute(scheduler)
    assert (first.state, second.state) == (State.RUNNING, State.WAITING)
    scheduler.remove(first)
    assert compute(scheduler) == [(1, 4, True)]
    assert (first.state, second.slot) == (State.FINISHED, 0)


def test_priority_comes_before_arrival():
    scheduler = Scheduler(parallel=1, n_cells=1000, n_batch=64, n_ubatch=16)
    for number, priority in enumerate([0, 5, 0, 5]):
        scheduler.add(make(number, 4, priority=priority))
    order = []
    while scheduler.waiting:
        (started,) = scheduler.admit()
        order.append(started.id)
        scheduler.remove(started)
    assert order == [1, 3, 0, 2]


def test_cells_run_out_the_youngest_waits_until_another_has_ended():
    scheduler = Scheduler(parallel=2, n_cells=24, n_batch=64, n_ubatch=64)
    old, young = make(0, 8), make(1, 8)
    scheduler.add(old)
    scheduler.add(young)
    for _ in range(5):
        compute(scheduler)
    assert len(old.tokens) == len(young.tokens) == 13
    compute(scheduler)
    assert (old.state, young.state, young.n_computed, young.slot) == (State.RUNNING, State.WAITING, 0, -1)
    assert len(young.tokens) == 13, "the answer so far is kept"
    compute(scheduler)
    assert young.state is State.WAITING, "started at once it would be evicted again"
    scheduler.remove(old)
    assert compute(scheduler) == [(1, 13, True)]


def test_a_single_sequence_is_never_evicted():
    scheduler = Scheduler(parallel=2, n_cells=8, n_batch=64, n_ubatch=64)
    only = make(0, 8)
    scheduler.add(only)
    compute(scheduler)
    assert len(only.tokens) == 9 and scheduler.overflowing() is None


def test_a_waiting_or_running_sequence_can_be_removed_at_any_time():
    scheduler = Scheduler(parallel=1, n_cells=100, n_batch=8, n_ubatch=8)
    running, waiting = make(0, 40), make(1, 4)
    scheduler.add(running)
    scheduler.add(waiting)
    compute(scheduler)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert scheduler.idle and scheduler.plan() == [] and scheduler.n_free_cells == 100


@given(
    requests=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=12),
    parallel=st.integers(1, 4),
    n_batch=st.integers(4, 64),
    n_ubatch=st.integers(1, 64),
    n_cells=st.integers(100, 160),
)
def test_every_request_ends_and_no_batch_breaks_a_limit(requests, parallel, n_batch, n_ubatch, n_cells):
    scheduler = Scheduler(parallel, n_cells, n_batch, n_ubatch)
    sequences = [make(number, n, limit, priority) for number, (n, limit, priority) in enumerate(requests)]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(10_000):
        done = compute(scheduler)
        assert 0 < sum(count for _, count, _ in done) <= n_batch
        assert len({number for number, _, _ in done}) == len(done)
        assert len(scheduler.running) <= parallel
        assert len({sequence.slot for sequence in scheduler.running}) == len(scheduler.running)
        assert sum(sequence.n_computed for sequence in scheduler.running) <= n_cells
        for sequence in list(scheduler.running):
            if sequence.n_generated >= (sequence.request.max_tokens or 0):
                scheduler.remove(sequence)
        if scheduler.idle:
            break
    assert all(sequence.state is State.FINISHED for sequence in sequences)
    assert all(sequence.n_generated == sequence.request.max_tokens for sequence in sequences)
