"""localllm's answers to LangChain's messages, whole and in chunks."""

from __future__ import annotations

import json
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import ContentBlock
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.json import parse_partial_json

from localllm import ChatDelta, Timings, ToolCallDelta, Usage
from localllm import ChatResult as Answer

PROVIDER = "localllm"
_NO_OBJECT = "the arguments are no JSON object"
# What ends a text that ends outside of a string, in one, or behind a backslash, by a bracket that was not opened there.
_SPOILERS = ("]", "}", '"]', '"}', '\\"]', '\\"}')


def chat_result(answer: Answer, model: str) -> ChatResult:
    """The result of a whole answer.

    Args:
        answer: localllm.ChatResult.
        model: str, what the model is called.
    """
    message = message_from(answer)
    message.usage_metadata = usage_metadata(answer.usage)
    message.response_metadata = _ending(answer.finish_reason, model, answer.usage, answer.timings, answer.seed)
    if answer.logprobs:
        message.response_metadata["logprobs"] = answer.to_openai()["choices"][0]["logprobs"]
    output = {"token_usage": message.response_metadata["token_usage"], "model_name": model}
    return ChatResult(generations=[ChatGeneration(message=message)], llm_output=output)


def chat_chunk(delta: ChatDelta, model: str) -> ChatGenerationChunk:
    """The chunk of a delta. All that is said of the whole answer comes with the last one: chunks are added up."""
    message = AIMessageChunk(content=delta.content, response_metadata={"model_provider": PROVIDER})
    if delta.reasoning:
        message.additional_kwargs["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        message = AIMessageChunk(
            content=delta.content,
            additional_kwargs=message.additional_kwargs,
            response_metadata=message.response_metadata,
            tool_call_chunks=[
                tool_call_chunk(index=call.index, id=call.id or None, name=call.name or None, args=call.arguments)
                for call in delta.tool_calls
            ],
        )
    if delta.logprobs:
        message.response_metadata["logprobs"] = delta.to_openai()["choices"][0]["logprobs"]
    if delta.finish_reason is not None and delta.usage is not None and delta.timings is not None:
        message.response_metadata |= _ending(delta.finish_reason, model, delta.usage, delta.timings, delta.seed)
        message.usage_metadata = usage_metadata(delta.usage)
        message.chunk_position = "last"
    return ChatGenerationChunk(message=message)


class Chunks:
    """The chunks of one stream.

    LangChain closes what is open in the arguments of a call, also when the stream is over: a call that was cut off would be taken
    for a whole one with other values. So its arguments get an end that nothing can repair, and it is an invalid call, as of a
    whole answer.

    Args:
        model: str, what the model is called.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._arguments: dict[int, str] = {}

    def of(self, delta: ChatDelta) -> list[ChatGenerationChunk]:
        """The chunks of the next delta."""
        for call in delta.tool_calls:
            self._arguments[call.index] = self._arguments.get(call.index, "") + call.arguments
        chunk = chat_chunk(delta, self._model)
        if delta.finish_reason is None:
            return [chunk]
        cut = max(self._arguments, default=0) if delta.finish_reason == "length" else None
        spoiled = [
            ToolCallDelta(index, arguments=_spoiler(text))
            for index, text in self._arguments.items()
            if _arguments(text, cut=index == cut) is None
        ]
        return [chat_chunk(ChatDelta(tool_calls=tuple(spoiled)), self._model), chunk] if spoiled else [chunk]


def message_from(answer: Answer) -> AIMessage:
    """The AIMessage of a whole answer. A tool call whose arguments are no JSON object becomes an invalid one."""
    calls: list[LangChainToolCall] = []
    invalid: list[InvalidToolCall] = []
    cut = answer.message.tool_calls[-1:] if answer.finish_reason == "length" else ()
    for call in answer.message.tool_calls:
        arguments = _arguments(call.arguments, cut=call in cut)
        if arguments is not None:
            calls.append(tool_call(name=call.name, args=arguments, id=call.id))
        else:
            invalid.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=_NO_OBJECT))
    reasoning = answer.message.reasoning
    return AIMessage(
        content=answer.message.content,
        additional_kwargs={"reasoning_content": reasoning} if reasoning else {},
        tool_calls=calls,
        invalid_tool_calls=invalid,
    )


def _arguments(text: str, *, cut: bool) -> dict[str, Any] | None:
    """The arguments of a call; None if they are no JSON object. A call without any has none, unless it is cut off."""
    try:
        # As LangChain reads those of streams: lines may end within a text.
        found = json.loads(text or ("" if cut else "{}"), strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _spoiler(text: str) -> str:
    """What makes of a text one that LangChain cannot repair to an object."""
    return next(end for end in _SPOILERS if not isinstance(_repaired(text + end), dict))


def _repaired(text: str) -> Any:
    try:
        return parse_partial_json(text)
    except (ValueError, RecursionError):
        return None


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Token counts in LangChain's form."""
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"cache_read": usage.cached_tokens},
        "output_token_details": {"reasoning": usage.reasoning_tokens},
    }


def _ending(reason: str, model: str, usage: Usage, timings: Timings, seed: int) -> dict[str, Any]:
    return {
        "finish_reason": reason,
        "model_name": model,
        "model_provider": PROVIDER,
        "token_usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
        "timings": vars(timings).copy(),
        "seed": seed,
    }


def added(outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The llm_output of several results."""
    given = [output for output in outputs if output]
    if not given:
        return {}
    names = given[0]["token_usage"]
    return {**given[0], "token_usage": {name: sum(output["token_usage"][name] for output in given) for name in names}}


# ---- content blocks (output_version="v1")


def _blocks(message: AIMessage) -> list[ContentBlock]:
    """The standard blocks of an answer: thoughts, text, calls."""
    return [*_said(message), *_calls(message)]


def _chunk_blocks(message: AIMessageChunk) -> list[ContentBlock]:
    """The same of a chunk, whose calls come in pieces.

    LangChain numbers the blocks of a stream 0, 1, ..., and adds up what has the same number: the pieces of a call have names in
    place of numbers, so that they are never added to a text.
    """
    if message.chunk_position == "last" or not message.tool_call_chunks:
        return _blocks(message)
    pieces = [{"type": "tool_call_chunk", **piece, "index": f"lc_tc_{piece['index']}"} for piece in message.tool_call_chunks]
    return [*_said(message), *cast("list[ContentBlock]", pieces)]


def _said(message: AIMessage) -> list[ContentBlock]:
    if not isinstance(message.content, str):
        raise NotImplementedError  # LangChain's word for: take your own way with these blocks
    blocks: list[dict[str, Any]] = []
    if thoughts := message.additional_kwargs.get("reasoning_content"):
        blocks.append({"type": "reasoning", "reasoning": thoughts})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    return cast("list[ContentBlock]", blocks)


def _calls(message: AIMessage) -> list[ContentBlock]:
    calls = [{**call, "type": "tool_call"} for call in message.tool_calls]
    invalid = [{**call, "type": "invalid_tool_call"} for call in message.invalid_tool_calls]
    return cast("list[ContentBlock]", calls + invalid)


register_translator(PROVIDER, _blocks, _chunk_blocks)
