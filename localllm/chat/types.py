"""What a chat gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from localllm.engine.request import Timings, TokenLogprob, TopToken, Usage
from localllm.engine.speculation.tally import SpeculationStats

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

    @classmethod
    def of(cls, deltas: Iterable[ChatDelta]) -> ChatMessage:
        """The message that the deltas of a stream add up to, whether or not they are all."""
        content = reasoning = ""
        calls: dict[int, ToolCall] = {}
        for delta in deltas:
            content += delta.content
            reasoning += delta.reasoning
            for change in delta.tool_calls:
                known = calls.get(change.index, ToolCall("", "", ""))
                calls[change.index] = ToolCall(known.id + change.id, known.name + change.name, known.arguments + change.arguments)
        return cls(content, reasoning, tuple(calls.values()))

    def to_openai(self) -> dict[str, Any]:
        """The message as OpenAI's chat completions write it, ready for the next turn."""
        content = self.content if self.content or not self.tool_calls else None
        message: dict[str, Any] = {"role": self.role, "content": content}
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

    def to_openai(self) -> dict[str, Any]:
        """The piece as OpenAI's chunks write it."""
        function = {"name": self.name, "arguments": self.arguments} if self.name else {"arguments": self.arguments}
        head = {"id": self.id, "type": "function"} if self.id else {}
        return {"index": self.index, **head, "function": function}


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
        speculation: what became of drafts, in the last delta, if there were to be some.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: ChatFinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    seed: int = 0
    speculation: SpeculationStats | None = None

    def to_openai(self, *, model: str = "", id: str = "", created: int = 0) -> dict[str, Any]:
        """The delta as a "chat.completion.chunk".

        Args:
            model: str, a name for the model.
            id: str, the same for all chunks of an answer.
            created: int, seconds since 1970.
        """
        delta: dict[str, Any] = {"role": "assistant"}
        if self.content or not (self.reasoning or self.tool_calls or self.finish_reason):
            delta["content"] = self.content
        if self.reasoning:
            delta["reasoning_content"] = self.reasoning
        if self.tool_calls:
            delta["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        choice = {
            "index": 0,
            "delta": delta if not self.finish_reason else {},
            "finish_reason": _openai_reason(self.finish_reason),
            "logprobs": _openai_logprobs(self.logprobs),
        }
        return {
            "id": id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": _openai_usage(self.usage) if self.usage else None,
        }


@dataclass(frozen=True)
class ChatResult:
    """A whole answer; `speculation` tells what became of drafts, None where there were to be none."""

    message: ChatMessage
    finish_reason: ChatFinishReason
    usage: Usage
    timings: Timings
    seed: int
    logprobs: tuple[TokenLogprob, ...] = ()
    speculation: SpeculationStats | None = None

    def to_openai(self, *, model: str = "", id: str = "", created: int = 0) -> dict[str, Any]:
        """The answer as a "chat.completion"; arguments as of `ChatDelta.to_openai`.

        An answer that was cancelled says "stop": OpenAI has no word for it.
        """
        choice = {
            "index": 0,
            "message": {**self.message.to_openai(), "refusal": None},
            "finish_reason": _openai_reason(self.finish_reason),
            "logprobs": _openai_logprobs(self.logprobs),
        }
        return {
            "id": id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": _openai_usage(self.usage),
        }


def _openai_reason(reason: ChatFinishReason | None) -> str | None:
    return "stop" if reason == "cancelled" else reason


def _openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def _openai_logprobs(logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
    if not logprobs:
        return None
    content = [{**_openai_token(each), "top_logprobs": [_openai_token(top) for top in each.top]} for each in logprobs]
    return {"content": content, "refusal": None}


def _openai_token(token: TokenLogprob | TopToken) -> dict[str, Any]:
    return {
        "token": token.piece.decode(errors="replace"),
        "bytes": list(token.piece),
        "logprob": max(token.logprob, -9999.0),
    }
