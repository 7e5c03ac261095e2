"""What becomes of a conversation that outgrows the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from localllm.engine.checks import whole
from localllm.errors import InvalidRequestError

if TYPE_CHECKING:
    from localllm.models import LocalModel

Message = dict[str, Any]

_SUMMARY = "summary"  # the key under which a system message says which summary its text ends in
_BEGINNING = "Earlier in this conversation: "


class Policy(Protocol):
    """What becomes of a conversation that outgrows the context. In coroutines it runs in a thread."""

    def shorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        """A shorter conversation.

        Args:
            model: LocalModel that is going to answer.
            messages: list of dict; to be left as it is.
            room: int, most tokens of the prompt.
            options: of the request, as of `LocalModel.chat`.

        Returns:
            list of dict, whose prompt has at most `room` tokens if that can be.
        """


@runtime_checkable
class AsyncPolicy(Protocol):
    """A policy that takes its time, and can be cancelled in coroutines."""

    async def ashorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        """Like `Policy.shorten`, without blocking the loop."""


@dataclass(frozen=True)
class DropOldest:
    """Leaves out as many of the oldest turns as it must. System messages stay, and so does the newest turn.

    A turn is a user's message with all that follows it, so that no tool's result is left without its call.

    Args:
        keep_turns: int >= 1, most turns that are left of a conversation that is too long; None: as many as fit.

    Raises:
        InvalidRequestError: It is no such number.
    """

    keep_turns: int | None = None

    def __post_init__(self) -> None:
        if self.keep_turns is not None:
            whole("keep_turns", self.keep_turns, least=1)

    def shorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        head, turns = split(messages)
        return joined(head, _fitting(model, head, turns[-self.keep_turns :] if self.keep_turns else turns, room, options))


@dataclass(frozen=True)
class Summarise:
    """Puts a summary, which the model itself writes, in the place of the oldest turns.

    It ends the text of the first system message, and makes way for the next one, which the model writes knowing it.

    Args:
        keep_turns: int >= 1, newest turns that stay as they are, as far as they fit.
        max_tokens: int >= 1, most tokens of the summary; a quarter of the context if that is less.
        instruction: str, what the model is asked.

    Raises:
        InvalidRequestError: One of them is something else.
    """

    keep_turns: int = 2
    max_tokens: int = 256
    instruction: str = "Summarise the conversation so far: facts, decisions and open questions, in a few sentences."

    def __post_init__(self) -> None:
        whole("keep_turns", self.keep_turns, least=1)
        whole("max_tokens", self.max_tokens, least=1)
        if not isinstance(self.instruction, str) or not self.instruction.strip():
            raise InvalidRequestError(f"instruction: must be text that says something, not {self.instruction!r}")

    def shorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        plan = self._plan(model, messages, room, options)
        summary = model.chat(plan.asked, **plan.options).message.content if plan.asked else ""
        return self._shortened(model, plan, summary, room, options)

    async def ashorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        """Like `shorten`; cancelling the task stops the work on the summary."""
        plan = await asyncio.to_thread(self._plan, model, messages, room, options)
        summary = (await model.achat(plan.asked, **plan.options)).message.content if plan.asked else ""
        return await asyncio.to_thread(self._shortened, model, plan, summary, room, options)

    def _plan(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> _Plan:
        head, turns = split(messages)
        most = min(self.max_tokens, max(1, model.engine.limit // 4))
        plain, earlier = without_summary(head)
        new = _fitting(model, with_summary(plain, "."), turns[-self.keep_turns :], room - most, options)
        old = turns[: -len(new)]
        # The same adapters and template as in the answer; a thought would use up what the summary may have.
        kept = ("loras", "control_vectors", "template_kwargs", "priority", "timeout")
        chosen = {name: options[name] for name in kept if name in options}
        chosen.update(enable_thinking=False)
        request = [{"role": "user", "content": self.instruction}]
        # The instruction is the newest turn there: where no old turn fits beside it, nothing is left to be summarised.
        shown = _fitting(model, head, [*old, request], model.engine.limit - most, chosen)
        asked = joined(head, shown) if len(shown) > 1 else []
        return _Plan(plain, new, earlier, asked, {**chosen, "max_tokens": most, "temperature": 0})

    def _shortened(self, model: LocalModel, plan: _Plan, summary: str, room: int, options: Mapping[str, Any]) -> list[Message]:
        summary = summary.strip() or plan.earlier
        if summary:
            head = with_summary(plan.head, summary)
            shortened = joined(head, _fitting(model, head, plan.turns, room, options))
            if model.count_message_tokens(shortened, **options) <= room:
                return shortened
        # The newest turn matters more than what a summary can say of others.
        return joined(plan.head, plan.turns)


@dataclass(frozen=True)
class _Plan:
    """What is left of a conversation, and what the model is asked for a summary of the rest.

    Attributes:
        head, turns: what stays, without a summary.
        earlier: str, the summary that there was; "": none.
        asked: messages that ask for the new one; none if there is nothing to be summarised.
        options: of that request.
    """

    head: list[Message]
    turns: list[list[Message]]
    earlier: str
    asked: list[Message]
    options: dict[str, Any]


def split(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The system messages at the beginning, and the turns: each a user's message and all that follows it."""
    head: list[Message] = []
    turns: list[list[Message]] = []
    for message in messages:
        if not turns and message.get("role") in ("system", "developer"):
            head.append(message)
        elif message.get("role") == "user" or not turns:
            turns.append([message])
        else:
            turns[-1].append(message)
    return head, turns


def joined(head: list[Message], turns: list[list[Message]]) -> list[Message]:
    """The messages of a conversation that was split."""
    return [*head, *(message for turn in turns for message in turn)]


def with_summary(head: list[Message], summary: str) -> list[Message]:
    """System messages without a summary, with one at the end of the first: many templates take no second one."""
    first, *others = head or [{"role": "system", "content": ""}]
    content = first.get("content") or ""
    end = _end(summary, bool(content))
    content = content + end if isinstance(content, str) else [*content, {"type": "text", "text": end}]
    return [{**first, "content": content, _SUMMARY: summary}, *others]


def without_summary(head: list[Message]) -> tuple[list[Message], str]:
    """System messages without the summary that is among them, and that summary; "": there is none."""
    summary = head[0].get(_SUMMARY) if head else None
    if not isinstance(summary, str) or not summary:
        return head, ""
    first = {name: value for name, value in head[0].items() if name != _SUMMARY}
    content = first.get("content") or ""
    if isinstance(content, str):
        end = _end(summary, True) if content.endswith(_end(summary, True)) else _end(summary, False)
        rest: Any = content.removesuffix(end)
    else:
        rest = [part for part in content if part != {"type": "text", "text": _end(summary, True)}]
    if rest == content:  # somebody has written the message anew, and so done away with the summary
        return [first, *head[1:]], ""
    return [{**first, "content": rest}, *head[1:]] if rest else head[1:], summary


def _end(summary: str, follows: bool) -> str:
    return ("\n\n" if follows else "") + _BEGINNING + summary


def _fitting(
    model: LocalModel, head: list[Message], turns: list[list[Message]], room: int, options: Mapping[str, Any]
) -> list[list[Message]]:
    """As many of the newest turns as fit, and at least one.

    A longer conversation has more tokens, so two searches will do: doubling finds what is too much, and halving what is just not.
    What is rendered so has the length of what fits, not of what was said.
    """

    def fits(n: int) -> bool:
        return model.count_message_tokens(joined(head, turns[-n:]), **options) <= room

    low, high = 1, 2
    while high <= len(turns) and fits(high):
        low, high = high, high * 2
    return turns[-_last(low, min(high, len(turns) + 1), fits) :]


def _last(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The last number from `low` on, before `high`, of which `fits` is true; `low` if it is true of none behind it."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
