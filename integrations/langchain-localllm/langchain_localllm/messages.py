"""LangChain messages to OpenAI-style ones, and answers back."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, InvalidToolCall, convert_to_openai_messages
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call

from localllm import ChatResult, ToolCall, Usage
from localllm.engine.request import TokenLogprob


def messages_to_openai(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """OpenAI-style messages for localllm."""
    converted = convert_to_openai_messages(messages)
    return converted if isinstance(converted, list) else [converted]


def message_from(answer: ChatResult) -> AIMessage:
    """The AIMessage of a whole answer. A tool call whose arguments are no JSON object becomes an invalid one."""
    calls: list[LangChainToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in answer.message.tool_calls:
        arguments = _arguments(call)
        if isinstance(arguments, dict):
            calls.append({"type": "tool_call", "id": call.id, "name": call.name, "args": arguments})
        else:
            error = "the arguments are no JSON object"
            invalid.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=error))
    reasoning = answer.message.reasoning
    return AIMessage(
        content=answer.message.content,
        additional_kwargs={"reasoning_content": reasoning} if reasoning else {},
        tool_calls=calls,
        invalid_tool_calls=invalid,
    )


def _arguments(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except json.JSONDecodeError:
        return None


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Token counts in LangChain's form."""
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"cache_read": usage.cached_tokens},
        "output_token_details": {},
    }


def response_metadata(reason: str, model: str, logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """What LangChain users look for in `response_metadata`."""
    metadata: dict[str, Any] = {"finish_reason": reason, "model_name": model, "model_provider": "localllm"}
    if logprobs:
        metadata["logprobs"] = {
            "content": [
                {
                    "token": entry.token,
                    "logprob": entry.logprob,
                    "top_logprobs": [{"token": other.token, "logprob": other.logprob} for other in entry.top],
                }
                for entry in logprobs
            ]
        }
    return metadata
