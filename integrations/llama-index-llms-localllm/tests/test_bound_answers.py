"""Answers that have to be something: what the LLM says of all answers does not spoil them, and what a call says is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.localllm import CutAnswerError, LocalLLM, NoToolCallError
from pydantic import BaseModel

from localllm.errors import GrammarError, InvalidRequestError

PROMPT = PromptTemplate("Something.")
QUESTION = [ChatMessage(role="user", content="What is it?")]


class Item(BaseModel):
    """An item."""

    item: Literal["an item of a list"]


@pytest.fixture(scope="module")
def options(tiny: Path) -> dict[str, Any]:
    return {"model": tiny, "temperature": 0, "max_tokens": 300, "model_options": {"n_threads": 1}}


def tool() -> FunctionTool:
    return FunctionTool.from_defaults(lambda item: item, name="take", description="Takes it.", fn_schema=Item)


async def objects(llm: LocalLLM, **kwargs: Any) -> list[Any]:
    """An object in all four forms."""
    return [
        llm.structured_predict(Item, PROMPT, kwargs),
        await llm.astructured_predict(Item, PROMPT, kwargs),
        list(llm.stream_structured_predict(Item, PROMPT, kwargs))[-1],
        [item async for item in await llm.astream_structured_predict(Item, PROMPT, kwargs)][-1],
    ]


async def test_a_stop_of_the_llm_does_not_cut_what_an_answer_has_to_be(options):
    llm = LocalLLM(stop=["item"], **options)
    assert await objects(llm) == [Item(item="an item of a list")] * 4
    (call,) = llm.get_tool_calls_from_response(llm.chat_with_tools([tool()], "Take it.", tool_required=True))
    assert call.tool_kwargs == {"item": "an item of a list"}
    *_, last = llm.stream_chat_with_tools([tool()], "Take it.", tool_choice="take")
    assert llm.get_tool_calls_from_response(last)[0].tool_kwargs == {"item": "an item of a list"}
    assert llm.chat(QUESTION, choice=["an item", "the items"]).message.content in ("an item", "the items")
    kept = llm.model_copy(update={"chat_options": {"regex": "one item|two items"}})
    assert kept.chat(QUESTION).message.content in ("one item", "two items")


def test_a_stop_of_the_llm_ends_what_may_be_anything(options):
    free = LocalLLM(**options).chat(QUESTION, ignore_eos=True).message.content
    stop = free[20:24]
    llm = LocalLLM(stop=[stop], **options)
    for more in ({}, {"tools": [tool()], "tool_choice": "none"}, {"response_format": {"type": "text"}}):
        assert stop not in llm.chat(QUESTION, ignore_eos=True, **more).message.content
    assert llm.chat(QUESTION, ignore_eos=True).message.content == free[: free.index(stop)]


async def test_a_stop_of_the_call_counts_and_is_told_of(options):
    llm = LocalLLM(**options)
    for form in range(4):
        with pytest.raises(CutAnswerError, match="Item: the answer ended before the object was complete: a text of `stop`"):
            await (objects(llm, stop=["item of"]) if form == 0 else _form(llm, form, stop=["item of"]))
    response = llm.chat_with_tools([tool()], "Take it.", tool_required=True, stop=["item of"])
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(NoToolCallError, match="'take' was cut off: a text of `stop` ended it"):
        llm.get_tool_calls_from_response(response)


async def _form(llm: LocalLLM, form: int, **kwargs: Any) -> Any:
    if form == 1:
        return await llm.astructured_predict(Item, PROMPT, kwargs)
    if form == 2:
        return list(llm.stream_structured_predict(Item, PROMPT, kwargs))
    return [item async for item in await llm.astream_structured_predict(Item, PROMPT, kwargs)]


async def test_tools_of_the_llm_are_not_called_in_place_of_an_object(options):
    llm = LocalLLM(chat_options={"tools": [tool()], "tool_choice": "required"}, **options)
    assert await objects(llm) == [Item(item="an item of a list")] * 4
    assert llm.chat(QUESTION).message.additional_kwargs["tool_calls"]
    assert llm.chat(QUESTION, choice=["yes"]).message.content == "yes"


def test_a_choice_among_tools_waits_for_tools(options):
    llm = LocalLLM(chat_options={"tool_choice": "required"}, **options)
    assert llm.chat(QUESTION).message.content and llm.complete("What is it?").text
    assert llm.chat(QUESTION, tools=[tool()]).message.additional_kwargs["tool_calls"]
    with pytest.raises(InvalidRequestError, match="tool_choice"):
        llm.chat(QUESTION, tool_choice="required")


@pytest.mark.parametrize(
    ("chat_options", "error", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, InvalidRequestError, "choice: not together with regex"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, InvalidRequestError, "response_format"),
        ({"json_schema": {"type": "nope"}}, GrammarError, "json_schema at #: 'type' 'nope'"),
        ({"json_schema": 5}, InvalidRequestError, "json_schema: must be a mapping"),
        ({"regex": "("}, GrammarError, r"pattern '\('"),
        ({"choice": []}, InvalidRequestError, "choice: must be a list of texts"),
        ({"tools": 5}, InvalidRequestError, "tools: must be a list of tools, not int"),
        ({"tools": [{}]}, InvalidRequestError, r"tools\[0\]"),
        ({"tools": [tool()], "tool_choice": "other"}, InvalidRequestError, "there is no tool 'other'"),
        ({"enable_thinkin": True}, InvalidRequestError, "did you mean 'enable_thinking'"),
    ],
)
def test_wrong_options_of_chats_are_errors_when_it_is_made(options, chat_options, error, message):
    with pytest.raises(error, match=message):
        LocalLLM(chat_options=chat_options, **options)


@pytest.mark.parametrize("model", [None, 5, b"x.gguf", ["x.gguf"], "a\0b"])
def test_what_is_no_model(model):
    with pytest.raises(InvalidRequestError, match=r"^model: "):
        LocalLLM(model)


def test_lengths_of_a_class_hold_whatever_bytes_a_model_writes(tiny):
    from typing import Annotated

    from pydantic import Field

    class Short(BaseModel):
        text: Annotated[str, Field(max_length=30)]

    llm = LocalLLM(tiny, temperature=1.0, max_tokens=300, model_options={"n_threads": 1})
    texts = [llm.structured_predict(Short, PROMPT, {"seed": seed}).text for seed in range(20)]
    assert all(len(text) <= 30 and "\ufffd" not in text for text in texts) and not all(text.isascii() for text in texts)
    assert json.dumps(texts)
