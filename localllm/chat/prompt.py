"""Messages and options to a prompt, by the model's own template (llama.cpp's common/chat)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.constraints.answer import Constraint, constraint
from localllm.chat.constraints.escapes import whole_escapes
from localllm.chat.constraints.schema import with_rules
from localllm.chat.messages import Look, check_messages
from localllm.chat.quoting import Quotes, Shown
from localllm.chat.texts import require_whole_characters
from localllm.chat.tools import Tools, check_tools
from localllm.chat.types import ChatMessage
from localllm.errors import InvalidRequestError
from localllm.native.handles import Chat


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What a template can be told, and what an answer has to be.

    At most one of response_format, json_schema, regex, choice and grammar may be given. With tools besides, the answer is a call
    or what that one says. A model that thinks does so first, unconstrained.

    Attributes:
        tools: OpenAI-style function tools. The arguments of a required call always satisfy "parameters", and so do those of a
            free call (tool_choice "auto") to a tool with "strict": True, and of any call beside a schema or grammar: where the
            family's own format cannot see to that, all calls are made in one of ours. Other free calls are made in the family's
            format, which keeps to "parameters" as far as it writes arguments as JSON: a text between tags is any text, whatever
            its schema says of it.
        tool_choice: "auto" (the model decides), "none", "required" or "any" (it has to call one), a tool's name, or OpenAI's
            {"type": "function", "function": {"name": ...}}.
        parallel_tool_calls: bool, allow several calls in one answer.
        response_format: OpenAI's, of type "text", "json_object" or "json_schema".
        json_schema: a JSON schema that the answer must satisfy; an empty one means any object.
        regex: str, a pattern that the whole answer must match.
        choice: list of str, the answers to choose from.
        grammar: str, GBNF with a rule "root".
        enable_thinking: bool, for models that can think before they answer.
        reasoning_budget: int, most tokens of a thought; the model then has to end it and answer. 0: no thought. None: no limit.
            Every thought of an answer has its own.
        reasoning_budget_message: str, text that ends a thought which has used up its budget, e.g. "\\nNow I have to answer.\\n".
        template_kwargs: further variables for the template.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = False
    response_format: Any = None
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    enable_thinking: bool = True
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = self.reasoning_budget
        if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget < 1 << 31):
            raise InvalidRequestError(f"reasoning_budget: must be a number of tokens from 0 on, or None, not {budget!r}")
        if not isinstance(self.reasoning_budget_message, str):
            raise InvalidRequestError(
                f"reasoning_budget_message: must be text, not {type(self.reasoning_budget_message).__name__}"
            )
        if self.reasoning_budget_message and budget is None:
            raise InvalidRequestError("reasoning_budget_message: needs a reasoning_budget")
        if not isinstance(self.template_kwargs, Mapping):
            raise InvalidRequestError(f"template_kwargs: must be a mapping, not {type(self.template_kwargs).__name__}")
        for name in ("regex", "grammar", "reasoning_budget_message", "template_kwargs"):
            require_whole_characters(name, getattr(self, name))
        for name in ("enable_thinking", "parallel_tool_calls"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}: must be True or False, not {getattr(self, name)!r}")

    def checked_tools(self, rules: dict[str, str]) -> Tools:
        """The tools; as `check_tools`."""
        return check_tools(self.tools or (), self.tool_choice, rules)

    def constraint(self, rules: dict[str, str]) -> Constraint:
        """What the answer has to be; as `constraint`."""
        return constraint(rules, self.response_format, self.json_schema, self.regex, self.choice, self.grammar)


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and how its answer is to be made and read.

    Attributes:
        parts: (text, trusted) in order; what is not trusted came from a user, a tool or the model, and holds no special tokens
            whatever it looks like. Between them what is Shown: pictures and sounds.
        stops: texts that end the answer.
        visible_tokens: special tokens that belong to the answer's text.
        guide: what guides the choice of tokens: fields for the engine's Request.grammar.
        parser: what `localllm.native.handles.Parser` takes.
        plain: bool, the answer is its text: nothing to parse.
        delimiters: texts with which messages begin.
        marks: the first bytes of whatever can end a running text: what has none of them goes on with it.
    """

    parts: tuple[tuple[str, bool] | Shown, ...]
    stops: tuple[str, ...]
    visible_tokens: tuple[str, ...]
    guide: dict[str, object]
    parser: dict[str, Any]
    plain: bool
    delimiters: tuple[str, ...] = ()
    marks: frozenset[int] = frozenset()

    @property
    def text(self) -> str:
        """All of it, with "<__media__>" where something is shown."""
        return "".join("<__media__>" if isinstance(part, Shown) else part[0] for part in self.parts)

    @property
    def shows(self) -> bool:
        """Whether there are pictures or sounds in it."""
        return any(isinstance(part, Shown) for part in self.parts)


def render(
    chat: Chat,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    options: ChatOptions,
    special: re.Pattern[str] | None = None,
    look: Look | None = None,
) -> Prompt:
    """Renders messages for an answer.

    Args:
        chat: Chat, the template.
        messages: OpenAI-style messages, or answers as they were given; a last one from the assistant is continued.
        options: ChatOptions.
        special: pattern of the special tokens' texts, which are nothing but text in all messages but the system's, and in tools;
            None: there are none.
        look: what makes pictures and sounds of parts of messages; None: there may be none.

    Raises:
        InvalidRequestError: A message or option has the wrong form; names it by its place.
        GrammarError: A schema or pattern cannot be expressed.
        TemplateError: The template refuses the messages.
    """
    rules: dict[str, str] = {}
    tools, wanted = options.checked_tools(rules), options.constraint(rules)
    given = check_messages(messages, look)
    quotes = Quotes(special, shows=any(_shows(message) for message in given))
    checked = [quotes.message(message) for message in given]
    continues = checked[-1]["role"] == "assistant" and not checked[-1].get("tool_calls")
    request: dict[str, Any] = {
        "messages": checked,
        "reasoning_format": "auto",
        "enable_thinking": options.enable_thinking,
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "parallel_tool_calls": options.parallel_tool_calls,
        "template_kwargs": dict(options.template_kwargs),
    }
    if tools.shown:
        shown = [quotes.tool(tool) for tool in tools.shown]
        request.update(tools=shown, callable_tools=tools.callable, strict_tools=tools.strict, tool_choice=tools.mode)
    if wanted.schema is not None and tools.mode != "required":
        request["json_schema"] = wanted.schema
    elif wanted.grammar and tools.mode != "required":
        request["grammar"] = wanted.grammar
    rendered = chat.apply(request)
    return Prompt(
        parts=quotes.parts(rendered["prompt"]),
        stops=tuple(rendered["stops"]),
        visible_tokens=tuple(rendered["preserved_tokens"]),
        guide=_guide(rendered, rules, options),
        parser=rendered["parser"],
        plain=not rendered["parser"]["arena"] and not continues,
        delimiters=tuple(entry["delimiter"] for entry in rendered["delimiters"]),
        marks=frozenset(rendered["marks"]),
    )


def _shows(message: Mapping[str, Any]) -> bool:
    return isinstance(message["content"], list) and any("medium" in part for part in message["content"])


def _guide(rendered: Mapping[str, Any], rules: Mapping[str, str], options: ChatOptions) -> dict[str, object]:
    fields: dict[str, object] = {}
    if rendered["grammar"]:
        names = ("grammar_kind", "grammar_lazy", "grammar_triggers", "preserved_tokens")
        fields.update({name: rendered[name] for name in names})
        # A caller's own grammar is what it says.
        grammar = rendered["grammar"] if options.grammar else whole_escapes(rendered["grammar"])
        fields["grammar"] = with_rules(grammar, rules)
    thinks = rendered["thinking_start"] and rendered["thinking_ends"]
    if options.reasoning_budget is not None and options.enable_thinking:
        if not thinks:
            raise InvalidRequestError("reasoning_budget: this model's template marks no thoughts that could be limited")
        fields.update(reasoning_budget_tokens=options.reasoning_budget, reasoning_budget_message=options.reasoning_budget_message)
    if not fields:
        return {}
    if thinks:
        fields.update(reasoning_start=rendered["thinking_start"], reasoning_ends=rendered["thinking_ends"])
    return {**fields, "generation_prompt": rendered["generation_prompt"]}
