"""Tools for a model, and the calls that it answers with."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool
from llama_index.llms.localllm.errors import NoToolCallError
from llama_index.llms.localllm.partial import PartialJson

from localllm.chat.constraints.loosening import loosened
from localllm.chat.texts import json_object
from localllm.errors import InvalidRequestError

logger = logging.getLogger("localllm.llama_index")


def tools_to_openai(tools: Any) -> list[Any]:
    """OpenAI-style tools; those that are already are left as they are.

    Raises:
        InvalidRequestError: They are no list.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise InvalidRequestError(f"tools: must be a list of tools, not {type(tools).__name__}")
    return [_openai_tool(tool) if isinstance(tool, BaseTool) else tool for tool in tools]


def _openai_tool(tool: BaseTool) -> dict[str, Any]:
    # LlamaIndex puts other characters in place of what OpenAI's servers refuse in a name, and would not find the tool by that.
    made = tool.metadata.to_openai_tool(skip_length_check=True)
    # What a grammar cannot express of a class (a set's items, say) is for the tool to check, as with all other LLMs.
    parameters = loosened(made["function"].get("parameters"))
    return {**made, "function": {**made["function"], "name": tool.metadata.get_name(), "parameters": parameters}}


def calls_of(response: ChatResponse, error_on_none: bool) -> list[ToolSelection]:
    """The calls of a response, of this LLM or another one.

    A stream's item has such as are still being written, with the arguments so far. A call that was cut off, because `max_tokens`
    or the context was used up, or by a text of `stop`, is none: nobody knows what it was to be.

    Raises:
        NoToolCallError: There are none, and that is an error.
        InvalidRequestError: That is no response.
    """
    if not isinstance(response, ChatResponse):
        raise InvalidRequestError(f"response: must be a ChatResponse, not {type(response).__name__}")
    message, ended = response.message, _finish_reason(response.raw)
    calls, cut = [], ""
    for block in message.blocks:
        if not isinstance(block, ToolCallBlock):
            continue
        arguments = arguments_of(block.tool_kwargs)
        if arguments is None and ended:
            cause = "raise max_tokens" if ended == "length" else "a text of `stop` ended it, or it was stopped"
            cut = f"; its call of {block.tool_name!r} was cut off: {cause}"
            logger.warning("the call of %r was cut off, and is left out: %s", block.tool_name, cause)
            continue
        if arguments is None:
            arguments = _so_far(str(block.tool_kwargs))
        id = block.tool_call_id or f"call_{secrets.token_hex(12)}"
        calls.append(ToolSelection(tool_id=id, tool_name=block.tool_name, tool_kwargs=arguments))
    if not calls and error_on_none:
        raise NoToolCallError(f"the answer calls no tool; it says {(message.content or '')[:200]!r}{cut}")
    return calls


def arguments_of(written: Any) -> dict[str, Any] | None:
    """Arguments as a dict; None if they are no whole JSON object. Nothing at all is no arguments."""
    if isinstance(written, Mapping):
        return dict(written)
    if not isinstance(written, (str, type(None))):
        return None
    try:
        return json_object(written or "{}")
    except ValueError:  # numbers that JSON does not have
        return None


def _so_far(written: str) -> dict[str, Any]:
    partial = PartialJson()
    partial.add(written)
    value = partial.value
    return value if isinstance(value, dict) else {}


def _finish_reason(raw: Any) -> str | None:
    """Why an answer ended; None if it goes on, or its class tells that elsewhere."""
    choices = raw.get("choices") if isinstance(raw, Mapping) else None
    first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
    reason = first.get("finish_reason") if isinstance(first, Mapping) else None
    return reason if isinstance(reason, str) and reason else None
