"""What any FunctionCallingLLM has to do. Runs against another class as well, see conftest.py."""

# Annotations stay objects here: LlamaIndex reads those of the functions that it makes tools of.
import asyncio
import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import pytest
from llama_index.core.base.llms.types import CacheControl, CachePoint, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMStructuredPredictEndEvent,
)
from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

QUESTION = [ChatMessage(role="user", content="What is the capital of France?")]
FORMS = ["sync", "stream", "async", "astream"]


class City(BaseModel):
    """A city that exists."""

    name: Literal["Paris", "Rome", "Oslo"]
    rank: int = Field(description="Its place, by size.", ge=1, le=99)


class Trip(BaseModel):
    """A journey through cities."""

    title: Literal["summer", "winter"]
    stops: list[City] = Field(min_length=1, max_length=3)
    guide: Literal["Ada", "Bob"] | None


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def now() -> str:
    """The time of day."""
    return "noon"


TOOLS = [FunctionTool.from_defaults(function) for function in (multiply, weather, now)]


async def all_of(stream: Any) -> list[Any]:
    return [item async for item in stream] if hasattr(stream, "__aiter__") else list(stream)


async def chat(llm: FunctionCallingLLM, form: str, messages: Sequence[ChatMessage], **options: Any) -> list[ChatResponse]:
    """The responses of a chat in one of the four forms; a whole one is a list of one."""
    if form == "sync":
        return [llm.chat(messages, **options)]
    if form == "stream":
        return list(llm.stream_chat(messages, **options))
    if form == "async":
        return [await llm.achat(messages, **options)]
    return await all_of(await llm.astream_chat(messages, **options))


async def complete(llm: FunctionCallingLLM, form: str, prompt: str, **options: Any) -> list[CompletionResponse]:
    if form == "sync":
        return [llm.complete(prompt, **options)]
    if form == "stream":
        return list(llm.stream_complete(prompt, **options))
    if form == "async":
        return [await llm.acomplete(prompt, **options)]
    return await all_of(await llm.astream_complete(prompt, **options))


async def with_tools(llm: FunctionCallingLLM, form: str, tools: Sequence[Any] = TOOLS, **options: Any) -> list[ChatResponse]:
    if form == "sync":
        return [llm.chat_with_tools(tools, **options)]
    if form == "stream":
        return list(llm.stream_chat_with_tools(tools, **options))
    if form == "async":
        return [await llm.achat_with_tools(tools, **options)]
    return await all_of(await llm.astream_chat_with_tools(tools, **options))


async def predict(llm: FunctionCallingLLM, form: str, cls: type[BaseModel], **options: Any) -> list[Any]:
    prompt = PromptTemplate("Tell me something about {topic}.")
    options = {"topic": "Europe", **options}
    if form == "sync":
        return [llm.structured_predict(cls, prompt, **options)]
    if form == "stream":
        return list(llm.stream_structured_predict(cls, prompt, **options))
    if form == "async":
        return [await llm.astructured_predict(cls, prompt, **options)]
    return await all_of(await llm.astream_structured_predict(cls, prompt, **options))


class Recorder(BaseEventHandler):
    """Keeps the events of instrumentation."""

    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events():
    recorder, dispatcher = Recorder(), get_dispatcher()
    dispatcher.add_event_handler(recorder)
    yield recorder.seen
    dispatcher.event_handlers.remove(recorder)


class Ticker:
    """Counts how often the loop comes round while a block runs."""

    async def __aenter__(self) -> "Ticker":
        self.ticks = 0
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.0005)


# ---- what it says of itself


def test_metadata(llm):
    metadata = llm.metadata
    assert metadata.is_chat_model and metadata.is_function_calling_model and metadata.model_name not in ("", "unknown")
    assert 0 < metadata.num_output < metadata.context_window
    assert llm.class_name() not in ("LLM", "base_component", "custom_llm")
    json.dumps(llm.to_payload(), default=str)


def test_it_is_made_again_from_what_it_says(llm):
    data = llm.to_dict()
    assert type(llm).from_dict(data).to_dict() == data == llm.to_dict()
    assert pickle.loads(pickle.dumps(llm)).to_dict() == data


# ---- chat and completion


@pytest.mark.parametrize("form", FORMS)
async def test_chat(llm, form):
    items = await chat(llm, form, QUESTION)
    last = items[-1].message
    assert last.role == "assistant" and isinstance(last.content, str) and last.content
    assert not last.additional_kwargs.get("tool_calls")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("formatted", [False, True])
async def test_complete(llm, form, formatted):
    items = await complete(llm, form, "Once upon a time", formatted=formatted)
    assert isinstance(items[-1].text, str) and items[-1].text


@pytest.mark.parametrize("form", ["stream", "astream"])
async def test_deltas_add_up(llm, form):
    items = await chat(llm, form, QUESTION)
    assert len(items) > 1 and all(isinstance(item.delta, str) for item in items)
    assert "".join(item.delta for item in items) == items[-1].message.content
    texts = [item.message.content or "" for item in items]
    assert all(now.startswith(before) for before, now in pairwise(texts))

    written = await complete(llm, form, "Once upon a time")
    assert "".join(item.delta for item in written) == written[-1].text
    assert all(now.text.startswith(before.text) for before, now in pairwise(written))


async def test_the_same_question_has_the_same_answer_in_every_form(llm):
    answers = [(await chat(llm, form, QUESTION))[-1].message.content for form in FORMS]
    assert answers == [answers[0]] * 4


@pytest.mark.parametrize("form", ["async", "astream"])
async def test_the_loop_goes_on_meanwhile(llm, form):
    async with Ticker() as ticker:
        await chat(llm, form, QUESTION)
    assert ticker.ticks > 5


async def test_many_at_once(llm):
    answers = await asyncio.gather(*(llm.achat([ChatMessage(role="user", content=f"What is {n}?")]) for n in range(6)))
    assert all(answer.message.content for answer in answers)


@pytest.mark.parametrize(
    "messages",
    [
        [ChatMessage(role="system", content="Be brief."), *QUESTION],
        [ChatMessage(role="system", content="Be brief."), ChatMessage(role="system", content="Be kind."), *QUESTION, *QUESTION],
        [*QUESTION, ChatMessage(role="assistant", content="Paris."), ChatMessage(role="user", content="And of Italy?")],
        [*QUESTION, ChatMessage(role="assistant", content="Paris."), ChatMessage(role="system", content="Now answer.")],
        [ChatMessage(role="developer", content="Be brief."), *QUESTION],
        [ChatMessage(role="user", blocks=[TextBlock(text="What is the capital"), TextBlock(text=" of France?")])],
        [ChatMessage(role="user", blocks=[TextBlock(text="Hello"), CachePoint(cache_control=CacheControl(type="ephemeral"))])],
        [
            *QUESTION,
            ChatMessage(role="assistant", blocks=[ThinkingBlock(content="France..."), TextBlock(text="Paris.")]),
            ChatMessage(role="user", content="Sure?"),
        ],
    ],
    ids=["system", "repeated roles", "turns", "late system", "developer", "text blocks", "cache point", "thinking"],
)
async def test_conversations(llm, messages):
    before = [message.model_dump() for message in messages]
    assert (await chat(llm, "async", messages))[-1].message.content
    assert [message.model_dump() for message in messages] == before


# ---- options of a call


@pytest.mark.parametrize("form", FORMS)
async def test_options_of_a_call_count(llm, form):
    items = await chat(llm, form, QUESTION, max_tokens=2)
    assert items[-1].raw["usage"]["completion_tokens"] == 2


async def test_stop_ends_an_answer(llm):
    content = llm.chat(QUESTION).message.content
    stop = next(part for part in content.split() if len(part) > 1)
    for form in FORMS:
        assert stop not in (await chat(llm, form, QUESTION, stop=[stop]))[-1].message.content


@pytest.mark.parametrize("form", FORMS)
async def test_an_unknown_option_is_an_error(llm, form):
    with pytest.raises((TypeError, ValueError), match="temprature"):
        await chat(llm, form, QUESTION, temprature=1)
    with pytest.raises((TypeError, ValueError), match="temprature"):
        await complete(llm, form, "Once", formatted=True, temprature=1)
    assert (await chat(llm, form, QUESTION))[-1].message.content


# ---- tools


@pytest.mark.parametrize("form", FORMS)
async def test_a_required_call_is_made(llm, form):
    items = await with_tools(llm, form, user_msg="What is 3 times 4?", tools=TOOLS[:1], tool_required=True)
    (call,) = llm.get_tool_calls_from_response(items[-1])
    assert call.tool_name == "multiply" and sorted(call.tool_kwargs) == ["a", "b"] and call.tool_id
    assert all(type(value) is int for value in call.tool_kwargs.values())
    blocks = [block for block in items[-1].message.blocks if isinstance(block, ToolCallBlock)]
    assert [block.tool_name for block in blocks] == ["multiply"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["weather", "now"])
async def test_a_named_tool_is_called(llm, form, name):
    choice: Any = name if form in ("sync", "astream") else {"type": "function", "function": {"name": name}}
    items = await with_tools(llm, form, user_msg="Hello!", tool_choice=choice)
    (call,) = llm.get_tool_calls_from_response(items[-1])
    assert call.tool_name == name and call.tool_kwargs in ({}, {"city": "Paris"}, {"city": "Rome"})


@pytest.mark.parametrize("form", FORMS)
async def test_no_tool_is_called_if_none_may_be(llm, form):
    items = await with_tools(llm, form, user_msg="What is 3 times 4?", tool_choice="none")
    assert llm.get_tool_calls_from_response(items[-1], error_on_no_tool_call=False) == []
    assert items[-1].message.content
    with pytest.raises(ValueError):
        llm.get_tool_calls_from_response(items[-1])


@pytest.mark.parametrize("form", FORMS)
async def test_a_free_choice_gives_an_answer_or_a_call(llm, form):
    items = await with_tools(llm, form, user_msg="What is 3 times 4?", tool_choice="auto")
    calls = llm.get_tool_calls_from_response(items[-1], error_on_no_tool_call=False)
    assert calls or items[-1].message.content


@pytest.mark.parametrize("form", ["stream", "astream"])
async def test_calls_grow_in_a_stream(llm, form):
    items = await with_tools(llm, form, user_msg="The weather in Rome?", tools=TOOLS[:1], tool_required=True)
    calls = [llm.get_tool_calls_from_response(item, error_on_no_tool_call=False) for item in items]
    known = [call[0] for call in calls if call]
    assert len(known) > 1 and len({call.tool_id for call in known}) == 1
    whole = known[-1].tool_kwargs
    assert all(call.tool_kwargs.items() <= whole.items() for call in known)


async def test_several_calls_have_ids_of_their_own_and_one_is_one(llm):
    for parallel in (False, True):
        response = llm.chat_with_tools(
            TOOLS, "What is 3 times 4, and the weather?", tool_required=True, allow_parallel_tool_calls=parallel
        )
        calls = llm.get_tool_calls_from_response(response)
        assert len({call.tool_id for call in calls}) == len(calls) >= 1
        assert parallel or len(calls) == 1


async def test_tools_are_called_and_answered(llm):
    answer = llm.predict_and_call(TOOLS[1:2], "The weather in Rome?", tool_required=True)
    assert answer.response.startswith("Sunny in ")
    answer = await llm.apredict_and_call(TOOLS[1:2], "The weather in Rome?", tool_required=True)
    assert answer.sources[0].tool_name == "weather"


async def test_a_result_is_read_and_histories_are_not_changed(llm):
    asked = ChatMessage(role="user", content="What is 3 times 4?")
    call = ToolCallBlock(tool_call_id="call_1", tool_name="multiply", tool_kwargs={"a": 3, "b": 4})
    history = [
        asked,
        ChatMessage(role="assistant", blocks=[call]),
        ChatMessage(role="tool", content="12", additional_kwargs={"tool_call_id": "call_1"}),
    ]
    for form in FORMS:
        items = await with_tools(llm, form, chat_history=history, user_msg="Thanks. And so?", tool_choice="none")
        assert items[-1].message.content and len(history) == 3


async def test_tools_may_be_none_at_all(llm):
    assert llm.chat_with_tools([], "Hello!").message.content


# ---- objects


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cls", [City, Trip])
async def test_objects(llm, form, cls):
    items = await predict(llm, form, cls)
    assert isinstance(items[-1], cls)


@pytest.mark.parametrize("form", ["stream", "astream"])
async def test_objects_grow_and_are_never_blank(llm, form):
    items = await predict(llm, form, Trip)
    dumped = [item.model_dump() for item in items]
    assert len(items) > 2 and all(any(value is not None for value in item.values()) for item in dumped)
    assert not isinstance(items[0], Trip)
    assert all(before != now for before, now in pairwise(dumped) if now != dumped[-1])


async def test_options_for_an_object_are_not_changed(llm):
    options: dict[str, Any] = {}
    for form in FORMS:
        await predict(llm, form, City, llm_kwargs=options)
    assert options == {}


async def test_the_system_prompt_is_said(make_llm, events):
    llm = make_llm(system_prompt="You are a geographer.")
    for form in FORMS:
        await predict(llm, form, City)
    asked = [event.messages for event in events if isinstance(event, LLMChatStartEvent)]
    assert len(asked) == 4 and all("You are a geographer." in str(messages[0].content) for messages in asked)
    assert len([event for event in events if isinstance(event, LLMStructuredPredictEndEvent)]) == 4


async def test_a_structured_llm(llm):
    structured = llm.as_structured_llm(City)
    found = [
        structured.chat(QUESTION).raw,
        (await structured.achat(QUESTION)).raw,
        list(structured.stream_chat(QUESTION))[-1].raw,
        (await all_of(await structured.astream_chat(QUESTION)))[-1].raw,
        structured.complete("Paris?").raw,
        (await structured.acomplete("Paris?")).raw,
    ]
    assert all(isinstance(each, City) for each in found)


# ---- counting and watching


@pytest.mark.parametrize("form", FORMS)
async def test_usage(make_llm, form):
    counter = TokenCountingHandler(tokenizer=lambda text: [])
    llm = make_llm(callback_manager=CallbackManager([counter]))
    usage = (await chat(llm, form, QUESTION))[-1].raw["usage"]
    assert usage["prompt_tokens"] > 5 and usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert counter.prompt_llm_token_count == usage["prompt_tokens"]
    assert counter.completion_llm_token_count == usage["completion_tokens"]
    counter.reset_counts()
    usage = (await complete(llm, form, "Once upon a time"))[-1].raw["usage"]
    assert counter.total_llm_token_count % usage["total_tokens"] == 0 < counter.total_llm_token_count


@pytest.mark.parametrize("form", FORMS)
async def test_events_come_in_order(llm, events, form):
    items = await chat(llm, form, QUESTION)
    kinds = [type(event) for event in events if type(event).__name__.startswith("LLMChat")]
    steps = [LLMChatInProgressEvent] * len(items) if "stream" in form else []
    assert kinds == [LLMChatStartEvent, *steps, LLMChatEndEvent]


# ---- ends before the end


async def test_a_cancelled_task_ends_and_the_next_call_works(llm):
    tasks = [asyncio.create_task(llm.achat(QUESTION)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    assert all(isinstance(done, asyncio.CancelledError) for done in await asyncio.gather(*tasks, return_exceptions=True))
    assert (await llm.achat(QUESTION)).message.content


async def test_closed_streams_end_and_the_next_call_works(llm):
    stream = llm.stream_chat(QUESTION)
    assert next(stream).message.role == "assistant"
    stream.close()
    assert list(stream) == []
    astream = await llm.astream_chat(QUESTION)
    async for item in astream:
        assert item.message.role == "assistant"
        break
    await astream.aclose()
    assert (await llm.achat(QUESTION)).message.content


def test_several_loops_one_after_another(llm):
    for _ in range(2):
        assert asyncio.run(llm.achat(QUESTION)).message.content
