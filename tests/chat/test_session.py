"""Conversations that keep their messages, and fit into the context."""

from __future__ import annotations

import asyncio
import json

import pytest

from localllm import ChatSession, DropOldest, LocalModel, Summarise
from localllm.errors import ContextOverflowError, InvalidRequestError, LocalLLMError

GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def model():
    with LocalModel("smollm2", n_ctx=512, parallel=2) as model:
        yield model


def roles(session: ChatSession) -> list[str]:
    return [message["role"] for message in session.messages]


def test_each_turn_computes_only_what_is_new(model):
    session = ChatSession(model, "You are a helpful assistant.", **GREEDY)
    first = session.ask("What is the capital of France?")
    second = session.ask("And of Italy?")
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]
    assert session.messages[2]["content"] == first.message.content
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
    assert model.chat(session.messages[:-1], **GREEDY).message.content == second.message.content


def test_streams_and_coroutines_keep_what_was_said(model):
    session = ChatSession(model, **GREEDY)
    text = "".join(delta.content for delta in session.stream("Name a colour."))
    assert session.messages[-1] == {"role": "assistant", "content": text}
    stream = session.stream("Tell me a long story.", max_tokens=100)
    said = next(delta.content for delta in stream if delta.content)
    stream.close()
    assert session.messages[-1]["content"] == said and roles(session) == ["user", "assistant"] * 2

    async def awaited() -> None:
        await session.aask("Name an animal.")
        async for _ in session.astream("Name a city."):
            pass

    asyncio.run(awaited())
    assert roles(session) == ["user", "assistant"] * 4
    session.undo()
    assert roles(session) == ["user", "assistant"] * 3


def test_a_turn_that_fails_changes_nothing(model):
    session = ChatSession(model, **GREEDY)
    session.ask("Hello.")
    before = list(session.messages)
    for bad in ({"temperature": -1}, {"colour": "red"}):
        with pytest.raises(LocalLLMError):
            session.ask("Hello again.", **bad)
    with pytest.raises(ContextOverflowError):
        session.ask("word " * 600)
    assert session.messages == before


def test_the_oldest_turns_are_dropped_when_the_context_is_full(model):
    session = ChatSession(model, "Be brief.", policy=DropOldest(), **GREEDY)
    for number in range(12):
        session.ask(f"Number {number}: " + "word " * 60)
    assert roles(session)[0] == "system" and "Number 11" in session.messages[-2]["content"]
    assert 2 < len(session.messages) < 20 and model.count_message_tokens(session.messages) <= 512
    with pytest.raises(ContextOverflowError, match="the last turn alone"):
        session.ask("word " * 600)
    few = ChatSession(model, messages=session.messages, policy=DropOldest(keep_turns=1), **GREEDY)
    few.ask("word " * 200)
    assert roles(few) == ["system", "user", "assistant"]


def test_a_tools_result_is_never_left_without_its_call(model):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "user", "content": "word " * 80},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "word " * 20},
        {"role": "assistant", "content": "Done."},
    ]
    session = ChatSession(model, messages=turn * 6, policy=DropOldest(), **GREEDY)
    session.ask("Thanks.")
    assert roles(session)[:4] == ["user", "assistant", "tool", "assistant"] and len(session.messages) % 4 == 2


def test_old_turns_are_summarised_by_the_model(model):
    session = ChatSession(model, "Be brief.", policy=Summarise(keep_turns=1, max_tokens=24), **GREEDY)
    for number in range(6):
        session.ask(f"Number {number}: " + "word " * 80)
    assert roles(session)[:2] == ["system", "system"]
    assert session.messages[1]["content"].startswith("Earlier in this conversation: ")
    assert model.count_message_tokens(session.messages) <= 512


def test_a_session_goes_on_from_its_file(model, tmp_path):
    session = ChatSession(model, "You are a helpful assistant.", **GREEDY)
    session.ask("Wie heißt du?")
    session.save(tmp_path / "chat.json")
    again = ChatSession.load(model, tmp_path / "chat.json")
    assert (again.messages, again.options) == (session.messages, session.options)
    assert again.ask("And of Italy?").message == session.ask("And of Italy?").message
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"format": "other", "messages": []}), json.dumps({"messages": []})])
def test_another_file_is_no_session(model, text):
    with pytest.raises(InvalidRequestError, match="session"):
        ChatSession.from_json(model, text)
