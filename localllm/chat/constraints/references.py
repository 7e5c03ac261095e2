"""The places in a schema that "$ref" names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def place(root: Any, ref: Any) -> Any:
    """What is at a place in a schema.

    Args:
        root: the schema.
        ref: str, "#" or "#/..." with steps as in RFC 6901.

    Raises:
        ValueError: It is no such reference.
        LookupError: There is no such place.
    """
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        raise ValueError(ref)
    target = root
    for step in ref[2:].split("/") if len(ref) > 1 else ():
        target = _below(target, step)
    return target


def _below(target: Any, step: str) -> Any:
    # Some writers do not percent-encode, and may mean a name as it stands.
    for written in (unquote(step), step):
        name = written.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            return target[name]
        if isinstance(target, (list, tuple)) and name.isdecimal() and int(name) < len(target):
            return target[int(name)]
    raise LookupError(step)


def endless(schemas: Mapping[str, Any]) -> list[str]:
    """The names of schemas that are, by references and alternatives alone, parts of themselves.

    Args:
        schemas: dict, prepared ones by the references to them.
    """
    begins = {name: _references(schema) for name, schema in schemas.items()}
    while ready := [name for name, others in begins.items() if not others & set(begins)]:
        for name in ready:
            del begins[name]
    return list(begins)


def _references(schema: Any) -> set[str]:
    if "$ref" in schema:
        return {schema["$ref"]}
    return set().union(*(_references(option) for option in schema.get("anyOf", ())))
