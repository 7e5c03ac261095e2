"""JSON of others: what Python would take and what looks at it afterwards would not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.hub.plain_json import parsed

BAD = ["", "{", "NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "1" * 20, "9" * 5000, "[" * 200_000, b"\xff", "1 2"]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_refused(text):
    with pytest.raises(ValueError):
        parsed(text)


PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_all_else_is_read_as_python_reads_it(value):
    assert parsed(json.dumps(value)) == value == parsed(json.dumps(value).encode())
