"""Messages as a caller gives them, checked before a template sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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


#: Makes of a part of a message that is no text, whose place is named, what is shown: texts, pictures and sounds in their order.
Look = Callable[[str, Mapping[str, Any]], Sequence[Any]]


def shows_media(messages: Iterable[Any]) -> bool:
    """Whether messages have parts that are no text."""
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    parts = (part for content in contents if isinstance(content, (list, tuple)) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") != "text" for part in parts)


def check_messages(messages: Any, look: Look | None = None) -> list[dict[str, Any]]:
    """Messages in the form in which templates take them: text or parts, calls with arguments that are a JSON object.

    Args:
        messages: OpenAI-style messages, or answers as they were given.
        look: makes of a part that is no text what is shown; a part of the result has it as "medium". None: there are only texts.

    Raises:
        InvalidRequestError: They are no list of messages, or one has the wrong form; names it by its place.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequestError(f"messages: must be a list of messages, not {type(messages).__name__}")
    checked = [_checked(f"messages[{place}]", message, look) for place, message in enumerate(messages)]
    if not checked:
        raise InvalidRequestError("messages: empty; a chat needs at least one message")
    return checked


def _checked(where: str, message: Any, look: Look | None) -> dict[str, Any]:
    message = as_mapping(where, message)
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and not calls:
        raise InvalidRequestError(f"{where}.content: missing")
    if content is not None and not isinstance(content, (str, list, tuple)):
        raise InvalidRequestError(f"{where}.content: must be text or a list of parts, not {type(content).__name__}")
    if isinstance(content, (list, tuple)):
        content = [each for at, part in enumerate(content) for each in _parts(f"{where}.content[{at}]", part, look)]
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


def _parts(where: str, part: Any, look: Look | None) -> list[dict[str, Any]]:
    if isinstance(part, str):
        return [_text(part)]
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return [_text(part["text"])]
    if look is None or kind in ("text", None):
        raise InvalidRequestError(f"{where}: only parts of type 'text' are understood, not {kind!r}")
    return [_text(one) if isinstance(one, str) else {"type": "medium", "medium": one} for one in look(where, part)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


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
