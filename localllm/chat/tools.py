"""Tools as a caller gives them, checked before the model sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localllm.chat.constraints.schema import prepare
from localllm.chat.texts import require_whole_characters
from localllm.errors import InvalidRequestError

Mode = Literal["auto", "none", "required"]
# What says of an object as a whole which properties it has.
_COMBINATIONS = {"anyOf", "oneOf", "allOf", "$ref"}


@dataclass(frozen=True)
class Tools:
    """What may be called in an answer.

    Attributes:
        shown: OpenAI-style function tools, all that the model is told of.
        callable: those that it may call, their parameters made ready for a grammar.
        mode: "auto", "none" or "required".
        strict: names of tools whose arguments keep to their schemas in free calls as well.
    """

    shown: tuple[dict[str, Any], ...] = ()
    callable: tuple[dict[str, Any], ...] = ()
    mode: Mode = "none"
    strict: tuple[str, ...] = ()


def check_tools(tools: Sequence[Mapping[str, Any]], choice: Any, rules: dict[str, str]) -> Tools:
    """Checks tools and the choice among them.

    Args:
        tools: OpenAI-style function tools: {"type": "function", "function": {"name", "description", "parameters", "strict"}}.
        choice: None or "auto", "none", "required" or "any", a tool's name, or {"type": "function", "function": {"name"}}.
        rules: collects expressions, see `constraints.schema.prepare`.

    Raises:
        InvalidRequestError: A tool has the wrong form, two have one name, or the choice names none of them.
        GrammarError: Parameters have a schema that a grammar cannot express.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidRequestError("tools: must be a list of OpenAI-style function tools")
    shown = [_tool(f"tools[{at}]", tool) for at, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in shown]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequestError(f"tools: two of them are called {name!r}")
    mode, wanted = _choice(choice, names)
    if mode == "none" or not shown:
        return Tools()
    ready = [_ready(tool, rules) for tool in shown if wanted is None or tool["function"]["name"] == wanted]
    strict = tuple(tool["function"]["name"] for tool in ready if tool["function"].get("strict"))
    return Tools(tuple(shown), tuple(ready), mode, strict)


def _tool(where: str, tool: Any) -> dict[str, Any]:
    if (
        not isinstance(tool, Mapping)
        or tool.get("type", "function") != "function"
        or not isinstance(tool.get("function"), Mapping)
    ):
        raise InvalidRequestError(f'{where}: must be {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}')
    require_whole_characters(f"{where}.function", tool["function"])
    function = dict(tool["function"])
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"{where}.function.name: must be text that is not empty, not {name!r}")
    if not isinstance(function.get("description") or "", str):
        raise InvalidRequestError(f"{where}.function.description: must be text, not {function['description']!r}")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise InvalidRequestError(f"{where}.function.strict: must be True or False, not {function['strict']!r}")
    if "strict" in tool:
        raise InvalidRequestError(f'{where}.strict: belongs into "function", beside the name')
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise InvalidRequestError(f"{where}.function.parameters: must be the JSON schema of an object, not {parameters!r}")
    # A tool without parameters takes an object without properties, and some templates want to see that.
    function["parameters"] = {"type": "object", "properties": {}, **parameters}
    return {"type": "function", "function": function}


def _ready(tool: dict[str, Any], rules: dict[str, str]) -> dict[str, Any]:
    function = tool["function"]
    schema = function["parameters"]
    if not schema["properties"]:
        if _COMBINATIONS.isdisjoint(schema):
            schema = {"additionalProperties": False, **schema}
        else:
            schema = {key: value for key, value in schema.items() if key != "properties"}
    ready = prepare(schema, rules, f"parameters of the tool {function['name']!r}")
    return {"type": "function", "function": {**function, "parameters": ready}}


def _choice(choice: Any, names: list[str]) -> tuple[Mode, str | None]:
    if choice is None or choice == "auto":
        return "auto", None
    if choice is False or choice == "none":
        return "none", None
    if choice is True or choice in ("required", "any"):
        if not names:
            raise InvalidRequestError("tool_choice: a call is required, and there are no tools")
        return "required", None
    wanted = choice
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        wanted = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(wanted, str):
        raise InvalidRequestError(f"tool_choice: must be 'auto', 'none', 'required' or the name of a tool, not {choice!r}")
    if wanted not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise InvalidRequestError(f"tool_choice: there is no tool {wanted!r}; the tools are: {known}")
    return "required", wanted
