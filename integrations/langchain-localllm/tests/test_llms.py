"""LocalLLM over the embedded model, and over tiny ones."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import pickle
import shutil
from pathlib import Path

import pytest
from langchain_core import exceptions
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import ConfigurableField
from langchain_localllm import LocalLLM

from localllm import loaded_models
from localllm.errors import ContextOverflowError, InvalidRequestError, ModelNotFoundError, UnsupportedModelError

PROMPT = "The capital of France is"
FIM = {f"tokenizer.ggml.fim_{part}_token_id": ("uint32", 5 + at) for at, part in enumerate(("pre", "suf", "mid"))}


@pytest.fixture(scope="module")
def llm():
    with LocalLLM(model="smollm2", temperature=0, max_tokens=12, n_ctx=1024) as llm:
        yield llm


@pytest.fixture
def tiny(models):
    with LocalLLM(model=str(models["qwen3"]), temperature=0, max_tokens=8, n_ctx=256, n_threads=1) as llm:
        yield llm


def n_steps(llm):
    return llm.local_model.engine.stats().n_steps


class Tokens(BaseCallbackHandler):
    """Collects what it is told."""

    def __init__(self):
        self.tokens, self.ends, self.errors = [], [], []

    def on_llm_new_token(self, token, **kwargs):
        self.tokens.append(token)

    def on_llm_end(self, response, **kwargs):
        self.ends.append(response)

    def on_llm_error(self, error, **kwargs):
        self.errors.append(error)


# ---- answers


def test_invoke_continues_the_text_as_it_is(llm):
    text = llm.invoke(PROMPT)
    assert isinstance(text, str) and text.startswith(" Paris")
    assert llm.local_model.complete(PROMPT, temperature=0, max_tokens=12).text == text


def test_stream_async_and_batch_say_the_same(llm):
    async def main():
        return await llm.ainvoke(PROMPT), [text async for text in llm.astream(PROMPT)], await llm.abatch([PROMPT])

    expected = llm.invoke(PROMPT)
    awaited, streamed, batched = asyncio.run(main())
    assert awaited == "".join(streamed) == batched[0] == "".join(llm.stream(PROMPT)) == expected
    assert len(list(llm.stream(PROMPT))) > 5


def test_prompts_and_their_answers_are_computed_together(tiny):
    prompts = ["one", "two", "three", "four"]
    alone = n_steps(tiny)
    tiny.invoke("zero")
    alone = n_steps(tiny) - alone
    before = n_steps(tiny)
    result = tiny.generate(prompts[:2], n=2, seed=1, temperature=1, ignore_eos=True)
    assert n_steps(tiny) - before <= alone + 3, "four answers took more batches than one"
    assert [len(group) for group in result.generations] == [2, 2]
    before = n_steps(tiny)
    assert len(tiny.batch(prompts)) == 4
    assert n_steps(tiny) - before <= alone + 3
    before = n_steps(tiny)
    assert len(tiny.batch(prompts, return_exceptions=True, max_tokens=150, ignore_eos=True)) == 4
    assert n_steps(tiny) - before < 300, "they began one by one, and ran one after the other"
    before = n_steps(tiny)
    assert len(asyncio.run(tiny.abatch(prompts))) == 4
    assert n_steps(tiny) - before <= alone + 3
    before = n_steps(tiny)
    tiny.batch(prompts, config={"max_concurrency": 1})
    assert n_steps(tiny) - before >= 4 * (alone - 2)


def test_batch_of_twenty_keeps_the_order(tiny):
    prompts = [f"{n} and" for n in range(20)]
    assert tiny.batch(prompts) == [tiny.local_model.complete(prompt, temperature=0, max_tokens=8).text for prompt in prompts]


def test_one_prompt_that_fails_leaves_the_others_alone(tiny):
    prompts = ["one", "two " * 400, "three"]
    with pytest.raises(ContextOverflowError):
        tiny.batch(prompts)
    for answers in (
        tiny.batch(prompts, return_exceptions=True),
        asyncio.run(tiny.abatch(prompts, return_exceptions=True)),
    ):
        assert [type(answer) for answer in answers] == [str, ContextOverflowError, str] or isinstance(
            answers[1], ContextOverflowError
        )
        assert answers[0] == tiny.invoke("one") and answers[2] == tiny.invoke("three")
    assert tiny.batch([]) == tiny.batch([], return_exceptions=True) == asyncio.run(tiny.abatch([], return_exceptions=True)) == []


def test_n_answers_have_seeds_that_follow_one_another(tiny):
    (group,) = tiny.generate(["one"], n=3, seed=7, temperature=1).generations
    assert [generation.generation_info["seed"] for generation in group] == [7, 8, 9]
    assert len({generation.text for generation in group}) == 3
    with pytest.raises(InvalidRequestError, match="n: a stream has one answer, not 2"):
        list(tiny.stream("one", n=2))


def test_usage_and_reasons_are_told(llm):
    result = llm.generate([PROMPT, "One, two,"])
    n_prompt = [len(llm.get_token_ids(prompt)) for prompt in (PROMPT, "One, two,")]
    assert result.llm_output == {
        "token_usage": {"prompt_tokens": sum(n_prompt), "completion_tokens": 24, "total_tokens": sum(n_prompt) + 24},
        "model_name": "smollm2",
    }
    info = result.generations[0][0].generation_info
    assert info["finish_reason"] == "length" and info["model_name"] == "smollm2" and info["model_provider"] == "localllm"
    used = info["usage_metadata"]
    assert (used["input_tokens"], used["output_tokens"], used["total_tokens"]) == (n_prompt[0], 12, n_prompt[0] + 12)
    assert used["input_token_details"]["cache_read"] <= n_prompt[0]


def test_a_stream_ends_with_the_same_facts(llm):
    handler = Tokens()
    text = "".join(llm.stream(PROMPT, config={"callbacks": [handler]}))
    assert "".join(handler.tokens) == text
    (generation,) = handler.ends[0].generations[0]
    expected = llm.generate([PROMPT]).generations[0][0].generation_info
    told = generation.generation_info
    assert told["finish_reason"] == "length" and told["usage_metadata"]["output_tokens"] == 12
    assert set(told) == set(expected) and told["model_name"] == "smollm2"


def test_streaming_tells_callbacks_of_tokens_on_invoke_too(llm):
    quiet, told = Tokens(), Tokens()
    plain = llm.invoke(PROMPT, config={"callbacks": [quiet]})
    streaming = llm.model_copy(update={"streaming": True})
    assert streaming.invoke(PROMPT, config={"callbacks": [told]}) == plain
    assert quiet.tokens == [] and "".join(told.tokens) == plain
    asynchronous = Tokens()
    assert asyncio.run(streaming.ainvoke(PROMPT, config={"callbacks": [asynchronous]})) == plain
    assert asynchronous.tokens == told.tokens
    used = told.ends[0].llm_output["token_usage"]
    assert used["completion_tokens"] == 12 and used["total_tokens"] == used["prompt_tokens"] + 12


def test_stop_of_a_call_takes_the_place_of_the_others(llm):
    stops = llm.model_copy(update={"stop": ["Paris"]})
    assert stops.invoke(PROMPT) == " " and "Paris" in stops.invoke(PROMPT, stop=["."])
    assert "." not in stops.invoke(PROMPT, stop=["."]) and "Paris" not in "".join(stops.stream(PROMPT))
    assert stops.bind(stop=["."]).invoke(PROMPT) == llm.invoke(PROMPT, stop=["."])
    assert stops.generate([PROMPT]).generations[0][0].generation_info["finish_reason"] == "stop"


def test_options_of_a_call(llm):
    assert llm.local_model.count_tokens(llm.invoke(PROMPT, max_tokens=3)) <= 3
    assert llm.invoke(PROMPT, num_predict=3) == llm.invoke(PROMPT, max_tokens=3)
    assert llm.invoke(PROMPT, temperature=1, seed=5) == llm.invoke(PROMPT, temperature=1, seed=5)
    assert llm.invoke(PROMPT, grammar='root ::= " Berlin"') == " Berlin"
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        llm.invoke(PROMPT, temprature=1)


def test_a_call_may_name_another_model(llm, models):
    other = llm.generate([PROMPT], model=str(models["qwen3"]))
    assert other.llm_output["model_name"] == str(models["qwen3"])
    assert other.generations[0][0].text != llm.invoke(PROMPT)
    assert llm._get_ls_params(model="other")["ls_model_name"] == "other"


def test_log_probabilities_in_the_form_of_openai(llm):
    info = llm.generate([PROMPT], logprobs=2, max_tokens=3).generations[0][0].generation_info
    assert info["logprobs"]["tokens"][0] == " Paris" and all(value <= 0 for value in info["logprobs"]["token_logprobs"])
    assert [len(top) for top in info["logprobs"]["top_logprobs"]] == [2, 2, 2]
    assert json.loads(json.dumps(info)) == info
    handler = Tokens()
    list(llm.stream(PROMPT, config={"callbacks": [handler]}, logprobs=2, max_tokens=3))
    assert handler.ends[0].generations[0][0].generation_info["logprobs"]["tokens"] == info["logprobs"]["tokens"]
    assert "logprobs" not in llm.generate([PROMPT], max_tokens=3).generations[0][0].generation_info


def test_chains_and_messages(llm):
    chain = PromptTemplate.from_template("The capital of {country} is") | llm.bind(stop=["."]) | StrOutputParser()
    assert chain.invoke({"country": "France"}).strip() == "Paris"
    assert llm.invoke([HumanMessage("Hello")])


# ---- filling in


def test_a_suffix_is_filled_in_before(builder):
    path = str(builder.build("qwen3", overrides=FIM))
    with LocalLLM(model=path, temperature=0, max_tokens=4, n_ctx=256, n_threads=1) as llm:
        filled = llm.invoke("one", suffix="two")
        assert filled == llm.local_model.complete("one", suffix="two", temperature=0, max_tokens=4).text != llm.invoke("one")
        always = llm.model_copy(update={"suffix": "two"})
        assert always.invoke("one") == filled == "".join(always.stream("one")) == asyncio.run(always.ainvoke("one"))
        assert always.batch(["one", "one"]) == [filled, filled]


def test_a_model_that_cannot_fill_in_says_so(llm):
    with pytest.raises(UnsupportedModelError, match="leave `suffix` out"):
        llm.invoke("def f():", suffix="return 1")


# ---- stopping


def test_breaking_off_a_stream_stops_the_work(llm):
    stream = llm.stream(PROMPT, max_tokens=None, ignore_eos=True)
    next(stream)
    stream.close()
    _rests(llm)

    async def main():
        async for _ in llm.astream(PROMPT, max_tokens=None, ignore_eos=True):
            break

    asyncio.run(main())
    _rests(llm)


def test_cancelling_a_task_stops_the_work(llm):
    async def main():
        task = asyncio.create_task(llm.ainvoke(PROMPT, max_tokens=None, ignore_eos=True, n=2))
        while llm.local_model.engine.stats().n_running < 2:
            await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
    _rests(llm)


def _rests(llm):
    while llm.local_model.engine.activity.busy:
        pass
    assert llm.local_model.engine.stats().computed_tokens < 900, "an answer went on to the end of the context"


# ---- tokens


def test_tokens_are_those_of_the_model_and_need_no_weights():
    llm = LocalLLM(model="smollm2")
    ids = llm.get_token_ids("Hello world")
    assert llm.local_model.detokenize(ids) == "Hello world" and llm.get_num_tokens("Hello world") == len(ids) == 2
    assert llm.get_num_tokens_from_messages([HumanMessage("Hello world")]) > 2
    assert not llm.local_model.loaded
    assert LocalLLM(model="smollm2", custom_get_token_ids=lambda text: [1, 2, 3]).get_num_tokens("x") == 3


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"temperature": -5}, "temperature: -5"),
        ({"max_tokens": 0}, "max_tokens:"),
        ({"num_predict": -3}, "max_tokens:"),
        ({"timeout": 0}, "timeout:"),
        ({"timeout": -1}, "timeout:"),
        ({"stop": [""]}, "stop:"),
        ({"n": 0}, "n\n"),
        ({"n": -1}, "n\n"),
        ({"logprobs": -2}, "n_probs"),
        ({"sampling": {"tools": []}}, "tools"),
        ({"n_ctx": "many"}, "n_ctx: must be an integer"),
        ({"sampling": {"top_q": 1}}, "top_q"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
        ({"n_ctx": 512, "num_ctx": 512}, "num_ctx: means the same as n_ctx"),
        ({"n_ctx": 512, "model_options": {"n_ctx": 1}}, "n_ctx: given twice"),
        ({"keep_alive": "5 parsecs"}, "keep_alive: '5 parsecs' is no time"),
        ({"grammar_path": "/nope.gbnf"}, "grammar_path: /nope.gbnf cannot be read"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        LocalLLM(model="smollm2", **options)


def test_options_go_where_they_belong_whatever_they_are_called(tmp_path):
    grammar = tmp_path / "yes.gbnf"
    grammar.write_text('root ::= "yes"')
    community = LocalLLM(
        model_path="smollm2",
        n_ctx=512,
        n_gpu_layers=-1,
        n_batch=64,
        repeat_penalty=1.1,
        seed=-1,
        grammar_path=grammar,
        max_tokens=-1,
    )
    assert community.model == "smollm2" and community.seed is None and community.max_tokens is None
    assert community.model_options == {"n_ctx": 512, "n_gpu_layers": "all", "n_batch": 64}
    assert community.sampling == {"repeat_penalty": 1.1, "grammar": 'root ::= "yes"'}
    ollama = LocalLLM(model="smollm2", num_ctx=512, num_predict=8, num_thread=1, num_gpu=2, repeat_last_n=32, keep_alive="5m")
    assert ollama.max_tokens == 8 and ollama.sampling == {"penalty_last_n": 32}
    assert ollama.model_options == {"n_ctx": 512, "n_threads": 1, "n_gpu_layers": 2, "keep_alive": 300}
    assert ollama.local_model.terms.keep_alive == 300
    assert LocalLLM(model="smollm2", keep_alive=-1).local_model.terms.keep_alive is None


def test_tracing_knows_who_answers(llm):
    params = llm._get_ls_params(stop=["x"], temperature=0.5)
    assert params["ls_provider"] == "localllm" and params["ls_model_type"] == "llm" and params["ls_model_name"] == "smollm2"
    assert params["ls_stop"] == ["x"] and params["ls_temperature"] == 0.5 and params["ls_max_tokens"] == 12
    assert llm.metadata["lc_versions"]["langchain-localllm"] and llm.asdict()["_type"] == llm._llm_type == "localllm"


# ---- life


def test_constructing_loads_nothing():
    llm = LocalLLM(model="nothing")
    assert llm._identifying_params["model"] == "nothing" and not llm.local_model.loaded
    with pytest.raises(ModelNotFoundError):
        llm.invoke("x")


def weights_of(path):
    return [entry for entry in loaded_models() if entry.purpose == "weights" and entry.path == str(path)]


def test_weights_are_shared_and_let_go_with_the_last(models, tmp_path):
    path = Path(shutil.copy(models["qwen3"], tmp_path))
    options = {"model": str(path), "n_ctx": 256, "n_threads": 1, "max_tokens": 2, "temperature": 0}
    one, other = LocalLLM(**options), LocalLLM(**options, top_k=5)
    assert one.invoke("one") and other.invoke("one") and len(weights_of(path)) == 1
    assert one.local_model.engine is other.local_model.engine
    one.close()
    assert len(weights_of(path)) == 1
    del other
    gc.collect()
    assert weights_of(path) == []
    assert one.invoke("one") and len(weights_of(path)) == 1
    one.close()
    assert weights_of(path) == []


def test_configuring_loads_nothing_again(models, tmp_path):
    paths = [shutil.copy(models[name], tmp_path) for name in ("qwen3", "qwen3-one-layer")]
    llm = LocalLLM(model=str(paths[0]), n_ctx=256, n_threads=1, max_tokens=2)
    configurable = llm.configurable_fields(temperature=ConfigurableField(id="temperature"), model=ConfigurableField(id="model"))
    engines = set()
    for path in paths * 2:
        for temperature in (0, 0.5):
            assert configurable.with_config(configurable={"temperature": temperature, "model": str(path)}).invoke("one")
            engines.add(llm.model_copy(update={"model": str(path)}).local_model.engine)
    assert [engine.stats().n_requests for engine in engines] == [4, 4], "something was loaded again"
    assert sorted(entry.path for entry in loaded_models() if entry.path in paths and entry.purpose == "weights") == sorted(paths)
    llm.close()
    assert not llm.local_model.loaded


def test_copies_and_pickles(tiny):
    text = tiny.invoke("one")
    again = pickle.loads(pickle.dumps(tiny))
    assert again == tiny and again.local_model.engine is tiny.local_model.engine and again.invoke("one") == text
    assert tiny.model_copy(deep=True).invoke("one") == text
    with pytest.raises(ModelNotFoundError):
        tiny.model_copy(update={"model": "/nope.gguf"}).invoke("x")


# ---- caching


def test_answers_come_from_the_cache_and_what_a_call_says_counts(tiny):
    tiny.cache = InMemoryCache()
    text = tiny.invoke("one")
    before = tiny.local_model.engine.stats().n_requests
    assert tiny.invoke("one") == text == asyncio.run(tiny.ainvoke("one"))
    assert tiny.local_model.engine.stats().n_requests == before
    # LangChain itself leaves a call's options out of the key.
    assert tiny.invoke("one", max_tokens=2) != text
    assert asyncio.run(tiny.ainvoke("one", max_tokens=3)) != text
    assert tiny.local_model.engine.stats().n_requests == before + 2
    assert tiny.invoke("one", max_tokens=2) and tiny.local_model.engine.stats().n_requests == before + 2
    assert len(tiny.generate(["one"], n=2).generations[0]) == 2


def test_another_file_under_the_same_name_is_another_model(models, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(models["qwen3"].read_bytes())
    llm = LocalLLM(model=str(path))
    first = llm._identifying_params
    path.write_bytes(models["qwen3-one-layer"].read_bytes())
    assert llm._identifying_params != first


@pytest.mark.parametrize(
    "change", [{"temperature": 1.0}, {"n": 2}, {"suffix": "x"}, {"top_k": 3}, {"n_ctx": 99}, {"repeat_penalty": 1.1}]
)
def test_every_option_is_part_of_what_answers_are_cached_under(change):
    assert LocalLLM(model="smollm2", **change)._identifying_params != LocalLLM(model="smollm2")._identifying_params


def test_errors_are_those_of_localllm_and_of_langchain(tiny, llm):
    with pytest.raises(exceptions.ContextOverflowError) as caught:
        tiny.invoke("two " * 400)
    assert isinstance(caught.value, ContextOverflowError) and caught.value.available_tokens == 256
    with pytest.raises(exceptions.ModelNotFoundError):
        list(LocalLLM(model="/nope.gguf").stream("x"))
    with pytest.raises(exceptions.ModelInvalidRequestError, match="temprature"):
        asyncio.run(tiny.ainvoke("x", temprature=1))
    with pytest.raises(exceptions.ModelInvalidRequestError, match="prompt: has half of a character"):
        tiny.invoke("a\ud800")
    with pytest.raises(exceptions.ModelTimeoutError):
        llm.invoke(PROMPT, timeout=0.01, max_tokens=None, ignore_eos=True)
