"""A conversation that remembers itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from localllm.chat.types import ChatDelta, ChatMessage, ChatResult
from localllm.errors import ContextOverflowError, InvalidRequestError

if TYPE_CHECKING:
    from localllm.models import LocalModel

Message = dict[str, Any]
Said: TypeAlias = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
FORMAT = "localllm-session-1"


class Policy(Protocol):
    """What becomes of a conversation that outgrows the context."""

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


@dataclass(frozen=True)
class DropOldest:
    """Leaves out the oldest turns, one by one. System messages stay, and so does the newest turn.

    A turn is a user's message with all that follows it, so that no tool's result is left without its call.

    Args:
        keep_turns: int, most turns to keep however much room there is; None: as many as fit.
    """

    keep_turns: int | None = None

    def shorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        head, turns = split(messages)
        turns = turns[-self.keep_turns :] if self.keep_turns else turns
        while len(turns) > 1 and model.count_message_tokens(joined(head, turns), **options) > room:
            turns = turns[1:]
        return joined(head, turns)


@dataclass(frozen=True)
class Summarise:
    """Puts a summary, which the model itself writes, in the place of the oldest turns.

    Args:
        keep_turns: int, newest turns that stay as they are.
        max_tokens: int, most tokens of the summary.
        instruction: str, what the model is asked.
    """

    keep_turns: int = 2
    max_tokens: int = 256
    instruction: str = "Summarise the conversation so far: facts, decisions and open questions, in a few sentences."

    def shorten(self, model: LocalModel, messages: list[Message], room: int, options: Mapping[str, Any]) -> list[Message]:
        head, turns = split(messages)
        old, new = turns[: -self.keep_turns], turns[-self.keep_turns :]
        if old:
            asked = [*joined(head, old), {"role": "user", "content": self.instruction}]
            shorter = DropOldest().shorten(model, asked, model.engine.limit - self.max_tokens, {})
            summary = model.chat(shorter, max_tokens=self.max_tokens, temperature=0).message.content.strip()
            head = [*head, {"role": "system", "content": f"Earlier in this conversation: {summary}"}]
        return DropOldest().shorten(model, joined(head, new), room, options)


class ChatSession:
    """A conversation: it keeps the messages, and each turn computes only what is new.

    Args:
        model: LocalModel.
        system: str, the first message; "": none.
        messages: what was said already.
        policy: what to do when the conversation outgrows the context, e.g. DropOldest() or Summarise(); None:
            ContextOverflowError.
        reserve_tokens: int, room to leave for an answer, unless `max_tokens` says how much it may need.
        options: defaults for every turn, as of `LocalModel.chat`.

    Attributes:
        messages: list of dict, the conversation so far; may be changed between turns.
    """

    def __init__(
        self,
        model: LocalModel,
        system: str = "",
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        policy: Policy | None = None,
        reserve_tokens: int = 256,
        **options: Any,
    ) -> None:
        self.model = model
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages += [dict(message) for message in messages]
        self.policy = policy
        self.reserve_tokens = reserve_tokens
        self.options = options

    def ask(self, message: Said, **options: Any) -> ChatResult:
        """Answers a user's message, or others (a tool's result). A turn that fails leaves the conversation as it was.

        Raises:
            LocalLLMError: As `LocalModel.chat`.
        """
        messages, options = self._prepare(message, options)
        result = self.model.chat(messages, **options)
        self._keep(messages, result.message)
        return result

    async def aask(self, message: Said, **options: Any) -> ChatResult:
        """Like `ask`, for coroutines."""
        messages, options = self._prepare(message, options)
        result = await self.model.achat(messages, **options)
        self._keep(messages, result.message)
        return result

    def stream(self, message: Said, **options: Any) -> Generator[ChatDelta, None, None]:
        """Like `ask`, as it comes. What was said before the iterator was closed is kept."""
        messages, options = self._prepare(message, options)
        said: list[ChatDelta] = []
        stream = self.model.stream_chat(messages, **options)
        try:
            for delta in stream:
                said.append(delta)
                yield delta
        finally:
            stream.close()
            if said:
                self._keep(messages, ChatMessage.of(said))

    async def astream(self, message: Said, **options: Any) -> AsyncGenerator[ChatDelta, None]:
        """Like `stream`, for coroutines."""
        messages, options = self._prepare(message, options)
        said: list[ChatDelta] = []
        stream = self.model.astream_chat(messages, **options)
        try:
            async for delta in stream:
                said.append(delta)
                yield delta
        finally:
            await stream.aclose()
            if said:
                self._keep(messages, ChatMessage.of(said))

    def undo(self) -> None:
        """Takes the last turn back: the user's message and all that followed it."""
        head, turns = split(self.messages)
        self.messages = joined(head, turns[:-1])

    # ---- files

    def to_json(self) -> str:
        """The conversation and its options, for `from_json`. Neither the model nor the policy is in it."""
        return json.dumps({"format": FORMAT, "messages": self.messages, "options": self.options}, ensure_ascii=False)

    @classmethod
    def from_json(cls, model: LocalModel, text: str, *, policy: Policy | None = None) -> ChatSession:
        """A conversation to go on with.

        Raises:
            InvalidRequestError: The text is not what `to_json` gave.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidRequestError(f"session: this is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("messages"), list):
            raise InvalidRequestError(f"session: this is no conversation in the format {FORMAT!r}")
        return cls(model, messages=data["messages"], policy=policy, **data.get("options", {}))

    def save(self, path: str | Path) -> None:
        """Writes `to_json` to a file, which is replaced as a whole."""
        path = Path(path)
        partial = path.with_name(path.name + ".part")
        partial.write_text(self.to_json(), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def load(cls, model: LocalModel, path: str | Path, *, policy: Policy | None = None) -> ChatSession:
        """A conversation from a file; raises as `from_json`, and OSError."""
        return cls.from_json(model, Path(path).read_text(encoding="utf-8"), policy=policy)

    # ---- inside

    def _prepare(self, message: Any, options: dict[str, Any]) -> tuple[list[Message], dict[str, Any]]:
        if isinstance(message, str):
            new = [{"role": "user", "content": message}]
        else:
            new = [dict(each) for each in ([message] if isinstance(message, Mapping) else message)]
        messages, options = [*self.messages, *new], {**self.options, **options}
        if self.policy is not None:
            room = self.model.engine.limit - (options.get("max_tokens") or self.reserve_tokens)
            if self.model.count_message_tokens(messages, **options) > room:
                messages = self.policy.shorten(self.model, messages, room, options)
                needed = self.model.count_message_tokens(messages, **options)
                if needed > room:
                    text = f"session: the last turn alone has {needed} tokens, and {room} are left for it; raise n_ctx"
                    raise ContextOverflowError(text, needed, room)
        return messages, options

    def _keep(self, messages: list[Message], answer: ChatMessage) -> None:
        self.messages = [*messages, answer.to_openai()]


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
