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


def within(n: int, kind: str) -> dict[str, Any]:
    """A schema n levels deep."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(n):
        schema = {"type": kind, **({"items": schema} if kind == "array" else {"properties": {"a": schema}, "required": ["a"]})}
    return schema


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
    "numbers without an end": ({"type": "number", "minimum": 1e15}, [10**15, 2.5e15], [10**15 - 1, -1, "x"]),
    "whole numbers beyond 64 bits": (
        {"type": "integer", "minimum": 10**25},
        [10**25, 10**25 + 7, 8 * 10**27],
        [10**25 - 1, 2**63, 0, -(10**26)],
    ),
    "whole numbers down to where 64 bits end": (
        {"type": "integer", "maximum": -(2**63) - 1},
        [-(2**63) - 1, -(10**20)],
        [-(2**63), 0, 10**20],
    ),
    "whole numbers up to where 64 bits end": ({"type": "integer", "minimum": 0, "maximum": 2**64}, [0, 2**64], [2**64 + 1, -1]),
    "the largest float as a bound": ({"type": "number", "minimum": 0, "maximum": 1.7976931348623157e308}, [0, 1.5], [-1]),
    "large constants": ({"enum": [2**64 + 1, "a", None]}, [2**64 + 1, "a", None], [2**64, "b"]),
    "a long text": ({"type": "string", "maxLength": 2500}, ["", "a" * 2500, "ü" * 2300], ["a" * 2501, "a" * 5000]),
    "a longer text": (
        {"type": "string", "minLength": 2100, "maxLength": 70_000},
        ["a" * 2100, "a" * 70_000],
        ["a" * 2099, "a" * 70_001],
    ),
    "a text of at least so many": ({"type": "string", "minLength": 2100}, ["a" * 2100, "a" * 9000], ["a" * 2099, ""]),
    "a text without a real limit": ({"type": "string", "maxLength": 2**31 - 1}, ["", "a" * 3000], [1]),
    "a long list": ({"type": "array", "items": {"const": 1}, "maxItems": 2100}, [[], [1], [1] * 2100], [[1] * 2101, [2]]),
    "a longer list": (
        {"type": "array", "items": {"type": "null"}, "minItems": 1500, "maxItems": 2560},
        [[None] * 1500, [None] * 2560],
        [[None] * 1499, [None] * 2561, []],
    ),
    "long lists of long texts": (
        {"type": "array", "items": {"type": "string", "minLength": 1001}, "minItems": 2, "maxItems": 1001},
        [["a" * 1001] * 2],
        [["a" * 1001], ["a" * 1000] * 2],
    ),
    "text that looks like a repetition": ({"enum": ["char{0,1000000000}", {"a": "x" * 10}]}, ["char{0,1000000000}"], ["x"]),
    "a type beside alternatives": (
        {"type": "integer", "anyOf": [{"minimum": 5, "maximum": 6}, {"type": "null"}]},
        [5, 6],
        [None, 7],
    ),
    "a type beside listed values": ({"type": "string", "anyOf": [{"enum": ["a", 1]}, {"const": 2}]}, ["a"], [1, 2]),
    "a type beside a reference": (
        {"type": "string", "$ref": "#/$defs/x", "$defs": {"x": {"enum": ["a", 1]}}},
        ["a"],
        [1],
    ),
    "the same type beside a reference": (
        {"type": "object", "$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
        [{"name": "a", "next": {"name": "b"}}],
        [{"next": None}],
    ),
    "types in parts of allOf": ({"allOf": [{"type": ["integer", "null"]}, {"type": "number", "minimum": 2}]}, [2, 3], [None, 1]),
    "references with more beside them in allOf": (
        {"$defs": {"x": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/x", "maxLength": 2}]},
        ["ab"],
        ["abc"],
    ),
    "closed parts of allOf": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "null"}, "b": {}}, "additionalProperties": False},
                {"required": ["b"]},
            ]
        },
        [{"b": 1}, {"b": 2, "a": None}],
        [{"a": None}, {"b": 1, "c": 2}],
    ),
    "a pattern that matches nothing": (
        {"anyOf": [{"type": "string", "pattern": "[^\\s\\S]"}, {"type": "null"}]},
        [None],
        ["", "a"],
    ),
    "a reference to a place that holds it": (
        {
            "type": "object",
            "properties": {"node": {"type": "object", "properties": {"child": {"$ref": "#/properties/node"}}}},
        },
        [{}, {"node": {"child": {"child": {}}}}],
        [{"node": {"child": 1}}, {"node": {"other": {}}}],
    ),
    "a reference to the whole": (
        {"type": "object", "properties": {"x": {"type": "integer"}, "more": {"$ref": "#"}}, "required": ["x"]},
        [{"x": 1}, {"x": 1, "more": {"x": 2, "more": {"x": 3}}}],
        [{"x": 1, "more": {}}, {"x": "a"}],
    ),
    "names of places that are escaped": (
        {
            "$defs": {"a/b": {"const": 1}, "a b": {"const": 2}, "a~b": {"const": 3}},
            "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/a~0b"}],
        },
        [1, 2, 3],
        [4],
    ),
    "a list within lists": (
        {"$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}]}}, "$ref": "#/$defs/t"},
        [None, [[], [None]]],
        [1, [1]],
    ),
    "many values": (
        {"enum": [f"value {at}" for at in range(500)] + [7, None]},
        ["value 0", "value 499", 7, None],
        ["value", "value 500", 8],
    ),
    "values that begin as others do": ({"enum": ["a" * n for n in range(1, 101)]}, ["a", "a" * 100], ["", "a" * 101]),
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
        ({"type": "number", "minimum": float("nan")}, "'minimum' must be a finite number"),
        ({"type": "number", "maximum": float("inf")}, "'maximum' must be a finite number"),
        ({"type": "integer", "minimum": 10**500}, "digits"),
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
        ({"type": "number", "minimum": float("nan")}, "#: 'minimum' must be a finite number"),
        ({"type": "integer", "exclusiveMaximum": float("inf")}, "#: 'exclusiveMaximum' must be a finite number"),
        ({"type": "integer", "minimum": 10**400}, "#: 'minimum' has more than 400 digits"),
        ({"type": "string", "minLength": 10**19}, "#: 'minLength' cannot be more than"),
        ({"type": "array", "maxItems": 10**400}, "#: 'maxItems' cannot be more than"),
        ({"type": "string", "anyOf": [{"type": "null"}, {"const": 1}]}, "'anyOf' has nothing of type 'string'"),
        (
            {"type": "string", "$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}},
            "'$ref' '#/$defs/x' has nothing of the type",
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
                    {"properties": {"b": {"type": "null"}}},
                ]
            },
            "#: 'additionalProperties' of a part of 'allOf' cannot be applied to another's 'b'",
        ),
        ({"properties": {"b": {}}, "allOf": [{"type": "object", "additionalProperties": {"type": "null"}}]}, "another's 'b'"),
        ({"const": float("nan")}, "#: 'const'"),
        ({"const": {1, 2}}, "#: 'const'"),
        ({"const": "\ud800"}, "half of a character"),
        ({"enum": ["a", {"b": "x\udfff"}]}, "half of a character"),
        ({"type": "object", "properties": {"\ud800": {}}}, "half of a character"),
        ({"type": "string", "pattern": "^\ud800$"}, "surrogates not allowed"),
        ({"type": "string", "pattern": "(?i)a"}, "flags"),
        ({"const": 7310054300000000}, "is reserved"),
        ({"const": "\ue000localllm:0\ue001"}, "is reserved"),
        ({"$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}]}}, "$ref": "#/$defs/n"}, "a part of itself"),
        ({"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}, "'$ref' '#/$defs/n' refers to itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "'$ref' '#' refers to itself"),
        (within(200, "object"), "more than 100 schemas within each other"),
        (within(3000, "array"), "more than 100 schemas within each other"),
        ({"allOf": [{"oneOf": [within(3000, "object")] * 2}]}, "nested too deeply"),
    ],
)
def test_what_cannot_be_expressed_is_named(schema, words):
    with pytest.raises(GrammarError) as caught:
        prepare(schema, {}, "the schema")
    assert words in str(caught.value) and str(caught.value).startswith("the schema at #")


@pytest.mark.parametrize("kind", ["array", "object"])
def test_schemas_may_be_nested(kind):
    grammar = grammar_of(within(99, kind))
    value: Any = None
    for _ in range(99):
        value = [value] if kind == "array" else {"a": value}
    assert takes(grammar, json.dumps(value, separators=(",", ":")))[0]


def test_many_values_leave_few_ways_open():
    for n in (100, 10_000):
        rules: dict[str, str] = {}
        prepare({"enum": [f"value {at}" for at in range(n)]}, rules)
        (expression,) = rules.values()
        # One way into each bracket, and ten digits or none behind it.
        assert max(len(part.split("|")) for part in expression.replace(")", "(").split("(")) <= 11


def test_the_marks_of_several_schemas_are_apart():
    rules: dict[str, str] = {}
    schemas = [{"type": "string", "maxLength": 2000 + at} for at in range(3)] + [{"type": "array", "maxItems": 1500}] * 2
    whole = {"type": "object", "properties": {f"p{at}": prepare(one, rules) for at, one in enumerate(schemas)}}
    grammar = with_rules(load().string_call("lm_schema_to_grammar", json.dumps(whole).encode()), rules)
    for at in range(3):
        assert takes(grammar, json.dumps({f"p{at}": "x" * (2000 + at)}))[0]
        assert not takes(grammar, json.dumps({f"p{at}": "x" * (2001 + at)}))[0]
    assert takes(grammar, json.dumps({"p4": [1] * 1500}))[0] and not takes(grammar, json.dumps({"p3": [1] * 1501}))[0]
