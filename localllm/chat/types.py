"""What a chat gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from localllm.engine.request import Timings, TokenLogprob, Usage

ChatFinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ChatMessage:
    """The model's answer.

    Attributes:
        content: str, the answer proper.
        reasoning: str, what the model thought before it; "" if it did not.
        tool_calls: calls it asks for.
        role: always "assistant".
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    role: Literal["assistant"] = "assistant"

    def to_openai(self) -> dict[str, Any]:
        """The message as OpenAI's chat completions write it, ready for the next turn."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True)
class ToolCallDelta:
    """What a step adds to the tool call number `index`: id and name once, then pieces of the arguments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class ChatDelta:
    """What a step adds to an answer. The last one of a stream carries the reason, usage and timings, and no text.

    Attributes:
        content, reasoning: str, to be appended.
        tool_calls: to be appended to the call of the same index.
        logprobs: of the tokens of this step, if asked for.
        finish_reason: None but in the last delta.
        usage, timings: None but in the last delta.
        seed: int, the seed of the sampler; in the last delta.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: ChatFinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    seed: int = 0


@dataclass(frozen=True)
class ChatResult:
    """A whole answer."""

    message: ChatMessage
    finish_reason: ChatFinishReason
    usage: Usage
    timings: Timings
    seed: int
    logprobs: tuple[TokenLogprob, ...] = ()
