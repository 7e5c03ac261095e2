"""Where a prefix is found, and what is said of what was not."""

from __future__ import annotations

import pytest

from localllm.engine.cache.lookup import Holder, look_up
from localllm.engine.cache.radix import Entry, RadixTree

# What is resident, what runs, whether states can be cut, whether copies are quick -> what is said of the prompt 0 ... 9.
DEVICE, RAM, DISK = "device", "ram", "disk"
CASES = {
    "nothing is known": ([], [], True, True, ("", 0, "new")),
    "all is in a slot": ([(DEVICE, range(10))], [], True, True, (DEVICE, 10, "")),
    "part is in a slot": ([(DEVICE, [*range(6), 99])], [], True, True, (DEVICE, 6, "new")),
    "a running sequence has more": ([(DEVICE, range(4))], [(range(9), 8)], True, True, ("running", 8, "new")),
    "a copy has more": ([(DEVICE, range(4)), (RAM, range(9))], [], True, True, (RAM, 9, "new")),
    "a file has all": ([(DISK, range(12))], [], True, True, (DISK, 10, "")),
    "a copy is slow": ([(DEVICE, range(4)), (RAM, range(9))], [], True, False, (DEVICE, 4, "slow")),
    "a copy that gives nothing more is not missed": ([(DEVICE, range(9)), (RAM, range(9))], [], True, False, (DEVICE, 9, "new")),
    "a state ends on the way": ([(DEVICE, range(6))], [], False, True, (DEVICE, 6, "new")),
    "states part before they end": ([(DEVICE, range(4)), (DEVICE, [*range(8), 99])], [], False, True, (DEVICE, 4, "checkpoint")),
    "a running state is further": ([], [(range(9), 9), (range(20), 15)], False, True, ("running", 9, "checkpoint")),
    "only a state that is further": ([], [(range(20), 15)], False, True, ("", 0, "checkpoint")),
}


@pytest.mark.parametrize(("resident", "running", "cuttable", "quick", "found"), CASES.values(), ids=CASES)
def test_lookup(resident, running, cuttable, quick, found):
    tree = RadixTree()
    for slot, (tier, ids) in enumerate(resident):
        assert tree.add(Entry(tier, tuple(ids), slot, 100, exact=not cuttable))
    holders = [Holder(10 + slot, list(ids), n_computed) for slot, (ids, n_computed) in enumerate(running)]
    lookup = look_up(tree, tuple(range(10)), holders, b"", cuttable, lambda n_bytes, n_tokens: quick)
    assert (lookup.donor.tier if lookup.donor else "", lookup.length, lookup.missed) == found


def test_namespaces_know_nothing_of_each_other():
    tree = RadixTree()
    tree.add(Entry(DEVICE, tuple(range(10)), 0, 100, exact=True, namespace=b"lora"))
    lookup = look_up(tree, tuple(range(5)), [], b"", False, lambda n_bytes, n_tokens: True)
    assert (lookup.donor, lookup.missed) == (None, "new")
