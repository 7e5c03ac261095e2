"""JSON that is still being written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.llms.localllm.partial import PartialJson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def after(text: str) -> Any:
    reader = PartialJson()
    reader.add(text)
    return reader.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  ", None),
        ("{", {}),
        ('{"na', {}),
        ('{"name"', {}),
        ('{"name":', {}),
        ('{"name": "', {}),
        ('{"name": "A', {"name": "A"}),
        ('{"name": "A\\', {"name": "A"}),
        ('{"name": "A\\u00e', {"name": "A"}),
        ('{"name": "A\\u00e9', {"name": "Aé"}),
        ('{"name": "\\ud83d', {}),
        ('{"name": "\\ud83d\\ude00', {"name": "\U0001f600"}),
        ('{"name": ""', {"name": ""}),
        ('{"n": 12', {}),
        ('{"n": 12,', {"n": 12}),
        ('{"n": tru', {}),
        ('{"n": true}', {"n": True}),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": [1, 2]', {"a": [1, 2]}),
        ('{"a": ["x", {"b": "y', {"a": ["x", {"b": "y"}]}),
        ('{"a": {"b": 1}, "c": "}', {"a": {"b": 1}, "c": "}"}),
        ('["a", "b', ["a", "b"]),
    ],
)
def test_what_is_certain(text, value):
    assert after(text) == value


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.sampled_from([None, 2]))
def test_every_beginning_is_a_part_of_the_whole(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader = PartialJson()
    for char in text:
        reader.add(char)
        now = reader.value
        assert now is None or _is_part(now, value)
    assert reader.value == value == after(text)


def _is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and _is_part(part[name], whole[name]) for name in part)
    if isinstance(part, list):
        return len(part) <= len(whole) and all(_is_part(mine, theirs) for mine, theirs in zip(part, whole, strict=False))
    return whole.startswith(part) if isinstance(part, str) else part == whole
