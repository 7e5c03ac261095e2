"""Messages that are not as they should be: each is an error that names its place, before anything is computed."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import CitableBlock, DocumentBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.llms.localllm import LocalLLM
from llama_index.llms.localllm.messages import to_openai

from localllm.errors import InvalidRequestError


def with_calls(calls: Any, **more: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": calls, **more})


def call(**change: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}, **change}}


def changed(name: str, value: Any) -> ChatMessage:
    message = ChatMessage(role="user", content="x")
    setattr(message, name, value)
    return message


def called(id: Any, name: Any, arguments: Any) -> ChatMessage:
    block = ToolCallBlock.model_construct(tool_call_id=id, tool_name=name, tool_kwargs=arguments, block_type="tool_call")
    return changed("blocks", [TextBlock(text=""), block])


def said(*blocks: Any) -> ChatMessage:
    return changed("blocks", [TextBlock(text="x"), *blocks])


DEEP: dict[str, Any] = {}
DEEP["a"] = DEEP
PLACE = r"^messages\[1\]\."
CASES: dict[str, tuple[ChatMessage, str]] = {
    "calls that are a number": (with_calls(5), r"additional_kwargs\.tool_calls: must be a list of calls, not int"),
    "calls that are one": (with_calls(call()), r"additional_kwargs\.tool_calls: must be a list of calls, not dict"),
    "a call of nothing": (with_calls([None]), r"additional_kwargs\.tool_calls\[0\]: None has no function with a name"),
    "an id that is a list": (with_calls([{**call(), "id": [1]}]), r"additional_kwargs\.tool_calls\[0\]: its id: must be text"),
    "a name that is a list": (with_calls([call(name=[1])]), r"additional_kwargs\.tool_calls\[0\]: its name: must be text"),
    "arguments that are a list": (
        with_calls([call(arguments=[1])]),
        r"additional_kwargs\.tool_calls\[0\]: its arguments, \[1\], are no JSON object",
    ),
    "arguments cut off": (
        with_calls([call(arguments='{"a": ')]),
        r"additional_kwargs\.tool_calls\[0\]: its arguments, .*leave out a call",
    ),
    "arguments of objects": (
        with_calls([call(arguments={"a": object()})]),
        r"additional_kwargs\.tool_calls\[0\]: its arguments cannot be written",
    ),
    "the id of a result": (
        ChatMessage(role="tool", content="1", additional_kwargs={"tool_call_id": [1]}),
        r"additional_kwargs\.tool_call_id: must be text, not list",
    ),
    "a name": (ChatMessage(role="user", content="1", additional_kwargs={"name": 5}), r"additional_kwargs\.name: must be text"),
    "kwargs": (changed("additional_kwargs", None), r"additional_kwargs: must be a dict, not NoneType"),
    "blocks": (changed("blocks", None), r"blocks: must be a list, not NoneType"),
    "a block that is a text": (said("y"), r"blocks\[1\]: str: not a kind of block"),
    "a role": (changed("role", "boss"), r"role: 'boss' is not one of"),
    "half a character": (said(TextBlock(text="\ud800")), r"blocks\[1\]: has half of a character"),
    "half a character of a thought": (said(ThinkingBlock(content="\ud800")), r"blocks\[1\]: has half of a character"),
    "half a character within": (
        said(CitableBlock(title="t", source="s", content=[TextBlock(text="\ud800")])),
        r"blocks\[1\]\.content\[0\]: has half",
    ),
    "half a character of a call": (called("c", "f", {"a": "\ud800"}), r"blocks\[1\]: its arguments\.a: has half of a character"),
    "the id of a call": (called(["c"], "f", {}), r"blocks\[1\]: its id: must be text, not list"),
    "the name of a call": (called("c", None, {}), r"blocks\[1\]: its name: must be text, not NoneType"),
    "not a number": (called("c", "f", {"a": float("nan")}), r"blocks\[1\]: its arguments cannot be written as JSON"),
    "arguments within themselves": (called("c", "f", DEEP), r"blocks\[1\]: its arguments cannot be written as JSON"),
    "an empty document": (said(DocumentBlock(data=b"")), r"blocks\[1\]: DocumentBlock: is empty"),
    "a stream at its end": (said(DocumentBlock(data=BytesIO())), r"blocks\[1\]: DocumentBlock: is empty"),
    "no document": (said(DocumentBlock()), r"blocks\[1\]: DocumentBlock: has neither data nor path"),
    "a missing document": (
        said(DocumentBlock(path="/no/such.txt")),
        r"blocks\[1\]: .*/no/such\.txt cannot be read \(No such file",
    ),
    "a folder": (said(DocumentBlock(path="/tmp")), r"blocks\[1\]: DocumentBlock: /tmp cannot be read \(Is a directory"),
    "a path that is none": (said(DocumentBlock(path="a\0.txt")), r"blocks\[1\]: DocumentBlock: cannot be read \("),
    "a picture": (
        said(DocumentBlock(data=b"\x89PNG\r\n\x1a\n" + b"\0" * 300)),
        r"blocks\[1\]: DocumentBlock: image/png is no text",
    ),
    "bytes": (
        said(DocumentBlock(data=b"\xff\xfe\x81")),
        r"blocks\[1\]: DocumentBlock: a document of unknown kind, and is no UTF-8",
    ),
    "zeros": (said(DocumentBlock(data=b"a\0b c")), r"blocks\[1\]: DocumentBlock: a document of unknown kind, and no text"),
    "a URL of data that is none": (said(DocumentBlock(url="data:text/plain")), r"blocks\[1\]: DocumentBlock: cannot be read"),
}


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LocalLLM:
    return LocalLLM(tiny, temperature=0, max_tokens=4, model_options={"n_threads": 1})


@pytest.mark.parametrize("name", CASES)
def test_each_is_an_error_that_names_its_place(name):
    message, expected = CASES[name]
    with pytest.raises(InvalidRequestError, match=PLACE + expected):
        to_openai([ChatMessage(role="user", content="x"), message])


@pytest.mark.parametrize("messages", [None, 5, "hello", {"role": "user"}, ChatMessage(role="user", content="x"), b"x"])
def test_what_is_no_list_of_messages(messages):
    with pytest.raises(InvalidRequestError, match=r"^messages: must be a list of ChatMessages"):
        to_openai(messages)


async def test_all_forms_say_so_before_anything_is_loaded(tiny):
    llm = LocalLLM(tiny, model_options={"n_threads": 1})
    for message, _ in (CASES["calls that are a number"], CASES["a folder"]):
        asked = [ChatMessage(role="user", content="x"), message]
        for ask in (llm.chat, llm.stream_chat):
            with pytest.raises(InvalidRequestError, match=PLACE):
                ask(asked)
        for aask in (llm.achat, llm.astream_chat):
            with pytest.raises(InvalidRequestError, match=PLACE):
                await aask(asked)
    assert not llm.local_model.loaded


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"data": b"plain text here"}, "plain text here"),
        ({"data": "Straße".encode()}, "Straße"),
        ({"data": BytesIO(b"from a stream")}, "from a stream"),
        ({"data": StringIO("from a text"), "document_mimetype": "text/plain"}, "from a text"),
        ({"url": "data:text/plain;base64,aGk="}, "hi"),
        ({"data": b'{"a": 1}', "document_mimetype": "application/json; charset=utf-8"}, '{"a": 1}'),
        ({"data": b"<a/>", "document_mimetype": "image/svg+xml"}, "<a/>"),
    ],
)
def test_documents_that_are_text(options, text):
    (message,) = to_openai([ChatMessage(role="user", blocks=[DocumentBlock(title="T", **options)])])
    assert message["content"] == f"T:\n{text}"


@pytest.mark.parametrize("name", ["README.md", "main.py", "notes"])
def test_a_file_that_is_text_is_read_whatever_it_is_called(name, tmp_path):
    (tmp_path / name).write_text("one two")
    (message,) = to_openai([ChatMessage(role="user", blocks=[DocumentBlock(path=str(tmp_path / name), title="T")])])
    assert message["content"] == "T:\none two"


def test_a_document_on_another_machine_is_not_fetched():
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/a.txt"
    try:
        with pytest.raises(InvalidRequestError, match=r"^messages\[0\]\.blocks\[0\]: DocumentBlock: .*is not fetched; fetch it"):
            to_openai([ChatMessage(role="user", blocks=[DocumentBlock(url=url, document_mimetype="text/plain")])])
    finally:
        server.shutdown()
        server.server_close()
    assert not asked


ODD = [None, 5, [], {}, {"choices": [None]}, {"choices": {"a": 1}}, {"choices": [{"finish_reason": 5}]}, {"choices": 5}]


@pytest.mark.parametrize("raw", [*ODD, {"choices": []}, {"choices": [[]]}, object()], ids=str)
def test_calls_are_found_whatever_the_raw_answer_of_another_llm_is(llm, raw):
    block = ToolCallBlock(tool_call_id="c", tool_name="f", tool_kwargs='{"a": 1, "b": ')
    response = ChatResponse(message=ChatMessage(role="assistant", blocks=[block]), raw=raw)
    (found,) = llm.get_tool_calls_from_response(response)
    assert (found.tool_name, found.tool_kwargs) == ("f", {"a": 1})


@pytest.mark.parametrize("response", [None, "text", ChatMessage(role="user", content="x")])
def test_what_is_no_response(llm, response):
    with pytest.raises(InvalidRequestError, match=r"^response: must be a ChatResponse"):
        llm.get_tool_calls_from_response(response)


@pytest.mark.parametrize("tools", [5, "f", {"type": "function"}, print])
def test_what_is_no_list_of_tools(llm, tools):
    asked = [ChatMessage(role="user", content="x")]
    with pytest.raises(InvalidRequestError, match=r"^tools: must be a list of tools"):
        llm.chat(asked, tools=tools)
    with pytest.raises(InvalidRequestError, match=r"^tools: must be a list of tools"):
        asyncio.run(llm.achat(asked, tools=tools))
    with pytest.raises(InvalidRequestError, match=r"^tools: must be a list of tools"):
        llm.chat_with_tools(tools, "x")
