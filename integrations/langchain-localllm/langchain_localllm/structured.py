"""Answers that are data: schemas in every form, and what the model is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.utils.pydantic import is_basemodel_subclass

from langchain_localllm.jsontext import written
from langchain_localllm.parsing import parsed
from langchain_localllm.schemas import of_class, rooted, strictly
from langchain_localllm.tools import UNREADABLE, openai_function, reason
from localllm.errors import InvalidRequestError

Method: TypeAlias = Literal["json_schema", "function_calling", "json_mode"]
Schema: TypeAlias = dict[str, Any] | type

METHODS = ("json_schema", "function_calling", "json_mode")
_TOLD = "Answer with JSON that satisfies this JSON schema:\n"


def json_schema(schema: Any, strict: bool | None = None) -> dict[str, Any]:
    """The JSON schema that a schema means.

    Args:
        schema: a pydantic class (of version 2 or 1), a TypedDict, a JSON schema, a function or tool as OpenAI writes it, or
            {"schema": ...} in an OpenAI-style response_format.
        strict: bool, True: all properties are required and, where properties are named, no others allowed.

    Raises:
        InvalidRequestError: It is none of these.
    """
    try:
        made = _schema(schema)
        return strictly(made) if strict else made
    except InvalidRequestError:
        raise
    except UNREADABLE as error:
        raise InvalidRequestError(f"schema: {reason(error)}") from error


def _schema(schema: Any) -> dict[str, Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return of_class(schema)
    if isinstance(schema, Mapping):
        is_format = schema.get("type") == "json_schema"
        inner = schema.get("json_schema", schema) if is_format else schema
        if isinstance(inner, Mapping) and isinstance(inner.get("schema"), Mapping):
            return _named(dict(inner["schema"]), inner)
        if is_format:
            raise InvalidRequestError(f"json_schema: must hold a schema under 'schema', not be {inner!r}")
        if schema.get("type") != "function" and not {"name", "input_schema", "toolSpec"} & schema.keys():
            return dict(schema)
    function = openai_function(schema, "schema")
    said = {"description": function["description"]} if "description" in function else {}
    return {"title": function["name"], **said, **(function.get("parameters") or {})}


def _named(schema: dict[str, Any], holder: Mapping[str, Any]) -> dict[str, Any]:
    name = holder.get("name")
    return {"title": name, **schema} if isinstance(name, str) else schema


def response_format(value: Any) -> Any:
    """An OpenAI-style response_format.

    Args:
        value: one; a schema in any form; "json", for any object; or None.

    Raises:
        InvalidRequestError: It is none of these.
    """
    if value is None or (isinstance(value, Mapping) and value.get("type") in ("text", "json_object")):
        return value
    if value == "json":
        return {"type": "json_object"}
    schema = json_schema(value)
    written(schema, "response_format")
    strict = value.get("json_schema", value).get("strict") if isinstance(value, Mapping) else None
    inner = {"name": str(schema.get("title") or "answer"), "schema": schema}
    return {"type": "json_schema", "json_schema": {**inner, **({} if strict is None else {"strict": strict})}}


def with_schema_told(messages: list[dict[str, Any]], format: Any) -> list[dict[str, Any]]:
    """Messages that tell the model which schema its answer has, since a grammar does not show it names' meanings.

    It stands at the end of the first system message, or, where there is none, of the last one of the user: there are templates
    without a place for system messages.
    """
    if not isinstance(format, Mapping) or format.get("type") != "json_schema":
        return messages
    text = _TOLD + written(format["json_schema"]["schema"], "response_format")
    systems = [at for at, message in enumerate(messages) if message["role"] in ("system", "developer")]
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    if not systems and not users:
        return [{"role": "user", "content": text}, *messages]
    at = systems[0] if systems else users[-1]
    content = messages[at]["content"]
    told = f"{content}\n\n{text}" if isinstance(content, str) else [*content, {"type": "text", "text": f"\n\n{text}"}]
    return [*messages[:at], {**messages[at], "content": told}, *messages[at + 1 :]]


def runnable(
    model: BaseChatModel, schema: Any, method: Method, *, include_raw: bool, strict: bool | None, **kwargs: Any
) -> Runnable[Any, Any]:
    """A model whose answers are data; arguments as of `ChatLocalLLM.with_structured_output`."""
    if method not in METHODS:
        raise InvalidRequestError(f"method: {method!r} is not one of {', '.join(map(repr, METHODS))}")
    if schema is None and method != "json_mode":
        raise InvalidRequestError(f"schema: the method {method!r} needs one")
    traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    asked = {**kwargs, **({"ls_structured_output_format": traced} if schema is not None else {})}
    if method == "function_calling":
        tool = _tool(schema, strict)
        name = tool["function"]["name"]
        bound = model.bind_tools([tool], tool_choice=name, parallel_tool_calls=False, **asked)
        return parsed(bound, schema, by_call=True, include_raw=include_raw)
    made = None if schema is None else json_schema(schema, strict)
    format = {"type": "json_object"} if made is None else response_format({"type": "json_schema", "schema": made})
    if method == "json_mode":
        asked["tell_schema"] = False
    bound = model.bind(response_format=format, **asked)
    return parsed(bound, schema, by_call=False, include_raw=include_raw)


def _tool(schema: Any, strict: bool | None) -> dict[str, Any]:
    """A schema as a tool; one without a name gets one."""
    if isinstance(schema, Mapping) and schema.get("type") == "json_schema":
        schema = json_schema(schema)
    if isinstance(schema, Mapping) and not {"name", "function", "toolSpec"} & schema.keys():
        schema = {"title": "answer", **rooted(schema)}
        if "properties" not in schema:
            # A tool without properties takes no arguments; a schema without them allows any.
            schema = {"additionalProperties": True, **schema}
    return {"type": "function", "function": openai_function(schema, "schema", strict)}
