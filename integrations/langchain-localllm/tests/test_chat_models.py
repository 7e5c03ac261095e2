"""ChatLocalLLM over the embedded model."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langchain_localllm.messages import message_from

from localllm import ChatMessage, ChatResult, Timings, ToolCall, Usage
from localllm.errors import InvalidRequestError, ModelNotFoundError

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def llm():
    return ChatLocalLLM(model="smollm2", temperature=0, max_tokens=16, model_options={"n_ctx": 1024})


def test_invoke(llm):
    message = llm.invoke(QUESTION)
    assert isinstance(message, AIMessage) and message.content
    assert message.usage_metadata["output_tokens"] == 16 and message.response_metadata["finish_reason"] == "length"
    assert message.response_metadata["model_name"] == "smollm2"


def test_stream_yields_chunks_that_add_up(llm):
    chunks = list(llm.stream(QUESTION))
    assert len([chunk for chunk in chunks if chunk.content]) > 5 and all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    expected = llm.invoke(QUESTION)
    assert whole.content == expected.content
    assert whole.usage_metadata == expected.usage_metadata
    assert whole.response_metadata["finish_reason"] == "length"


def test_async_is_native_and_agrees(llm):
    async def main():
        return await llm.ainvoke(QUESTION), [chunk async for chunk in llm.astream(QUESTION)]

    message, chunks = asyncio.run(main())
    expected = llm.invoke(QUESTION)
    assert message.content == expected.content == "".join(chunk.content for chunk in chunks)


def test_messages_and_chains(llm):
    prompt = ChatPromptTemplate([("system", "Answer in one word."), ("human", "{question}")])
    answer = (prompt | llm | StrOutputParser()).invoke({"question": QUESTION})
    assert answer == llm.invoke([SystemMessage("Answer in one word."), HumanMessage(QUESTION)]).content


def test_batch_runs_together(llm, monkeypatch):
    runner = llm.local_model.engine._core.runner
    sizes = []
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda chunks: (sizes.append(len(chunks)), run(chunks))[1])
    answers = llm.batch([f"What is {n} plus {n}?" for n in range(4)])
    assert len(answers) == 4 and all(answer.content for answer in answers)
    assert max(sizes) == 4, "the four questions never shared a batch"


def test_stop_and_call_options(llm):
    assert "," not in llm.invoke(QUESTION, stop=[","]).content
    assert llm.invoke(QUESTION, max_tokens=2).usage_metadata["output_tokens"] == 2
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        llm.invoke(QUESTION, temprature=1)


def test_tools_are_bound_in_the_form_of_openai(llm):
    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    bound = llm.bind_tools([weather], tool_choice="any")
    assert bound.kwargs["tool_choice"] == "required" and bound.kwargs["tools"][0]["function"]["name"] == "weather"
    message = bound.invoke("How is the weather in Paris?", max_tokens=200)
    assert [(call["name"], list(call["args"])) for call in message.tool_calls] == [("weather", ["city"])]


def test_tool_calls_become_langchains():
    def answer(arguments):
        call = ToolCall("call_1", "weather", arguments)
        return ChatResult(ChatMessage("", "hm", (call,)), "tool_calls", Usage(1, 1), Timings(0, 0, 0), 0)

    message = message_from(answer('{"city": "Paris"}'))
    assert message.tool_calls == [{"type": "tool_call", "id": "call_1", "name": "weather", "args": {"city": "Paris"}}]
    assert message.additional_kwargs == {"reasoning_content": "hm"}
    for broken in ("{", "[1]", '"x"'):
        message = message_from(answer(broken))
        assert message.tool_calls == [] and message.invalid_tool_calls[0]["args"] == broken


def test_constructing_loads_nothing():
    llm = ChatLocalLLM(model="nothing")
    assert llm._llm_type == "localllm" and llm._identifying_params["model"] == "nothing"
    with pytest.raises(ModelNotFoundError):
        llm.invoke("x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"n_ctx": 512}, "model_options"),
        ({"repeat_penalty": 1.1}, "sampling"),
        ({"temperature": -5}, "temperature:"),
        ({"sampling": {"top_q": 1}}, "top_q"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ChatLocalLLM(model="smollm2", **options)


def test_a_copy_answers_with_its_own_model_and_can_be_pickled(llm):
    assert llm.invoke(QUESTION).content
    with pytest.raises(ModelNotFoundError):
        llm.model_copy(update={"model": "/nope.gguf"}).invoke("x")
    again = pickle.loads(pickle.dumps(llm))
    assert again.local_model.engine is llm.local_model.engine
    assert again.invoke(QUESTION).content == llm.invoke(QUESTION).content
