"""The ledger against sets of cells."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine.cache.cells import CellLedger

SLOTS = st.integers(0, 4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SLOTS, st.integers(0, 6)),
        st.tuples(st.just("fork"), SLOTS, SLOTS, st.floats(0, 1)),
        st.tuples(st.just("cut"), SLOTS, st.floats(0, 1)),
        st.tuples(st.just("clear"), SLOTS),
    ),
    max_size=40,
)


@given(OPERATIONS)
@settings(max_examples=500, deadline=None)
def test_random_operations_agree_with_sets_of_cells(operations):
    ledger = CellLedger()
    cells: dict[int, list[int]] = {slot: [] for slot in range(5)}
    numbers = itertools.count()
    for operation, slot, *arguments in operations:
        mine = cells[slot]
        if operation == "append":
            ledger.append(slot, arguments[0])
            mine.extend(next(numbers) for _ in range(arguments[0]))
        elif operation == "fork":
            target, share = arguments
            if cells[target] or target == slot:
                continue
            length = int(share * len(mine))
            ledger.fork(slot, target, length)
            cells[target] = mine[:length]
        elif operation == "cut":
            length = int(arguments[0] * len(mine))
            ledger.cut(slot, length)
            del mine[length:]
        else:
            ledger.clear(slot)
            mine.clear()
        assert ledger.n_used == len(set().union(*map(set, cells.values())))
        for each, held in cells.items():
            others = set().union(*(set(theirs) for other, theirs in cells.items() if other != each))
            assert ledger.length(each) == len(held)
            assert ledger.n_freed_by_clearing(each) == len(set(held) - others)
