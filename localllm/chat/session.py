"""A conversation that remembers itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from localllm import asking
from localllm.chat import saved
from localllm.chat.messages import as_mapping
from localllm.chat.prompt import ChatOptions
from localllm.chat.texts import json_object
from localllm.chat.trimming import AsyncPolicy, Message, Policy, joined, split
from localllm.chat.types import ChatDelta, ChatFinishReason, ChatMessage, ChatResult, ToolCall
from localllm.engine.checks import whole
from localllm.engine.steering import ControlVector, Lora, adapters
from localllm.errors import ContextOverflowError, InvalidRequestError, LocalLLMError
from localllm.files import write_atomically
from localllm.options import fields

if TYPE_CHECKING:
    from localllm.models import LocalModel

Said: TypeAlias = str | Mapping[str, Any] | ChatMessage | Sequence[Mapping[str, Any] | ChatMessage]
RESERVE_TOKENS = 256
# There are templates that refuse an answer without text and calls.
CUT = "…"


class ChatSession:
    """A conversation: it keeps the messages, and each turn computes only what is new.

    Of an answer it keeps the text, the thoughts and the calls whose arguments are whole. A call that was cut off, by `max_tokens`
    or by closing a stream, is left out, since many templates cannot show it. Where nothing is left of an answer but thoughts, "…"
    stands for its text.

    Args:
        model: LocalModel.
        system: str, the first message; "": none.
        messages: what was said already, as of `LocalModel.chat`.
        policy: what to do when the conversation outgrows the context, e.g. DropOldest() or Summarise(); None:
            ContextOverflowError.
        reserve_tokens: int, room that the policy leaves for an answer, unless `max_tokens` says how much it may need; half of the
            context at most. Where the newest turn needs some of it, the answer has less.
        options: defaults for every turn, as of `LocalModel.chat`.

    Raises:
        InvalidRequestError: A message or an argument has the wrong form, or an option is unknown or wrong.

    Attributes:
        messages: list of dict, the conversation so far; may be changed between turns.
    """

    def __init__(
        self,
        model: LocalModel,
        system: str = "",
        *,
        messages: Sequence[Mapping[str, Any] | ChatMessage] = (),
        policy: Policy | None = None,
        reserve_tokens: int = RESERVE_TOKENS,
        **options: Any,
    ) -> None:
        if not isinstance(system, str):
            raise InvalidRequestError(f"system: must be text, not {type(system).__name__}")
        if isinstance(policy, type) or (policy is not None and not callable(getattr(policy, "shorten", None))):
            raise InvalidRequestError(f"policy: must be one such as DropOldest(), or None, not {policy!r}")
        whole("reserve_tokens", reserve_tokens, least=0)
        self.model = model
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages += _listed("messages", messages)
        self.policy = policy
        self.reserve_tokens = reserve_tokens
        self.options = _checked(options)

    def ask(self, message: Said, **options: Any) -> ChatResult:
        """Answers a user's message, or others (a tool's result). A turn that fails leaves the conversation as it was.

        Args:
            message: str, what the user says; or one message or several as of `LocalModel.chat`.
            options: as of `LocalModel.chat`; they go before those of the session.

        Raises:
            LocalLLMError: As `LocalModel.chat`.
        """
        messages, options = self._asked(message, options)
        messages = self._fitted(messages, options)
        result = self.model.chat(messages, **options)
        self._keep(messages, result.message, result.finish_reason)
        return result

    async def aask(self, message: Said, **options: Any) -> ChatResult:
        """Like `ask`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        messages, options = self._asked(message, options)
        messages = await self._afitted(messages, options)
        result = await self.model.achat(messages, **options)
        self._keep(messages, result.message, result.finish_reason)
        return result

    def stream(self, message: Said, **options: Any) -> Generator[ChatDelta, None, None]:
        """Like `ask`, as it comes. What was said before the iterator was closed is kept."""
        messages, options = self._asked(message, options)
        messages = self._fitted(messages, options)
        said: list[ChatDelta] = []
        stream = self.model.stream_chat(messages, **options)
        try:
            for delta in stream:
                said.append(delta)
                yield delta
        except LocalLLMError:
            said.clear()
            raise
        finally:
            stream.close()
            self._keep_said(messages, said)

    async def astream(self, message: Said, **options: Any) -> AsyncGenerator[ChatDelta, None]:
        """Like `stream`, for coroutines: the loop is never blocked."""
        messages, options = self._asked(message, options)
        messages = await self._afitted(messages, options)
        said: list[ChatDelta] = []
        stream = self.model.astream_chat(messages, **options)
        try:
            async for delta in stream:
                said.append(delta)
                yield delta
        except LocalLLMError:
            said.clear()
            raise
        finally:
            await stream.aclose()
            self._keep_said(messages, said)

    def undo(self) -> None:
        """Takes the last turn back: the user's message and all that followed it."""
        head, turns = split(self.messages)
        self.messages = joined(head, turns[:-1])

    # ---- files

    def to_json(self) -> str:
        """The conversation and its options, for `from_json`. Neither the model nor the policy is in it.

        Raises:
            InvalidRequestError: A message or option cannot be saved; names it by its place.
        """
        messages = _listed("messages", self.messages)
        return saved.to_text(messages=messages, reserve_tokens=self.reserve_tokens, options=self.options)

    @classmethod
    def from_json(cls, model: LocalModel, text: str, *, policy: Policy | None = None) -> ChatSession:
        """A conversation to go on with.

        Raises:
            InvalidRequestError: The text is not what `to_json` gave; names the place.
        """
        parts = saved.from_text(text)
        messages, options = parts.pop("messages", None), parts.pop("options", {})
        reserve = parts.pop("reserve_tokens", RESERVE_TOKENS)
        if parts:
            raise InvalidRequestError(f"session: {', '.join(parts)}: no part of a conversation in the format {saved.FORMAT!r}")
        if not isinstance(messages, list):
            raise InvalidRequestError("session: messages is no list")
        if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
            raise InvalidRequestError("session: options is no object with names")
        # Here, so that no option is taken for an argument of the constructor.
        try:
            options = _checked(options)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"session: options.{error}") from error
        try:
            return cls(model, messages=messages, policy=policy, reserve_tokens=reserve, **options)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"session: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes `to_json` to a file, which is replaced as a whole.

        Raises:
            InvalidRequestError: As `to_json`.
            OSError: The file cannot be written.
        """
        write_atomically(Path(path), self.to_json().encode(), sync=True)

    @classmethod
    def load(cls, model: LocalModel, path: str | Path, *, policy: Policy | None = None) -> ChatSession:
        """A conversation from a file.

        Raises:
            InvalidRequestError: The file is not what `save` wrote; names the file and the place.
            OSError: The file cannot be read.
        """
        try:
            return cls.from_json(model, Path(path).read_bytes().decode(), policy=policy)
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"session: {path}: this is no text: {error}") from error
        except InvalidRequestError as error:
            raise InvalidRequestError(f"session: {path}: {str(error).removeprefix('session: ')}") from error

    # ---- inside

    def _asked(self, message: Said, options: dict[str, Any]) -> tuple[list[Message], dict[str, Any]]:
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        new = _listed("message", [message] if isinstance(message, (Mapping, ChatMessage)) else message)
        return [*_listed("messages", self.messages), *new], _checked({**self.options, **options})

    def _fitted(self, messages: list[Message], options: dict[str, Any]) -> list[Message]:
        """What the policy leaves of a conversation."""
        room = self._room(messages, options)
        if room is None or self.policy is None:
            return messages
        return self._required(self.policy.shorten(self.model, messages, room, options), options)

    async def _afitted(self, messages: list[Message], options: dict[str, Any]) -> list[Message]:
        """Like `_fitted`: templates, weights and policies take their time, so they go into a thread."""
        policy = self.policy
        if policy is None:
            return messages
        room = await asyncio.to_thread(self._room, messages, options)
        if room is None:
            return messages
        if isinstance(policy, AsyncPolicy):
            messages = await policy.ashorten(self.model, messages, room, options)
        else:
            messages = await asyncio.to_thread(policy.shorten, self.model, messages, room, options)
        return await asyncio.to_thread(self._required, messages, options)

    def _room(self, messages: list[Message], options: dict[str, Any]) -> int | None:
        """How many tokens the policy may leave; None if it need not be asked."""
        if self.policy is None:
            return None
        needed = self.model.count_message_tokens(messages, **options)
        limit = self.model.engine.limit
        # An answer of any length is allowed to end where the context does: it must not take all the room of what was said.
        room = limit - min(options.get("max_tokens") or self.reserve_tokens, limit // 2)
        return room if needed > room else None

    def _required(self, messages: list[Message], options: dict[str, Any]) -> list[Message]:
        """Messages, if they fit into the context."""
        needed, limit = self.model.count_message_tokens(messages, **options), self.model.engine.limit
        if needed > limit:
            text = (
                f"session: the newest turn has {needed} tokens together with the system messages, and the context holds {limit}"
            )
            raise ContextOverflowError(f"{text}; shorten them or raise n_ctx", needed, limit)
        return messages

    def _keep(self, messages: list[Message], answer: ChatMessage, reason: ChatFinishReason | None) -> None:
        self.messages = [*messages, _whole_calls(answer, ended=reason in ("stop", "tool_calls")).to_openai()]

    def _keep_said(self, messages: list[Message], said: list[ChatDelta]) -> None:
        if said:
            self._keep(messages, ChatMessage.of(said), said[-1].finish_reason)


def _whole_calls(answer: ChatMessage, *, ended: bool) -> ChatMessage:
    """An answer without the calls whose arguments are no JSON object, as those that were cut off.

    Args:
        answer: ChatMessage.
        ended: bool, the model has said all of it; a call without arguments is then one with none.
    """
    calls = [dataclasses.replace(call, arguments="{}") if ended and not call.arguments else call for call in answer.tool_calls]
    kept = tuple(call for call in calls if _is_whole(call))
    is_cut = not ended or len(kept) < len(calls)
    return dataclasses.replace(
        answer, tool_calls=kept, content=CUT if is_cut and not kept and not answer.content else answer.content
    )


def _is_whole(call: ToolCall) -> bool:
    try:
        return json_object(call.arguments) is not None
    except ValueError:  # of numbers that would be refused when it is shown to the model again
        return False


def _listed(name: str, messages: Any) -> list[Message]:
    """Messages as dicts of the session's own; raises InvalidRequestError, which names the place."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        kinds = "text, a message or a list of messages" if name == "message" else "a list of messages"
        raise InvalidRequestError(f"{name}: must be {kinds}, not {type(messages).__name__}")
    return [as_mapping(f"{name}[{at}]", each) for at, each in enumerate(messages)]


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a turn, adapters as such; raises InvalidRequestError for unknown and wrong ones, which needs no model."""
    checked = dict(options)
    for name, kind in (("loras", Lora), ("control_vectors", ControlVector)):
        if checked.get(name) is not None:
            checked[name] = adapters(name, checked[name], kind)
        else:
            checked.pop(name, None)
    names = fields(ChatOptions)
    ChatOptions(**{name: value for name, value in checked.items() if name in names})
    asking.request((0,), {name: value for name, value in checked.items() if name not in names}, others=names)
    return checked
