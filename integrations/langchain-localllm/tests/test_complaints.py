"""What users of other local classes complain of, and how it is here. The README's table names these tests."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_localllm import ChatLocalLLM
from pydantic import BaseModel

from localllm import Engine, loaded_models
from localllm.errors import InvalidRequestError


def tool(name):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    return {"type": "function", "function": {"name": name, "description": f"Call {name}.", "parameters": schema}}


class Answer(BaseModel):
    """An answer."""

    ok: bool


@pytest.fixture(scope="module")
def llm(tiny):
    return ChatLocalLLM(model=tiny, temperature=0, max_tokens=400, n_threads=1)


def test_several_bound_tools_are_all_called_in_their_turn(llm):
    bound = llm.bind_tools([tool("a"), tool("b"), tool("c")], tool_choice="any")
    assert {bound.invoke("x", temperature=2.0, seed=seed).tool_calls[0]["name"] for seed in range(20)} == {"a", "b", "c"}


def test_tool_choice_any_is_accepted_and_is_not_the_first_tool_alone(llm):
    bound = llm.bind_tools([tool("a"), tool("b")], tool_choice="any")
    assert {bound.invoke("x", temperature=2.0, seed=seed).tool_calls[0]["name"] for seed in range(20)} == {"a", "b"}


def test_tool_choice_is_never_ignored_neither_forced_nor_none(llm):
    for _ in range(3):
        assert llm.bind_tools([tool("a"), tool("b")], tool_choice="b").invoke("x").tool_calls[0]["name"] == "b"
        assert not llm.bind_tools([tool("a")], tool_choice="none").invoke("x").tool_calls


def test_a_malformed_call_is_an_invalid_tool_call_and_no_exception(llm):
    cut = (llm.bind_tools([tool("a")], tool_choice="a").invoke("x", max_tokens=n) for n in range(30, 80))
    message = next(each for each in cut if each.invalid_tool_calls)
    assert message.response_metadata["finish_reason"] == "length" and message.invalid_tool_calls and not message.tool_calls
    again = llm.invoke([HumanMessage("x"), message, HumanMessage("again")])
    assert isinstance(again, AIMessage)


def test_tokens_stream_while_tools_are_bound(llm):
    chunks = [chunk for chunk in llm.bind_tools([tool("a")]).stream("one two three", max_tokens=24) if chunk.text]
    assert len(chunks) > 5


def test_the_arguments_of_a_call_stream_in_pieces(llm):
    chunks = [chunk for chunk in llm.bind_tools([tool("a")], tool_choice="a").stream("x") if chunk.tool_call_chunks]
    assert len(chunks) > 2


def test_two_calls_of_the_same_tool_are_two_in_a_stream(llm):
    bound = llm.bind_tools([tool("a")], tool_choice="any", parallel_tool_calls=True)
    for seed in range(20):
        message = None
        for chunk in bound.stream("x", temperature=1.5, seed=seed):
            message = chunk if message is None else message + chunk
        if len(message.tool_calls) > 1:
            break
    assert len(message.tool_calls) > 1 and len({call["id"] for call in message.tool_calls}) == len(message.tool_calls)


def test_structured_answers_are_never_none(llm):
    for method in ("json_schema", "function_calling", "json_mode"):
        for seed in range(3):
            found = llm.with_structured_output(Answer, method=method).invoke("x", temperature=1.0, seed=seed)
            assert isinstance(found, Answer)


def test_a_grammar_does_not_constrain_the_thought_and_thoughts_do_not_break_the_json(thinker):
    for method in ("json_schema", "function_calling", "json_mode"):
        found = thinker.with_structured_output(Answer, method=method, include_raw=True).invoke("x")
        assert isinstance(found["parsed"], Answer), found
        thought = found["raw"].additional_kwargs["reasoning_content"]
        assert thought.strip() and not thought.lstrip().startswith("{") and "think>" not in found["raw"].text


def test_an_agent_has_a_response_format_and_tools_at_once_by_both_strategies(llm):
    def pick(n: int) -> str:
        """Pick a number."""
        return str(n)

    for strategy, tools in ((ProviderStrategy(Answer), []), (ToolStrategy(Answer), []), (Answer, [])):
        state = create_agent(llm, tools=tools, response_format=strategy).invoke({"messages": [HumanMessage("x")]})
        assert isinstance(state["structured_response"], Answer)
    bound = llm.bind_tools([pick], response_format=Answer)
    assert bound.invoke("x").content or bound.invoke("x").tool_calls


def test_a_local_file_with_a_providers_name_is_not_taken_for_that_provider(tiny, tmp_path):
    path = tmp_path / "gpt-oss-20b.gguf"
    path.symlink_to(tiny)
    llm = ChatLocalLLM(model=path, temperature=0, max_tokens=400, n_threads=1)
    state = create_agent(llm, tools=[], response_format=Answer).invoke({"messages": [HumanMessage("x")]})
    assert isinstance(state["structured_response"], Answer)


async def test_async_callbacks_are_awaited_for_every_token(llm):
    class Tokens(AsyncCallbackHandler):
        def __init__(self):
            self.texts = []

        async def on_llm_new_token(self, token, **kwargs):
            await asyncio.sleep(0)
            self.texts.append(token)

    handler = Tokens()
    streaming = llm.model_copy(update={"streaming": True})
    streaming.model_fields_set.add("streaming")
    message = await streaming.ainvoke("x", config={"callbacks": [handler]}, max_tokens=8)
    assert "".join(handler.texts) == message.content and len(handler.texts) > 3


async def test_the_loop_goes_on_while_an_answer_is_made(llm):
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await llm.ainvoke("one two three", max_tokens=24)
    ticking.cancel()
    assert turns > 24


async def test_more_than_six_calls_run_at_once(tiny, batches):
    llm = ChatLocalLLM(model=tiny, n_threads=1, parallel=12, n_ctx=8192, max_tokens=200, ignore_eos=True)
    await llm.ainvoke("x")
    sizes, n_threads = batches(llm), threading.active_count()
    await asyncio.gather(*(llm.ainvoke(f"{n}") for n in range(40)))
    assert max(sizes) == 12 and threading.active_count() - n_threads < 40


def test_threads_share_one_object_without_a_crash(llm):
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(llm.invoke(f"{n}", max_tokens=8))) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12


def test_a_second_object_for_the_same_file_loads_nothing(llm, tiny):
    engine, n_loaded = llm.local_model.engine, len(loaded_models())
    for _ in range(3):
        assert ChatLocalLLM(model=tiny, temperature=1, max_tokens=1, n_threads=1).invoke("x") is not None
    assert len(loaded_models()) == n_loaded and ChatLocalLLM(model=tiny, n_threads=1).local_model.engine is engine


def test_memory_is_free_after_del_and_after_an_idle_time(tiny, monkeypatch):
    def n_loaded():
        gc.collect()
        return sum(entry.n_ctx == 768 for entry in loaded_models())

    llm = ChatLocalLLM(model=tiny, n_threads=1, n_ctx=768, max_tokens=1)
    llm.invoke("x")
    assert n_loaded() == 1
    del llm
    assert n_loaded() == 0
    idle = ChatLocalLLM(model=tiny, n_threads=1, n_ctx=768, max_tokens=1, keep_alive=0)
    freed = threading.Event()
    init = Engine.__init__

    def noted(engine, *arguments, **options):
        init(engine, *arguments, **options)
        weakref.finalize(engine, freed.set)

    monkeypatch.setattr(Engine, "__init__", noted)
    idle.invoke("x")
    assert freed.wait(60) and not idle.local_model.loaded and idle.invoke("x") is not None


def test_tokens_are_counted_without_transformers_or_a_download(tiny):
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "import socket; socket.socket.connect = None\n"
        "from langchain_core.messages import HumanMessage\n"
        "from langchain_localllm import ChatLocalLLM\n"
        f"print(ChatLocalLLM(model={tiny!r}).get_num_tokens_from_messages([HumanMessage('hi')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and int(done.stdout) > 1, done.stderr


def test_usage_comes_with_a_stream(llm):
    usages = [chunk.usage_metadata for chunk in llm.stream("x", max_tokens=4) if chunk.usage_metadata]
    assert len(usages) == 1 and usages[0]["output_tokens"] == 4 and usages[0]["input_tokens"] > 0


def test_a_stop_does_not_replace_the_models_own(llm, thinker):
    ended = llm.bind(stop=["never said"]).invoke("one two three", max_tokens=2000, temperature=0.8, seed=3)
    assert ended.response_metadata["finish_reason"] == "stop"


def test_stop_words_keep_a_react_agent_from_inventing_its_observation(llm):
    grammar = 'root ::= "Action: look\\nObservation: made up"'
    answer = llm.bind(stop=["\nObservation:"]).invoke("x", grammar=grammar)
    assert answer.content == "Action: look"


def test_a_conversation_that_is_too_long_is_an_error_and_never_cut(llm):
    with pytest.raises(ContextOverflowError, match="tokens, the context holds 4096"):
        llm.invoke([HumanMessage("river " * 5000)])
    with pytest.raises(ContextOverflowError):
        list((llm | StrOutputParser()).stream([HumanMessage("river " * 5000)]))


def test_an_answer_that_is_cut_says_so(llm):
    assert llm.invoke("x", max_tokens=2).response_metadata["finish_reason"] == "length"


def test_an_image_that_the_model_cannot_see_is_an_error(llm):
    with pytest.raises(InvalidRequestError, match=r"content\[0\]: an image block"):
        llm.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])])


def test_the_result_of_a_tool_that_failed_is_shown_to_the_model(llm):
    call = {"name": "a", "args": {"n": 1}, "id": "1", "type": "tool_call"}
    messages = [HumanMessage("x"), AIMessage("", tool_calls=[call]), ToolMessage("Error: no", tool_call_id="1", status="error")]
    assert "Error: no" in str(llm._call(messages, None, {}).messages)
    assert llm.bind_tools([tool("a")]).invoke(messages) is not None


def test_max_tokens_is_a_name_that_counts(tiny):
    for name in ("max_tokens", "num_predict"):
        assert ChatLocalLLM(model=tiny, n_threads=1, **{name: 3}).invoke("one two").usage_metadata["output_tokens"] == 3


def test_sampling_can_be_changed_for_one_call(llm):
    texts = {llm.invoke("x", temperature=3.0, seed=seed, max_tokens=10).content for seed in range(5)}
    assert len(texts) > 1 and len({llm.invoke("x", max_tokens=10).content for _ in range(3)}) == 1
