"""Whether two JSON schemas can have an answer in common, as far as that can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def are_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether it can be seen that no answer written by one schema fits the other."""
    first, second = listed_values(one), listed_values(other)
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


def listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of "const" or "enum"."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    values = listed_values(schema)
    if values is not None:
        return {name for value in values for name in TYPES if is_of_type(value, name)}
    types = schema.get("type", "object" if "properties" in schema else [])
    return {types} if isinstance(types, str) else set(types)


def is_of_type(value: Any, name: str) -> bool:
    """Whether a value is of a JSON type."""
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return name == "number" or (name == "integer" and float(value).is_integer())
    kinds: dict[str, type | tuple[type, ...]] = {"string": str, "array": (list, tuple), "object": Mapping}
    return name in kinds and isinstance(value, kinds[name])
