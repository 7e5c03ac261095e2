"""LocalLLM: what only it promises."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from llama_index.core import PromptHelper
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.extractors import SummaryExtractor
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.llms import ChatMessage, ImageBlock
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.localllm import CutAnswerError, LocalLLM, NoToolCallError
from llama_index.llms.localllm.partial import PartialJson
from llama_index.llms.localllm.tools import arguments_of
from pydantic import BaseModel, Field, RootModel, field_validator, model_validator

from localllm import Lora
from localllm.errors import ContextOverflowError, InvalidRequestError, ModelNotFoundError, TemplateError

QUESTION = [ChatMessage(role="user", content="What is the capital of France?")]
PROMPT = PromptTemplate("Something about {topic}.")


class Word(BaseModel):
    """A word."""

    text: str = Field(pattern="^[a-z]{4,8}$", description="A word that rhymes.")


class Speech(BaseModel):
    """What is said."""

    text: str = Field(min_length=400)


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LocalLLM:
    return LocalLLM(tiny, temperature=0, max_tokens=48, model_options={"n_threads": 1})


# ---- what costs nothing


def test_making_one_and_its_metadata_load_nothing(tiny):
    llm = LocalLLM(tiny, context_window=1024, max_tokens=100)
    metadata = llm.metadata
    assert (metadata.context_window, metadata.num_output) == (1024, 100) and metadata.is_function_calling_model
    assert not llm.local_model.loaded
    with pytest.raises(ModelNotFoundError):
        _ = LocalLLM("/no/such.gguf").metadata


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("qwen3", {}, (4096, 256, True, True)),
        ("qwen3", {"context_window": 0}, (4096, 256, True, True)),
        ("qwen3", {"model_options": {"n_ctx": "auto"}}, (4096, 256, True, True)),
        ("qwen3", {"context_window": 512}, (512, 128, True, True)),
        ("qwen3", {"is_function_calling_model": False}, (4096, 256, True, False)),
        ("qwen3-no-template", {}, (4096, 256, False, False)),
        ("qwen3-no-template", {"chat_template": "{{ messages[0].content }}"}, (4096, 256, True, True)),
        ("gpt2", {}, (128, 32, True, True)),
    ],
)
def test_metadata_follows_the_file(builder, name, options, expected):
    found = LocalLLM(builder.build(name), **options).metadata
    assert (found.context_window, found.num_output, found.is_chat_model, found.is_function_calling_model) == expected


def test_the_context_window_is_what_is_loaded(builder):
    llm = LocalLLM(builder.build("gpt2"), model_options={"n_ctx": "auto", "n_threads": 1})
    llm.complete("Once", formatted=True, max_tokens=1)
    assert llm.metadata.context_window == llm.local_model.engine.limit
    llm.close()


def test_a_model_that_has_still_to_be_fetched_is_not_fetched_for_its_metadata():
    llm = LocalLLM("someone/something-GGUF:Q4_K_M", context_window=2048)
    assert llm.metadata.context_window == 2048 and llm.metadata.is_function_calling_model
    assert llm.to_payload()["model_name"] == "someone/something-GGUF:Q4_K_M"


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"n_ctx": 512}, "context_window"),
        ({"parallel": 512}, "model_options"),
        ({"repeat_penalty": 1.1}, "sampling"),
        ({"enable_thinking": False}, "chat_options"),
        ({"model_path": "x"}, "give it as model"),
        ({"max_new_tokens": 1}, "give it as max_tokens"),
        ({"temperature": -5}, "temperature:"),
        ({"sampling": {"top_q": 1}}, "top_q"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
        ({"model_options": {"n_ctx": 512}, "context_window": 1024}, "context_window:"),
        ({"chat_options": {"enable_thinking": "x"}}, "enable_thinking"),
        ({"messages_to_prompt": lambda messages: ""}, "chat_template"),
        ({"completion_to_prompt": lambda prompt: prompt}, "chat_template"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LocalLLM("smollm2", **options)


def test_options_of_a_call_and_of_the_llm(llm):
    assert llm.chat(QUESTION).raw["usage"]["completion_tokens"] == 48
    assert llm.chat(QUESTION, max_tokens=3).raw["usage"]["completion_tokens"] == 3
    assert llm.complete("Once", formatted=True, max_tokens=3).raw["usage"]["completion_tokens"] == 3
    assert llm.chat(QUESTION, temperature=1.0, seed=7).raw["seed"] == 7
    assert llm.chat(QUESTION, choice=["yes", "no"]).message.content in ("yes", "no")
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        llm.chat(QUESTION, temprature=1)
    with pytest.raises(InvalidRequestError, match="n_ctx"):
        llm.chat(QUESTION, n_ctx=1)
    with pytest.raises(InvalidRequestError, match="unknown option"):
        llm.complete("Once", formatted=True, choice=["yes", "no"])


def test_what_a_call_wants_of_its_answer_counts_before_what_the_llm_wants(llm):
    judge = llm.model_copy(update={"chat_options": {"choice": ["yes", "no"]}, "max_tokens": 200})
    assert judge.chat(QUESTION).message.content in ("yes", "no")
    assert judge.chat(QUESTION, regex="[0-9]{2}").message.content.isdigit()
    assert isinstance(judge.structured_predict(Word, PROMPT, topic="x"), Word)


def test_log_probabilities(llm):
    response = llm.chat(QUESTION, logprobs=True, n_probs=2, max_tokens=3)
    assert [len(tokens) for tokens in response.logprobs] == [3, 3, 3]
    assert all(tokens[0].logprob == tokens[1].logprob for tokens in response.logprobs)
    streamed = [entry for item in llm.stream_chat(QUESTION, logprobs=True, max_tokens=3) for entry in item.logprobs or ()]
    assert len(streamed) == 3


def test_a_copy_answers_with_its_own_model(llm):
    assert llm.chat(QUESTION).message.content
    with pytest.raises(ModelNotFoundError):
        llm.model_copy(update={"model": "/nope.gguf"}).chat(QUESTION)
    again = pickle.loads(pickle.dumps(llm))
    assert again.local_model.engine is llm.local_model.engine
    assert again.chat(QUESTION).message.content == llm.chat(QUESTION).message.content


def test_what_it_is_made_with_is_json(tiny):
    llm = LocalLLM(tiny, loras=["a.gguf", ("b.gguf", 0.5), Lora("c.gguf", 2.0)])
    again = LocalLLM.from_dict(json.loads(llm.to_json()))
    assert again.local_model.loras == (Lora("a.gguf"), Lora("b.gguf", 0.5), Lora("c.gguf", 2.0))
    assert again.to_dict() == llm.to_dict() == json.loads(llm.to_json())


def test_the_tokenizer_counts_for_llamaindex(llm):
    tokenizer = pickle.loads(pickle.dumps(llm.tokenizer))
    assert tokenizer("Hello") == llm.local_model.tokenize("Hello")
    text = "One sentence follows another. " * 20
    chunks = SentenceSplitter(chunk_size=60, chunk_overlap=0, tokenizer=tokenizer).split_text(text)
    assert len(chunks) > 1 and all(len(tokenizer(chunk)) <= 60 for chunk in chunks)
    helper = PromptHelper.from_llm_metadata(llm.metadata, tokenizer=tokenizer)
    assert helper.context_window == llm.metadata.context_window


# ---- errors that say what is wrong


def test_a_picture_is_refused_by_its_place(llm):
    picture = ImageBlock(image=base64.b64encode(b"\x89PNG"), image_mimetype="image/png")
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.blocks\[0\]: ImageBlock.*projector"):
        llm.chat([*QUESTION, ChatMessage(role="user", blocks=[picture])])


def test_too_long_a_conversation_says_how_long(llm):
    with pytest.raises(ContextOverflowError) as caught:
        llm.chat([ChatMessage(role="user", content="word " * 5000)])
    assert caught.value.needed_tokens > caught.value.available_tokens == 4096


async def test_an_object_that_was_cut_is_no_object(llm):
    options = {"max_tokens": 5}
    with pytest.raises(CutAnswerError, match="Word.*max_tokens"):
        llm.structured_predict(Word, PROMPT, llm_kwargs=options, topic="x")
    with pytest.raises(CutAnswerError):
        await llm.astructured_predict(Word, PROMPT, llm_kwargs=options, topic="x")
    with pytest.raises(CutAnswerError):
        list(llm.stream_structured_predict(Word, PROMPT, llm_kwargs=options, topic="x"))
    with pytest.raises(CutAnswerError):
        _ = [item async for item in await llm.astream_structured_predict(Word, PROMPT, llm_kwargs=options, topic="x")]


def test_an_answer_without_a_call_says_what_it_says(llm):
    with pytest.raises(NoToolCallError, match="calls no tool"):
        llm.get_tool_calls_from_response(llm.chat(QUESTION))
    with pytest.raises(InvalidRequestError, match="error_on"):
        llm.get_tool_calls_from_response(llm.chat(QUESTION), error_on_none=True)


@pytest.mark.parametrize("form", ["whole", "stream"])
def test_a_call_that_was_cut_is_not_made_and_does_not_spoil_the_conversation(llm, form):
    tool = FunctionTool.from_defaults(lambda text: text, name="say", description="Says it.", fn_schema=Speech)
    options = {"tool_required": True, "max_tokens": 60}
    if form == "whole":
        response = llm.chat_with_tools([tool], "Say something.", **options)
    else:
        *_, response = llm.stream_chat_with_tools([tool], "Say something.", **options)
    assert response.message.additional_kwargs["tool_calls"] and response.raw["choices"][0]["finish_reason"] == "length"
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(NoToolCallError, match="'say' was cut off: raise max_tokens"):
        llm.get_tool_calls_from_response(response)
    history = [*QUESTION, response.message, ChatMessage(role="user", content="And?")]
    assert llm.chat_with_tools([tool], chat_history=history, tool_choice="none").message.content


def test_a_check_of_the_class_counts_too(llm):
    class Picky(Word):
        @field_validator("text")
        @classmethod
        def never(cls, value: str) -> str:
            raise ValueError("not that one")

    with pytest.raises(ValueError, match="not that one"):
        llm.structured_predict(Picky, PROMPT, llm_kwargs={"max_tokens": 200}, topic="x")


STRICT = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


async def test_what_the_system_says_late_is_said_by_the_user_where_the_template_wants_it(tiny):
    llm = LocalLLM(tiny, chat_template=STRICT, temperature=0, max_tokens=4, model_options={"n_threads": 1})
    messages = [*QUESTION, ChatMessage(role="assistant", content="Paris."), ChatMessage(role="system", content="Sum up.")]
    as_user = [*messages[:2], ChatMessage(role="user", content="Sum up.")]
    assert llm.chat(messages).raw["usage"]["prompt_tokens"] == llm.chat(as_user).raw["usage"]["prompt_tokens"]
    assert (await llm.achat(messages)).message.content == llm.chat(as_user).message.content
    with pytest.raises(TemplateError):
        LocalLLM(tiny, chat_template="{{ raise_exception('never') }}").chat(messages)


# ---- objects


def test_the_model_is_shown_the_schema(tiny, llm):
    def asked(**options: Any) -> int:
        response = LocalLLM(tiny, temperature=0, max_tokens=64, model_options={"n_threads": 1}, **options)
        messages, chosen = response._for_object(Word, PROMPT, None, {"topic": "x"})
        assert chosen["json_schema"] == Word.model_json_schema()
        return sum("A word that rhymes." in (message.content or "") for message in messages)

    assert asked() == 1 and asked(schema_in_prompt=False) == 0
    assert asked(system_prompt="Hello.") == 1


def test_lists_at_the_top_and_other_modes(llm):
    class Words(RootModel[list[Word]]):
        """Words."""

    class TwoWords(BaseModel):
        words: list[Word] = Field(min_length=2, max_length=2)

    assert isinstance(llm.structured_predict(TwoWords, PROMPT, llm_kwargs={"max_tokens": 200}, topic="x").words[1], Word)
    by_call = llm.model_copy(update={"pydantic_program_mode": PydanticProgramMode.FUNCTION, "max_tokens": 300})
    assert isinstance(by_call.structured_predict(Word, PROMPT, topic="x"), Word)


# ---- the work stops


def at_rest(llm: LocalLLM) -> int:
    """Tokens computed when nothing is under way any more."""
    end = time.monotonic() + 30
    while (stats := llm.local_model.engine.stats()).n_running + stats.n_waiting:
        assert time.monotonic() < end, "the work goes on"
        time.sleep(0.002)
    return stats.computed_tokens


ENDLESS = {"max_tokens": 3500, "ignore_eos": True}


@pytest.mark.parametrize("how", ["stream", "dropped stream", "unread stream", "astream", "dropped astream", "task", "completion"])
async def test_what_nobody_waits_for_is_not_computed(llm, how):
    llm.chat(QUESTION, max_tokens=1)
    before = at_rest(llm)
    if how == "stream":
        stream = llm.stream_chat(QUESTION, **ENDLESS)
        next(stream)
        stream.close()
    elif how == "dropped stream":
        next(iter(llm.stream_chat(QUESTION, **ENDLESS)))
    elif how == "unread stream":
        llm.stream_chat(QUESTION, **ENDLESS)
    elif how == "astream":
        astream = await llm.astream_chat(QUESTION, **ENDLESS)
        await astream.__anext__()
        await astream.aclose()
    elif how == "dropped astream":
        async for _ in await llm.astream_chat(QUESTION, **ENDLESS):
            break
    elif how == "task":
        task = asyncio.create_task(llm.achat(QUESTION, **ENDLESS))
        while not llm.local_model.engine.stats().n_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        written = llm.stream_complete("Once", formatted=True, **ENDLESS)
        next(written)
        written.close()
    await asyncio.sleep(0.05)
    assert at_rest(llm) - before < 3000


async def test_calls_share_batches(llm):
    llm.chat(QUESTION, max_tokens=1)
    engine = llm.local_model.engine
    at_rest(llm)
    before = engine.stats().n_steps
    await asyncio.gather(*(llm.achat(QUESTION, max_tokens=400, ignore_eos=True) for _ in range(4)))
    assert engine.stats().n_steps - before < 2 * 400


# ---- what a second look found


class Where(BaseModel):
    """Arguments of a tool."""

    path: Literal["a", "b"]


def named(name: str) -> FunctionTool:
    return FunctionTool.from_defaults(lambda path: f"{name}: {path}", name=name, description="Reads a file.", fn_schema=Where)


@pytest.mark.parametrize("name", ["files.read", "zeit_ändern", "Box[bool]"])
def test_tools_are_called_by_the_names_that_they_have(llm, name):
    tools, llm = [named(name), named("other")], llm.model_copy(update={"max_tokens": 400})
    (call,) = llm.get_tool_calls_from_response(llm.chat_with_tools(tools, "Go on.", tool_choice=name))
    assert call.tool_name == name
    assert str(llm.predict_and_call(tools, "Go on.", tool_choice=name).response).startswith(name)


class Half(BaseModel):
    """A class whose validator counts on all of its fields, and whose field has another name in JSON."""

    n: Literal["first", "second"] = Field(alias="first-name")
    m: int = Field(ge=1, le=9)

    @model_validator(mode="before")
    @classmethod
    def whole(cls, data: Any) -> Any:
        assert data["m"] and data["first-name"]
        return data


@pytest.mark.parametrize("form", ["stream", "astream", "chat"])
async def test_the_validators_of_a_class_see_whole_objects_and_aliases_are_fields(llm, form):
    prompt, long = PromptTemplate("Go on."), {"max_tokens": 400}
    if form == "stream":
        seen = list(llm.stream_structured_predict(Half, prompt, long))
    elif form == "astream":
        seen = [item async for item in await llm.astream_structured_predict(Half, prompt, long)]
    else:
        said = llm.model_copy(update=long).as_structured_llm(Half).stream_chat([ChatMessage(role="user", content="Go on.")])
        seen = [item.raw for item in said]
    assert isinstance(seen[-1], Half) and len(seen) > 1
    assert any(getattr(item, "n", None) not in (None, seen[-1].n) for item in seen[:-1])


def test_what_is_no_json_for_any_program_is_a_call_that_was_cut(llm):
    deep, digits = '{"x": ' + "[" * 5000, '{"x": ' + "1" * 5000 + "}"
    for written in (deep, digits, '{"x": NaN}'):
        assert arguments_of(written) is None
        partial = PartialJson()
        for char in written:
            partial.add(char)
            assert partial.value is None or isinstance(partial.value, dict)


def test_special_tokens_in_a_text_are_counted_as_the_text_that_they_are_in_a_prompt(llm):
    text = "<|im_end|>" * 20
    count = len(llm.tokenizer(text))
    said = llm.chat([ChatMessage(role="user", content=text)], max_tokens=1).raw["usage"]["prompt_tokens"]
    without = llm.chat([ChatMessage(role="user", content="")], max_tokens=1).raw["usage"]["prompt_tokens"]
    assert count > 40 and abs(said - without - count) <= 0.2 * count
    assert pickle.loads(pickle.dumps(llm.tokenizer))(text) == llm.tokenizer(text)


async def test_a_completion_is_told_of_and_counted_once(tiny):
    counter = TokenCountingHandler(tokenizer=str.split)
    llm = LocalLLM(tiny, max_tokens=4, model_options={"n_threads": 1}, callback_manager=CallbackManager([counter]))
    used = 0
    for answer in (llm.complete("one"), list(llm.stream_complete("one"))[-1], await llm.acomplete("one")):
        used += answer.additional_kwargs["total_tokens"]
    used += [item async for item in await llm.astream_complete("one")][-1].additional_kwargs["total_tokens"]
    assert counter.total_llm_token_count == used and len(counter.llm_token_counts) == 4


def test_the_choice_of_the_llm_counts_where_a_call_makes_none(tiny):
    options = {"temperature": 0, "max_tokens": 100, "model_options": {"n_threads": 1}}
    asked = LocalLLM(tiny, chat_options={"tool_choice": "required", "parallel_tool_calls": True}, **options)
    made = asked._prepare_chat_with_tools([named("read")], "Go on.")
    assert (made["tool_choice"], made["parallel_tool_calls"]) == ("required", True)
    assert asked._prepare_chat_with_tools([named("read")], "x", tool_choice="none")["tool_choice"] == "none"
    assert asked.chat_with_tools([named("read")], "Go on.").message.additional_kwargs["tool_calls"]


def test_the_token_of_the_hub_is_in_nothing_that_is_shown_or_kept(tiny):
    for given in ({"model_options": {"token": "hf_secret"}}, {"api_key": "hf_secret"}):
        llm = LocalLLM(tiny, **given)
        assert llm.local_model.token == "hf_secret" == pickle.loads(pickle.dumps(llm)).local_model.token
        for shown in (repr(llm), str(llm.to_dict()), llm.to_json(), str(llm.model_dump())):
            assert "hf_secret" not in shown
    with pytest.raises(InvalidRequestError, match="api_key: given twice"):
        LocalLLM(tiny, api_key="a", model_options={"token": "b"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"loras": "adapter.gguf"}, "loras, control_vectors: must be lists"),
        ({"model_options": {"loras": []}}, "model_options: loras is an option of the LLM itself"),
        ({"model_options": {"chat_template": "x"}}, "model_options: chat_template is"),
    ],
)
def test_wrong_options_of_calls_are_errors_when_it_is_made_too(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        LocalLLM(tiny, **options)


def test_a_path_of_an_adapter_is_json(tiny):
    llm = LocalLLM(tiny, loras=[Path("a.gguf"), (Path("b.gguf"), 0.5)])
    assert json.loads(llm.to_json())["loras"] == ["a.gguf", ["b.gguf", 0.5]]


def test_what_it_says_of_itself_tells_files_apart(tiny, builder, tmp_path):
    place, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    shutil.copy(tiny, place)
    llm = LocalLLM(place)
    before = llm.to_dict()
    assert before["fingerprint"] and LocalLLM.from_dict(before).to_dict() == before
    shutil.copy(builder.build("gemma3"), other)
    other.replace(place)
    assert llm.to_dict()["fingerprint"] != before["fingerprint"]


def test_what_extractors_made_is_found_by_all_that_it_depends_on_and_nothing_else(tiny, builder, tmp_path):
    place, adapter = tmp_path / "model.gguf", tmp_path / "adapter.gguf"
    shutil.copy(tiny, place)
    adapter.write_bytes(b"one")
    node = [TextNode(text="x")]

    def key(**options: Any) -> str:
        return get_transformation_hash(node, SummaryExtractor(llm=LocalLLM(place, **{"loras": [str(adapter)], **options})))

    before = key()
    assert key(model_options={"n_threads": 1, "keep_alive": 60, "parallel": 2, "offline": True}) == before
    for options in ({"max_tokens": 7}, {"loras": []}, {"context_window": 512}, {"model_options": {"type_k": "f32"}}):
        assert key(**options) != before
    adapter.write_bytes(b"two")
    assert key() != before
    adapter.write_bytes(b"one")
    assert key() == before
    shutil.copy(builder.build("gemma3"), place)
    assert key() != before
    # What it leaves open is given anew.
    again = LocalLLM.from_dict(LocalLLM(place, model_options={"n_threads": 1}).to_dict(), model_options={"n_threads": 2})
    assert again.local_model.context_config.n_threads == 2


def test_there_is_room_for_a_prompt_whatever_an_answer_may_take(tiny):
    metadata = LocalLLM(tiny, context_window=512, max_tokens=512).metadata
    assert 0 < metadata.num_output <= metadata.context_window // 2
