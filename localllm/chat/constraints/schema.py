"""JSON schemas made ready for llama.cpp's converter: what it would pass over is rewritten, or an error that names it.

The converter reads one keyword of several that stand beside each other ("anyOf" hides "properties"), has no bounds for numbers,
and takes any string where it cannot express a pattern. Its grammars then let answers through that the schema forbids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from localllm.chat.constraints import marks
from localllm.chat.constraints.alternatives import one_of
from localllm.chat.constraints.apart import TYPES, are_apart, is_of_type, listed_values
from localllm.chat.constraints.marks import with_rules
from localllm.chat.constraints.numbers import Bound, integer, number
from localllm.chat.constraints.references import endless, place
from localllm.chat.constraints.regex import from_regex
from localllm.chat.constraints.repetition import MAX_COUNT, MAX_PLAIN
from localllm.errors import GrammarError

__all__ = ["ANNOTATIONS", "KEYWORDS", "prepare", "with_rules"]

# What a schema says about itself, or what JSON Schema 2020-12 calls an annotation ("format" among them: section 7.2.1 of its
# validation vocabulary). Nothing in an answer depends on these.
ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "format", "strict",
    "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "$schema", "$id", "$anchor", "$comment",
    "$defs", "definitions", "$vocabulary", "additionalItems",
}  # fmt: skip
_OBJECT = {"properties", "required", "additionalProperties"}
_ARRAY = {"items", "prefixItems", "minItems", "maxItems"}
_STRING = {"pattern", "minLength", "maxLength"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_VALUES = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER, "integer": _NUMBER}
_COMBINATIONS = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
# All that there is a way to express, or no need to.
KEYWORDS = ANNOTATIONS.union(_OBJECT, _ARRAY, _STRING, _NUMBER, _COMBINATIONS, {"type"})
# Python and llama.cpp's converter call themselves for each schema within another.
_MAX_DEPTH = 100
# Longer lists are written such that what their values have in common at the beginning is written once.
_MAX_LISTED = 32
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
    preparation = _Preparation(where, schema, rules)
    try:
        return preparation.whole()
    except RecursionError as error:
        raise preparation.fail("#", "schemas within schemas are nested too deeply") from error


class _Preparation:
    def __init__(self, where: str, root: Mapping[str, Any], rules: dict[str, str]) -> None:
        self.where = where
        self.root = root
        self.rules = rules
        self.depth = 0
        # What is referred to, by what the converter knows it by.
        self.names: dict[str, str] = {}

    def whole(self) -> dict[str, Any]:
        """The schema, with all that it refers to under "$defs"."""
        result = self.value(self.root, "#")
        made: dict[str, Any] = {}
        while len(made) < len(self.names):
            ref, name = list(self.names.items())[len(made)]
            made[name] = self.value(place(self.root, ref), ref)
        for ref in endless({f"#/$defs/{name}": schema for name, schema in made.items()}):
            raise self.fail("#", f"'$ref' {list(self.names)[list(made).index(ref.split('/')[-1])]!r} refers to itself")
        return {**result, "$defs": made} if made else result

    def fail(self, path: str, message: str) -> GrammarError:
        return GrammarError(f"{self.where} at {path}: {message}")

    def value(self, schema: Any, path: str) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise self.fail(path, f"must be a schema, not {schema!r}")
        if self.depth == _MAX_DEPTH:
            raise self.fail(path, f"more than {_MAX_DEPTH} schemas within each other, or one that is a part of itself")
        self.depth += 1
        try:
            return self._rewritten({key: entry for key, entry in schema.items() if key not in ANNOTATIONS - {"format"}}, path)
        finally:
            self.depth -= 1

    def _rewritten(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        keys = set(schema) - ANNOTATIONS
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
        types = self._types(schema, path)
        if kind == "$ref":
            return self._referred(schema["$ref"], types, path)
        options = self._list(schema, kind, path)
        if types:
            options = [narrow for option in options if (narrow := self._narrowed(option, types, path)) is not None]
            if not options:
                raise self.fail(path, f"{kind!r} has nothing of type {schema['type']!r}")
        if kind == "oneOf":
            self._require_apart(options, path)
        return {"anyOf": [self.value(option, f"{path}/{kind}/{at}") for at, option in enumerate(options)]}

    def _referred(self, ref: Any, types: list[str], path: str) -> dict[str, Any]:
        target = self._target(ref, path)
        if types and isinstance(target, Mapping):
            narrow = self._narrowed(target, types, path)
            if narrow is None:
                raise self.fail(path, f"'$ref' {ref!r} has nothing of the type beside it")
            if narrow != target:
                return self.value(narrow, ref)
        return {"$ref": f"#/$defs/{self.names.setdefault(ref, f'r{len(self.names)}')}"}

    def _narrowed(self, option: Any, types: list[str], path: str) -> Any:
        """A schema for those values of another that are of some types; None if there are none."""
        if option is True:
            return {"type": types}
        if not isinstance(option, Mapping):
            return option
        own = self._types(option, path) or types
        both = _common_types(own, types)
        values = listed_values(option)
        if not both or (isinstance(values, list) and not any(is_of_type(value, name) for value in values for name in both)):
            return None
        return option if both == own and "type" in option else {**option, "type": both[0] if len(both) == 1 else both}

    def _require_apart(self, options: list[Any], path: str) -> None:
        """No answer may fit two of the alternatives; a grammar cannot see to that."""
        followed = [self._followed(option, f"{path}/oneOf/{at}") for at, option in enumerate(options)]
        for at, one in enumerate(followed):
            for earlier, other in enumerate(followed[:at]):
                if not are_apart(one, other):
                    raise self.fail(path, f"'oneOf': an answer could fit both {earlier} and {at}; use 'anyOf' if it may")

    def _target(self, ref: Any, path: str) -> Any:
        try:
            return place(self.root, ref)
        except ValueError:
            raise self.fail(path, f"'$ref' {ref!r}: only places in the same schema can be referred to") from None
        except LookupError:
            raise self.fail(path, f"'$ref' {ref!r}: there is no such place") from None

    def _listed(self, schema: dict[str, Any], kind: str, beside: set[str], path: str) -> dict[str, Any]:
        if beside:
            raise self.fail(path, f"{min(beside)!r} beside {kind!r} cannot be expressed")
        values = self._list(schema, kind, path) if kind == "enum" else [schema["const"]]
        types = self._types(schema, path)
        fitting = [value for value in values if not types or any(is_of_type(value, name) for name in types)]
        if not fitting:
            raise self.fail(path, f"{kind!r} has no value of type {schema.get('type')!r}")
        written = [self._written(value, kind, path) for value in fitting]
        # The converter makes floats of large numbers.
        if len(fitting) > _MAX_LISTED or any(isinstance(value, int) and abs(value) >= 2**63 for value in fitting):
            return self._marked(one_of(written), text=any(isinstance(value, str) for value in fitting))
        return {"enum": fitting}

    def _written(self, value: Any, key: str, path: str) -> str:
        """A value as JSON."""
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            written.encode()
        except UnicodeEncodeError as error:
            raise self.fail(path, f"{key!r}: {value!r} has half of a character, {error.object[error.start]!r}") from error
        except (TypeError, ValueError) as error:
            raise self.fail(path, f"{key!r}: {value!r} cannot be written as JSON: {error}") from error
        if marks.is_mark(value):
            raise self.fail(path, f"{key!r}: the value {value!r} is reserved")
        return written

    def _all_of(self, schema: dict[str, Any], beside: set[str], path: str) -> dict[str, Any]:
        parts = [self._followed(part, f"{path}/allOf/{at}") for at, part in enumerate(self._list(schema, "allOf", path))]
        rest = {key: schema[key] for key in (*beside, "type") if key in schema}
        self._require_open([*parts, rest], path)
        merged: dict[str, Any] = {}
        for part in [*parts, rest]:
            for key, entry in part.items():
                if key in ANNOTATIONS:
                    continue
                merged[key] = self._both(key, merged[key], entry, path) if key in merged else entry
        return self.value(merged, path)

    def _require_open(self, parts: list[dict[str, Any]], path: str) -> None:
        """A part's additionalProperties are about the others' properties, too."""
        for closed in parts:
            own = closed.get("properties") or {}
            for name in sorted({name for part in parts for name in (*part.get("properties", ()), *part.get("required", ()))}):
                if closed.get("additionalProperties", True) is not True and name not in own:
                    raise self.fail(path, f"'additionalProperties' of a part of 'allOf' cannot be applied to another's {name!r}")

    def _both(self, key: str, one: Any, other: Any, path: str) -> Any:
        if one == other:
            return one
        if key == "required":
            return [*one, *(name for name in other if name not in one)]
        if key == "type" and (common := _common_types(self._types({key: one}, path), self._types({key: other}, path))):
            return common[0] if len(common) == 1 else common
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
        ref = part["$ref"]
        target = self._target(ref, path)
        if depth > 20:
            raise self.fail(path, f"'$ref' {ref!r} refers to itself")
        beside = {key: entry for key, entry in part.items() if key not in ANNOTATIONS and key != "$ref"}
        if set(beside) == {"type"}:
            narrow = self._narrowed(self._followed(target, ref, depth + 1), self._types(beside, path), path)
            if narrow is None:
                raise self.fail(path, f"'$ref' {ref!r} has nothing of the type beside it")
            return dict(narrow)
        if beside:
            # They hold together, as the parts of allOf do.
            return {"allOf": [{"$ref": ref}, beside]}
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
        for name in properties:
            self._written(name, "properties", path)
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
            self._not_empty("minItems", least, "maxItems", most, path)
            result: dict[str, Any] = {"type": "array", "items": self.value(True if items is False else items, f"{path}/items")}
            if max(least or 0, most or 0) <= MAX_PLAIN:
                return {**result, **_given(minItems=least, maxItems=most)}
            # The converter writes the first item, and then repeats commas and items.
            limit = marks.count(max((least or 0) - 1, 0), None if most is None else most - 1, self.rules, offset=1)
            return {**result, "minItems": min(least or 0, 1), "maxItems": limit}
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
                return self._marked(from_regex(schema["pattern"], json_string=True), text=True)
            except (GrammarError, TypeError) as error:
                raise self.fail(path, str(error)) from error
        self._not_empty("minLength", least, "maxLength", most, path)
        result: dict[str, Any] = {"type": "string"}
        if least is None and most is None and schema.get("format") in ("uuid", "date", "time", "date-time"):
            return {**result, "format": schema["format"]}
        if max(least or 0, most or 0) > MAX_PLAIN:
            return {**result, "maxLength": marks.count(least or 0, most, self.rules)}
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
            return self._marked(integer(least, most))
        try:
            return self._marked(number(low, high))
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

    def _marked(self, rule: str, *, text: bool = False) -> dict[str, Any]:
        return marks.text(rule, self.rules) if text else marks.other(rule, self.rules)

    def _types(self, schema: Mapping[str, Any], path: str) -> list[str]:
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or ("type" in schema and not types):
            raise self.fail(path, f"'type' must be a name or a list of names, not {schema['type']!r}")
        for name in types:
            if name not in TYPES:
                raise self.fail(path, f"'type' {name!r} is not one of {', '.join(TYPES)}")
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
        if n is not None and n > MAX_COUNT:
            raise self.fail(path, f"{key!r} cannot be more than {MAX_COUNT}")
        return n

    def _not_empty(self, low_key: str, low: int | None, high_key: str, high: int | None, path: str) -> None:
        if low is not None and high is not None and low > high:
            raise self.fail(path, f"{low_key!r} {low} is more than {high_key!r} {high}")


def _given(**counts: int | None) -> dict[str, int]:
    return {key: n for key, n in counts.items() if n is not None}


def _common_types(some: list[str], others: list[str]) -> list[str]:
    found = [name for name in some if name in others or (name == "integer" and "number" in others)]
    return found + ["integer" for name in some if name == "number" and "integer" in others and name not in others]
