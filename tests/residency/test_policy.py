"""Which models make way, and when: tables and properties, without a model."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm import errors
from localllm.residency import flights as flights_module
from localllm.residency.flights import Flights
from localllm.residency.policy import HOST, TOTAL, Holding, Term, add, expired, lacking, next_on_device, victims


def holding(name, n_bytes, last_used, *, evictable=True, weights=None):
    return Holding(name, {TOTAL: n_bytes, HOST: n_bytes}, weights or f"weights of {name}", last_used, evictable)


@pytest.mark.parametrize(
    ("needed", "room", "kept", "expected"),
    [
        (10, 10, None, []),
        (11, 10, None, ["old"]),  # 1 would do, but the oldest goes first
        (25, 10, None, ["old", "middle"]),
        (46, 10, None, None),  # busy ones never make way
        (45, 10, None, ["old", "middle", "new"]),
    ],
)
def test_the_least_recently_used_makes_way(needed, room, kept, expected):
    holdings = [holding("new", 20, 3), holding("old", 5, 1), holding("busy", 100, 0, evictable=False), holding("middle", 10, 2)]
    assert victims(holdings, {}, {TOTAL: needed}, {TOTAL: room}, kept) == expected


def test_weights_are_freed_with_their_last_context_and_not_if_they_are_wanted():
    holdings = [holding("chat", 5, 1, weights="w"), holding("vectors", 5, 2, weights="w"), holding("other", 5, 3)]
    weights = {"w": {TOTAL: 100}, "weights of other": {TOTAL: 1}}
    assert victims(holdings, weights, {TOTAL: 5}, {TOTAL: 0}) == ["chat"]
    assert victims(holdings, weights, {TOTAL: 110}, {TOTAL: 0}) == ["chat", "vectors"]
    assert victims(holdings, weights, {TOTAL: 16}, {TOTAL: 0}, "w") == ["chat", "vectors", "other"]
    assert victims(holdings, weights, {TOTAL: 17}, {TOTAL: 0}, "w") is None


def test_every_place_needs_room_of_its_own():
    holdings = [Holding("a", {TOTAL: 10, "CUDA0": 10}, "a", 1, True), Holding("b", {TOTAL: 10, HOST: 10}, "b", 2, True)]
    needed = {TOTAL: 10, "CUDA0": 10}
    assert victims(holdings, {}, needed, {"CUDA0": 10}) == []
    assert victims(holdings, {}, needed, {"CUDA0": 0, HOST: 0}) == ["a"]
    assert victims(holdings, {}, {TOTAL: 10, HOST: 10}, {HOST: 0, "CUDA0": 0}) == ["a", "b"]
    assert victims(holdings, {}, {"CUDA1": 1}, {"CUDA1": 0}) is None


@pytest.mark.parametrize(
    ("names", "kept", "expected"),
    [
        (("host", "gpu", "older", "weights"), None, ["older"]),
        (("host", "gpu", "weights"), None, ["weights"]),  # of which only the weights are there
        (("host", "gpu", "weights"), "on gpu", ["gpu"]),  # they stay, so it would free nothing there
        (("host", "busy", "none"), None, []),
    ],
)
def test_what_makes_way_on_a_device(names, kept, expected):
    holdings = {
        "host": Holding("host", {TOTAL: 9, HOST: 9}, "w", 0, True),
        "gpu": Holding("gpu", {TOTAL: 9, "CUDA0": 9}, "w", 3, True),
        "older": Holding("older", {TOTAL: 9, "CUDA1": 9}, "w", 1, True),
        "weights": Holding("weights", {TOTAL: 9, HOST: 9}, "on gpu", 2, True),
        "busy": Holding("busy", {TOTAL: 9, "CUDA0": 9}, "w", 0, False),
        "none": Holding("none", {TOTAL: 9, "CUDA0": 0}, "w", 0, True),
    }
    weights = {"w": {TOTAL: 1, HOST: 1}, "on gpu": {TOTAL: 1, "CUDA0": 1}}
    assert next_on_device([holdings[name] for name in names], weights, kept) == expected


SOME = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.booleans(), st.sampled_from("abc")), max_size=8)


@given(some=SOME, needed=st.integers(0, 300), room=st.integers(-50, 100))
def test_enough_makes_way_and_nothing_busy(some, needed, room):
    holdings = [
        Holding(number, {TOTAL: n_bytes}, weights, float(used), free)
        for number, (n_bytes, used, free, weights) in enumerate(some)
    ]
    weights = {name: {TOTAL: 40} for name in "abc"}
    chosen = victims(holdings, weights, {TOTAL: needed}, {TOTAL: room})
    gone = [one for one in holdings if one.evictable] if chosen is None else [one for one in holdings if one.id in chosen]
    left = [one for one in holdings if one not in gone]
    freed = sum(one.use[TOTAL] for one in gone)
    freed += 40 * len({one.weights for one in gone} - {one.weights for one in left})
    assert all(one.evictable for one in gone)
    assert (needed > room + freed) == (chosen is None)
    if chosen:  # without the last one it would not have been enough, and nobody older was passed over
        assert max(one.last_used for one in gone) <= min((one.last_used for one in left if one.evictable), default=99)


def test_sums_and_lacks():
    assert add({"a": 1}, {"a": 2, "b": 3}, {}) == {"a": 3, "b": 3}
    assert lacking({"a": 5, "b": 1}, {"a": 3}) == {"a": 2}


def test_what_has_been_idle_for_long_enough():
    terms = [
        Term("due", True, 10, 5), Term("busy", False, 0, 5), Term("soon", True, 12, 5), Term("later", True, 12, 60),
        Term("handed out", True, 0, 1, kept_until=18), Term("at once", True, 15, 0),
    ]  # fmt: skip
    assert expired(terms, 15) == (["due", "at once"], 2)
    assert expired(terms, 20) == (["due", "soon", "handed out", "at once"], 52)
    assert expired([], 0) == ([], None)
    assert expired([Term("busy", False, 0, 0)], 9) == ([], None)


# ---- one load for all


class Noted(threading.Event):
    """Tells, by a semaphore, of everyone who begins to wait."""

    waiting = threading.Semaphore(0)

    def wait(self, timeout=None):
        Noted.waiting.release()
        return super().wait(timeout)


@pytest.fixture
def waiters(monkeypatch):
    """`waiters(n)`: waits until n more threads wait for what another one makes."""
    monkeypatch.setattr(Noted, "waiting", threading.Semaphore(0))
    monkeypatch.setattr(flights_module, "threading", SimpleNamespace(Event=Noted, Lock=threading.Lock))

    def wait(n):
        for _ in range(n):
            assert Noted.waiting.acquire(timeout=30), "nobody waits"

    return wait


def test_many_ask_and_one_makes():
    flights: Flights[list[int]] = Flights()
    made, waiting, go = [], threading.Barrier(9), threading.Event()

    def make():
        go.wait(10)
        made.append([1])
        return made[0]

    got = []

    def ask():
        waiting.wait(10)
        got.append(flights.get("key", lambda: made[0] if made else None, make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    waiting.wait(10)
    # Another key is not held up.
    assert flights.get("other", lambda: None, lambda: [2]) == [2]
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1 and len(got) == 8 and all(one is made[0] for one in got)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_failure_is_told_to_all_who_wait_but_an_interruption_only_to_whom_it_befell(error, waiters):
    flights: Flights[str] = Flights()
    begun, go, results = threading.Event(), threading.Event(), []

    def fail():
        begun.set()
        go.wait(10)
        raise error

    def ask(make):
        try:
            results.append(flights.get("key", lambda: None, make))
        except BaseException as caught:
            results.append(caught)

    first = threading.Thread(target=ask, args=(fail,))
    first.start()
    begun.wait(10)
    second = threading.Thread(target=ask, args=(lambda: "made",))
    second.start()
    waiters(1)
    go.set()
    first.join(10)
    second.join(10)
    assert error in results
    assert results.count(error) == (2 if isinstance(error, Exception) else 1)
    assert flights.get("key", lambda: None, lambda: "anew") == "anew"


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("m"), errors.NativeError("m", 3), errors.ContextOverflowError("m", 5, 6),
        errors.DiskSpaceError("m", 5, 6), errors.DoesNotFitError("m", 5, 6), errors.ModelNotFoundError(2, "m", "file"),
        errors.ModelFileError(None, "m", "file"), errors.ModelLoadError("m"), errors.NativeLibraryError("m"),
        errors.RequestTimeoutError("m"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_who_waited_gets_an_error_of_its_own(error, waiters):
    flights: Flights[str] = Flights()
    begun, go, caught = threading.Event(), threading.Event(), []

    def fail():
        begun.set()
        go.wait(10)
        raise error

    def ask():
        try:
            flights.get("key", lambda: None, fail)
        except Exception as one:
            caught.append(one)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    waiters(2)
    go.set()
    for thread in threads:
        thread.join(10)
    caught.append(pickle.loads(pickle.dumps(error)))  # as processes hand it on, and with no traceback
    caught[-1].__traceback__ = error.__traceback__
    assert len(caught) == 4 and len({id(one) for one in caught}) == 4 and error in caught
    for one in caught:
        assert (type(one), str(one), vars(one)) == (type(error), str(error), vars(error))
        assert getattr(one, "filename", None) == getattr(error, "filename", None)
        assert one.__traceback__ is not None and one.__context__ is None
