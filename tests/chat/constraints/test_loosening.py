"""Schemas of those who check answers themselves."""

from __future__ import annotations

import pytest

from localllm.chat.constraints.loosening import loosened
from localllm.chat.constraints.schema import prepare
from localllm.errors import GrammarError

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": TEXT, "uniqueItems": True}, {"type": "array", "items": TEXT}),
        ({"type": "integer", "multipleOf": 5, "minimum": 0}, {"type": "integer", "minimum": 0}),
        ({"type": "object", "propertyNames": TEXT, "minProperties": 1}, {"type": "object"}),
        ({**TEXT, "title": "T", "x-widget": "area"}, {**TEXT, "title": "T"}),
        ({**TEXT, "pattern": "^a+$", "maxLength": 3}, {**TEXT, "pattern": "^a+$"}),
        ({**TEXT, "pattern": "^(?!x)a", "maxLength": 3}, {**TEXT, "maxLength": 3}),
        ({"oneOf": [TEXT, {**TEXT, "maxLength": 3}]}, {"anyOf": [TEXT, {**TEXT, "maxLength": 3}]}),
        (
            {"enum": ["a"], "type": "string", "minLength": 1, "description": "D"},
            {"enum": ["a"], "type": "string", "description": "D"},
        ),
    ],
)
def test_what_cannot_be_expressed_is_left_out_wherever_it_stands(schema, expected):
    around = [
        lambda each: each,
        lambda each: {"type": "object", "properties": {"uniqueItems": each}, "required": ["uniqueItems"]},
        lambda each: {"type": "object", "additionalProperties": each},
        lambda each: {"type": "array", "items": each},
        lambda each: {"type": "array", "prefixItems": [TEXT, each]},
        lambda each: {"anyOf": [each, {"type": "null"}]},
        lambda each: {"$defs": {"A": each}, "$ref": "#/$defs/A"},
    ]
    for put in around:
        with pytest.raises(GrammarError):
            prepare(put(schema), {})
        assert loosened(put(schema)) == put(expected)
        assert prepare(loosened(put(schema)), {})


def test_what_can_be_expressed_stays():
    schema = {
        "$defs": {"A": {"type": "object", "properties": {"a": {"const": 1, "default": 1}}, "additionalProperties": False}},
        "type": "object",
        "title": "T",
        "properties": {
            "n": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
            "s": {"type": "string", "minLength": 1, "maxLength": 3, "format": "date"},
            "l": {"type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 1, "maxItems": 3},
            "o": {"anyOf": [{"type": "string", "pattern": "^[a-z]$"}, {"type": "null"}], "default": None},
            "b": True,
        },
        "required": ["n"],
    }
    assert loosened(schema) == schema
    assert [loosened(other) for other in (True, None, 5)] == [True, None, 5]
