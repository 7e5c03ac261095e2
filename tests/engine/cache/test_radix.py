"""The radix tree against a dictionary that does the same by brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine.cache.radix import Entry, RadixTree

IDS = st.lists(st.integers(-2, 2), min_size=1, max_size=9).map(tuple)
TIERS = ("device", "ram")
NAMESPACES = st.sampled_from([b"", b"a", b"b"])
BUDGETS = {"ram": 40}


class Model:
    """What the tree promises, the slow way: a list in order of use, least recent first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.evicted: list[Entry] = []

    def used(self, tier: str) -> int:
        return sum(entry.n_bytes for entry in self.entries if entry.tier == tier)

    def add(self, entry: Entry) -> bool:
        place = entry.namespace, entry.tier, entry.ids
        old = next((other for other in self.entries if (other.namespace, other.tier, other.ids) == place), None)
        budget = BUDGETS.get(entry.tier)
        victims: list[Entry] = []
        if budget is not None:
            if old is not None and old.pins:
                return False
            used = self.used(entry.tier) - (old.n_bytes if old else 0)
            for other in self.entries:
                if used + entry.n_bytes <= budget:
                    break
                if other.tier == entry.tier and other is not old and not other.pins:
                    victims.append(other)
                    used -= other.n_bytes
            if used + entry.n_bytes > budget:
                return False
        self.evicted.extend(victims)
        self.entries = [other for other in self.entries if other not in victims and other is not old]
        self.entries.append(entry)
        return True

    def matches(self, query: tuple[int, ...], namespace: bytes) -> dict[int, int]:
        """id(entry) -> covered length, of all that cover anything."""
        covered = {}
        for entry in self.entries:
            common = 0
            while (
                entry.namespace == namespace and common < min(len(entry.ids), len(query)) and entry.ids[common] == query[common]
            ):
                common += 1
            if common and (not entry.exact or common == len(entry.ids)):
                covered[id(entry)] = common
        return covered

    def known(self, query: tuple[int, ...], namespace: bytes) -> int:
        """How many first items of the query any entry of the namespace shares."""
        common = 0
        while any(entry.namespace == namespace and entry.ids[: common + 1] == query[: common + 1] for entry in self.entries):
            if common == len(query):
                break
            common += 1
        return common


def smallest_number_of_nodes(entries: list[Entry]) -> int:
    """Nodes of compressed trees, one for each namespace."""
    return sum(nodes_of([entry for entry in entries if entry.namespace == each]) for each in {e.namespace for e in entries})


def nodes_of(entries: list[Entry]) -> int:
    """Nodes of a compressed tree: every entry's end, and every place where two entries part."""
    ends = {entry.ids for entry in entries}
    parts = set()
    for one in ends:
        for other in ends:
            common = 0
            while common < min(len(one), len(other)) and one[common] == other[common]:
                common += 1
            if 0 < common < min(len(one), len(other)):
                parts.add(one[:common])
    return len(ends | parts)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(TIERS), IDS, st.integers(0, 25), st.booleans(), st.integers(0, 1), NAMESPACES),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("touch"), st.integers(0, 30)),
        st.tuples(st.just("unpin"), st.integers(0, 30)),
        st.tuples(st.just("match"), IDS, NAMESPACES),
    ),
    max_size=40,
)


@given(OPERATIONS)
@settings(max_examples=1000, deadline=None)
def test_random_operations_agree_with_the_model(operations):
    evicted: list[Entry] = []
    tree, model = RadixTree(BUDGETS, evicted.append), Model()
    for operation, *arguments in operations:
        if operation == "add":
            tier, ids, n_bytes, exact, pins, namespace = arguments
            entry = Entry(tier, ids, None, n_bytes, exact, pins, namespace=namespace)
            assert tree.add(entry) == model.add(entry)
        elif operation == "match":
            query, namespace = arguments
            found = list(tree.matches(query, namespace))
            assert {id(match.entry): match.length for match in found} == model.matches(query, namespace)
            assert tree.known(query, namespace) == model.known(query, namespace)
            assert [match.length for match in found] == sorted((match.length for match in found), reverse=True)
        elif model.entries:
            entry = model.entries[arguments[0] % len(model.entries)]
            if operation == "remove":
                tree.remove(entry)
                model.entries.remove(entry)
            elif operation == "touch":
                tree.touch(entry)
                model.entries.remove(entry)
                model.entries.append(entry)
            else:
                entry.pins = 0
        assert sorted(map(id, tree)) == sorted(map(id, model.entries)) and evicted == model.evicted
        assert {tier: tree.n_bytes(tier) for tier in TIERS} == {tier: model.used(tier) for tier in TIERS}
        assert tree.n_nodes() == smallest_number_of_nodes(model.entries)
        assert set(tree._roots) == {entry.namespace for entry in model.entries}, "an empty root must not stay"


def test_a_side_branch_helps_as_far_as_it_goes_along():
    tree = RadixTree()
    exact, side = entry([1, 2, 3], exact=True), entry([1, 9])
    assert tree.add(exact) and tree.add(side)
    assert [(match.entry, match.length) for match in tree.matches([1, 2, 3])] == [(exact, 3), (side, 1)]
    assert [(match.entry, match.length) for match in tree.matches([1, 2, 4])] == [(side, 1)]


def entry(ids, tier="ram", n_bytes=1, exact=False, pins=0) -> Entry:
    return Entry(tier, tuple(ids), None, n_bytes, exact, pins)


def test_one_walk_finds_all_tiers_longest_first():
    tree = RadixTree()
    long, short, other = entry([1, 2, 3, 4, 5]), entry([1, 2], tier="disk"), entry([1, 2, 9], tier="device")
    for each in (long, short, other):
        assert tree.add(each)
    found = list(tree.matches([1, 2, 3, 4, 7]))
    assert (found[0].entry, found[0].length) == (long, 4)
    assert {(match.entry.tier, match.length) for match in found[1:]} == {("disk", 2), ("device", 2)}


def test_a_recurrent_state_helps_only_at_its_full_length():
    tree = RadixTree()
    assert tree.add(entry([1, 2, 3], exact=True))
    assert list(tree.matches([1, 2, 4])) == []
    assert [match.length for match in tree.matches([1, 2, 3, 4])] == [3]


def test_replacing_an_entry_counts_its_bytes_once():
    tree = RadixTree({"ram": 100})
    for n_bytes in (60, 70, 10, 100):
        assert tree.add(entry([1, 2], n_bytes=n_bytes))
        assert (tree.n_bytes("ram"), len(tree)) == (n_bytes, 1)


def test_an_entry_that_cannot_fit_changes_nothing():
    evicted: list[Entry] = []
    tree = RadixTree({"ram": 100}, evicted.append)
    kept = entry([1], n_bytes=60)
    assert tree.add(kept) and not tree.add(entry([2], n_bytes=101))
    kept.pins = 1
    assert not tree.add(entry([2], n_bytes=41))
    assert list(tree) == [kept] and evicted == []
    kept.pins = 0
    assert tree.add(entry([2], n_bytes=41)) and evicted == [kept]


def test_the_least_recently_used_goes_first():
    evicted: list[Entry] = []
    tree = RadixTree({"ram": 3}, evicted.append)
    first, second, third = (entry([n]) for n in range(3))
    for each in (first, second, third):
        tree.add(each)
    tree.touch(first)
    tree.add(entry([9]))
    assert evicted == [second]


def test_long_prefixes_are_one_edge():
    tree = RadixTree()
    shared = tuple(range(10_000))
    for n in range(50):
        tree.add(entry((*shared, -n - 1)))
    assert tree.n_nodes() == 51
    assert next(tree.matches((*shared, -3))).length == 10_001
    for each in list(tree)[1:]:
        tree.remove(each)
    assert tree.n_nodes() == 1
