"""Options by every name, where they belong, and errors about those that are none."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from pathlib import Path

import pytest
from langchain_core import exceptions as kinds
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.load import dumps
from langchain_localllm import ChatLocalLLM, LocalLLM, LocalLLMCrossEncoder, LocalLLMEmbeddings, LocalLLMReranker, calls
from langchain_localllm import errors as typed

from localllm import Request, errors
from localllm.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"base_url": "http://127.0.0.1"}, "base_url: unknown option"),
        ({"temperature": -5}, "temperature:"),
        ({"max_tokens": 0}, "max_tokens:"),
        ({"timeout": 0}, "timeout:"),
        ({"max_retries": -1}, "max_retries:"),
        ({"stop": [""]}, "stop:"),
        ({"sampling": {"top_q": 1}}, "top_q"),
        ({"chat_options": {"tool": []}}, "tool"),
        ({"model_options": {"n_ctxx": 1}}, "did you mean 'n_ctx'"),
        ({"n_ctx": -1}, "n_ctx:"),
        ({"num_ctx": 512, "n_ctx": 512}, "num_ctx: means the same as n_ctx"),
        ({"n_batch": 1, "model_options": {"n_batch": 1}}, "n_batch: given twice"),
        ({"keep_alive": "soon"}, "keep_alive:"),
    ],
)
def test_wrong_options_are_errors_when_it_is_made(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ChatLocalLLM(model="smollm2", **options)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        # the documented constructors of ChatLlamaCpp and ChatOllama
        (
            {"model_path": "a.gguf", "n_ctx": 512, "n_gpu_layers": -1, "n_batch": 300, "max_tokens": 512, "repeat_penalty": 1.5,
             "top_p": 0.5, "temperature": 0.5, "n_threads": 2, "verbose": True},
            {"model": "a.gguf", "n_ctx": 512, "n_gpu_layers": "all", "n_batch": 300, "max_tokens": 512, "repeat_penalty": 1.5,
             "top_p": 0.5, "temperature": 0.5, "n_threads": 2, "verbose": True},
        ),
        (
            {"model": "qwen3-4b", "num_ctx": 512, "num_predict": 9, "reasoning": False, "format": "json", "keep_alive": "5m",
             "repeat_last_n": 8, "num_thread": 2},
            {"model": "qwen3-4b", "n_ctx": 512, "max_tokens": 9, "enable_thinking": False, "response_format": "json",
             "keep_alive": 300, "penalty_last_n": 8, "n_threads": 2},
        ),
        ({"model": "a", "num_predict": -1, "seed": -1, "format": "", "keep_alive": -1}, {"model": "a"}),
        ({"model_name": "a", "max_completion_tokens": 5, "request_timeout": 3}, {"model": "a", "max_tokens": 5, "timeout": 3}),
    ],
)  # fmt: skip
def test_names_of_other_classes_mean_ours(given, meant):
    one, other = ChatLocalLLM(**given), ChatLocalLLM(**meant)
    assert one.model_dump(exclude={"profile"}) == other.model_dump(exclude={"profile"})
    assert repr(vars(one.local_model.context_config)) == repr(vars(other.local_model.context_config))


@pytest.mark.parametrize(
    "usual", [{"max_tokens": -1}, {"num_predict": -1}, {"num_predict": -2}, {"options": {"num_predict": -1}}]
)
def test_a_call_may_say_that_there_is_no_limit(llm, usual):
    model = llm.model_copy(update={"n_ctx": 128, "sampling": {"ignore_eos": True}})
    assert model.invoke("one", **usual).usage_metadata["total_tokens"] > 100
    assert model.invoke("one", max_tokens=None).usage_metadata["output_tokens"] == 24
    plain = LocalLLM(model=llm.model, n_ctx=128, n_threads=1, max_tokens=5, ignore_eos=True)
    for unlimited in (usual, {"max_tokens": None}, {"num_predict": None}):
        assert plain.generate(["one"], **unlimited).llm_output["token_usage"]["total_tokens"] > 100
    for name in ("max_tokens", "num_predict"):
        assert LocalLLM(model=llm.model, **{name: None}).max_tokens is None is LocalLLM(model=llm.model, **{name: -1}).max_tokens


def test_a_call_may_take_back_what_the_constructor_says(llm):
    seeded = llm.model_copy(update={"seed": 5, "chat_options": {"response_format": "json"}, "temperature": 1.0})
    assert seeded.invoke("one").response_metadata["seed"] == 5 == seeded.invoke("one", seed=None).response_metadata["seed"]
    assert len({seeded.invoke("one", seed=-1, max_tokens=1).response_metadata["seed"] for _ in range(3)}) == 3
    assert seeded.invoke("one", response_format=None).content[:1] == "{" == seeded.invoke("one", format=None).content[:1]
    assert seeded.invoke("one", format="", temperature=0).content == llm.invoke("one").content


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"options": [1]}, "options: must be a dict of options, not list"),
        ({"sampling": "hot"}, "sampling: must be a dict of options, not str"),
        ({"keep_alive": -1}, "keep_alive: says how the model is loaded"),
        ({"num_predict": 1, "max_tokens": 2}, "num_predict: means the same as max_tokens"),
    ],
)
def test_wrong_options_of_a_call_are_errors(llm, call, message):
    for model in (llm, LocalLLM(model=llm.model)):
        with pytest.raises(InvalidRequestError, match=message) as caught:
            model.invoke("one", **call)
        assert isinstance(caught.value, kinds.ModelInvalidRequestError)


def test_a_path_of_a_call_is_named_as_text(llm):
    assert llm.invoke("one", model=Path(llm.model)).response_metadata["model_name"] == llm.model


def test_fields_come_before_the_dictionaries_and_may_be_configured_anew():
    llm = ChatLocalLLM("smollm2", temperature=0.5, sampling={"temperature": 0.1}, dry_multiplier=0.8)
    assert llm._defaults()["temperature"] == 0.5 and llm.sampling["dry_multiplier"] == 0.8
    again = ChatLocalLLM(**{**llm.__dict__, "temperature": 0.7})
    assert again._defaults() == {**llm._defaults(), "temperature": 0.7}


# ---- tokens


KINDS = [ChatLocalLLM, LocalLLM, LocalLLMEmbeddings, LocalLLMReranker, LocalLLMCrossEncoder]
TOKENS = [{"api_key": "hf_mine"}, {"token": "hf_mine"}, {"model_options": {"token": "hf_mine"}}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_the_environment_stays_there(kind, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    made = kind(model="smollm2")
    assert made.local_model.token is None is made.api_key and b"hf_mine" not in pickle.dumps(made)
    monkeypatch.delenv("HF_TOKEN")
    assert kind.model_validate_json(made.model_dump_json(exclude={"metadata"})).local_model.token is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", TOKENS)
def test_a_token_gets_to_the_hub_and_nowhere_else(kind, given):
    made = kind(model="smollm2", **given)
    assert made.local_model.token == "hf_mine" == pickle.loads(pickle.dumps(made)).local_model.token
    assert made.model_copy(update={"model": "qwen3-4b"}).local_model.token == "hf_mine"
    shown = [repr(made), str(made), made.model_dump(), made.model_dump_json(), dumps(made)]
    if hasattr(made, "asdict"):
        shown += [made._serialized, made.asdict(), made._identifying_params, made._get_ls_params()]
    assert "hf_mine" not in str(shown)
    assert kind.model_validate(made.model_dump(exclude={"metadata", "profile"})).local_model.token is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", TOKENS)
def test_errors_show_no_token(kind, given):
    for wrong in ({"n_ctx": -1}, {"model": 5}, {"n_ctxx": 5}, {"n_ctx": 5, "num_ctx": 5}):
        with pytest.raises(ValueError) as caught:
            kind(**{"model": "smollm2", **given, **wrong})
        assert "hf_mine" not in str(caught.value)
    if given != TOKENS[0]:
        with pytest.raises(ValueError, match="token: means the same as api_key"):
            kind(model="smollm2", **given, api_key="hf_other")


def test_tracers_are_told_no_token(tiny):
    class Seen(BaseCallbackHandler):
        told = ""

        def on_llm_start(self, serialized, prompts, **kwargs):
            self.told += repr((serialized, kwargs))

        def on_chat_model_start(self, serialized, messages, **kwargs):
            self.told += repr((serialized, kwargs))

    for kind in (LocalLLM, ChatLocalLLM):
        seen = Seen()
        kind(model=tiny, model_options={"token": "hf_mine"}, max_tokens=1, n_threads=1).invoke("x", {"callbacks": [seen]})
        assert "invocation_params" in seen.told and "hf_mine" not in seen.told


@pytest.mark.parametrize("name", ["token", "api_key"])
def test_a_token_is_no_option_of_a_call(llm, name):
    with pytest.raises(InvalidRequestError, match="api_key: says how the model is loaded") as caught:
        llm.invoke("x", **{name: "hf_mine"})
    assert "hf_mine" not in str(caught.value)


# ---- errors


@pytest.mark.parametrize(
    "name",
    [name for name, kind in vars(errors).items() if isinstance(kind, type) and errors.LocalLLMError in kind.__mro__[1:]],
)
def test_every_error_is_one_of_langchains_kinds(name):
    kind = getattr(errors, name)
    error = kind("text", 2, 1) if "__init__" in vars(kind) and name != "NativeError" else kind("text")
    with pytest.raises(kind) as caught, typed.model_errors():
        raise error
    assert caught.value is error and isinstance(error, kinds.ModelError) and type(error) is getattr(typed, name)
    assert str(error) == "text"


def test_the_kinds_that_programs_ask_for(llm, tiny):
    with pytest.raises(kinds.ContextOverflowError) as caught:
        llm.invoke("river " * 5000)
    assert caught.value.needed_tokens > caught.value.available_tokens and not caught.value.is_retryable
    with pytest.raises(kinds.ModelNotFoundError):
        ChatLocalLLM(model="/nowhere.gguf").invoke("a")
    with pytest.raises(kinds.ModelInvalidRequestError):
        llm.invoke("a", temperature=-1)
    with pytest.raises(kinds.ModelError):
        list(ChatLocalLLM(model=__file__).stream("a"))


async def test_a_full_queue_is_tried_again(endless):
    full = endless.model_copy(update={"model_options": {**endless.model_options, "max_queue": 1}, "parallel": 1})
    streams = [full.stream("a")]
    next(streams[0])
    engine = full.local_model.engine
    waiting = engine.submit(full_request(full), lambda event: None)
    with pytest.raises(kinds.ModelRateLimitError) as caught:
        full.invoke("c", max_tokens=1)
    assert caught.value.is_retryable
    with pytest.raises(errors.QueueFullError):
        await full.ainvoke("c", max_tokens=1, max_retries=1)

    def make_room():
        engine.cancel(waiting)
        streams[0].close()

    asyncio.get_running_loop().call_later(0.05, make_room)
    answer = await full.ainvoke("c", max_tokens=1, max_retries=4)
    assert answer.response_metadata["finish_reason"] == "length"
    assert [chunk async for chunk in full.astream("c", max_tokens=1, max_retries=1)]


async def test_all_tries_share_one_timeout(endless):
    full = endless.model_copy(update={"model_options": {**endless.model_options, "max_queue": 1}, "parallel": 1})
    with contextlib.closing(full.stream("a")) as running:
        next(running)
        engine = full.local_model.engine
        waiting = engine.submit(full_request(full), lambda event: None)
        asked = {"max_tokens": 1, "timeout": 0.4, "max_retries": 10**9}
        with pytest.raises(kinds.ModelTimeoutError, match="queue was full for 0.4 seconds"):
            full.invoke("c", **asked)
        with pytest.raises(errors.RequestTimeoutError):
            await full.ainvoke("c", **asked)
        with pytest.raises(errors.RequestTimeoutError):
            list(full.stream("c", **asked))
        engine.cancel(waiting)


def test_pauses_grow_to_a_second():
    assert [round(seconds, 3) for seconds in calls.pauses(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] and list(calls.pauses(0)) == []


@pytest.mark.parametrize("wrong", [-3, "a", 1.5, True])
def test_a_number_of_tries_that_is_none_is_an_error(llm, wrong):
    with pytest.raises(kinds.ModelInvalidRequestError, match="max_retries: must be a number of further tries"):
        llm.invoke("a", max_retries=wrong)


def full_request(llm):
    return Request(prompt=tuple(llm.get_token_ids("b")), max_tokens=5)


def test_errors_survive_pickling():
    error = errors.InvalidRequestError("a")
    with pytest.raises(InvalidRequestError), typed.model_errors():
        raise error
    assert type(pickle.loads(pickle.dumps(error))) is typed.InvalidRequestError
