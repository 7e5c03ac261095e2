"""Reading an answer as it grows: content, reasoning and tool calls, in pieces of any size."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.chat.answer import AnswerReader, collect
from localllm.chat.prompt import ChatOptions, render
from localllm.engine.request import Delta, Finished, Timings, Usage
from localllm.native.handles import Chat

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = [{"role": "user", "content": "How is the weather in Paris and Rome?"}]
END = Finished("stop", Usage(10, 5), Timings(0, 0, 0), 1, "eog")
CALLS = (
    '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome é€"}}</tool_call>'
)


@pytest.fixture(scope="module")
def chat(qwen3):
    return Chat(qwen3.model)


def read(chat, pieces, end=END, messages=QUESTION, **options):
    reader = AnswerReader(render(chat, messages, ChatOptions(**options)))
    deltas = []
    for piece in pieces:
        delta = reader.read(Delta(piece, (1,)))
        if delta is not None:
            deltas.append(delta)
    deltas.extend(reader.finish(end))
    return deltas, collect(reader, deltas)


def test_plain_text_goes_through(chat):
    deltas, result = read(chat, ["Hel", "", "lo"])
    assert [delta.content for delta in deltas] == ["Hel", "lo", ""]
    assert (result.message.content, result.finish_reason, result.message.tool_calls) == ("Hello", "stop", ())


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_tool_calls_come_name_first_and_add_up(chat, size):
    pieces = [CALLS[at : at + size] for at in range(0, len(CALLS), size)]
    deltas, result = read(chat, pieces, tools=(TOOL,), parallel_tool_calls=True)
    assert [(call.name, json.loads(call.arguments)) for call in result.message.tool_calls] == [
        ("weather", {"city": "Paris"}),
        ("weather", {"city": "Rome é€"}),
    ]
    assert result.finish_reason == "tool_calls" and result.message.content == ""
    assert len({call.id for call in result.message.tool_calls}) == 2 and all(call.id for call in result.message.tool_calls)
    for index, call in enumerate(result.message.tool_calls):
        changes = [change for delta in deltas for change in delta.tool_calls if change.index == index]
        assert (changes[0].name, changes[0].id) == ("weather", call.id)
        assert all(not change.name and not change.id for change in changes[1:])
        assert "".join(change.arguments for change in changes) == call.arguments


def test_text_before_a_call_is_content(chat):
    _, result = read(chat, ["Let me look. ", CALLS[: CALLS.index("</tool_call>") + 12]], tools=(TOOL,))
    assert result.message.content.strip() == "Let me look." and len(result.message.tool_calls) == 1


def test_an_answer_without_a_call_stays_text_although_tools_were_offered(chat):
    _, result = read(chat, list("It is 5 < 6 and <b>sunny</b>."), tools=(TOOL,))
    assert (result.message.content, result.finish_reason) == ("It is 5 < 6 and <b>sunny</b>.", "stop")


def test_a_call_that_is_cut_off_is_no_error(chat):
    end = Finished("length", Usage(10, 5), Timings(0, 0, 0), 1)
    _, result = read(chat, [CALLS[:40]], end=end, tools=(TOOL,))
    assert result.finish_reason == "length"


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_of_any_size_give_the_same_message(chat, data):
    text = data.draw(st.sampled_from([CALLS, "Just text.", "Let me see. " + CALLS, "<tool_call>{broken", "a < b </tool_call>"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = {"tools": (TOOL,), "parallel_tool_calls": True}
    (_, cut), (_, whole) = read(chat, pieces, **options), read(chat, [text], **options)
    assert cut.message.content == whole.message.content
    assert [(c.name, c.arguments) for c in cut.message.tool_calls] == [(c.name, c.arguments) for c in whole.message.tool_calls]


def test_a_continued_message_gives_only_what_is_new(chat):
    messages = [*QUESTION, {"role": "assistant", "content": "In Paris it"}]
    deltas, result = read(chat, [" is", " sunny"], messages=messages)
    assert "".join(delta.content for delta in deltas) == result.message.content == " is sunny"
