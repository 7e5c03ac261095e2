"""Tools and the choice among them, in whichever form LangChain, OpenAI or Anthropic writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.tools import BaseTool, Tool, create_schema_from_function
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from typing_extensions import is_typeddict

from langchain_localllm.jsontext import written
from langchain_localllm.schemas import inlined, of_class, rooted, strictly, without_titles
from localllm.errors import InvalidRequestError

Function = dict[str, Any]

# What making a schema of somebody's class, function or dict can fail with.
UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, NameError, RuntimeError)


def openai_tools(tools: Sequence[Any], strict: bool | None = None) -> list[dict[str, Any]]:
    """OpenAI-style function tools.

    Args:
        tools: functions, pydantic classes, TypedDicts, BaseTools, runnables as tools, dicts as OpenAI, Anthropic or Bedrock write
            them, or JSON schemas with a title. Classes may be parts of themselves, TypedDicts may not.
        strict: bool, whether the arguments of free calls have to keep to the schema; True also makes all properties required
            and, where properties are named, allows no others. None: as each tool says.

    Raises:
        InvalidRequestError: One of them is no tool, its arguments are no object, or it says otherwise than `strict`.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools: must be a list of tools, not {type(tools).__name__}")
    return [{"type": "function", "function": openai_function(tool, f"tools[{at}]", strict)} for at, tool in enumerate(tools)]


def openai_function(tool: Any, where: str, strict: bool | None = None) -> Function:
    """One tool: a dict of "name", "description", "parameters" and, if anything says so, "strict".

    Args:
        tool, strict: as of `openai_tools`.
        where: str, with which messages begin.

    Raises:
        InvalidRequestError: See `openai_tools`.
    """
    try:
        function = _function(tool, where)
        if strict and isinstance(function.get("parameters"), Mapping):
            function["parameters"] = strictly(function["parameters"])
    except InvalidRequestError:
        raise
    except UNREADABLE as error:
        raise InvalidRequestError(f"{where}: {reason(error)}") from error
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequestError(f"{where}: a tool without a name")
    own = function.get("strict")
    if strict is not None and own not in (None, strict):
        raise InvalidRequestError(f"{where}: says strict={own!r}, and strict={strict!r} is asked for; say one of them")
    if strict is not None:
        function["strict"] = strict
    _require_object(function.get("parameters"), where)
    written(function, where)
    return function


def _function(tool: Any, where: str) -> Function:
    if isinstance(tool, Mapping):
        return _of_mapping(dict(tool), where)
    if isinstance(tool, type) and is_basemodel_subclass(tool):
        return _described(of_class(tool))
    if isinstance(tool, BaseTool) and not (isinstance(tool, Tool) and (not tool.args_schema or tool.metadata)):
        asked = tool.tool_call_schema
        return _described(asked if isinstance(asked, dict) else of_class(asked), tool.name, tool.description)
    if callable(tool) and not isinstance(tool, BaseTool) and not is_typeddict(tool):
        made = create_schema_from_function(
            tool.__name__, tool, filter_args=(), parse_docstring=True, error_on_invalid_docstring=False, include_injected=False
        )
        return _described(of_class(made), tool.__name__, made.__doc__)
    return _converted(tool, where)


def _of_mapping(tool: dict[str, Any], where: str) -> Function:
    if "title" in tool and not {"name", "input_schema", "toolSpec", "function"} & tool.keys():
        schema = rooted(tool)
        said = {"description": schema["description"]} if "description" in schema else {}
        rest = {key: entry for key, entry in schema.items() if key not in ("title", "description")}
        return {"name": tool["title"], **said, "parameters": rest}
    return _converted(tool, where)


def _converted(tool: Any, where: str) -> Function:
    """By LangChain's own conversion, which copies these forms as they are."""
    converted = convert_to_openai_tool(tool)
    if converted.get("type") != "function":
        raise InvalidRequestError(f"{where}: {converted.get('type')!r} is a tool of a provider's server; give a function")
    function = converted.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f'{where}: must be {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}')
    return dict(function)


def _described(schema: Mapping[str, Any], name: str = "", description: str | None = "") -> Function:
    made = inlined(schema)
    said = description or made.pop("description", "")
    made.pop("description", None)
    return {"name": name or made.get("title", ""), "description": said, "parameters": without_titles(made)}


def _require_object(schema: Any, where: str) -> None:
    kind = schema.get("type", "object") if isinstance(schema, Mapping) else "object" if schema is None else schema
    if kind != "object":
        raise InvalidRequestError(
            f"{where}: the arguments of a call are an object, and this schema is of type {kind!r}; "
            "put it into a property of one, or ask for data by the method 'json_schema'"
        )


def reason(error: Exception) -> str:
    """What went wrong when a schema was made."""
    return (
        "is a part of itself, or nested too deeply; write it as a pydantic class"
        if isinstance(error, RecursionError)
        else str(error)
    )


def chosen_tool(choice: Any, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The choice as localllm takes it: "auto", "none", "required" or the name of a tool; None if none is meant.

    Args:
        choice: None, a bool, "auto", "none", "any", "required", a tool's name, {"type": "function", "function": {"name": ...}},
            or Anthropic's {"type": "auto" | "any" | "none" | "tool", "name": ...}.
        tools: OpenAI-style function tools.

    Raises:
        InvalidRequestError: It names none of them, or is no choice.
    """
    if choice is None or choice is False:
        return None
    if isinstance(choice, Mapping) and choice.get("type") in ("auto", "any", "none", "tool"):
        choice = choice.get("name") if choice["type"] == "tool" else choice["type"]
    elif isinstance(choice, Mapping):
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else function
    if choice is True or choice in ("any", "required"):
        choice = "required"
    if not isinstance(choice, str):
        raise InvalidRequestError(f"tool_choice: {choice!r} is none: take 'auto', 'none', 'any' or the name of a tool")
    names = [tool["function"]["name"] for tool in tools]
    if choice not in ("auto", "none", "required", *names):
        raise InvalidRequestError(f"tool_choice: there is no tool {choice!r}; the tools are: {', '.join(names) or 'none'}")
    if choice == "required" and not names:
        raise InvalidRequestError("tool_choice: a call is required, and there are no tools")
    return choice
