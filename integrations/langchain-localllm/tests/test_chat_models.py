"""Calls of ChatLocalLLM: whole and streamed, sync and async, one and many, ended and stopped."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.exceptions import ModelTimeoutError
from langchain_core.globals import set_llm_cache
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, trim_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from langchain_localllm import ChatLocalLLM

from localllm import loaded_models
from localllm.errors import InvalidRequestError, ModelNotFoundError

QUESTION = "one two three"
TOOL = {
    "type": "function",
    "function": {"name": "pick", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
}


def added(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def without_times(message: AIMessage) -> dict:
    metadata = {name: value for name, value in message.response_metadata.items() if name not in ("timings", "seed")}
    assert {"queue_seconds", "prefill_seconds", "decode_seconds"} == set(message.response_metadata["timings"])
    return metadata


# ---- one call


def test_invoke_and_stream_and_their_twins_say_the_same(llm):
    async def main():
        return await llm.ainvoke(QUESTION), added([chunk async for chunk in llm.astream(QUESTION)])

    llm.invoke(QUESTION)  # from here on as much of the prompt is resident each time
    whole, streamed = llm.invoke(QUESTION), added(list(llm.stream(QUESTION)))
    for message in (streamed, *asyncio.run(main())):
        assert message.content == whole.content
        assert message.usage_metadata == whole.usage_metadata
        assert without_times(message) == without_times(whole)
    assert whole.usage_metadata["output_tokens"] == 24 and whole.response_metadata["finish_reason"] == "length"
    assert whole.response_metadata["model_provider"] == "localllm" and whole.response_metadata["model_name"] == llm.model


def test_a_stream_comes_token_by_token_and_ends_once(llm):
    chunks = list(llm.stream(QUESTION))
    assert sum(bool(chunk.content) for chunk in chunks) > 5
    assert [chunk.chunk_position for chunk in chunks].count("last") == 1 and chunks[-1].chunk_position == "last"
    assert [bool(chunk.usage_metadata) for chunk in chunks].count(True) == 1


def test_invoke_streams_where_it_is_asked_to(llm):
    class Tokens(BaseCallbackHandler):
        def __init__(self):
            self.texts = []

        def on_llm_new_token(self, token, **kwargs):
            self.texts.append(token)

    for model, options, streams in ((llm, {}, False), (llm, {"stream": True}, True), (llm.model_copy(), {}, False)):
        handler = Tokens()
        message = model.invoke(QUESTION, config={"callbacks": [handler]}, **options)
        assert ("".join(handler.texts) == message.content) is streams
    handler = Tokens()
    streaming = ChatLocalLLM(model=llm.model, streaming=True, temperature=0, max_tokens=5, n_threads=1)
    assert streaming.invoke(QUESTION, config={"callbacks": [handler]}).content == "".join(handler.texts)


async def test_events_of_both_versions(llm):
    kinds = [event["event"] async for event in llm.astream_events(QUESTION, version="v2")]
    assert kinds[0] == "on_chat_model_start" and kinds[-1] == "on_chat_model_end" and kinds.count("on_chat_model_stream") > 5
    stream = await llm.astream_events(QUESTION, version="v3")
    assert "".join([delta async for delta in stream.text]) == (await llm.ainvoke(QUESTION)).content


def test_messages_and_chains(llm):
    prompt = ChatPromptTemplate([("system", "Answer in one word."), ("human", "{question}")])
    answer = (prompt | llm | StrOutputParser()).invoke({"question": QUESTION})
    assert answer == llm.invoke([SystemMessage("Answer in one word."), HumanMessage(QUESTION)]).content


def test_options_of_a_call_come_before_those_of_the_model(llm):
    assert llm.invoke(QUESTION, max_tokens=2).usage_metadata["output_tokens"] == 2
    assert llm.bind(num_predict=3).invoke(QUESTION).usage_metadata["output_tokens"] == 3
    assert llm.invoke(QUESTION, options={"num_predict": 4}).usage_metadata["output_tokens"] == 4
    free = llm.invoke(QUESTION).content
    word = free.split()[2]
    assert llm.invoke(QUESTION, stop=[word]).content == free[: free.index(word)]
    stopping = llm.model_copy(update={"stop": [word]})
    assert stopping.invoke(QUESTION).content == free[: free.index(word)] and stopping.invoke(QUESTION, stop=[]).content == free
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        llm.invoke(QUESTION, temprature=1)
    with pytest.raises(InvalidRequestError, match="n_ctx: says how the model is loaded"):
        llm.invoke(QUESTION, n_ctx=100)


def test_log_probabilities_are_the_same_whole_and_streamed(llm):
    asked = llm.bind(logprobs=True, top_logprobs=2, max_tokens=5)
    whole, streamed = asked.invoke(QUESTION), added(list(asked.stream(QUESTION)))
    entries = whole.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [
        entry["token"] for entry in streamed.response_metadata["logprobs"]["content"]
    ]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == whole.content
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_another_model_for_one_call(llm):
    message = llm.invoke(QUESTION, model="smollm2", max_tokens=2)
    assert message.response_metadata["model_name"] == "smollm2"
    assert llm.invoke(QUESTION).response_metadata["model_name"] == llm.model


def test_usage_is_counted_by_langchains_handler(llm):
    handler = UsageMetadataCallbackHandler()
    messages = llm.batch([QUESTION, "four"], config={"callbacks": [handler]})
    total = sum(message.usage_metadata["total_tokens"] for message in messages)
    assert handler.usage_metadata[llm.model]["total_tokens"] == total
    result = llm.generate([[HumanMessage(QUESTION)], [HumanMessage("four")]])
    assert result.llm_output["token_usage"]["total_tokens"] == total and result.llm_output["model_name"] == llm.model


# ---- thoughts and blocks


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("version", [None, "v1"])
def test_thoughts_text_and_calls_are_blocks_of_their_own(thinker, version, streamed):
    model = thinker if version is None else thinker.model_copy(update={"output_version": version})
    for bound, kind in ((model.bind(choice=["yes", "no"]), "text"), (model.bind_tools([TOOL], tool_choice="any"), "tool_call")):
        message = added(list(bound.stream(QUESTION))) if streamed else bound.invoke(QUESTION)
        assert [block["type"] for block in message.content_blocks] == ["reasoning", kind]
        thoughts = message.content_blocks[0]["reasoning"]
        assert thoughts and message.usage_metadata["output_token_details"]["reasoning"] > 0
        if version is None:
            assert message.additional_kwargs["reasoning_content"] == thoughts and isinstance(message.content, str)
        if kind == "text":
            assert message.text in ("yes", "no")
        else:
            (call,) = message.tool_calls
            assert call["name"] == "pick" and call["args"]["n"] in (1, 2) and call["id"] == message.content_blocks[1]["id"]


def test_a_call_is_streamed_in_pieces(thinker):
    chunks = list(thinker.bind_tools([TOOL], tool_choice="pick").stream(QUESTION))
    pieces = [piece for chunk in chunks for piece in chunk.tool_call_chunks]
    assert len(pieces) > 1 and {piece["index"] for piece in pieces} == {0}
    assert [piece["name"] for piece in pieces if piece["name"]] == ["pick"] and len({p["id"] for p in pieces if p["id"]}) == 1
    events = list(thinker.bind_tools([TOOL], tool_choice="pick").stream_events(QUESTION, version="v3"))
    started = [event["content"]["type"] for event in events if event["event"] == "content-block-start"]
    assert started == ["reasoning", "tool_call_chunk"]


def test_thoughts_go_back_into_the_prompt_in_both_forms(thinker):
    def prompt(answer):
        call = thinker._call([HumanMessage("a"), answer, HumanMessage("b")], None, {})
        return call.messages[1]

    old = AIMessage("yes", additional_kwargs={"reasoning_content": "because"})
    new = AIMessage([{"type": "reasoning", "reasoning": "because"}, {"type": "text", "text": "yes"}])
    assert prompt(old) == prompt(new) == {"role": "assistant", "content": "yes", "reasoning_content": "because"}


# ---- many calls


def test_a_batch_is_submitted_at_once(llm, endless, batches):
    sizes = batches(endless)
    assert len(endless.batch([f"{n} and {n}" for n in range(8)], max_tokens=200)) == 8
    assert max(sizes) == endless.local_model.context_config.parallel
    answers = llm.batch([f"{n} and {n}" for n in range(8)])
    assert [answer.content for answer in answers] == [llm.invoke(f"{n} and {n}").content for n in range(8)]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_batch_keeps_to_max_concurrency(endless, batches, limit):
    sizes = batches(endless)
    endless.batch([f"limit {limit} {n}" for n in range(5)], config={"max_concurrency": limit}, max_tokens=100)
    assert max(sizes) == limit


async def test_batches_within_a_loop_and_as_they_are_completed(llm):
    questions = [f"{n} and {n}" for n in range(3)]
    expected = [answer.content for answer in await llm.abatch(questions)]
    assert [answer.content for answer in llm.batch(questions)] == expected
    assert {at: answer.content for at, answer in llm.batch_as_completed(questions)} == dict(enumerate(expected))
    found = {at: answer.content async for at, answer in llm.abatch_as_completed(questions)}
    assert found == dict(enumerate(expected)) and llm.batch([]) == [] and await llm.abatch([]) == []


def test_a_batch_has_a_config_for_each(llm):
    class Names(BaseCallbackHandler):
        def __init__(self):
            self.tags = []

        def on_chat_model_start(self, serialized, messages, *, tags=None, **kwargs):
            self.tags.append((messages[0][0].content, tags))

    handlers = [Names(), Names()]
    llm.batch(["a", "b"], config=[{"callbacks": [each], "tags": [f"tag {n}"]} for n, each in enumerate(handlers)])
    assert [each.tags for each in handlers] == [[("a", ["tag 0"])], [("b", ["tag 1"])]]


def test_a_batch_gives_errors_back_or_ends_with_the_first(endless, at_rest):
    too_long = "river " * 3000
    answers = endless.batch(["a", too_long], return_exceptions=True, max_tokens=3)
    assert answers[0].content and isinstance(answers[1], InvalidRequestError | ValueError)
    with pytest.raises(ValueError, match="the context holds"):
        endless.batch(["a", too_long, "b"])
    assert at_rest(endless), "the others went on, and they have no end"


def test_bound_models_and_chains_batch_as_well(endless, batches):
    chain = ChatPromptTemplate.from_template("{n} and {n}") | endless.bind(max_tokens=200) | StrOutputParser()
    sizes = batches(endless)
    assert len(chain.batch([{"n": n} for n in range(6)])) == 6 and max(sizes) == 4


# ---- stopping


async def test_cancelling_a_task_stops_the_work(endless, at_rest):
    task = asyncio.create_task(endless.ainvoke(QUESTION))
    batch = asyncio.create_task(endless.abatch(["a", "b", "c", "d", "e"]))
    while not task.done() and endless.local_model.engine.stats().n_running < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    batch.cancel()
    for one in (task, batch):
        with pytest.raises(asyncio.CancelledError):
            await one
    assert at_rest(endless)


async def test_leaving_an_async_stream_stops_the_work(endless, at_rest):
    async for _ in endless.astream(QUESTION):
        break
    await asyncio.sleep(0)
    stream = endless.astream(QUESTION)
    await stream.__anext__()
    await stream.aclose()
    events = await endless.astream_events(QUESTION, version="v3")
    await events.__aiter__().__anext__()
    await events.aclose()
    for _ in range(3):
        await asyncio.sleep(0.01)
    assert await asyncio.to_thread(at_rest, endless)


def test_leaving_a_stream_stops_the_work(endless, at_rest):
    for _ in endless.stream(QUESTION):
        break
    assert at_rest(endless)
    stream = endless.stream(QUESTION)
    next(stream)
    stream.close()
    assert at_rest(endless)
    before = endless.local_model.engine.stats().computed_tokens
    assert endless.invoke("x", max_tokens=2).content is not None
    assert endless.local_model.engine.stats().computed_tokens - before < 100


def test_a_call_ends_when_its_time_is_up(endless, at_rest):
    with pytest.raises(ModelTimeoutError, match="0.2 seconds"):
        endless.invoke(QUESTION, timeout=0.2)
    with pytest.raises(TimeoutError):
        list(endless.model_copy(update={"timeout": 0.2}).stream(QUESTION))
    assert at_rest(endless)


# ---- the model behind it


def test_constructing_loads_nothing_and_knows_no_model(tmp_path):
    llm = ChatLocalLLM(model=tmp_path / "nothing.gguf")
    assert llm._llm_type == "localllm-chat" and llm.profile is None and not llm.local_model.loaded
    with pytest.raises(ModelNotFoundError):
        llm.invoke("x")


def test_copies_share_the_weights_and_answer_for_themselves(llm):
    expected = llm.invoke(QUESTION).content
    for again in (pickle.loads(pickle.dumps(llm)), copy.deepcopy(llm), copy.copy(llm), llm.model_copy(deep=True)):
        assert again.local_model.engine is llm.local_model.engine and again.invoke(QUESTION).content == expected
        assert again.model_dump() == llm.model_dump()
    with pytest.raises(ModelNotFoundError):
        llm.model_copy(update={"model": "/nope.gguf"}).invoke("x")
    assert llm.model_copy(update={"n_ctx": 512}).local_model.engine is not llm.local_model.engine


def test_configurable_models_do_not_load_again(llm):
    engine, n_loaded = llm.local_model.engine, len(loaded_models())
    fields = llm.configurable_fields(temperature=ConfigurableField(id="heat"), max_tokens=ConfigurableField(id="most"))
    assert fields.with_config(configurable={"most": 2}).invoke(QUESTION).usage_metadata["output_tokens"] == 2
    assert len(list(fields.with_config(configurable={"most": 3, "heat": 0.5}).stream(QUESTION))) > 1
    other = llm.configurable_alternatives(ConfigurableField(id="which"), short=llm.model_copy(update={"max_tokens": 1}))
    assert other.with_config(configurable={"which": "short"}).invoke(QUESTION).usage_metadata["output_tokens"] == 1
    assert llm.local_model.engine is engine and len(loaded_models()) == n_loaded


def test_closing_lets_the_weights_go_and_the_next_call_loads_again(tiny):
    llm = ChatLocalLLM(model=tiny, n_ctx=768, max_tokens=2, n_threads=1)
    assert llm.invoke("a").content is not None and llm.local_model.loaded
    llm.close()
    assert not llm.local_model.loaded and llm.invoke("a").content is not None


def test_kept_answers_are_told_apart_by_all_that_changes_them(llm, tiny, tmp_path):
    cache = InMemoryCache()
    set_llm_cache(cache)
    try:
        first = llm.invoke(QUESTION)
        n_requests = llm.local_model.engine.stats().n_requests
        again = llm.invoke(QUESTION)
        assert again.content == first.content and again.usage_metadata["total_cost"] == 0
        assert llm.local_model.engine.stats().n_requests == n_requests
        others = [
            {"temperature": 0.5}, {"seed": 5}, {"stop": ["x"]}, {"max_tokens": 9}, {"sampling": {"dry_multiplier": 0.8}},
            {"chat_options": {"parallel_tool_calls": True}}, {"chat_template": "{{ messages[0].content }}"}, {"n_ctx": 1024},
            {"model_options": {"type_k": "q8_0"}}, {"reasoning": False}, {"tell_schema": False}, {"loras": [("a.gguf", 0.5)]},
        ]  # fmt: skip
        keys = {str(llm.model_copy(update=other)._get_llm_string()) for other in [{}, *others]}
        assert len(keys) == len(others) + 1
        assert len({llm._get_llm_string(**kwargs) for kwargs in ({}, {"tools": [TOOL]}, {"grammar": "root ::= [a]"})}) == 3
        assert (
            llm._get_llm_string() != llm._get_llm_string(stop=["y"]) == llm.model_copy(update={"stop": ["y"]})._get_llm_string()
        )
        path = tmp_path / "model.gguf"
        path.write_bytes(b"one")
        moving = ChatLocalLLM(model=path)
        key = moving._get_llm_string()
        path.write_bytes(b"another")
        assert moving._get_llm_string() != key, "another file under the same name"
    finally:
        set_llm_cache(None)


def test_what_tracers_are_told(llm):
    params = ChatLocalLLM(model="smollm2", temperature=0.5, max_tokens=7, stop=["x"])._get_ls_params()
    assert params == {
        "ls_provider": "localllm", "ls_model_name": "smollm2", "ls_model_type": "chat", "ls_temperature": 0.5,
        "ls_max_tokens": 7, "ls_stop": ["x"],
    }  # fmt: skip
    assert llm._get_ls_params(model="other", stop=["y"])["ls_model_name"] == "other"
    secret = ChatLocalLLM(model="smollm2", api_key="hf_secret")
    assert "hf_secret" not in f"{secret!r}{secret._identifying_params}{secret._get_llm_string()}"
    assert "langchain-localllm" in llm.metadata["lc_versions"]


def test_dumps_hold_no_secret_and_name_the_class():
    """LangChain loads classes of its own list alone, so there is no way back: pickle a model, or keep what it was made with."""
    text = dumps(ChatLocalLLM(model="smollm2", api_key="hf_secret"))
    assert "hf_secret" not in text and "ChatLocalLLM" in text
    assert json.loads(text)["type"] == "not_implemented"


async def test_a_rate_limiter_is_asked_once_for_each_call(llm):
    class Counting(InMemoryRateLimiter):
        n = 0

        def acquire(self, *, blocking=True):
            self.n += 1
            return super().acquire(blocking=blocking)

        async def aacquire(self, *, blocking=True):
            self.n += 1
            return await super().aacquire(blocking=blocking)

    limiter = Counting(requests_per_second=1000, max_bucket_size=100)
    limited = llm.model_copy(update={"rate_limiter": limiter})
    limited.invoke("a")
    await limited.ainvoke("b")
    list(limited.stream("c"))
    assert limiter.n == 3


# ---- tokens and facts


def test_tokens_are_counted_with_the_template_and_no_weights(tiny):
    llm = ChatLocalLLM(model=tiny, n_threads=1, n_ctx=896, max_tokens=1)
    messages = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    n = llm.get_num_tokens_from_messages(messages)
    with_tools = llm.get_num_tokens_from_messages(messages, tools=[TOOL])
    assert llm.get_num_tokens(QUESTION) == len(llm.get_token_ids(QUESTION)) < n < with_tools
    assert not llm.local_model.loaded
    assert llm.invoke(messages).usage_metadata["input_tokens"] == n
    assert llm.bind_tools([TOOL]).invoke(messages).usage_metadata["input_tokens"] == with_tools
    assert llm.get_num_tokens_from_messages([]) == 0


def test_trim_messages_counts_with_the_model(llm):
    history = [HumanMessage(f"question {n}") if n % 2 == 0 else AIMessage(f"answer {n}") for n in range(9)]
    most = llm.get_num_tokens_from_messages(history[-3:])
    kept = trim_messages(history, max_tokens=most, token_counter=llm, strategy="last", start_on="human")
    assert kept == history[-3:]


def test_parts_of_a_conversation_that_the_template_refuses_count_as_their_texts(tiny):
    template = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('a user comes first') }}{% endif %}{{ messages[0].content }}"
    )
    llm = ChatLocalLLM(model=tiny, chat_template=template)
    assert llm.get_num_tokens_from_messages([AIMessage("one two")]) == llm.get_num_tokens("one two")
    call = {"name": "weather", "args": {"city": "Paris"}, "id": "c1"}
    n_call = llm.get_num_tokens("weather") + llm.get_num_tokens('{"city": "Paris"}')
    assert llm.get_num_tokens_from_messages([AIMessage("", tool_calls=[call])]) == n_call > 1
    thinking = AIMessage("one", tool_calls=[call, call], additional_kwargs={"reasoning_content": "two"})
    said = llm.get_num_tokens("one") + llm.get_num_tokens("two")
    assert llm.get_num_tokens_from_messages([thinking]) == 2 * n_call + said


def test_the_profile_is_told_from_the_header(tiny, thinker):
    profile = ChatLocalLLM(model=tiny, max_tokens=100).profile
    assert profile["max_input_tokens"] == 4096 and profile["max_output_tokens"] == 100
    assert profile["tool_calling"] and profile["structured_output"] and not profile["image_inputs"]
    assert thinker.profile["reasoning_output"] and not profile["reasoning_output"]
    assert ChatLocalLLM(model="smollm2", n_ctx=0).profile["max_input_tokens"] == 8192
    assert ChatLocalLLM(model="smollm2", profile={"name": "mine"}).profile == {"name": "mine"}
    assert ChatLocalLLM(model="org/not-here:Q4_K_M").profile is None
