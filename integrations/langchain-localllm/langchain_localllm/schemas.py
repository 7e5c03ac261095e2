"""JSON schemas: what classes mean, written such that templates can show it and grammars can hold to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from localllm.chat.constraints.references import place

Schema: TypeAlias = dict[str, Any]

# Keywords that hold schemas, by how they hold them (JSON Schema 2020-12, core, section 10).
_ONE = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
_SEVERAL = {"anyOf", "allOf", "oneOf", "prefixItems", "items"}
_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_DEFINITIONS = {"$defs", "definitions"}
# What may stand beside a reference without narrowing what that means.
_BESIDE = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", *_DEFINITIONS}


class _Endless(Exception):
    """A schema is a part of itself, or cannot be followed."""


def of_class(model: Any) -> Schema:
    """The JSON schema of a pydantic class (of version 2 or 1)."""
    return dict(model.model_json_schema() if hasattr(model, "model_json_schema") else model.schema())


def strictly(schema: Mapping[str, Any]) -> Schema:
    """A schema all of whose properties are required and, where properties are named, no others allowed."""
    made: Schema = _changed(schema, _closed)
    return made


def without_titles(schema: Mapping[str, Any]) -> Schema:
    """A schema without the titles that pydantic makes of names: they cost tokens and say nothing new."""
    made: Schema = _changed(schema, lambda each: {key: entry for key, entry in each.items() if key != "title"})
    return made


def inlined(schema: Mapping[str, Any]) -> Schema:
    """A schema with what it refers to in the place of references, for templates that show properties one by one.

    One that is a part of itself keeps its references; only what it means as a whole is written in its place.
    """
    try:
        made = _inlined(schema, schema, ())
    except _Endless:
        return rooted(schema)
    return {key: entry for key, entry in made.items() if key not in _DEFINITIONS}


def rooted(schema: Mapping[str, Any]) -> Schema:
    """A schema which, if it is but a reference as a whole, is what that means."""
    made, seen = dict(schema), set()
    while isinstance(ref := made.get("$ref"), str) and ref not in seen and made.keys() - {"$ref"} <= _BESIDE:
        seen.add(ref)
        try:
            target = place(schema, ref)
        except (ValueError, LookupError):
            break  # whoever makes a grammar of it says so
        if not isinstance(target, Mapping) or target is schema:
            break
        made = {**target, **{key: entry for key, entry in made.items() if key != "$ref"}}
    return made


def _changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """A schema with every schema within it changed, the inner ones first."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for key, entry in schema.items():
        if key in _NAMED and isinstance(entry, Mapping):
            made[key] = {name: _changed(each, change) for name, each in entry.items()}
        elif key in _SEVERAL and isinstance(entry, (list, tuple)):
            made[key] = [_changed(each, change) for each in entry]
        elif key in _ONE:
            made[key] = _changed(entry, change)
    return change(made)


def _closed(schema: Schema) -> Schema:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return schema
    return {**schema, "required": list(properties), "additionalProperties": False}


def _inlined(schema: Any, root: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    def follow(each: Schema) -> Schema:
        ref = each.get("$ref")
        if ref is None:
            return each
        beside = {key: entry for key, entry in each.items() if key != "$ref"}
        if not isinstance(ref, str) or ref in within or not beside.keys() <= _BESIDE:
            raise _Endless
        try:
            target = place(root, ref)
        except (ValueError, LookupError) as error:
            raise _Endless from error
        if not isinstance(target, Mapping):
            raise _Endless
        return {**_inlined(target, root, (*within, ref)), **beside}

    if not isinstance(schema, Mapping):
        return schema
    return _changed({key: entry for key, entry in schema.items() if key not in _DEFINITIONS}, follow)
