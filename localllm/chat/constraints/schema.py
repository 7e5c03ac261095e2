"""JSON schemas made ready for llama.cpp's converter: what it would pass over is rewritten, or an error that names it.

The converter reads one keyword of several that stand beside each other ("anyOf" hides "properties"), has no bounds for numbers,
and takes any string where it cannot express a pattern. Its grammars then let answers through that the schema forbids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from localllm.chat.constraints.numbers import Bound, integer, number
from localllm.chat.constraints.regex import from_regex
from localllm.errors import GrammarError

# What a schema says about itself, or what JSON Schema 2020-12 calls an annotation ("format" among them: section 7.2.1 of its
# validation vocabulary). Nothing in an answer depends on these.
_ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "format", "strict",
    "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "$schema", "$id", "$anchor", "$comment",
    "$defs", "definitions", "$vocabulary", "additionalItems",
}  # fmt: skip
_OBJECT = {"properties", "required", "additionalProperties"}
_ARRAY = {"items", "prefixItems", "minItems", "maxItems"}
_STRING = {"pattern", "minLength", "maxLength"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_VALUES = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER, "integer": _NUMBER}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_COMBINATIONS = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
# Values that stand in a schema for a rule of ours. A number stands for a number: formats that write strings without quotes treat
# the two differently.
_TEXT_MARK = "\ue000localllm:{}\ue001"
_NUMBER_MARK = 7_310_054_300_000_000
# Every float has fewer digits; a grammar writes each of them out.
_BOUND_DIGITS = 400
_LARGEST_BOUND = 10**_BOUND_DIGITS


def prepare(schema: Mapping[str, Any], rules: dict[str, str], where: str = "json_schema") -> dict[str, Any]:
    """A schema that the converter understands to the letter, but for its marks.

    Args:
        schema: a JSON schema: draft 7 or 2020-12, as Pydantic and OpenAI write them.
        rules: dict that collects, for all schemas of a grammar, GBNF expressions by the literals that stand for them.
        where: str, what it is, for messages.

    Raises:
        GrammarError: A keyword that a grammar cannot express, or that does not go with another; names it and its place.
    """
    return _Preparation(where, schema, rules).value(schema, "#")


def with_rules(grammar: str, rules: Mapping[str, str]) -> str:
    """A grammar that was made of prepared schemas, with the expressions in the places of their marks."""
    for literal, rule in rules.items():
        grammar = grammar.replace(literal, f"({rule})")
    return grammar


class _Preparation:
    def __init__(self, where: str, root: Mapping[str, Any], rules: dict[str, str]) -> None:
        self.where = where
        self.root = root
        self.rules = rules

    def fail(self, path: str, message: str) -> GrammarError:
        return GrammarError(f"{self.where} at {path}: {message}")

    def value(self, schema: Any, path: str) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise self.fail(path, f"must be a schema, not {schema!r}")
        schema = {
            key: entry for key, entry in schema.items() if key not in _ANNOTATIONS or key in ("format", "$defs", "definitions")
        }
        rewritten = self._rewritten(schema, path)
        for group in ("$defs", "definitions"):
            if group in schema:
                rewritten[group] = {
                    name: self.value(entry, f"{path}/{group}/{name}")
                    for name, entry in self._mapping(schema, group, path).items()
                }
        return rewritten

    def _rewritten(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        keys = set(schema) - _ANNOTATIONS
        kinds = [kind for kind in _COMBINATIONS if kind in keys]
        if not kinds:
            return self._typed(schema, keys, path)
        if len(kinds) > 1:
            raise self.fail(path, f"{kinds[1]!r} beside {kinds[0]!r} cannot be expressed")
        kind, beside = kinds[0], keys - {kinds[0], "type"}
        if kind in ("const", "enum"):
            return self._listed(schema, kind, beside, path)
        if kind == "allOf":
            return self._all_of(schema, beside, path)
        if beside:
            raise self.fail(path, f"{min(beside)!r} beside {kind!r} cannot be expressed")
        if kind == "$ref":
            return {"$ref": self._reference(schema["$ref"], path)}
        options = self._list(schema, kind, path)
        if kind == "oneOf":
            self._require_apart(options, path)
        types = {"type": schema["type"]} if "type" in schema else {}
        # A type beside alternatives holds for those that name none.
        return {"anyOf": [self.value(self._with_type(option, types), f"{path}/{kind}/{at}") for at, option in enumerate(options)]}

    @staticmethod
    def _with_type(option: Any, types: dict[str, Any]) -> Any:
        names_one = not isinstance(option, Mapping) or any(key in option for key in ("type", *_COMBINATIONS))
        return option if names_one or not types else {**types, **option}

    def _require_apart(self, options: list[Any], path: str) -> None:
        """No answer may fit two of the alternatives; a grammar cannot see to that."""
        followed = [self._followed(option, f"{path}/oneOf/{at}") for at, option in enumerate(options)]
        for at, one in enumerate(followed):
            for place, other in enumerate(followed[:at]):
                if not are_apart(one, other):
                    raise self.fail(path, f"'oneOf': an answer could fit both {place} and {at}; use 'anyOf' if it may")

    def _reference(self, ref: Any, path: str) -> str:
        if ref == "#":
            # The whole schema within itself, which the converter knows by no name.
            raise self.fail(path, "a '$ref' to '#' cannot be expressed; put the schema under '$defs' and refer to that")
        if not isinstance(ref, str) or not ref.startswith("#/"):
            raise self.fail(path, f"'$ref' {ref!r}: only places in the same schema can be referred to")
        target: Any = self.root
        for step in ref[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and step in target:
                target = target[step]
            elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            else:
                raise self.fail(path, f"'$ref' {ref!r}: there is no such place")
        if not ref.startswith(("#/$defs/", "#/definitions/")):
            # It is read where it stands, which is checked there, too.
            self.value(target, ref)
        return ref

    def _listed(self, schema: dict[str, Any], kind: str, beside: set[str], path: str) -> dict[str, Any]:
        if beside:
            raise self.fail(path, f"{min(beside)!r} beside {kind!r} cannot be expressed")
        values = self._list(schema, kind, path) if kind == "enum" else [schema["const"]]
        types = self._types(schema, path)
        fitting = [value for value in values if not types or any(_is(value, name) for name in types)]
        if not fitting:
            raise self.fail(path, f"{kind!r} has no value of type {schema.get('type')!r}")
        return {"enum": fitting}

    def _all_of(self, schema: dict[str, Any], beside: set[str], path: str) -> dict[str, Any]:
        parts = [self._followed(part, f"{path}/allOf/{at}") for at, part in enumerate(self._list(schema, "allOf", path))]
        rest = {key: schema[key] for key in (*beside, "type") if key in schema}
        merged: dict[str, Any] = {}
        for part in [*parts, rest]:
            for key, entry in part.items():
                if key in _ANNOTATIONS:
                    continue
                merged[key] = self._both(key, merged[key], entry, path) if key in merged else entry
        return self.value(merged, path)

    def _both(self, key: str, one: Any, other: Any, path: str) -> Any:
        if one == other:
            return one
        if key == "required":
            return [*one, *(name for name in other if name not in one)]
        if key == "properties" and all(one[name] == other[name] for name in one if name in other):
            return {**one, **other}
        if key in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
            return max(one, other)
        if key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
            return min(one, other)
        raise self.fail(path, f"the parts of 'allOf' differ in {key!r}, which cannot be expressed")

    def _followed(self, part: Any, path: str, depth: int = 0) -> dict[str, Any]:
        """A part of allOf with its reference resolved."""
        if not isinstance(part, Mapping):
            raise self.fail(path, f"must be a schema, not {part!r}")
        if "$ref" not in part:
            return dict(part)
        ref = self._reference(part["$ref"], path)
        target: Any = self.root
        for step in ref[2:].split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        if depth > 20:
            raise self.fail(path, f"'$ref' {ref!r} refers to itself")
        return self._followed(target, ref, depth + 1)

    # ---- by type

    def _typed(self, schema: dict[str, Any], keys: set[str], path: str) -> dict[str, Any]:
        types = self._types(schema, path)
        if not types:
            fitting = [name for name, known in _VALUES.items() if keys & known]
            if not keys:
                return {}
            if len({id(_VALUES[name]) for name in fitting}) != 1:
                raise self.fail(path, f"{min(keys)!r} without a 'type' cannot be expressed")
            types = [fitting[0]]
        known = {"type"}.union(*(_VALUES.get(name, set()) for name in types))
        for key in sorted(keys - known):
            raise self.fail(path, f"{key!r} cannot be expressed" + (f" for type {types[0]!r}" if len(types) == 1 else ""))
        made = [self._of_type(name, schema, path) for name in types]
        return made[0] if len(made) == 1 else {"anyOf": made}

    def _of_type(self, name: str, schema: dict[str, Any], path: str) -> dict[str, Any]:
        if name == "object":
            return self._object(schema, path)
        if name == "array":
            return self._array(schema, path)
        if name == "string":
            return self._string(schema, path)
        if name in ("number", "integer") and any(key in schema for key in _NUMBER):
            return self._bounded(name, schema, path)
        return {"type": name}

    def _object(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        properties = self._mapping(schema, "properties", path) if "properties" in schema else {}
        made = {name: self.value(entry, f"{path}/properties/{name}") for name, entry in properties.items()}
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self.fail(path, "'required' must be a list of names")
        others = schema.get("additionalProperties", not properties)
        if others is not True and others is not False:
            others = self.value(others, f"{path}/additionalProperties")
        for name in required:
            if name not in made:
                if others is False and "additionalProperties" in schema:
                    raise self.fail(path, f"'required' names {name!r}, which 'additionalProperties' forbids")
                made[name] = dict(others) if isinstance(others, dict) else {}
        result: dict[str, Any] = {"type": "object"}
        if made:
            result["properties"] = made
        if required:
            result["required"] = list(required)
        if made or others is not True:
            result["additionalProperties"] = others
        return result

    def _array(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        least, most = self._count(schema, "minItems", path), self._count(schema, "maxItems", path)
        items, first = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):
            items, first = True, items
        if first is None:
            if items is False:
                least, most = least or 0, 0
            result: dict[str, Any] = {"type": "array", "items": self.value(True if items is False else items, f"{path}/items")}
            result.update(_given(minItems=least, maxItems=most))
            self._not_empty("minItems", least, "maxItems", most, path)
            return result
        if not isinstance(first, list) or not first:
            raise self.fail(path, "'prefixItems' must be a list of schemas")
        n = len(first) if most is None else min(most, len(first))
        if (least or 0) > n:
            raise self.fail(path, f"'minItems' {least}: an array of more items than 'prefixItems' lists cannot be expressed")
        return {
            "type": "array",
            "prefixItems": [self.value(item, f"{path}/prefixItems/{at}") for at, item in enumerate(first[:n])],
        }

    def _string(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        least, most = self._count(schema, "minLength", path), self._count(schema, "maxLength", path)
        if "pattern" in schema:
            if least is not None or most is not None:
                raise self.fail(
                    path, f"{'minLength' if least is not None else 'maxLength'!r} beside 'pattern' cannot be expressed"
                )
            try:
                return self._marked(from_regex(schema["pattern"], json_string=True), _TEXT_MARK.format(len(self.rules)))
            except (GrammarError, TypeError) as error:
                raise self.fail(path, str(error)) from error
        self._not_empty("minLength", least, "maxLength", most, path)
        result: dict[str, Any] = {"type": "string"}
        if least is None and most is None and schema.get("format") in ("uuid", "date", "time", "date-time"):
            return {**result, "format": schema["format"]}
        return {**result, **_given(minLength=least, maxLength=most)}

    def _bounded(self, name: str, schema: dict[str, Any], path: str) -> dict[str, Any]:
        for key in sorted(_NUMBER & set(schema)):
            self._require_bound(key, schema[key], path)
        low = self._bound(schema, "minimum", "exclusiveMinimum", max)
        high = self._bound(schema, "maximum", "exclusiveMaximum", min)
        if name == "integer":
            least = None if low is None else int(low.value.to_integral_value("ROUND_CEILING"))
            most = None if high is None else int(high.value.to_integral_value("ROUND_FLOOR"))
            least = least + 1 if low and not low.inclusive and least == low.value and least is not None else least
            most = most - 1 if high and not high.inclusive and most == high.value and most is not None else most
            self._not_empty("minimum", least, "maximum", most, path)
            return self._marked(integer(least, most), _NUMBER_MARK + len(self.rules))
        try:
            return self._marked(number(low, high), _NUMBER_MARK + len(self.rules))
        except ValueError as error:
            raise self.fail(path, str(error)) from error

    def _require_bound(self, key: str, value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(path, f"{key!r} must be a number, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fail(path, f"{key!r} must be a finite number, not {value!r}")
        if isinstance(value, int) and abs(value) >= _LARGEST_BOUND:
            raise self.fail(path, f"{key!r} has more than {_BOUND_DIGITS} digits, which cannot be expressed")

    @staticmethod
    def _bound(schema: dict[str, Any], inclusive: str, exclusive: str, stricter: Any) -> Bound | None:
        bounds = [
            Bound(Decimal(str(schema[key])), key == inclusive) for key in (exclusive, inclusive) if schema.get(key) is not None
        ]
        # Of two equal ones the exclusive one is stricter; it comes first, and max and min keep the first.
        return stricter(bounds, key=lambda bound: bound.value) if bounds else None

    # ---- small things

    def _marked(self, rule: str, mark: str | int) -> dict[str, Any]:
        literal = f'"\\"{mark}\\""' if isinstance(mark, str) else f'"{mark}"'
        self.rules[literal] = rule
        return {"const": mark}

    def _types(self, schema: dict[str, Any], path: str) -> list[str]:
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or ("type" in schema and not types):
            raise self.fail(path, f"'type' must be a name or a list of names, not {schema['type']!r}")
        for name in types:
            if name not in _TYPES:
                raise self.fail(path, f"'type' {name!r} is not one of {', '.join(_TYPES)}")
        return types

    def _mapping(self, schema: dict[str, Any], key: str, path: str) -> Mapping[str, Any]:
        if not isinstance(schema[key], Mapping):
            raise self.fail(path, f"{key!r} must be an object, not {schema[key]!r}")
        found: Mapping[str, Any] = schema[key]
        return found

    def _list(self, schema: dict[str, Any], key: str, path: str) -> list[Any]:
        if not isinstance(schema[key], (list, tuple)) or not schema[key]:
            raise self.fail(path, f"{key!r} must be a list that is not empty")
        return list(schema[key])

    def _count(self, schema: dict[str, Any], key: str, path: str) -> int | None:
        n = schema.get(key)
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
            raise self.fail(path, f"{key!r} must be a whole number, not {n!r}")
        return n

    def _not_empty(self, low_key: str, low: int | None, high_key: str, high: int | None, path: str) -> None:
        if low is not None and high is not None and low > high:
            raise self.fail(path, f"{low_key!r} {low} is more than {high_key!r} {high}")


def are_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether it can be seen that no answer written by one schema fits the other."""
    first, second = _listed_values(one), _listed_values(other)
    if first is not None and second is not None:
        return not any(
            value == entry and isinstance(value, bool) == isinstance(entry, bool) for value in first for entry in second
        )
    kinds, others = _kinds(one), _kinds(other)
    if kinds and others and not kinds & others and not {"integer", "number"} <= kinds | others:
        return True
    if kinds != {"object"} or others != {"object"}:
        return False
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    shared = set(one.get("required", ())) & set(other.get("required", ())) & set(mine) & set(theirs)
    if any(
        isinstance(mine[name], Mapping) and isinstance(theirs[name], Mapping) and are_apart(mine[name], theirs[name])
        for name in shared
    ):
        return True
    closed = not one.get("additionalProperties") and not other.get("additionalProperties") and mine and theirs
    return bool(closed) and bool(set(one.get("required", ())) - set(theirs)) and bool(set(other.get("required", ())) - set(mine))


def _listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    values = _listed_values(schema)
    if values is not None:
        return {name for value in values for name in _TYPES if _is(value, name)}
    types = schema.get("type", "object" if "properties" in schema else [])
    return {types} if isinstance(types, str) else set(types)


def _given(**counts: int | None) -> dict[str, int]:
    return {key: n for key, n in counts.items() if n is not None}


def _is(value: Any, name: str) -> bool:
    """Whether a value is of a JSON type."""
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return name == "number" or (name == "integer" and float(value).is_integer())
    kinds: dict[str, type | tuple[type, ...]] = {"string": str, "array": (list, tuple), "object": Mapping}
    return name in kinds and isinstance(value, kinds[name])
