"""Messages as a caller gives them, checked before a template sees them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from localllm.chat.texts import json_object, require_text, require_whole_characters
from localllm.chat.types import ChatMessage
from localllm.errors import InvalidRequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = ("name", "reasoning_content", "tool_call_id")
_MAX_SHOWN = 60


def as_mapping(where: str, message: Any) -> dict[str, Any]:
    """A message as a dict of its own.

    Args:
        where: str, its place, for messages.
        message: a mapping or a ChatMessage.

    Raises:
        InvalidRequestError: It is neither, or its role is none.
    """
    if isinstance(message, ChatMessage):
        return message.to_openai()
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where}: must be a mapping with role and content, not {type(message).__name__}")
    if message.get("role") not in _ROLES:
        raise InvalidRequestError(f"{where}.role: {message.get('role')!r} is not one of {', '.join(_ROLES)}")
    return dict(message)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages in the form in which templates take them: text or parts, calls with arguments that are a JSON object.

    Args:
        messages: OpenAI-style messages, or answers as they were given.

    Raises:
        InvalidRequestError: They are no list of messages, or one has the wrong form; names it by its place.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequestError(f"messages: must be a list of messages, not {type(messages).__name__}")
    checked = [_checked(f"messages[{place}]", message) for place, message in enumerate(messages)]
    if not checked:
        raise InvalidRequestError("messages: empty; a chat needs at least one message")
    return checked


def _checked(where: str, message: Any) -> dict[str, Any]:
    message = as_mapping(where, message)
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and not calls:
        raise InvalidRequestError(f"{where}.content: missing")
    if content is not None and not isinstance(content, (str, list, tuple)):
        raise InvalidRequestError(f"{where}.content: must be text or a list of parts, not {type(content).__name__}")
    if isinstance(content, (list, tuple)):
        content = [_part(f"{where}.content[{at}]", part) for at, part in enumerate(content)]
    checked = {name: value for name, value in message.items() if name not in _TEXTS or value is not None}
    checked["content"] = content if content is not None else ""
    for name in _TEXTS:
        if name in checked:
            require_text(f"{where}.{name}", checked[name])
    if calls:
        checked["tool_calls"] = _calls(f"{where}.tool_calls", calls)
    else:
        checked.pop("tool_calls", None)
    if message["role"] == "developer":
        checked["role"] = "system"
    require_whole_characters(where, checked)
    return checked


def _part(where: str, part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{where}: only parts of type 'text' are understood, not {kind!r}")
    return {"type": "text", "text": part["text"]}


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{where}: must be a list of calls, not {type(calls).__name__}")
    return [_call(f"{where}[{at}]", call) for at, call in enumerate(calls)]


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidRequestError(
            f'{where}: must be {{"id": ..., "type": "function", "function": {{"name": ..., "arguments": ...}}}}'
        )
    require_text(f"{where}.function.name", function.get("name"))
    checked = {"type": "function", "function": {**function, "arguments": _arguments(where, function.get("arguments"))}}
    if call.get("id") is not None:
        require_text(f"{where}.id", call["id"])
        checked["id"] = call["id"]
    return checked


def _arguments(where: str, arguments: Any) -> str:
    """Arguments as the text of a JSON object; many clients write nothing for none."""
    if arguments is None or arguments == "":
        return "{}"
    place = f"{where}.function.arguments"
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{place}: cannot be written as JSON ({error})") from error
    try:
        read = json_object(text)
    except ValueError as error:
        raise InvalidRequestError(f"{place}: {error}; JSON and those who read it know no such number") from error
    if read is not None:
        require_whole_characters(place, read)
        return text
    shown = repr(arguments)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
    raise InvalidRequestError(
        f"{place}: {shown} is no JSON object. A call that was cut off (finish_reason 'length', or a stream "
        "that was closed) cannot be shown to the model again: leave it out of the message, or ask anew with a larger max_tokens"
    )
