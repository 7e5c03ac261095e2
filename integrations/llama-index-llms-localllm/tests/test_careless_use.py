"""Options and prompts as people give them: what is right is kept wherever an LLM goes, what is wrong is told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.localllm import LocalLLM

from localllm import SamplingParams
from localllm.errors import InvalidRequestError

QUESTION = [ChatMessage(role="user", content="What is it?")]
ITEM = 'root ::= "an item of a list"'


def tool() -> FunctionTool:
    return FunctionTool.from_defaults(lambda item: item, name="take", description="Takes it.")


@pytest.fixture(scope="module")
def options(tiny: Path) -> dict[str, Any]:
    return {"model": tiny, "temperature": 0, "max_tokens": 100, "model_options": {"n_threads": 1}}


def test_tools_of_all_chats_go_where_the_llm_goes(options):
    llm = LocalLLM(chat_options={"tools": [tool()], "tool_choice": "required"}, **options)
    called = llm.get_tool_calls_from_response(llm.chat(QUESTION))[0].tool_name
    for again in (pickle.loads(pickle.dumps(llm)), LocalLLM.from_json(llm.to_json(), model_options={"n_threads": 1})):
        assert again.chat_options == llm.chat_options
        assert again.get_tool_calls_from_response(again.chat(QUESTION))[0].tool_name == called == "take"


def test_biases_of_tokens_go_where_the_llm_goes(options):
    token = LocalLLM(**options).tokenizer("a")[0]
    llm = LocalLLM(sampling={"logit_bias": {token: 1000.0}}, **options)
    for again in (llm, LocalLLM.from_json(llm.to_json(), model_options={"n_threads": 1})):
        assert again.chat(QUESTION, max_tokens=4).message.content == "aaaa"


@pytest.mark.parametrize("form", ["complete", "stream", "async", "astream"])
async def test_a_stop_of_the_llm_does_not_cut_what_a_text_has_to_be(options, form):
    llm = LocalLLM(stop=["item"], **options)
    of_llm = LocalLLM(stop=["item"], sampling={"grammar": ITEM}, **options)
    for asked, more in ((llm, {"grammar": ITEM}), (llm, {"sampling": SamplingParams(grammar=ITEM)}), (of_llm, {})):
        assert await _completed(asked, form, "Once", formatted=True, **more) == "an item of a list"
    assert await _completed(llm, form, "Once", formatted=True, grammar=ITEM, stop=["item"]) == "an "


async def _completed(llm: LocalLLM, form: str, prompt: Any, **more: Any) -> str:
    if form == "complete":
        return llm.complete(prompt, **more).text
    if form == "async":
        return (await llm.acomplete(prompt, **more)).text
    if form == "stream":
        return list(llm.stream_complete(prompt, **more))[-1].text
    return [item async for item in await llm.astream_complete(prompt, **more)][-1].text


@pytest.mark.parametrize("prompt", [None, 5, PromptTemplate("Something."), QUESTION[0], ["a"], b"a"])
@pytest.mark.parametrize("form", ["complete", "stream", "async", "astream"])
async def test_what_is_no_prompt_is_not_answered(options, form, prompt):
    llm = LocalLLM(**options)
    for formatted in (False, True):
        with pytest.raises(InvalidRequestError, match=f"^prompt: must be text, not {type(prompt).__name__}"):
            await _completed(llm, form, prompt, formatted=formatted)


@pytest.mark.parametrize("name", ["model_path", "model_url"])
def test_the_model_by_the_name_that_another_class_has_for_it(name):
    with pytest.raises(InvalidRequestError, match=f"^{name}: unknown option; give it as model"):
        LocalLLM(**{name: "x.gguf"})
    with pytest.raises(InvalidRequestError, match="^model: must be text or a path"):
        LocalLLM()
