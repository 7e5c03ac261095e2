"""One call, ready to be asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from langchain_localllm import structured, tools
from langchain_localllm.messages import texts_of, to_openai
from localllm import ChatDelta, LocalModel
from localllm.errors import QueueFullError, RequestTimeoutError, TemplateError

T = TypeVar("T")

# Seconds before a full queue is tried again; each further pause is twice as long, up to the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        model: LocalModel that answers it.
        name: str, what that is called.
        messages, options: what `LocalModel.chat` is asked.
        tries: int, how often at most, while the engine's queue is full.
    """

    model: LocalModel
    name: str
    messages: list[dict[str, Any]]
    options: dict[str, Any]
    tries: int = 1

    def tried(self, ask: Callable[[dict[str, Any]], T]) -> T:
        """What `ask` gives for the options, tried again while the queue is full, within the `timeout` of all tries together."""
        begun, left = time.monotonic(), self.options
        for seconds in pauses(self.tries - 1):
            try:
                return ask(left)
            except QueueFullError:
                time.sleep(self._pause(seconds, begun))
                left = self._left(begun)
        return ask(left)

    async def atried(self, ask: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Like `tried`, for coroutines."""
        begun, left = time.monotonic(), self.options
        for seconds in pauses(self.tries - 1):
            try:
                return await ask(left)
            except QueueFullError:
                await asyncio.sleep(self._pause(seconds, begun))
                left = self._left(begun)
        return await ask(left)

    def _pause(self, seconds: float, begun: float) -> float:
        """A pause that is not longer than what is left of the timeout."""
        timeout = self.options.get("timeout")
        return seconds if timeout is None else max(0.0, min(seconds, begun + timeout - time.monotonic()))

    def _left(self, begun: float) -> dict[str, Any]:
        """The options of the next try."""
        timeout = self.options.get("timeout")
        if timeout is None:
            return self.options
        left = begun + timeout - time.monotonic()
        if left <= 0:
            raise RequestTimeoutError(
                f"timeout: the engine's queue was full for {timeout} seconds; allow more, or raise max_queue"
            )
        return {**self.options, "timeout": left}

    async def adeltas(self) -> AsyncGenerator[ChatDelta, None]:
        """The deltas of its answer; the first may be tried for, too."""
        first, deltas = await self.atried(self._begun)
        try:
            yield first
            async for delta in deltas:
                yield delta
        finally:
            await deltas.aclose()

    async def _begun(self, options: dict[str, Any]) -> tuple[ChatDelta, AsyncGenerator[ChatDelta, None]]:
        """The first delta, and the others to come."""
        deltas = self.model.astream_chat(self.messages, **options)
        try:
            return await deltas.__anext__(), deltas
        except BaseException:
            await deltas.aclose()
            raise

    def n_tokens(self) -> int:
        """How many tokens its prompt has; messages that the template refuses by themselves count as their texts."""
        told = ("tools", "tool_choice", "response_format", "enable_thinking", "template_kwargs", "parallel_tool_calls")
        try:
            return self.model.count_message_tokens(
                self.messages, **{name: self.options[name] for name in told if name in self.options}
            )
        except TemplateError:
            return sum(self.model.count_tokens(text) for message in self.messages for text in texts_of(message))


def pauses(n: int) -> Iterator[float]:
    """How long to wait (seconds) before each of n further tries."""
    seconds = FIRST_PAUSE
    for _ in range(n):
        yield seconds
        seconds = min(2 * seconds, LONGEST_PAUSE)


def prepared(
    model: LocalModel, name: str, messages: Sequence[BaseMessage], options: Mapping[str, Any], tries: int, tell_schema: bool
) -> Call:
    """A call from LangChain's messages and options by our names.

    Args:
        model: LocalModel.
        name: str, what it is called.
        messages: LangChain's.
        options: of the call, with tools and schemas in any form.
        tries: int, see Call.
        tell_schema: bool, the model is told which schema its answer has.

    Raises:
        InvalidRequestError: A message or option has the wrong form.
    """
    asked = as_openai(options)
    if "tools" not in asked:
        asked.pop("parallel_tool_calls", None)
    converted = to_openai(messages)
    if tell_schema and asked.get("tool_choice") in (None, "auto", "none"):
        converted = structured.with_schema_told(converted, asked.get("response_format"))
    return Call(model, name, converted, asked, tries)


def as_openai(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call, with its tools, their choice and its schema as OpenAI writes them; raises as `prepared` does."""
    asked = dict(options)
    given = asked.pop("tools", None)
    choice = asked.pop("tool_choice", None)
    if given:
        asked["tools"] = tools.openai_tools(given)
        if (chosen := tools.chosen_tool(choice, asked["tools"])) is not None:
            asked["tool_choice"] = chosen
    if "response_format" in asked:
        asked["response_format"] = structured.response_format(asked["response_format"])
    return asked
