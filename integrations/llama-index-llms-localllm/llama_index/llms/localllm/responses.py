"""Answers to LlamaIndex's responses, whole ones and such that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.llms.localllm.tools import arguments_of

from localllm import ChatDelta, ChatResult, Delta, Finished, Generation, Timings, ToolCall, Usage
from localllm.engine.request import TokenLogprob, TopToken


def whole(result: ChatResult, model: str) -> ChatResponse:
    """The response for a whole answer.

    `raw` is OpenAI's form of the answer, with `usage`, and `timings` and `seed` besides; `additional_kwargs` has the counts of
    tokens, too, for those that look there.
    """
    raw = {**result.to_openai(model=model), **_more(result.timings, result.seed)}
    message = _message(result.message.content, result.message.reasoning, result.message.tool_calls, is_whole=True)
    return ChatResponse(message=message, raw=raw, logprobs=_logprobs(result.logprobs), additional_kwargs=_counts(result.usage))


class Growing:
    """An answer that grows: each response has all of the message so far, and what was added as `delta`.

    Args:
        model: str, its name in `raw`.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._content = ""
        self._reasoning = ""
        self._calls: list[ToolCall] = []

    def add(self, delta: ChatDelta) -> ChatResponse:
        """The response for what a step adds. The last one has the usage, and arguments of calls as dicts."""
        self._content += delta.content
        self._reasoning += delta.reasoning
        for change in delta.tool_calls:
            if change.index == len(self._calls):
                self._calls.append(ToolCall(change.id, change.name, change.arguments))
            else:
                known = self._calls[change.index]
                self._calls[change.index] = ToolCall(known.id, known.name, known.arguments + change.arguments)
        raw = delta.to_openai(model=self._model)
        extra: dict[str, Any] = {"thinking_delta": delta.reasoning} if delta.reasoning else {}
        if delta.usage is not None and delta.timings is not None:
            raw.update(_more(delta.timings, delta.seed))
            extra.update(_counts(delta.usage))
        message = _message(self._content, self._reasoning, self._calls, is_whole=delta.finish_reason is not None)
        return ChatResponse(
            message=message, raw=raw, delta=delta.content, logprobs=_logprobs(delta.logprobs), additional_kwargs=extra
        )


def text(answer: Generation, model: str) -> CompletionResponse:
    """The response for a text that was continued; `raw` is OpenAI's form, as of `whole`."""
    raw = _raw_text(answer.text, answer.finish_reason, answer.usage, model)
    raw.update(_more(answer.timings, answer.seed))
    return CompletionResponse(
        text=answer.text, raw=raw, logprobs=_logprobs(answer.logprobs), additional_kwargs=_counts(answer.usage)
    )


def text_so_far(before: str, event: Delta | Finished, model: str) -> CompletionResponse:
    """The response for a text that had come to `before`, and what a step adds to it."""
    if isinstance(event, Finished):
        raw = {**_raw_text("", event.reason, event.usage, model), **_more(event.timings, event.seed)}
        return CompletionResponse(text=before, delta="", raw=raw, additional_kwargs=_counts(event.usage))
    raw = _raw_text(event.text, None, None, model)
    return CompletionResponse(text=before + event.text, delta=event.text, raw=raw, logprobs=_logprobs(event.logprobs))


def _message(content: str, reasoning: str, calls: Sequence[ToolCall], *, is_whole: bool) -> ChatMessage:
    blocks: list[Any] = [ThinkingBlock(content=reasoning)] if reasoning else []
    blocks.append(TextBlock(text=content))
    for call in calls:
        # A call that was cut off stays as it was written.
        arguments = arguments_of(call.arguments) if is_whole else None
        kwargs = call.arguments if arguments is None else arguments
        blocks.append(ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=kwargs))
    # Where LlamaIndex's own programs look for calls in a stream.
    extra = {"tool_calls": [_openai_call(call) for call in calls]} if calls else {}
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs=extra)


def _openai_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _more(timings: Timings, seed: int) -> dict[str, Any]:
    return {"timings": vars(timings).copy(), "seed": seed}


def _raw_text(added: str, reason: str | None, usage: Usage | None, model: str) -> dict[str, Any]:
    choice = {"index": 0, "text": added, "finish_reason": "stop" if reason == "cancelled" else reason, "logprobs": None}
    counts: dict[str, Any] | None = None
    if usage is not None:
        counts = {**_counts(usage), "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}
    return {"object": "text_completion", "model": model, "choices": [choice], "usage": counts}


def _logprobs(entries: Sequence[TokenLogprob]) -> list[list[LogProb]] | None:
    """For each token the chosen one first, then the most probable ones in its place."""
    if not entries:
        return None
    return [[_logprob(entry), *(_logprob(other) for other in entry.top)] for entry in entries]


def _logprob(one: TokenLogprob | TopToken) -> LogProb:
    return LogProb(token=one.piece.decode(errors="replace"), logprob=one.logprob, bytes=list(one.piece))
