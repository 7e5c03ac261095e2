"""LangChain's messages to OpenAI-style ones: every kind of message and content block, in order, nothing dropped unsaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_localllm.jsontext import written
from langchain_localllm.media import as_part, media_of
from localllm.errors import InvalidRequestError

Message = dict[str, Any]

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "chatbot": "assistant"}
# What clients and tracers mark blocks with; it is nothing that a model reads.
_MARKS = ("cachePoint", "cache_point")


def to_openai(messages: Sequence[BaseMessage]) -> list[Message]:
    """OpenAI-style messages for localllm.

    Args:
        messages: LangChain's messages, in whichever of its, OpenAI's or Anthropic's forms their content is written.

    Raises:
        InvalidRequestError: A message or block cannot be shown to the model; the message names its place and kind.
    """
    converted = [made for at, message in enumerate(messages) for made in _shallow(message, f"messages[{at}]")]
    names: dict[Any, str] = {}
    for made in converted:
        names.update({call.get("id"): call["function"]["name"] for call in made.get("tool_calls", ())})
        if made["role"] == "tool" and "name" not in made and made.get("tool_call_id") in names:
            made["name"] = names[made["tool_call_id"]]  # there are templates that say whose result it is
    return converted


def texts_of(message: Message) -> list[str]:
    """All that an OpenAI-style message says: its thoughts, its text, and the names and arguments of its calls."""
    content = message["content"] or ""
    said = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [message.get("reasoning_content", ""), said, *(text for call in calls for text in (call["name"], call["arguments"]))]


def _shallow(message: BaseMessage, where: str) -> list[Message]:
    try:
        return _converted(message, where)
    except RecursionError as error:
        raise InvalidRequestError(f"{where}: its blocks are nested too deeply") from error


def _converted(message: BaseMessage, where: str) -> list[Message]:
    """A message; several where it holds results of tools, as Anthropic writes them."""
    if isinstance(message, AIMessage):
        return [_assistant(message, where)]
    if isinstance(message, (ToolMessage, FunctionMessage)):
        return _tool(message, where)
    role = _role(message, where)
    if role == "assistant":
        said = AIMessage(message.content, name=message.name, additional_kwargs=message.additional_kwargs)
        return [_assistant(said, where)]
    walked = _Walk(where, message.content)
    _require_no_deeds(walked, where, role)
    made = {"role": role, "content": walked.content}
    if message.name:
        made["name"] = message.name
    return [*walked.results, made] if walked.content or not walked.results else walked.results


def _role(message: BaseMessage, where: str) -> str:
    if isinstance(message, SystemMessage):
        return "developer" if message.additional_kwargs.get("__openai_role__") == "developer" else "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, ChatMessage):
        role = _ROLES.get(message.role, message.role)
        if role not in ("system", "developer", "user", "assistant"):
            raise InvalidRequestError(
                f"{where}: the role {message.role!r} is none that a template knows; take system, user or assistant"
            )
        return role
    raise InvalidRequestError(f"{where}: a {type(message).__name__} is nothing that can be said to a model")


def _assistant(message: AIMessage, where: str) -> Message:
    walked = _Walk(where, message.content)
    if walked.results:
        raise InvalidRequestError(
            f"{where}: what a tool gave back has no place in a message of the assistant; take a ToolMessage"
        )
    reasoning = message.additional_kwargs.get("reasoning_content")
    thoughts = reasoning if isinstance(reasoning, str) and reasoning else walked.thoughts
    calls = [
        _call(call["name"], call["args"], call.get("id"), f"{where}.tool_calls[{at}]")
        for at, call in enumerate(message.tool_calls)
    ]
    # Blocks say it again; only what has an id of its own is another call.
    known = {None, *(call.get("id") for call in calls)} if calls else set()
    known |= {invalid["id"] for invalid in message.invalid_tool_calls if invalid.get("id")}
    calls += [call for call in walked.calls if call.get("id") not in known]
    calls += [call for call in _old_call(message, where) if call["function"] not in [each["function"] for each in calls]]
    content = walked.content
    for invalid in message.invalid_tool_calls:
        # What is no call cannot be written as one; the model should see all the same what it tried.
        content = _with_text(content, f"{invalid.get('name') or ''}({invalid.get('args') or ''})")
    made: Message = {"role": "assistant", "content": content}
    if message.name:
        made["name"] = message.name
    if thoughts:
        made["reasoning_content"] = thoughts
    if calls:
        made["tool_calls"] = calls
        made["content"] = content or None
    return made


def _old_call(message: AIMessage, where: str) -> list[dict[str, Any]]:
    """The call in the form that OpenAI had before there were tools; what it gives back is a FunctionMessage."""
    call = message.additional_kwargs.get("function_call")
    if call is None:
        return []
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise InvalidRequestError(f"{where}: a function_call must be a name and arguments, not {call!r}")
    return [_call(call["name"], call.get("arguments") or {}, None, f"{where}.function_call")]


def _tool(message: ToolMessage | FunctionMessage, where: str) -> list[Message]:
    walked = _Walk(where, message.content)
    _require_no_deeds(walked, where, "tool")
    made: Message = {"role": "tool", "content": walked.content}
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    if message.name:
        made["name"] = message.name
    if walked.results and walked.content:
        raise InvalidRequestError(f"{where}: has a block of type 'tool_result' beside others, and is such a result as a whole")
    return [{**made, **{key: entry for key, entry in result.items() if entry}} for result in walked.results] or [made]


def _require_no_deeds(walked: _Walk, where: str, role: str) -> None:
    if walked.thoughts or walked.calls:
        raise InvalidRequestError(f"{where}: only messages of the assistant have thoughts or tool calls, not one of the {role}")


def _with_text(content: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return f"{content}\n{text}" if content else text
    return [*content, {"type": "text", "text": text}]


def _call(name: str, arguments: Any, id: Any, where: str) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else written(arguments, where)
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": text}}
    if id:
        call["id"] = id
    return call


class _Walk:
    """The blocks of one message, sorted.

    Attributes:
        content: str where there are only texts, else a list of parts, in order.
        thoughts: str, what the model thought.
        calls: tool calls that stand among the blocks.
        results: messages that stand among the blocks: what tools gave back.
    """

    def __init__(self, where: str, content: str | Sequence[str | dict[Any, Any]]) -> None:
        self.parts: list[dict[str, Any]] = []
        self.thoughts = ""
        self.calls: list[dict[str, Any]] = []
        self.results: list[Message] = []
        self.content: str | list[dict[str, Any]] = ""
        if isinstance(content, str):
            self.content = content
            return
        for at, block in enumerate(content):
            self._take(block, f"{where}.content[{at}]")
        plain = len(self.parts) < 2 and all(part["type"] == "text" for part in self.parts)
        self.content = "".join(part["text"] for part in self.parts) if plain else self.parts

    def _take(self, block: Any, where: str) -> None:
        if isinstance(block, str):
            self._text(block)
            return
        if not isinstance(block, Mapping):
            raise InvalidRequestError(f"{where}: must be text or a block, not {type(block).__name__}")
        kind = block.get("type")
        if kind is None:
            kind = next((mark for mark in ("text", *_MARKS) if mark in block), None)
        if kind in ("text", "input_text", "output_text", "text-plain", "refusal"):
            self._take_text(kind, block, where)
        elif kind in ("reasoning", "thinking"):
            self.thoughts += _thought(block)
        elif kind in ("tool_call", "tool_use", "tool_call_chunk", "function_call"):
            self._take_call(block, where)
        elif kind == "tool_result":
            self._take_result(block, where)
        elif (media := media_of(block, where)) is not None:
            text = media.text
            if text is None:
                self.parts.append(as_part(media))
            else:
                self._text(text)
        elif kind == "non_standard" and isinstance(block.get("value"), Mapping):
            self._take(block["value"], where)
        elif kind not in ("invalid_tool_call", "redacted_thinking", *_MARKS):
            raise InvalidRequestError(f"{where}: a block of type {kind!r} is nothing that a local model can be shown")

    def _text(self, text: str) -> None:
        if text:
            self.parts.append({"type": "text", "text": text})

    def _take_text(self, kind: str, block: Mapping[str, Any], where: str) -> None:
        text = block.get("refusal" if kind == "refusal" else "text")
        if text is None and kind == "text-plain":
            media = media_of({"mime_type": "text/plain", **block, "type": "file"}, where)
            assert media is not None
            text = media.text
            if text is None:
                self.parts.append(as_part(media))
                return
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}: a block of type {kind!r} without text")
        self._text(text)

    def _take_call(self, block: Mapping[str, Any], where: str) -> None:
        name = block.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(f"{where}: a tool call without a name")
        arguments: Any = next((block[key] for key in ("args", "input", "arguments") if block.get(key) is not None), {})
        self.calls.append(_call(name, arguments, block.get("call_id") or block.get("id"), where))

    def _take_result(self, block: Mapping[str, Any], where: str) -> None:
        given = block.get("content") or ""
        if not isinstance(given, (str, list, tuple, Mapping)):
            raise InvalidRequestError(f"{where}: what a tool gave back must be text or blocks, not {type(given).__name__}")
        inner = _Walk(where, [dict(given)] if isinstance(given, Mapping) else given)
        if inner.results:
            raise InvalidRequestError(f"{where}: what a tool gave back within what one gave back")
        _require_no_deeds(inner, where, "tool")
        self.results.append({"role": "tool", "content": inner.content, "tool_call_id": str(block.get("tool_use_id") or "")})


def _thought(block: Mapping[str, Any]) -> str:
    for key in ("reasoning", "thinking", "text"):
        if isinstance(block.get(key), str):
            return str(block[key])
    summary = block.get("summary")
    parts = summary if isinstance(summary, list) else ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
