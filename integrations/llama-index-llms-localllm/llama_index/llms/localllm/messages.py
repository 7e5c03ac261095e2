"""LlamaIndex's messages to OpenAI-style ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.llms.localllm.documents import document
from llama_index.llms.localllm.media import media_part
from llama_index.llms.localllm.tools import arguments_of

from localllm.chat.texts import json_object, require_text, require_whole_characters
from localllm.errors import InvalidRequestError

_ROLES = {
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
    MessageRole.DEVELOPER: "system",
}
_MAX_SHOWN = 60
_Part = str | dict[str, Any]


def to_openai(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as localllm takes them; what was given is not changed.

    Texts that a message is made of become parts in their order, thoughts `reasoning_content`. A tool's result is told the name
    of the call that it belongs to, which some templates want to see. A CachePoint says nothing: prefixes are always cached.

    Raises:
        InvalidRequestError: They are no list of messages, or something in one is of a kind or form that the model cannot take;
            names it by its place.
    """
    if isinstance(messages, (str, bytes, Mapping, ChatMessage)) or not isinstance(messages, Iterable):
        raise InvalidRequestError(f"messages: must be a list of ChatMessages, not {type(messages).__name__}")
    names: dict[str, str] = {}
    converted = []
    for place, message in enumerate(messages):
        one = _message(f"messages[{place}]", message)
        for call in one.get("tool_calls", ()):
            if call.get("id"):
                names[call["id"]] = call["function"]["name"]
        if one["role"] == "tool" and "name" not in one and (name := names.get(one.get("tool_call_id", ""))):
            one["name"] = name
        converted.append(one)
    return converted


def late_system_as_user(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, but what the system says after the conversation has begun is said by the user."""
    began = _n_leading_system(messages)
    return [{**one, "role": "user"} if at > began and one["role"] == "system" else one for at, one in enumerate(messages)]


def says_late(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the system says something after the conversation has begun."""
    return any(message["role"] == "system" for message in messages[_n_leading_system(messages) :])


def _n_leading_system(messages: Sequence[dict[str, Any]]) -> int:
    return next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))


def _message(where: str, message: ChatMessage) -> dict[str, Any]:
    if not isinstance(message, ChatMessage):
        raise InvalidRequestError(f"{where}: must be a ChatMessage, not {type(message).__name__}")
    role = _role(where, message.role)
    parts: list[_Part] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    has_calls = False
    for name, kind in (("blocks", list), ("additional_kwargs", dict)):
        if not isinstance(given := getattr(message, name), kind):
            raise InvalidRequestError(f"{where}.{name}: must be a {kind.__name__}, not {type(given).__name__}")
    for at, block in enumerate(message.blocks):
        place = f"{where}.blocks[{at}]"
        if isinstance(block, ThinkingBlock):
            thoughts.append(_text(place, block.content or ""))
        elif isinstance(block, ToolCallBlock):
            has_calls = True
            # One that was cut off was never made.
            if (arguments := arguments_of(block.tool_kwargs)) is not None:
                calls.append(_call(place, block.tool_call_id, block.tool_name, arguments))
        else:
            parts.extend(_parts(place, block))
    extra = message.additional_kwargs
    # Histories from before there were blocks for calls, and of other LLMs.
    if not has_calls:
        calls = _foreign_calls(f"{where}.additional_kwargs.tool_calls", extra.get("tool_calls") or ())
    converted: dict[str, Any] = {"role": role, "content": _content(parts)}
    if thoughts and role == "assistant":
        converted["reasoning_content"] = "".join(thoughts)
    if calls:
        converted["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if extra.get(name) is not None and (name == "name" or role == "tool"):
            converted[name] = _text(f"{where}.additional_kwargs.{name}", extra[name])
    return converted


def _role(where: str, role: Any) -> str:
    try:
        known = MessageRole(role)
    except ValueError as error:
        raise InvalidRequestError(f"{where}.role: {role!r} is not one of {', '.join(MessageRole)}") from error
    return _ROLES.get(known, known.value)


def _content(parts: list[_Part]) -> str | list[dict[str, Any]]:
    """Most templates read only text; parts are for where there are several, or something to be seen or heard."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def _parts(where: str, block: Any) -> list[_Part]:
    """What a block says, in texts, and what is to be seen or heard.

    Raises:
        InvalidRequestError: It holds something else.
    """
    if isinstance(block, TextBlock):
        return [_text(where, block.text)]
    if isinstance(block, CachePoint):
        return []
    if isinstance(block, CitableBlock):
        parts = [text for at, part in enumerate(block.content) for text in _parts(f"{where}.content[{at}]", part)]
        title = f"{block.title} ({block.source}):\n" if block.source else f"{block.title}:\n"
        return [_text(where, title), *parts]
    if isinstance(block, CitationBlock):
        return _parts(f"{where}.cited_content", block.cited_content)
    if isinstance(block, DocumentBlock):
        return [_text(where, document(where, block))]
    if (shown := media_part(where, block)) is not None:
        return [shown]
    raise InvalidRequestError(f"{where}: {type(block).__name__}: not a kind of block that can be shown to a model")


def _text(where: str, value: Any) -> str:
    """A value that has to be text of whole characters.

    Raises:
        InvalidRequestError: It is not; the message begins with `where`.
    """
    require_text(where, value)
    require_whole_characters(where, value)
    text: str = value
    return text


def _call(where: str, id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    function = {"name": _text(f"{where}: its name", name), "arguments": _arguments(f"{where}: its arguments", arguments)}
    call: dict[str, Any] = {"type": "function", "function": function}
    return {"id": _text(f"{where}: its id", id), **call} if id else call


def _arguments(where: str, arguments: Any) -> Any:
    """Arguments as they are, if they are a JSON object, or the text of one; none at all are an empty one."""
    if arguments is None or arguments == "":
        return {}
    try:
        read = json_object(arguments if isinstance(arguments, str) else json.dumps(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} cannot be written as JSON ({error})") from error
    if read is None:
        shown = repr(arguments)
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
        raise InvalidRequestError(f"{where}, {shown}, are no JSON object; leave out a call that was cut off")
    require_whole_characters(where, read)
    return arguments


def _foreign_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Iterable):
        raise InvalidRequestError(f"{where}: must be a list of calls, not {type(calls).__name__}")
    return [_foreign_call(f"{where}[{at}]", call) for at, call in enumerate(calls)]


def _foreign_call(where: str, call: Any) -> dict[str, Any]:
    """A call as a dict or an object, in OpenAI's form or Ollama's."""
    function = _get(call, "function")
    if function is None or _get(function, "name") is None:
        raise InvalidRequestError(f"{where}: {call!r} has no function with a name")
    return _call(where, _get(call, "id"), _get(function, "name"), _get(function, "arguments"))


def _get(thing: Any, name: str) -> Any:
    get: Callable[[str], Any] = thing.get if isinstance(thing, Mapping) else lambda name: getattr(thing, name, None)
    return get(name)
