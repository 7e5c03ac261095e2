"""The one constraint that a request may put on its answer: a schema, or a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.chat.constraints.alternatives import one_of
from localllm.chat.constraints.regex import from_regex
from localllm.chat.constraints.schema import prepare
from localllm.chat.texts import require_whole_characters
from localllm.errors import InvalidRequestError


@dataclass(frozen=True)
class Constraint:
    """What an answer has to be.

    Attributes:
        schema: dict, a JSON schema that the converter understands, or None.
        grammar: str, GBNF with a rule "root", or "".
    """

    schema: dict[str, Any] | None = None
    grammar: str = ""


def constraint(
    rules: dict[str, str],
    response_format: Any = None,
    json_schema: Mapping[str, Any] | None = None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    grammar: str | None = None,
) -> Constraint:
    """The constraint that a request's options name; each of them None: free text.

    Args:
        rules: collects expressions, see `schema.prepare`.
        response_format: OpenAI's: {"type": "text"}, {"type": "json_object"}, or
            {"type": "json_schema", "json_schema": {"schema": ...}}.
        json_schema: a JSON schema. An empty one means any object.
        regex: str, a pattern that the whole answer matches.
        choice: list of str, the answers to choose from.
        grammar: str, GBNF.

    Raises:
        InvalidRequestError: Two of them are given, or one has the wrong form.
        GrammarError: A schema or pattern that a grammar cannot express.
    """
    if (found := _format_schema(response_format)) is not None and json_schema is not None:
        raise InvalidRequestError("response_format: asks for JSON, and so does json_schema; give one of them")
    schema = json_schema if found is None else found
    given = {"json_schema": schema, "regex": regex, "choice": choice, "grammar": grammar or None}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidRequestError(f"{named[1]}: not together with {named[0]}, which constrains the answer already")
    if schema is not None:
        if not isinstance(schema, Mapping):
            raise InvalidRequestError(f"json_schema: must be a mapping, not {type(schema).__name__}")
        require_whole_characters("json_schema", schema)
        return Constraint(prepare(schema or {"type": "object"}, rules))
    if regex is not None:
        if not isinstance(regex, str):
            raise InvalidRequestError(f"regex: must be text, not {type(regex).__name__}")
        return Constraint(grammar=f"root ::= {from_regex(regex)}")
    if choice is not None:
        return Constraint(grammar=f"root ::= {_one_of(choice)}")
    return Constraint(grammar=grammar or "")


def _one_of(choice: Any) -> str:
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise InvalidRequestError(f"choice: must be a list of texts that is not empty, not {choice!r}")
    for at, text in enumerate(choice):
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"choice[{at}]: must be text that is not empty, not {text!r}")
        require_whole_characters(f"choice[{at}]", text)
    return one_of(choice)


def _format_schema(response_format: Any) -> Mapping[str, Any] | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema" or not isinstance(response_format, Mapping):
        raise InvalidRequestError(
            f"response_format: must be of type 'text', 'json_object' or 'json_schema', not {response_format!r}"
        )
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidRequestError('response_format: "json_schema" needs a "schema"')
    return schema
