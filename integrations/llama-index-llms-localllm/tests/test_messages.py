"""Messages and blocks, one by one."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms import ChatMessage
from llama_index.llms.localllm.messages import late_system_as_user, says_late, to_openai

from localllm.errors import InvalidRequestError

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


# A call as OpenAI's client writes it.
FOREIGN = SimpleNamespace(id="c1", function=SimpleNamespace(name="f", arguments={"a": 1}))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ChatMessage(role="user", content="x"), {"role": "user", "content": "x"}),
        (ChatMessage(role="developer", content="x"), {"role": "system", "content": "x"}),
        (ChatMessage(role="chatbot", content="x"), {"role": "assistant", "content": "x"}),
        (ChatMessage(role="model", content="x"), {"role": "assistant", "content": "x"}),
        (ChatMessage(role="function", content="x"), {"role": "tool", "content": "x"}),
        (ChatMessage(role="user", blocks=[]), {"role": "user", "content": ""}),
        (
            ChatMessage(role="user", blocks=[TextBlock(text="a"), TextBlock(text="b")]),
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        (
            ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), TextBlock(text="x")]),
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        ),
        (
            ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={"a": 1})]),
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            ChatMessage(role="assistant", content="x", additional_kwargs={"tool_calls": [CALL]}),
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        ),
        (
            ChatMessage(role="assistant", content="x", additional_kwargs={"tool_calls": [FOREIGN]}),
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        ),
        (
            ChatMessage(role="tool", content="1", additional_kwargs={"tool_call_id": "c9"}),
            {"role": "tool", "content": "1", "tool_call_id": "c9"},
        ),
        (
            ChatMessage(role="user", blocks=[DocumentBlock(data=b"aGk=", title="T", document_mimetype="text/plain")]),
            {"role": "user", "content": "T:\nhi"},
        ),
        (
            ChatMessage(role="user", blocks=[CitableBlock(title="T", source="S", content=[TextBlock(text="x")])]),
            {"role": "user", "content": [{"type": "text", "text": "T (S):\n"}, {"type": "text", "text": "x"}]},
        ),
        (
            ChatMessage(
                role="user",
                blocks=[
                    CitationBlock(cited_content=TextBlock(text="x"), source="S", title="T", additional_location_info={"page": 1})
                ],
            ),
            {"role": "user", "content": "x"},
        ),
    ],
)
def test_messages(message, expected):
    assert to_openai([message]) == [expected]


def test_a_result_is_told_the_name_of_its_call():
    call = ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={})
    result = ChatMessage(role="tool", content="1", additional_kwargs={"tool_call_id": "c1"})
    assert to_openai([ChatMessage(role="assistant", blocks=[call]), result])[1]["name"] == "f"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ImageBlock(), r"messages\[0\]\.blocks\[1\]: ImageBlock: has neither data nor path nor url"),
        (DocumentBlock(data=b"JVBERg==", document_mimetype="application/pdf"), r"blocks\[1\]: DocumentBlock: application/pdf"),
        (DocumentBlock(data=b"/w==", document_mimetype="text/plain"), r"no UTF-8"),
    ],
)
def test_blocks_that_are_no_text(block, message):
    with pytest.raises(InvalidRequestError, match=message):
        to_openai([ChatMessage(role="user", blocks=[TextBlock(text="x"), block])])


@pytest.mark.parametrize(
    ("block", "source"),
    [
        (ImageBlock(image=b"abc"), {"type": "image", "base64": "YWJj"}),
        (ImageBlock(image=BytesIO(b"abc")), {"type": "image", "bytes": b"abc"}),
        (ImageBlock(path=__file__), {"type": "image", "path": __file__}),
        (ImageBlock(url="https://example.org/a.png"), {"type": "image", "url": "https://example.org/a.png"}),
        (AudioBlock(audio=b"abc", format="wav"), {"type": "audio", "base64": "YWJj"}),
        (VideoBlock(video=b"abc", video_mimetype="video/mp4"), {"type": "video", "base64": "YWJj"}),
    ],
)
def test_what_is_seen_or_heard_stands_in_its_place(block, source):
    (message,) = to_openai([ChatMessage(role="user", blocks=[TextBlock(text="x"), block, TextBlock(text="y")])])
    first, shown, last = message["content"]
    assert [first["text"], last["text"]] == ["x", "y"]
    assert shown == {**source, "where": f"messages[0].blocks[1]: {type(block).__name__}"}


def test_what_the_system_says_late():
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    assert not says_late([system, system, user]) and says_late([system, user, system])
    assert late_system_as_user([system, user, system]) == [system, user, {"role": "user", "content": "s"}]
    assert says_late([user, system]) and late_system_as_user([user, system])[1]["role"] == "user"
    assert not says_late([system])
