"""JSON schemas of those who check answers themselves: what a grammar cannot express is left to them, and is no error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.chat.constraints.regex import from_regex
from localllm.chat.constraints.schema import ANNOTATIONS, KEYWORDS
from localllm.errors import GrammarError

# Keywords that hold schemas, by how they hold them (JSON Schema 2020-12, core, section 10).
_ONE = {"items", "additionalProperties"}
_SEVERAL = {"anyOf", "allOf", "oneOf", "prefixItems", "items"}
_NAMED = {"properties", "$defs", "definitions"}
# Of these the first stands alone, but for a type and what is said about it.
_ALONE = ("$ref", "anyOf", "const", "enum")
_LENGTHS = {"minLength", "maxLength"}


def loosened(schema: Any) -> Any:
    """A schema that lets through all that another does, and maybe more: without what no grammar can hold an answer to.

    Args:
        schema: a JSON schema, as a class writes one that checks what it is given; what is no schema stays as it is.
    """
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, entry in schema.items():
        if key in _NAMED and isinstance(entry, Mapping):
            made[key] = {name: loosened(each) for name, each in entry.items()}
        elif key in _SEVERAL and isinstance(entry, (list, tuple)):
            made["anyOf" if key == "oneOf" else key] = [loosened(each) for each in entry]
        elif key in KEYWORDS:
            made[key] = loosened(entry) if key in _ONE else entry
    return _without_what_does_not_go_together(made)


def _without_what_does_not_go_together(schema: dict[str, Any]) -> dict[str, Any]:
    alone = next((key for key in _ALONE if key in schema), None)
    if alone is not None:
        return {key: entry for key, entry in schema.items() if key in ANNOTATIONS or key in (alone, "type")}
    if "pattern" not in schema:
        return schema
    # A pattern says more than lengths do.
    dropped = _LENGTHS if _is_expressible(schema["pattern"]) else {"pattern"}
    return {key: entry for key, entry in schema.items() if key not in dropped}


def _is_expressible(pattern: Any) -> bool:
    try:
        from_regex(pattern, json_string=True)
    except (GrammarError, TypeError):
        return False
    return True
