"""Messages and options to a prompt, by the model's own template (llama.cpp's common/chat)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.types import ChatMessage
from localllm.errors import InvalidRequestError, TemplateError
from localllm.native.handles import Chat

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What a template can be told.

    Attributes:
        tools: OpenAI-style function tools.
        tool_choice: "auto", "none" or "required".
        parallel_tool_calls: bool, allow several calls in one answer.
        json_schema: a JSON schema that the answer must satisfy; None for free text.
        enable_thinking: bool, for models that can think before they answer.
        template_kwargs: further variables for the template.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = False
    json_schema: Mapping[str, Any] | None = None
    enable_thinking: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tools is None:
            object.__setattr__(self, "tools", ())
        if not isinstance(self.tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in self.tools):
            raise InvalidRequestError("tools: must be a list of OpenAI-style function tools")
        for name in ("json_schema", "template_kwargs"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) and not (name == "json_schema" and value is None):
                raise InvalidRequestError(f"{name}: must be a mapping, not {type(value).__name__}")
        for name in ("enable_thinking", "parallel_tool_calls"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}: must be True or False, not {getattr(self, name)!r}")
        if self.tool_choice not in ("auto", "none", "required"):
            raise InvalidRequestError(f"tool_choice: {self.tool_choice!r} is not 'auto', 'none' or 'required'")


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and how its answer is to be made and read.

    Attributes:
        text: str.
        stops: texts that end the answer.
        visible_tokens: special tokens that belong to the answer's text.
        grammar: fields for the engine's Request.grammar.
        parser: what `localllm.native.handles.Parser` takes.
        plain: bool, the answer is its text: nothing to parse.
        delimiters: texts with which messages begin.
    """

    text: str
    stops: tuple[str, ...]
    visible_tokens: tuple[str, ...]
    grammar: dict[str, object]
    parser: dict[str, Any]
    plain: bool
    delimiters: tuple[str, ...] = ()


def render(chat: Chat, messages: Sequence[Mapping[str, Any] | ChatMessage], options: ChatOptions) -> Prompt:
    """Renders messages for an answer.

    Args:
        chat: Chat, the template.
        messages: OpenAI-style messages, or answers as they were given; a last one from the assistant is continued.
        options: ChatOptions.

    Raises:
        InvalidRequestError: A message has the wrong form; names it by its place.
        TemplateError: The template refuses the messages.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequestError(f"messages: must be a list of messages, not {type(messages).__name__}")
    checked = [_check(place, message) for place, message in enumerate(messages)]
    if not checked:
        raise InvalidRequestError("messages: empty; a chat needs at least one message")
    continues = checked[-1]["role"] == "assistant"
    request: dict[str, Any] = {
        "messages": checked,
        "reasoning_format": "auto",
        "enable_thinking": options.enable_thinking,
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "parallel_tool_calls": options.parallel_tool_calls,
        "template_kwargs": dict(options.template_kwargs),
    }
    if options.tools and options.tool_choice != "none":
        if not chat.info()["caps"]["supports_tools"]:
            raise TemplateError("tools: this model's chat template has no place for tools")
        request.update(tools=[dict(tool) for tool in options.tools], tool_choice=options.tool_choice)
    if options.json_schema is not None:
        # An empty schema would switch the constraint off: it means any object, as OpenAI's json_object does.
        request["json_schema"] = dict(options.json_schema) or {"type": "object"}
    rendered = chat.apply(request)
    return Prompt(
        text=rendered["prompt"],
        stops=tuple(rendered["stops"]),
        visible_tokens=tuple(rendered["preserved_tokens"]),
        grammar=_grammar(rendered),
        parser=rendered["parser"],
        plain=not rendered["parser"]["arena"] and not continues,
        delimiters=tuple(entry["delimiter"] for entry in rendered["delimiters"]),
    )


def _grammar(rendered: Mapping[str, Any]) -> dict[str, object]:
    if not rendered["grammar"]:
        return {}
    fields: dict[str, object] = {
        name: rendered[name]
        for name in (
            "grammar",
            "grammar_kind",
            "grammar_lazy",
            "grammar_triggers",
            "preserved_tokens",
            "generation_prompt",
        )
    }
    if rendered["thinking_start"] and rendered["thinking_ends"]:
        fields.update(reasoning_start=rendered["thinking_start"], reasoning_ends=rendered["thinking_ends"])
    return fields


def _check(place: int, message: Mapping[str, Any] | ChatMessage) -> dict[str, Any]:
    where = f"messages[{place}]"
    if isinstance(message, ChatMessage):
        message = message.to_openai()
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where}: must be a mapping with role and content, not {type(message).__name__}")
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequestError(f"{where}.role: {role!r} is not one of {', '.join(_ROLES)}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise InvalidRequestError(f"{where}.content: missing")
    if content is not None and not isinstance(content, (str, list, tuple)):
        raise InvalidRequestError(f"{where}.content: must be text or a list of parts, not {type(content).__name__}")
    if isinstance(content, (list, tuple)):
        content = [_check_part(f"{where}.content[{at}]", part) for at, part in enumerate(content)]
    checked = {**message, "content": content if content is not None else ""}
    if role == "developer":
        checked["role"] = "system"
    return checked


def _check_part(where: str, part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{where}: only parts of type 'text' are understood, not {kind!r}")
    return {"type": "text", "text": part["text"]}
