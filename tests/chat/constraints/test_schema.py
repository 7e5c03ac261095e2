"""Schemas as grammars: whatever a grammar takes, the `jsonschema` package accepts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from localllm.chat.constraints.grammar import takes
from localllm.chat.constraints.schema import prepare, with_rules
from localllm.errors import GrammarError
from localllm.native.library import load


def grammar_of(schema: Any) -> str:
    rules: dict[str, str] = {}
    prepared = prepare(schema, rules)
    return with_rules(load().string_call("lm_schema_to_grammar", json.dumps(prepared).encode()), rules)


NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["name"],
}
# schema -> (values that the grammar must take, values that it must not)
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "numbers within bounds": (
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        [0, 0.5, 0.999999],
        [1, -0.1, 1.5, "0.5"],
    ),
    "negative bounds": ({"type": "number", "exclusiveMinimum": -2.5, "maximum": -0.25}, [-0.25, -2.4, -1], [-2.5, 0, -0.2, -3]),
    "integers within bounds": ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, [-3, 0, 11], [-4, 12, 1.5]),
    "the stricter of two bounds": ({"type": "integer", "minimum": 1, "exclusiveMinimum": 4}, [5, 100], [1, 4]),
    "an enum of several types": ({"enum": ["a", 1, None, True, [1, 2]]}, ["a", 1, None, True], ["b", 2, False]),
    "an enum within its type": ({"type": "string", "enum": ["a", 1]}, ["a"], [1, "b"]),
    "a constant": ({"const": {"a": [1, "x"]}}, [], [{"a": [1]}, 1]),
    "null or another": ({"type": ["integer", "null"], "minimum": 3}, [None, 3], [2, "x"]),
    "pydantic's optional": (
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None},
        [None, "abc"],
        ["abcd", 1],
    ),
    "a large integer": ({"type": "integer", "minimum": 10**25}, [10**25, 22 * 10**25, 10**26], [-4, 241, 10**25 - 1]),
    "an integer far below": ({"type": "integer", "maximum": -(2**63) - 1}, [-(2**63) - 1, -(10**20)], [0, -1, -(2**63)]),
    "integers far apart": (
        {"type": "integer", "minimum": -(10**16), "maximum": 10**17},
        [0, -(10**16), 10**17, -7, 12],
        [-(10**16) - 1, 10**17 + 1],
    ),
    "a large number": ({"type": "number", "minimum": 1e15}, [10**15, 2000000000000000.5], [999999999999999, -1]),
    "text of a length": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    "a pattern": ({"type": "string", "pattern": "^[A-Z]{2}\\d+$"}, ["AB1", "ZZ999"], ["A1", "AB", "ab1"]),
    "a pattern anywhere": ({"type": "string", "pattern": "x\\d"}, ["x1", "some x2 more"], ["x", "y1"]),
    "a pattern with quotes": ({"type": "string", "pattern": '^".*"$'}, ['"a"', '"\\"'], ["a", '"a']),
    "a date": ({"type": "string", "format": "date"}, ["2026-12-02"], ["2026-13-02", "today"]),
    "unknown formats say nothing": ({"type": "string", "format": "email"}, ["a@b.c"], [1]),
    "bounds of arrays": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        [[True], [True, False]],
        [[], [1], [True] * 3],
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2, "maxItems": 2},
        [["a", 1]],
        [[1, "a"], ["a"]],
    ),
    "a closed tuple": ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, [["a"]], [["a", 1]]),
    "nested": (
        {
            "type": "object",
            "properties": {
                "rows": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"x": {"type": "number", "minimum": 1}}, "required": ["x"]},
                }
            },
            "required": ["rows"],
        },
        [{"rows": []}, {"rows": [{"x": 1}, {"x": 2.5}]}],
        [{}, {"rows": [{}]}, {"rows": [{"x": 0}]}],
    ),
    "references that recur": (
        {"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"},
        [{"name": "a", "next": {"name": "b", "next": None}}],
        [{"name": 1}, {"next": None}],
    ),
    "no other properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"a": 1}],
        [{"b": 1}, {"a": "x"}],
    ),
    "other properties of a type": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1, "y": 2}],
        [{"x": "a"}],
    ),
    "required but not described": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]},
        [{"a": None, "b": 1}],
        [{"a": None}],
    ),
    "allOf of references": (
        {
            "$defs": {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
            "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}],
        },
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}],
    ),
    "alternatives that are apart": (
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
            ]
        },
        [{"kind": "a", "x": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "c"}],
    ),
    "characters beyond ASCII": (
        {"type": "object", "properties": {"größe": {"enum": ["klein", "groß", "最大"]}}, "required": ["größe"]},
        [{"größe": "最大"}, {"größe": "groß"}],
        [{"größe": "x"}, {}],
    ),
    "anything": ({}, [1, "x", None, [1, {"a": 2}], {"b": []}], []),
    "true": ({"type": "object", "properties": {"a": True}, "required": ["a"]}, [{"a": [1]}], [{}]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_grammar_takes_what_the_schema_allows_and_nothing_else(name):
    schema, good, bad = CASES[name]
    grammar = grammar_of(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for value in good:
        assert validator.is_valid(value), "the table itself"
        assert takes(grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":")))[0], value
        assert takes(grammar, json.dumps(value, ensure_ascii=False))[0], value
    for value in bad:
        assert not takes(grammar, json.dumps(value, ensure_ascii=False))[0], value


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "multipleOf": 5}, "#: 'multipleOf'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a: 'not'"),
        ({"type": "object", "patternProperties": {}}, "'patternProperties'"),
        ({"type": "object", "minProperties": 1}, "'minProperties'"),
        ({"if": {}, "then": {}}, "'if'"),
        ({"anyOf": [{"type": "string"}], "properties": {}}, "'properties' beside 'anyOf'"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}, "maxLength": 3}, "'maxLength' beside '$ref'"),
        ({"type": "string", "maxLength": 2500}, "'maxLength' 2500"),
        ({"type": "array", "items": {"const": 1}, "maxItems": 2100}, "'maxItems' 2100"),
        ({"type": "number", "minimum": float("nan")}, "'minimum' must be a finite number"),
        ({"type": "number", "maximum": float("inf")}, "'maximum' must be a finite number"),
        ({"type": "integer", "minimum": 10**500}, "digits"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "refers to what contains"),
        ({"$ref": "https://example.org/x.json"}, "'$ref'"),
        ({"$ref": "#/$defs/Missing"}, "there is no such place"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf'"),
        ({"type": "string", "pattern": "(?=x)"}, "(?=x)"),
        ({"type": "string", "pattern": "^x$", "maxLength": 4}, "'maxLength' beside 'pattern'"),
        ({"type": "strnig"}, "'strnig'"),
        ({"type": "number", "minimum": 3, "maximum": 2}, "no number"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "'minimum' 3 is more"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "'minItems' 3 is more"),
        ({"enum": []}, "'enum'"),
        ({"type": "object", "required": ["a"], "properties": {"b": {}}, "additionalProperties": False}, "'required' names 'a'"),
        ({"properties": 3}, "'properties' must be an object"),
        ({"type": "object", "properties": {"a": False}}, "#/properties/a"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "'allOf' differ in 'type'"),
    ],
)
def test_what_cannot_be_expressed_is_named(schema, words):
    with pytest.raises(GrammarError) as caught:
        prepare(schema, {}, "the schema")
    assert words in str(caught.value) and str(caught.value).startswith("the schema at #")
