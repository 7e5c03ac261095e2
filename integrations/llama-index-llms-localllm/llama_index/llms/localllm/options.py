"""Options of LocalLLM, named where they are unknown or belong elsewhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from llama_index.llms.localllm.tools import tools_to_openai

from localllm import ChatOptions, ContextConfig, ControlVector, Lora, ModelConfig, SamplingParams
from localllm.errors import InvalidRequestError
from localllm.options import split, unknown

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
# At most one of these says what an answer has to be.
CONSTRAINTS = frozenset({"response_format", "json_schema", "regex", "choice", "grammar"})
_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})

# What other LLMs of LlamaIndex, and llama.cpp, call the same thing.
_ELSEWHERE = {
    "model_path": "model",
    "model_url": "model",
    "n_ctx": "context_window",
    "num_ctx": "context_window",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "model_kwargs": "model_options",
    "generate_kwargs": "sampling",
    "additional_kwargs": "sampling",
    "thinking": "chat_options={'enable_thinking': ...}",
    "messages_to_prompt": "chat_template",
    "completion_to_prompt": "chat_template",
    "query_wrapper_prompt": "chat_template",
}


def require_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Every name is one of those known.

    Raises:
        InvalidRequestError: One is not; says where it belongs, or which one was meant.
    """
    known = set(known)
    for name in names:
        if name in known:
            continue
        if name in _ELSEWHERE:
            raise InvalidRequestError(f"{name}: unknown option; give it as {_ELSEWHERE[name]}")
        for home, kinds in _HOMES.items():
            if any(name in kind.__dataclass_fields__ for kind in kinds):
                raise InvalidRequestError(f"{name}: give it as {home}={{{name!r}: ...}}")
        raise unknown(name, known)


_HOMES: Mapping[str, tuple[Any, ...]] = {
    "model_options": (ModelConfig, ContextConfig),
    "sampling": (SamplingParams,),
    "chat_options": (ChatOptions,),
}


def usual(options: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of all chats those that hold for one.

    What a call says that its answer has to be takes the place of what answers have to be: of a schema, say, or of tools. A choice
    among tools waits for a call that has some.

    Args:
        options: fields of ChatOptions for every chat.
        call: options of the call.
    """
    left_out: set[str] = set()
    if not CONSTRAINTS.isdisjoint(call):
        left_out |= CONSTRAINTS if call.get("tools") is not None else CONSTRAINTS | _TOOLS
    if (call["tools"] if "tools" in call else options.get("tools")) is None:
        left_out |= _TOOLS
    return {name: value for name, value in options.items() if name not in left_out}


def with_plain_tools(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an LLM with those tools of all chats that are LlamaIndex's in OpenAI's form, which JSON has and pickle takes.

    Raises:
        InvalidRequestError: They are no list.
    """
    chat = options.get("chat_options")
    if not isinstance(chat, Mapping) or chat.get("tools") is None:
        return dict(options)
    return {**options, "chat_options": {**chat, "tools": tools_to_openai(chat["tools"])}}


def is_bound(options: Mapping[str, Any]) -> bool:
    """Whether the options of a call say what its answer has to be: a stop within it would spoil it."""
    if options.get("tools") and options.get("tool_choice") not in (None, False, "auto", "none"):
        return True
    if getattr(options.get("sampling"), "grammar", ""):
        return True
    is_text = options.get("response_format") in ("text", {"type": "text"})
    return any(options.get(name) is not None for name in CONSTRAINTS if name != "response_format" or not is_text)


def require_sound(options: Mapping[str, Any]) -> None:
    """The fields of ChatOptions that are given are known and right, and go together.

    Raises:
        InvalidRequestError: One is not.
        GrammarError: A schema or pattern cannot be expressed.
    """
    (fields,) = split(options, ChatOptions)
    checked = ChatOptions(**fields)
    checked.constraint({})
    if options.get("tools") is not None:
        checked.checked_tools({})


def plain(adapter: Any) -> Any:
    """An adapter in a form that JSON has, from which `adapters` makes it again."""
    if isinstance(adapter, (Lora, ControlVector)):
        return {name: value for name, value in dataclasses.asdict(adapter).items() if value is not None}
    if isinstance(adapter, (tuple, list)):
        return [plain(one) for one in adapter]
    return os.fspath(adapter) if isinstance(adapter, os.PathLike) else adapter


def adapters(given: Iterable[Any], kind: type[Lora] | type[ControlVector]) -> list[Any]:
    """Adapters as localllm takes them."""
    return [kind(**one) if isinstance(one, dict) else tuple(one) if isinstance(one, list) else one for one in given]
