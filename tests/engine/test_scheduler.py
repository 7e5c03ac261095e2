"""The scheduler is pure policy: simulated here without a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.cache.lookup import DEVICE, RAM, common_prefix
from localllm.engine.cache.resident import Residents, checkpoint_lengths
from localllm.engine.request import Request
from localllm.engine.scheduler import MIN_SHARED_TOKENS, Scheduler
from localllm.engine.sequence import Sequence, State
from localllm.engine.steering import UNSTEERED, Steering


def schedule(parallel: int, n_cells: int, n_batch: int, n_ubatch: int, kept: int = 4, cuttable: bool = True) -> Scheduler:
    return Scheduler(parallel, Residents(parallel + kept, n_cells, cuttable), n_batch, n_ubatch)


def make(
    number: int,
    n_prompt: int,
    max_tokens: int | None = None,
    priority: int = 0,
    prompt: tuple[int, ...] | None = None,
    steering: Steering = UNSTEERED,
    boundaries: tuple[int, ...] = (),
) -> Sequence:
    # Prompts of different requests share nothing unless they are given.
    prompt = prompt or tuple(number * 1000 + at for at in range(n_prompt))
    request = Request(prompt=prompt, max_tokens=max_tokens, priority=priority, boundaries=boundaries)
    return Sequence(number, request, lambda event: None, list(request.prompt), steering=steering)


def steering(number: int) -> Steering:
    """A steering for each number; 0 is none."""
    return Steering(((bytes([number]) * 32, 1.0),)) if number else UNSTEERED


def compute(scheduler: Scheduler) -> list[tuple[int, int, bool]]:
    """One step as the engine does it: plan, move on, sample a token for each chunk that reaches its end."""
    scheduler.admit()
    chunks = scheduler.plan()
    done = [(chunk.sequence.id, chunk.count, chunk.sample) for chunk in chunks]
    scheduler.computed(chunks)
    for chunk, (_, _, sample) in zip(chunks, done, strict=True):
        if sample:
            chunk.sequence.tokens.append(7)
    return done


def test_a_prompt_alone_gets_whole_batches_and_samples_once_it_is_complete():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 150))
    assert [compute(scheduler) for _ in range(4)] == [
        [(0, 64, False)],
        [(0, 64, False)],
        [(0, 22, True)],
        [(0, 1, True)],
    ]


def test_streams_go_first_and_a_long_prompt_takes_the_rest_of_a_micro_batch():
    scheduler = schedule(parallel=3, n_cells=1000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 4))
    scheduler.add(make(1, 4))
    assert compute(scheduler) == [(0, 4, True), (1, 4, True)]
    scheduler.add(make(2, 100))
    for _ in range(7):
        assert compute(scheduler) == [(0, 1, True), (1, 1, True), (2, 14, False)]
    assert compute(scheduler) == [(0, 1, True), (1, 1, True), (2, 2, True)]


def test_requests_join_at_the_next_step_and_wait_for_a_slot():
    scheduler = schedule(parallel=1, n_cells=1000, n_batch=64, n_ubatch=16)
    first, second = make(0, 4), make(1, 4)
    scheduler.add(first)
    scheduler.add(second)
    compute(scheduler)
    assert (first.state, second.state) == (State.RUNNING, State.WAITING)
    scheduler.remove(first)
    assert compute(scheduler) == [(1, 4, True)]
    assert (first.state, second.state) == (State.FINISHED, State.RUNNING)


def test_priority_comes_before_arrival():
    scheduler = schedule(parallel=1, n_cells=1000, n_batch=64, n_ubatch=16)
    for number, priority in enumerate([0, 5, 0, 5]):
        scheduler.add(make(number, 4, priority=priority))
    order = []
    while scheduler.waiting:
        (started,) = scheduler.admit()
        order.append(started.id)
        scheduler.remove(started)
    assert order == [1, 3, 0, 2]


def test_cells_run_out_the_youngest_waits_until_another_has_ended():
    scheduler = schedule(parallel=2, n_cells=24, n_batch=64, n_ubatch=64)
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
    scheduler = schedule(parallel=2, n_cells=8, n_batch=64, n_ubatch=64)
    only = make(0, 8)
    scheduler.add(only)
    compute(scheduler)
    assert len(only.tokens) == 9 and only.state is State.RUNNING
    compute(scheduler)
    assert only.state is State.RUNNING


def test_a_waiting_or_running_sequence_can_be_removed_at_any_time():
    scheduler = schedule(parallel=1, n_cells=100, n_batch=8, n_ubatch=8)
    running, waiting = make(0, 40), make(1, 4)
    scheduler.add(running)
    scheduler.add(waiting)
    compute(scheduler)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert scheduler.idle and scheduler.plan() == []
    assert scheduler.residents.n_free_cells == 92 and len(scheduler.residents.tree.tier(DEVICE)) == 1, "what was computed stays"


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12
    ),
    parallel=st.integers(1, 4),
    n_batch=st.integers(4, 64),
    n_ubatch=st.integers(1, 64),
    n_cells=st.integers(100, 160),
)
def test_every_request_ends_and_no_batch_breaks_a_limit(requests, parallel, n_batch, n_ubatch, n_cells):
    scheduler = schedule(parallel, n_cells, n_batch, n_ubatch)
    sequences = [
        make(number, n, limit, priority, None, steering(way)) for number, (n, limit, priority, way) in enumerate(requests)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(10_000):
        done = compute(scheduler)
        assert 0 < sum(count for _, count, _ in done) <= n_batch
        assert len({number for number, _, _ in done}) == len(done)
        assert len({sequences[number].steering for number, _, _ in done}) == 1
        assert len(scheduler.running) <= parallel
        assert len({sequence.slot for sequence in scheduler.running}) == len(scheduler.running)
        assert scheduler.residents.n_free_cells >= 0
        for sequence in scheduler.running:
            assert scheduler.residents.ledger.length(sequence.slot) == sequence.n_computed
        for sequence in list(scheduler.running):
            if sequence.n_generated >= (sequence.request.max_tokens or 0):
                scheduler.remove(sequence)
        if scheduler.idle:
            break
    assert all(sequence.state is State.FINISHED for sequence in sequences)
    assert all(sequence.n_generated == sequence.request.max_tokens for sequence in sequences)


# ---- prefixes


def finish(scheduler: Scheduler, sequence: Sequence, n_generated: int = 1) -> None:
    while sequence.n_generated < n_generated:
        compute(scheduler)
    scheduler.remove(sequence)


def actions(scheduler: Scheduler) -> list[tuple]:
    return [(a.kind, a.slot, a.length, a.source) for a in scheduler.residents.take_actions()]


def test_a_conversation_goes_on_in_its_slot():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    first = make(0, 0, prompt=tuple(range(40)))
    scheduler.add(first)
    finish(scheduler, first, 5)
    second = make(1, 0, prompt=(*first.tokens, 100, 101, 102))
    scheduler.add(second)
    assert compute(scheduler) == [(1, 4, True)], "the last token of the answer was chosen, not computed"
    assert (second.n_cached, second.slot) == (44, 0) and actions(scheduler) == []


def test_another_question_about_the_same_text_shares_its_cells_and_leaves_the_first_answer():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    text = tuple(range(50))
    first, second = make(0, 0, prompt=(*text, 100, 101)), make(1, 0, prompt=(*text, 200, 201))
    scheduler.add(first)
    finish(scheduler, first, 3)
    used = scheduler.residents.ledger.n_used
    scheduler.add(second)
    assert compute(scheduler) == [(1, 2, True)]
    assert actions(scheduler) == [("fork", 1, 50, 0)]
    assert scheduler.residents.ledger.n_used == used + 2, "fifty cells are shared"
    assert len(scheduler.residents.tree.tier(DEVICE)) == 1


def test_the_same_prompt_again_computes_one_token():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    for number in range(3):
        sequence = make(number, 0, prompt=tuple(range(50)))
        scheduler.add(sequence)
        assert compute(scheduler) == [(number, 50 if number == 0 else 1, True)]
        finish(scheduler, sequence)


def test_requests_that_arrive_together_compute_their_common_text_once():
    scheduler = schedule(parallel=8, n_cells=2000, n_batch=64, n_ubatch=64)
    text = tuple(range(200))
    sequences = [make(number, 0, prompt=(*text, 1000 + number, 2000 + number)) for number in range(8)]
    for sequence in sequences:
        scheduler.add(sequence)
    total = 0
    while any(sequence.n_generated == 0 for sequence in sequences):
        total += sum(count for number, count, sample in compute(scheduler))
    prompt_tokens = sum(len(sequence.request.prompt) - sequence.n_cached for sequence in sequences)
    assert prompt_tokens == 200 + 8 * 2
    assert scheduler.residents.ledger.n_used < 200 + 8 * 10


def test_requests_behind_one_that_waits_for_a_prefix_may_start():
    scheduler = schedule(parallel=3, n_cells=2000, n_batch=64, n_ubatch=64)
    text = tuple(range(300))
    first, same, other = make(0, 0, prompt=(*text, 1)), make(1, 0, prompt=(*text, 2)), make(2, 20)
    for sequence in (first, same, other):
        scheduler.add(sequence)
    compute(scheduler)
    assert [sequence.state for sequence in (first, same, other)] == [State.RUNNING, State.WAITING, State.RUNNING]


def test_a_short_common_beginning_is_not_waited_for():
    scheduler = schedule(parallel=3, n_cells=2000, n_batch=64, n_ubatch=64)
    text = tuple(range(MIN_SHARED_TOKENS - 1))
    first, second = make(0, 0, prompt=(*text, *range(1000, 1200))), make(1, 0, prompt=(*text, 2))
    scheduler.add(first)
    scheduler.add(second)
    compute(scheduler)
    assert second.state is State.RUNNING


def test_who_waits_for_a_prefix_goes_on_alone_when_the_other_is_cancelled():
    scheduler = schedule(parallel=3, n_cells=2000, n_batch=64, n_ubatch=64)
    text = tuple(range(300))
    first, second = make(0, 0, prompt=(*text, 1)), make(1, 0, prompt=(*text, 2))
    scheduler.add(first)
    scheduler.add(second)
    compute(scheduler)
    scheduler.remove(first)
    compute(scheduler)
    assert second.state is State.RUNNING and second.n_cached == 64, "what the cancelled one had computed is used"


def test_idle_prefixes_make_way_least_recently_used_first():
    scheduler = schedule(parallel=1, n_cells=100, n_batch=64, n_ubatch=64)
    for number in range(3):
        sequence = make(number, 30)
        scheduler.add(sequence)
        finish(scheduler, sequence)
    assert len(scheduler.residents.tree.tier(DEVICE)) == 3
    big = make(7, 60)
    scheduler.add(big)
    compute(scheduler)
    assert big.state is State.RUNNING
    assert [entry.ids[0] for entry in scheduler.residents.tree.tier(DEVICE)] == [2000]


def test_a_state_that_cannot_be_cut_is_continued_only_where_it_ends():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16, cuttable=False)
    first = make(0, 0, prompt=tuple(range(40)))
    scheduler.add(first)
    finish(scheduler, first, 3)
    ended_at = first.tokens[: first.n_computed]
    again = make(1, 0, prompt=tuple(range(40)))
    onward = make(2, 0, prompt=(*ended_at, 7, 8, 9))
    scheduler.add(again)
    scheduler.add(onward)
    compute(scheduler)
    assert (again.n_cached, onward.n_cached) == (39, 42), "before the last token of the prompt a checkpoint was kept"


@pytest.mark.parametrize(("n_new", "boundaries", "chunks"), [(17, (105, 116), [17]), (60, (105, 150), [48, 12])])
def test_a_short_turn_is_computed_without_stopping_for_checkpoints(n_new, boundaries, chunks):
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=64, cuttable=False)
    first = make(0, 100)
    scheduler.add(first)
    finish(scheduler, first, 3)
    ended_at = first.tokens[: first.n_computed]
    scheduler.add(make(1, 0, prompt=(*ended_at, *range(200, 200 + n_new)), boundaries=boundaries))
    assert [compute(scheduler)[0][1] for _ in chunks] == chunks


@pytest.mark.parametrize(
    ("n_prompt", "boundaries", "kept"),
    [
        (200, (), (199,)),
        (20, (), ()),
        (200, (0, 40, 50, 100, 190, 200, 300), (50, 100, 190)),
        (200, (10, 20), ()),
        (1000, (500,), (500,)),
        (200, (100, 180, 190), (100, 180, 190)),
    ],
)
def test_checkpoints_are_spaced_and_the_last_boundary_is_kept(n_prompt, boundaries, kept):
    assert checkpoint_lengths(n_prompt, boundaries) == kept


def test_without_a_cache_nothing_stays():
    residents = Residents(2, 100, True, keep=False)
    scheduler = Scheduler(2, residents, 64, 64)
    sequence = make(0, 30)
    scheduler.add(sequence)
    finish(scheduler, sequence)
    assert residents.ledger.n_used == 0 and actions(scheduler) == [("forget", 0, 0, -1)]


@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=16), st.integers(1, 12), st.booleans(), st.integers(0, 2)),
        min_size=1,
        max_size=14,
    ),
    parallel=st.integers(1, 4),
    kept=st.integers(0, 4),
    n_cells=st.integers(60, 120),
    memory=st.sampled_from([(True, None), (False, None), (False, 0), (False, 2)]),
    drafts=st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=40),
)
def test_slots_always_hold_what_they_are_said_to(requests, parallel, kept, n_cells, memory, drafts):
    """Carries the actions out on lists of states, as llama.cpp does on cells, and compares what every slot holds.

    A state is the token and the adapters that it was computed with.
    Memories: plain attention; sliding windows, whose newest tokens can be cut; recurrent states without and with snapshots.
    """
    cuttable, n_rollback = memory
    residents = Residents(parallel + kept, n_cells, cuttable)
    scheduler = Scheduler(parallel, residents, 16, 8, n_rollback)
    slots: dict[int, list[tuple[int, bytes]]] = {slot: [] for slot in range(parallel + kept)}
    in_last_batch: dict[int, int] = {}
    unsettled: set[int] = set()
    sequences = [
        make(number, 0, limit, prompt=tuple(part for part in prompt for _ in range(3)), steering=steering(way))
        for number, (prompt, limit, _, way) in enumerate(requests)
    ]
    arriving = list(zip(sequences, [cancel for _, _, cancel, _ in requests], strict=True))

    def states(ids, key: bytes) -> list[tuple[int, bytes]]:
        return [(token, key) for token in ids]

    def carry_out() -> None:
        for action in residents.take_actions():
            if action.kind == "forget":
                slots[action.slot].clear()
                unsettled.discard(action.slot)
            elif action.kind == "cut":
                n_cut = len(slots[action.slot]) - action.length
                assert n_cut >= 0
                if not cuttable:
                    assert n_cut < in_last_batch[action.slot], "only what the last batch added can be taken back"
                if n_rollback is not None:
                    assert n_cut <= n_rollback and action.slot not in unsettled
                    unsettled.add(action.slot)
                del slots[action.slot][action.length :]
            else:
                assert not slots[action.slot] and (cuttable or action.length == len(slots[action.source]))
                assert action.source not in unsettled
                slots[action.slot] = slots[action.source][: action.length]

    def right(sequence: Sequence, draft: tuple[int, ...]) -> list[int]:
        """What the model chooses: all of the draft that is right, and one token more."""
        truth = [(len(sequence.tokens) + ahead) // 3 % 2 for ahead in range(len(draft) + 1)]
        return truth[: common_prefix(truth, draft) + 1]

    for step in range(5000):
        if step % 3 == 0 and arriving:
            sequence, cancel = arriving.pop(0)
            scheduler.add(sequence)
            if cancel and scheduler.running:
                scheduler.remove(scheduler.running[0])
        scheduler.admit()
        for sequence in scheduler.running:
            sequence.draft = list(drafts[(step + sequence.id) % len(drafts)]) if sequence.decoding else []
        chunks = scheduler.plan()
        carry_out()
        in_last_batch.clear()
        chosen = {}
        for chunk in chunks:
            sequence = chunk.sequence
            assert len(slots[sequence.slot]) == chunk.start
            new = (*sequence.tokens[chunk.start : chunk.start + chunk.count], *chunk.draft)
            slots[sequence.slot].extend(states(new, chunks[0].sequence.steering.key))
            unsettled.discard(sequence.slot)
            in_last_batch[sequence.slot] = chunk.n_tokens
            if chunk.sample:
                chosen[sequence] = right(sequence, chunk.draft)
        assert sum(chunk.n_tokens for chunk in chunks) <= 16
        for sequence, tokens in chosen.items():
            sequence.tokens.extend(tokens)
        scheduler.computed(chunks, {sequence: len(tokens) - 1 for sequence, tokens in chosen.items()})
        carry_out()
        for sequence in scheduler.running:
            assert slots[sequence.slot] == states(sequence.tokens[: sequence.n_computed], sequence.steering.key)
            assert residents.ledger.length(sequence.slot) == sequence.n_computed
        for entry in residents.tree.tier(DEVICE):
            assert slots[entry.payload] == states(entry.ids, entry.namespace)
        assert residents.n_free_cells >= 0
        for sequence in list(scheduler.running):
            if sequence.n_generated >= sequence.request.max_tokens:
                scheduler.remove(sequence)
        if not arriving and scheduler.idle:
            break
    assert all(sequence.state is State.FINISHED for sequence in sequences)
    carry_out()
    in_use = sum(bool(tokens) for tokens in slots.values())
    assert in_use == len(residents.tree.tier(DEVICE)), "no slot is left behind"


# ---- steerings


def test_streams_of_different_steerings_take_turns():
    scheduler = schedule(parallel=3, n_cells=1000, n_batch=64, n_ubatch=16)
    for number in range(3):
        scheduler.add(make(number, 4, steering=steering(number % 2)))
    assert [compute(scheduler) for _ in range(4)] == [
        [(0, 4, True), (2, 4, True)],
        [(1, 4, True)],
        [(0, 1, True), (2, 1, True)],
        [(1, 1, True)],
    ]


def test_a_long_prompt_of_one_steering_takes_one_micro_batch_between_the_tokens_of_another():
    scheduler = schedule(parallel=2, n_cells=1000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 4))
    compute(scheduler)
    scheduler.add(make(1, 100, steering=steering(1)))
    for _ in range(3):
        assert compute(scheduler) == [(0, 1, True)]
        assert compute(scheduler) == [(1, 16, False)]


def test_long_prompts_of_several_steerings_share_that_micro_batch():
    scheduler = schedule(parallel=4, n_cells=2000, n_batch=64, n_ubatch=16)
    scheduler.add(make(0, 4))
    compute(scheduler)
    for number in (1, 2, 3):
        scheduler.add(make(number, 100, steering=steering(number)))
    seen = [compute(scheduler) for _ in range(12)]
    assert seen[0::2] == [[(0, 1, True)]] * 6
    assert seen[1::2] == [[(number, 16, False)] for number in (1, 2, 3, 1, 2, 3)]


def test_a_prefix_of_other_adapters_is_neither_used_nor_waited_for():
    scheduler = schedule(parallel=4, n_cells=2000, n_batch=64, n_ubatch=64)
    text = tuple(range(200))
    first, other, same = (make(n, 0, prompt=(*text, 900 + n), steering=steering(way)) for n, way in enumerate((1, 2, 1)))
    for sequence in (first, other, same):
        scheduler.add(sequence)
    compute(scheduler)
    assert [sequence.state for sequence in (first, other, same)] == [State.RUNNING, State.RUNNING, State.WAITING]
    while same.n_generated == 0:
        compute(scheduler)
    assert (first.n_cached, other.n_cached, same.n_cached) == (0, 0, 200)


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 80), st.integers(1, 20), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=24
    ),
    parallel=st.integers(1, 6),
    n_batch=st.integers(16, 64),
    n_ubatch=st.integers(1, 16),
)
def test_no_steering_starves_and_no_stream_waits_for_more_than_a_micro_batch_of_others_prompts(
    requests, parallel, n_batch, n_ubatch
):
    """Random arrivals: a running sequence has its turn again after at most one of each other steering that could have had one."""
    scheduler = schedule(parallel, 4000, n_batch, n_ubatch)
    arriving = [(gap, make(number, n, limit, steering=steering(way))) for number, (n, limit, way, gap) in enumerate(requests)]
    sequences = [sequence for _, sequence in arriving]
    # For each running sequence: turns and prompt tokens of others since its own.
    turns: dict[int, int] = {}
    delays: dict[int, int] = {}
    wait = 0
    for _ in range(20_000):
        while arriving and wait <= 0:
            wait, sequence = arriving.pop(0)
            scheduler.add(sequence)
        wait -= 1
        scheduler.admit()
        streaming = {sequence.id for sequence in scheduler.running if sequence.decoding}
        chunks = scheduler.plan()
        group = {chunk.sequence.steering for chunk in chunks}
        n_prompt = sum(chunk.count for chunk in chunks if not chunk.sequence.decoding)
        scheduler.computed(chunks)
        assert len(group) == (1 if scheduler.running else 0)
        for sequence in scheduler.running:
            if sequence.steering in group:
                turns[sequence.id] = delays[sequence.id] = 0
            else:
                turns[sequence.id] = turns.get(sequence.id, 0) + 1
                delays[sequence.id] = delays.get(sequence.id, 0) + n_prompt
                if sequence.id in streaming:
                    assert delays[sequence.id] <= n_ubatch
                    assert turns[sequence.id] <= parallel - 1
                assert turns[sequence.id] <= parallel * parallel
        for chunk in chunks:
            if chunk.sequence.n_computed == len(chunk.sequence.tokens):
                chunk.sequence.tokens.append(7)
        for sequence in list(scheduler.running):
            if sequence.n_generated >= sequence.request.max_tokens:
                scheduler.remove(sequence)
        if not arriving and scheduler.idle:
            break
    assert all(sequence.state is State.FINISHED for sequence in sequences)


def test_a_new_text_takes_the_place_of_the_oldest_ones_that_have_copies():
    residents = Residents(20, 8000, cuttable=True, ram_bytes=10**6)
    texts = [tuple(range(1000 * n, 1000 * n + 300)) for n in range(5)]
    for ids in texts:
        slot, _ = residents.start(ids, None, 0)
        residents.grow(slot, 300)
        residents.leave(slot, ids)
    while entry := residents.next_to_save():
        residents.saved(entry, b"copy", 100)
    assert [entry.ids for entry in residents.tree.tier(RAM)] == texts[:-1], "the latest is the likeliest to go on"
    onward = (*texts[1], 7, 8, 9)
    slot, length = residents.start(onward, residents.look_up(onward, ()).donor, 0)
    assert length == 300 and len(residents.tree.tier(DEVICE)) == 4, "who goes on from what is there needs nobody's place"
    residents.start(tuple(range(9000, 9350)), None, 0)
    assert [entry.ids for entry in residents.tree.tier(DEVICE)] == [texts[3], texts[4]] and residents.n_evicted == 2
    residents.start(tuple(range(9500, 9850)), None, 0)
    assert [entry.ids for entry in residents.tree.tier(DEVICE)] == [texts[4]], "what has no copy stays while there is room"
