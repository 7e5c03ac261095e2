"""A compressed radix tree over token ids: which prefixes are resident, and where. Pure Python, no native calls.

Edges hold runs of ids; a node with one child and nothing of its own is merged with it. An entry says that the state after exactly
the ids from the root to its node is resident in a tier ("device", "ram", "disk"). Each tier has a budget in bytes and evicts its
least recently used entry that is not pinned. Prefixes of different namespaces are different states: each has a root of its own,
while tiers and budgets are common to all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Ids = tuple[int, ...]


@dataclass(eq=False)
class Entry:
    """A resident prefix.

    Attributes:
        tier: str, where it is.
        ids: the whole prefix.
        namespace: bytes, the key of the steering that it was computed with.
        payload: what the tier needs to use it (a slot, bytes, a file).
        n_bytes: int, what it costs its tier.
        exact: bool, usable only at its full length (recurrent states); else at any length up to it.
        pins: int, users; a pinned entry is not evicted.
        unsavable, unstorable: bool, a copy of it does not fit into RAM, or could not be written to a file.
    """

    tier: str
    ids: Ids
    payload: Any
    n_bytes: int
    exact: bool = False
    pins: int = 0
    unsavable: bool = False
    unstorable: bool = False
    namespace: bytes = b""
    node: _Node | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Match:
    """An entry that helps with a query, and the number of the query's ids that it covers."""

    entry: Entry
    length: int


class _Node:
    __slots__ = ("children", "edge", "entries", "parent")

    def __init__(self, edge: Ids, parent: _Node | None) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.entries: list[Entry] = []


class RadixTree:
    """Entries by prefix, with a budget for each tier.

    Args:
        budgets: bytes per tier; a tier that is not named has no limit.
        on_evict: called with each entry that leaves the tree because of its budget.
    """

    def __init__(self, budgets: dict[str, int] | None = None, on_evict: Callable[[Entry], None] | None = None) -> None:
        self._roots: dict[bytes, _Node] = {}
        self._budgets = dict(budgets or {})
        self._on_evict = on_evict
        self._used: dict[str, int] = {}
        # Oldest use first.
        self._tiers: dict[str, OrderedDict[Entry, None]] = {}

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._tiers.values())

    def __iter__(self) -> Iterator[Entry]:
        for entries in self._tiers.values():
            yield from entries

    def tier(self, name: str) -> list[Entry]:
        """The entries of one tier, the least recently used first."""
        return list(self._tiers.get(name, ()))

    def n_bytes(self, tier: str) -> int:
        """Bytes that the entries of a tier hold."""
        return self._used.get(tier, 0)

    def n_nodes(self) -> int:
        """Nodes besides the roots; for tests: the tree must stay compressed."""
        return sum(sum(1 for _ in self._walk(root)) - 1 for root in self._roots.values())

    def add(self, entry: Entry) -> bool:
        """Adds an entry as its tier's most recently used, in place of one with the same prefix in the same tier.

        Others are evicted until the tier's budget holds.

        Returns:
            bool, False if the entry cannot fit (it is larger than the budget, or all else is pinned); nothing is changed then.
        """
        node = self._find(entry)
        old = next((known for known in node.entries if known.tier == entry.tier), None) if node else None
        if not self._make_room(entry, old):
            return False
        if old is not None:
            self.remove(old)
        node = self._insert(entry)
        node.entries.append(entry)
        entry.node = node
        self._tiers.setdefault(entry.tier, OrderedDict())[entry] = None
        self._used[entry.tier] = self.n_bytes(entry.tier) + entry.n_bytes
        return True

    def remove(self, entry: Entry) -> None:
        """Takes an entry out; does nothing if it is not in the tree."""
        node = entry.node
        if node is None:
            return
        node.entries.remove(entry)
        entry.node = None
        del self._tiers[entry.tier][entry]
        self._used[entry.tier] -= entry.n_bytes
        self._prune(node)
        root = self._roots[entry.namespace]
        if not root.children and not root.entries:
            del self._roots[entry.namespace]

    def touch(self, entry: Entry) -> None:
        """Makes an entry its tier's most recently used."""
        self._tiers[entry.tier].move_to_end(entry)

    def matches(self, ids: Sequence[int], namespace: bytes = b"") -> Iterator[Match]:
        """All entries of a namespace that cover a beginning of `ids`, longest cover first; one walk for all tiers, lazily.

        An entry on the way covers its whole length. One beyond the place where it parts from the query covers what they have in
        common, if it is not exact.
        """
        path, partial = self._path(tuple(ids), namespace)
        if partial:
            yield from self._below([partial[0]], partial[1])
        for node, at, taken in reversed(path):
            if at > 0:
                yield from [Match(entry, at) for entry in node.entries]
                yield from self._below([child for child in node.children.values() if child is not taken], at)

    def known(self, ids: Sequence[int], namespace: bytes = b"") -> int:
        """How many of the first `ids` some entry of a namespace begins with, whether or not it is of use to them."""
        path, partial = self._path(tuple(ids), namespace)
        return partial[1] if partial else path[-1][1] if path else 0

    # ---- inside

    def _path(self, query: Ids, namespace: bytes) -> tuple[list[tuple[_Node, int, _Node | None]], tuple[_Node, int] | None]:
        """Every node on the way along `query` with the number of ids that lead to it and the child that is gone on to; and the
        node within whose edge the way ends, if it does, with the number of ids that lead there.
        """
        path: list[tuple[_Node, int, _Node | None]] = []
        node, at = self._roots.get(namespace), 0
        while node is not None:
            child = node.children.get(query[at]) if at < len(query) else None
            path.append((node, at, child))
            if child is not None:
                common = _common(child.edge, query, at)
                if common < len(child.edge):
                    return path, (child, at + common)
                at += common
            node = child
        return path, None

    def _below(self, nodes: list[_Node], length: int) -> Iterator[Match]:
        for top in nodes:
            for deeper in self._walk(top):
                for entry in deeper.entries:
                    if not entry.exact:
                        yield Match(entry, length)

    def _make_room(self, entry: Entry, old: Entry | None) -> bool:
        budget = self._budgets.get(entry.tier)
        if budget is None:
            return True
        if old is not None and old.pins:
            return False
        used = self.n_bytes(entry.tier) - (old.n_bytes if old else 0)
        victims = []
        for candidate in self._tiers.get(entry.tier, ()):
            if used + entry.n_bytes <= budget:
                break
            if candidate is not old and not candidate.pins:
                victims.append(candidate)
                used -= candidate.n_bytes
        if used + entry.n_bytes > budget:
            return False
        for victim in victims:
            self.remove(victim)
            if self._on_evict:
                self._on_evict(victim)
        return True

    def _find(self, entry: Entry) -> _Node | None:
        ids = entry.ids
        node, at = self._roots.get(entry.namespace), 0
        if node is None:
            return None
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None or ids[at : at + len(child.edge)] != child.edge:
                return None
            node, at = child, at + len(child.edge)
        return node

    def _insert(self, entry: Entry) -> _Node:
        ids = entry.ids
        node, at = self._roots.setdefault(entry.namespace, _Node((), None)), 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                child = _Node(ids[at:], node)
                node.children[ids[at]] = child
                return child
            common = _common(child.edge, ids, at)
            if common < len(child.edge):
                child = self._split(child, common)
            node, at = child, at + common
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        """Puts a node in front of `node` that takes the first `at` ids of its edge."""
        parent = node.parent
        assert parent is not None
        upper = _Node(node.edge[:at], parent)
        parent.children[upper.edge[0]] = upper
        node.edge = node.edge[at:]
        node.parent = upper
        upper.children[node.edge[0]] = node
        return upper

    def _prune(self, node: _Node) -> None:
        """Restores compression around a node that has lost an entry."""
        while node.parent is not None and not node.entries and not node.children:
            del node.parent.children[node.edge[0]]
            node = node.parent
        if node.parent is not None and not node.entries and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = node.parent
            node.parent.children[child.edge[0]] = child

    def _walk(self, node: _Node) -> Iterator[_Node]:
        stack = [node]
        while stack:
            current = stack.pop()
            yield current
            stack.extend(current.children.values())


def _common(edge: Ids, ids: Ids, start: int) -> int:
    """How many ids of `edge` are also in `ids` from `start` on."""
    if ids[start : start + len(edge)] == edge:
        return len(edge)
    count = 0
    for one, other in zip(edge, ids[start:], strict=False):
        if one != other:
            return count
        count += 1
    return count
