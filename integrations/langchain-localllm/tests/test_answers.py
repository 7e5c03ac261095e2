"""Tool calls that were cut off are no calls, whole or streamed: LangChain itself closes what is open in those of a stream."""

from __future__ import annotations

import asyncio
import json
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.utils import message_chunk_to_message
from langchain_localllm import ChatLocalLLM
from langchain_localllm.answers import Chunks, chat_result

from localllm import ChatDelta, ChatMessage, ChatResult, Timings, ToolCall, ToolCallDelta, Usage

ARGUMENTS = json.dumps(
    {"amount": 1070, "to": {"name": 'Ann "A\\B" \u00e9\n{[', "tags": ["a]", [1, -2.5e3, True, None]]}, "": [{}, []]}
)
USAGE, TIMINGS = Usage(3, 2), Timings(0.0, 0.0, 0.0)
CALL = "transfer"


def whole(arguments: str, reason: str) -> AIMessage:
    message = ChatMessage("", "", (ToolCall("id", CALL, arguments),))
    return chat_result(ChatResult(message, reason, USAGE, TIMINGS, 0), "model").generations[0].message


def streamed(pieces: list[str], reason: str) -> AIMessageChunk:
    deltas = [
        ChatDelta(tool_calls=(ToolCallDelta(0, "id", CALL),)),
        *(ChatDelta(tool_calls=(ToolCallDelta(0, arguments=piece),)) for piece in pieces),
        ChatDelta(finish_reason=reason, usage=USAGE, timings=TIMINGS),
    ]
    chunks = Chunks("model")
    return reduce(add, [chunk.message for delta in deltas for chunk in chunks.of(delta)])


def verdict(message: AIMessage) -> tuple[list[dict], list[tuple[str, str]]]:
    invalid = [(call["name"], call["id"]) for call in message.invalid_tool_calls]
    return [call["args"] for call in message.tool_calls], invalid


@pytest.mark.parametrize("at", range(len(ARGUMENTS)))
def test_arguments_that_were_cut_off_anywhere_are_no_call(at):
    text = ARGUMENTS[:at]
    assert verdict(whole(text, "length")) == ([], [(CALL, "id")])
    for pieces in ([text], list(text)):
        message = streamed(pieces, "length")
        assert verdict(message) == verdict(message_chunk_to_message(message)) == ([], [(CALL, "id")])
        assert message.invalid_tool_calls[0]["args"].startswith(text)


@pytest.mark.parametrize("reason", ["tool_calls", "length"])
def test_arguments_that_are_whole_are_a_call(reason):
    meant = ([json.loads(ARGUMENTS)], [])
    assert verdict(whole(ARGUMENTS, reason)) == verdict(streamed(list(ARGUMENTS), reason)) == meant
    assert verdict(whole('{"a": "b\nc"}', reason)) == verdict(streamed(['{"a": "b\nc"}'], reason)) == ([{"a": "b\nc"}], [])


def test_a_call_without_arguments_is_one_unless_the_answer_ends_before_them():
    assert verdict(whole("", "tool_calls")) == verdict(streamed([], "tool_calls")) == ([{}], [])
    assert verdict(whole("", "length")) == verdict(streamed([], "length")) == ([], [(CALL, "id")])


@given(st.text(alphabet='{}[]":,\\ab1\n -') | st.text())
def test_whatever_the_arguments_are_a_stream_says_the_same_as_a_whole_answer(text):
    for reason in ("tool_calls", "length"):
        assert verdict(whole(text, reason)) == verdict(streamed([text], reason))


def test_only_the_call_that_was_cut_off_is_none():
    calls = [ToolCallDelta(0, "a", "one", "{}"), ToolCallDelta(1, "b", "two", '{"n": 1')]
    chunks = Chunks("model")
    deltas = [ChatDelta(tool_calls=(call,)) for call in calls]
    made = [chunk for delta in deltas for chunk in chunks.of(delta)]
    made += chunks.of(ChatDelta(finish_reason="length", usage=USAGE, timings=TIMINGS))
    message = reduce(add, [chunk.message for chunk in made])
    assert [call["name"] for call in message.tool_calls] == ["one"]
    assert [call["name"] for call in message.invalid_tool_calls] == ["two"]


# ---- by a model


def transfer(amount: int, to: str) -> str:
    """Transfers money."""
    raise AssertionError(f"transferred {amount} to {to}, which nobody asked for")


@pytest.fixture(scope="module", params=[None, "v1"])
def cut(tiny, request):
    """A model whose calls are cut off within their arguments."""
    return ChatLocalLLM(model=tiny, temperature=0.7, seed=1, n_threads=1, max_tokens=60, output_version=request.param)


def test_a_cut_call_of_a_model_is_none_however_it_is_asked(cut):
    async def gathered():
        return [chunk async for chunk in bound.astream("x")]

    bound = cut.bind_tools([transfer], tool_choice="any")
    invoked = bound.invoke("x")
    assert invoked.response_metadata["finish_reason"] == "length" and not invoked.tool_calls and invoked.invalid_tool_calls
    text = invoked.invalid_tool_calls[0]["args"]
    assert text.startswith("{"), "cut off too early to show anything"
    streaming = cut.model_copy(update={"streaming": True}).bind_tools([transfer], tool_choice="any")
    for message in (
        reduce(add, bound.stream("x")),
        reduce(add, asyncio.run(gathered())),
        streaming.invoke("x"),
        bound.stream_events("x", version="v3").output,
    ):
        assert not message.tool_calls
        (call,) = message.invalid_tool_calls
        assert call["name"] == "transfer" and call["args"].startswith(text)
        assert not [block for block in message.content_blocks if block["type"] == "tool_call"]
        assert cut.invoke([HumanMessage("x"), message, HumanMessage("y")], max_tokens=2).content is not None


@pytest.mark.parametrize("mode", ["messages", "values", "updates"])
def test_an_agent_does_not_run_a_call_that_was_cut_off(cut, mode):
    agent = create_agent(cut.bind(tool_choice="any"), tools=[transfer])
    assert list(agent.stream({"messages": "x"}, stream_mode=mode))
