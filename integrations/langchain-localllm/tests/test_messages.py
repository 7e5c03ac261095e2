"""Messages and content blocks of every form, as the model is shown them."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal

import pytest
from langchain_core.exceptions import ModelInvalidRequestError
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call
from langchain_localllm.answers import message_from
from langchain_localllm.media import media_of
from langchain_localllm.messages import to_openai

from localllm import ChatMessage as Said
from localllm import ChatResult, Timings, ToolCall, Usage
from localllm.errors import InvalidRequestError

DATA = base64.b64encode(b"data").decode()
CALL = {"name": "f", "args": {"x": "ü"}, "id": "c1", "type": "tool_call"}
SHOWN = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": '{"x": "ü"}'}}


def text(content):
    return {"type": "text", "text": content}


def within_itself():
    made = {}
    made["x"] = made
    return made


def nested(depth):
    block = text("a")
    for _ in range(depth):
        block = {"type": "non_standard", "value": block}
    return block


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SystemMessage("a"), {"role": "system", "content": "a"}),
        (SystemMessage("a", additional_kwargs={"__openai_role__": "developer"}), {"role": "developer", "content": "a"}),
        (HumanMessage("a", name="bob"), {"role": "user", "content": "a", "name": "bob"}),
        (HumanMessage("a", additional_kwargs={"lc_source": "x", "lc_data": 1}), {"role": "user", "content": "a"}),
        (HumanMessage(["a", text("b")]), {"role": "user", "content": [text("a"), text("b")]}),
        (HumanMessage([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]), {"role": "user", "content": "a"}),
        (HumanMessage([text("a"), {"cachePoint": {"type": "default"}}]), {"role": "user", "content": "a"}),
        (HumanMessage([{"text": "a"}]), {"role": "user", "content": "a"}),
        (HumanMessage([{"type": "text-plain", "text": "a"}]), {"role": "user", "content": "a"}),
        (HumanMessage([{"type": "text-plain", "base64": DATA, "mime_type": "text/plain"}]), {"role": "user", "content": "data"}),
        (HumanMessage([{"type": "file", "base64": DATA, "mime_type": "text/csv"}]), {"role": "user", "content": "data"}),
        (HumanMessage([{"type": "file", "source_type": "text", "url": "a"}]), {"role": "user", "content": "a"}),
        (HumanMessage([{"type": "non_standard", "value": text("a")}]), {"role": "user", "content": "a"}),
        (ChatMessage("a", role="user"), {"role": "user", "content": "a"}),
        (ChatMessage("a", role="model"), {"role": "assistant", "content": "a"}),
        (AIMessage("a"), {"role": "assistant", "content": "a"}),
        (AIMessage("", tool_calls=[CALL]), {"role": "assistant", "content": None, "tool_calls": [SHOWN]}),
        (
            AIMessage([text("a"), {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": "ü"}}], tool_calls=[CALL]),
            {"role": "assistant", "content": "a", "tool_calls": [SHOWN]},
        ),
        (
            AIMessage([{"type": "tool_use", "id": "c1", "name": "f", "input": {"x": "ü"}}]),
            {"role": "assistant", "content": None, "tool_calls": [SHOWN]},
        ),
        (
            AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, text("a")]),
            {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        ),
        (
            AIMessage([{"type": "reasoning", "summary": [{"text": "h"}, {"text": "m"}]}, {"type": "refusal", "refusal": "no"}]),
            {"role": "assistant", "content": "no", "reasoning_content": "h\nm"},
        ),
        (
            AIMessage("a", invalid_tool_calls=[invalid_tool_call(name="f", args='{"x', id="1", error="e")]),
            {"role": "assistant", "content": 'a\nf({"x)'},
        ),
        (ToolMessage("a", tool_call_id="c1", name="f"), {"role": "tool", "content": "a", "tool_call_id": "c1", "name": "f"}),
        (
            ToolMessage("a", tool_call_id="c1", artifact={"secret": 1}, status="error"),
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
        ),
        (FunctionMessage(name="f", content="a"), {"role": "tool", "content": "a", "name": "f"}),
        (
            HumanMessage([{"type": "tool_result", "tool_use_id": "c1", "content": [text("a")]}]),
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
        ),
        (
            HumanMessage([{"type": "tool_result", "tool_use_id": "c1", "content": text("a")}]),
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
        ),
        (
            ToolMessage([{"type": "tool_result", "tool_use_id": "c2", "content": "a"}], tool_call_id="c1", name="f"),
            {"role": "tool", "content": "a", "tool_call_id": "c2", "name": "f"},
        ),
        (
            ToolMessage([{"type": "tool_result", "content": "a"}], tool_call_id="c1"),
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
        ),
        (
            AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": '{"x": "ü"}'}}),
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": SHOWN["function"]}]},
        ),
        (
            AIMessage("", tool_calls=[CALL], additional_kwargs={"function_call": {"name": "f", "arguments": '{"x": "ü"}'}}),
            {"role": "assistant", "content": None, "tool_calls": [SHOWN]},
        ),
        (
            ChatMessage("a", role="assistant", name="bob", additional_kwargs={"reasoning_content": "hm"}),
            {"role": "assistant", "content": "a", "name": "bob", "reasoning_content": "hm"},
        ),
    ],
)
def test_every_kind_of_message(message, expected):
    assert to_openai([message]) == [expected]


def test_a_result_is_given_the_name_of_its_call():
    messages = to_openai([HumanMessage("a"), AIMessage("", tool_calls=[CALL]), ToolMessage("b", tool_call_id="c1")])
    assert messages[2]["name"] == "f"


MEDIA = [
    ({"type": "image", "base64": DATA, "mime_type": "image/png"}, "image", b"data", "image/png"),
    ({"type": "image", "url": "https://example.org/a.png"}, "image", None, ""),
    ({"type": "image", "file_id": "f1"}, "image", None, ""),
    ({"type": "audio", "base64": DATA, "mime_type": "audio/wav"}, "audio", b"data", "audio/wav"),
    ({"type": "video", "base64": DATA, "mime_type": "video/mp4"}, "video", b"data", "video/mp4"),
    ({"type": "file", "base64": DATA, "mime_type": "application/pdf"}, "file", b"data", "application/pdf"),
    ({"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"}, "image", b"data", "image/png"),
    ({"type": "image", "source_type": "url", "url": "https://example.org/a.png"}, "image", None, ""),
    ({"type": "audio", "source_type": "id", "id": "f1"}, "audio", None, ""),
    ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}", "detail": "low"}}, "image", b"data",
     "image/png"),
    ({"type": "image_url", "image_url": f"data:image/png;base64,{DATA}"}, "image", b"data", "image/png"),
    ({"type": "image_url", "image_url": "https://example.org/a.png"}, "image", None, ""),
    ({"type": "input_image", "image_url": "https://example.org/a.png"}, "image", None, ""),
    ({"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}, "audio", b"data", "audio/mpeg"),
    ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}", "filename": "a.pdf"}}, "file", b"data",
     "application/pdf"),
    ({"type": "file", "file": {"file_id": "f1"}}, "file", None, ""),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}, "image", b"data", "image/png"),
    ({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, "image", None, ""),
    ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}}, "file", b"data",
     "application/pdf"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "kind", "data", "mime_type"), MEDIA)
def test_every_form_of_media_is_understood_and_named_where_the_model_takes_none(llm, block, kind, data, mime_type):
    media = media_of(block, "here")
    assert (media.kind, media.data, media.mime_type) == (kind, data, mime_type)
    assert media.data is not None or media.url or media.file_id
    messages = [SystemMessage("a"), HumanMessage([text("look"), block])]
    for ask in (llm.invoke, lambda messages: list(llm.stream(messages)), llm.get_num_tokens_from_messages):
        why = "means nothing on this machine" if media.file_id else "projector"
        with pytest.raises(ModelInvalidRequestError, match=rf"^messages\[1\]\.content\[1\]: an? {kind} block.*{why}"):
            ask(messages)
    results = [HumanMessage("a"), AIMessage("", tool_calls=[CALL]), ToolMessage([text("see"), block], tool_call_id="c1")]
    with pytest.raises(InvalidRequestError, match=rf"^messages\[2\]\.content\[1\]: an? {kind} block"):
        llm.invoke(results)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (HumanMessage([{"type": "image", "base64": "%%%"}]), r"content\[0\]: the data are no base64"),
        (HumanMessage([{"type": "image"}]), r"content\[0\]: an image block without base64, url or file_id"),
        (HumanMessage([{"type": "image_url", "image_url": {}}]), r"content\[0\]: an image block without an address"),
        (HumanMessage([{"type": "input_audio", "input_audio": {"format": "wav"}}]), r"content\[0\]: the data must be base64"),
        (HumanMessage([{"type": "file", "base64": "/w==", "mime_type": "text/plain"}]), r"content\[0\]: .* no UTF-8 text"),
        (HumanMessage([{"type": "hologram"}]), r"content\[0\]: a block of type 'hologram'"),
        (HumanMessage([{"type": "text"}]), r"content\[0\]: a block of type 'text' without text"),
        (HumanMessage([{"type": "tool_call", "name": "f", "args": {}}]), "only messages of the assistant"),
        (AIMessage([{"type": "tool_use", "input": {}}]), r"content\[0\]: a tool call without a name"),
        (AIMessage([{"type": "server_tool_call", "name": "web", "args": {}}]), "'server_tool_call'"),
        (ChatMessage("a", role="narrator"), "'narrator'"),
        (AIMessage([text("a"), {"type": "tool_result", "tool_use_id": "1", "content": "b"}]), "take a ToolMessage"),
        (ToolMessage([text("a"), {"type": "thinking", "thinking": "b"}], tool_call_id="1"), "only messages of the assistant"),
        (ToolMessage([text("a"), {"type": "tool_result", "content": "b"}], tool_call_id="1"), "'tool_result' beside others"),
        (HumanMessage([{"type": "tool_result", "content": [{"type": "thinking", "thinking": "b"}]}]), "only messages of the"),
        (HumanMessage([{"type": "tool_result", "content": [{"type": "tool_result", "content": "b"}]}]), "within what one gave"),
        (
            AIMessage("", tool_calls=[{**CALL, "args": {"x": datetime(2020, 1, 1)}}]),
            r"tool_calls\[0\]: cannot be written as JSON",
        ),
        (AIMessage("", tool_calls=[{**CALL, "args": {"x": {1}}}]), r"tool_calls\[0\]: cannot be written as JSON"),
        (AIMessage("", tool_calls=[{**CALL, "args": {"x": Decimal(1)}}]), r"tool_calls\[0\]: cannot be written as JSON"),
        (AIMessage("", tool_calls=[{**CALL, "args": {"x": b"1"}}]), r"tool_calls\[0\]: cannot be written as JSON"),
        (AIMessage("", tool_calls=[{**CALL, "args": {"x": float("nan")}}]), r"tool_calls\[0\]: cannot be written as JSON"),
        (AIMessage("", tool_calls=[{**CALL, "args": within_itself()}]), r"tool_calls\[0\]: cannot be written as JSON"),
        (AIMessage([{"type": "tool_use", "name": "f", "input": {"x": {1}}}]), r"content\[0\]: cannot be written as JSON"),
        (HumanMessage([{"type": "image", "base64": "äöü"}]), r"content\[0\]: the data are no base64"),
        (HumanMessage([{"type": "document", "source": {"type": "text", "data": "a\ud800"}}]), r"content\[0\]: has half of a"),
        (HumanMessage([{"type": "document", "source": {"type": "text"}}]), r"content\[0\]: a file block of text without text"),
        (HumanMessage([{"type": "tool_result", "content": 5}]), r"content\[0\]: what a tool gave back must be text or blocks"),
        (HumanMessage([nested(2000)]), "nested too deeply"),
        (AIMessage("", additional_kwargs={"function_call": "f"}), "function_call must be a name and arguments"),
        (RemoveMessage("a"), "RemoveMessage"),
    ],
)
def test_what_cannot_be_shown_is_an_error_that_names_it(message, word):
    with pytest.raises(InvalidRequestError, match=rf"^messages\[1\].*{word}"):
        to_openai([HumanMessage("a"), message])


def test_tool_calls_become_langchains():
    def answer(arguments):
        call = ToolCall("call_1", "weather", arguments)
        return ChatResult(Said("", "hm", (call,)), "tool_calls", Usage(1, 1), Timings(0, 0, 0), 0)

    message = message_from(answer('{"city": "Paris"}'))
    assert message.tool_calls == [{"type": "tool_call", "id": "call_1", "name": "weather", "args": {"city": "Paris"}}]
    assert message.additional_kwargs == {"reasoning_content": "hm"}
    assert message_from(answer("")).tool_calls[0]["args"] == {}
    for broken in ("{", "[1]", '"x"'):
        message = message_from(answer(broken))
        assert message.tool_calls == [] and message.invalid_tool_calls[0]["args"] == broken
