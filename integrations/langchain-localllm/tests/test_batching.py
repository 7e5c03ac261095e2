"""Many calls at once, of both models: limits, errors, threads, and the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading

import pytest
from langchain_core import exceptions as kinds
from langchain_core.callbacks import BaseCallbackHandler
from langchain_localllm import ChatLocalLLM, LocalLLM, batching

from localllm.errors import ContextOverflowError, InvalidRequestError

KINDS = [ChatLocalLLM, LocalLLM]
TOO_LONG = "b " * 5000


@pytest.fixture(scope="module", params=KINDS)
def model(request, tiny):
    return request.param(model=tiny, temperature=0, max_tokens=3, n_threads=1)


class Seen(BaseCallbackHandler):
    """What callbacks are told, and how many threads there are then."""

    def __init__(self):
        self.told, self.n_threads = [], 0

    def on_llm_start(self, *args, **kwargs):
        self.told.append("start")

    def on_chat_model_start(self, *args, **kwargs):
        self.told.append("start")

    def on_llm_end(self, *args, **kwargs):
        self.told.append("end")
        self.n_threads = max(self.n_threads, threading.active_count())

    def on_llm_error(self, *args, **kwargs):
        self.told.append("error")


def text(answer):
    return getattr(answer, "content", answer)


WAYS = {
    "batch": lambda model, inputs, config, **options: model.batch(inputs, config, **options),
    "abatch": lambda model, inputs, config, **options: asyncio.run(model.abatch(inputs, config, **options)),
    "batch_as_completed": lambda model, inputs, config, **options: [
        answer for _, answer in sorted(model.batch_as_completed(inputs, config, **options), key=lambda pair: pair[0])
    ],
    "abatch_as_completed": lambda model, inputs, config, **options: asyncio.run(_gathered(model, inputs, config, options)),
}


async def _gathered(model, inputs, config, options):
    pairs = [pair async for pair in model.abatch_as_completed(inputs, config, **options)]
    return [answer for _, answer in sorted(pairs, key=lambda pair: pair[0])]


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.mark.parametrize("most", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize("return_exceptions", [False, True])
def test_a_limit_that_is_none_is_an_error(model, way, most, return_exceptions):
    with pytest.raises(InvalidRequestError, match="max_concurrency: must be a number of calls") as caught:
        way(model, ["a", "b"], {"max_concurrency": most}, return_exceptions=return_exceptions)
    assert isinstance(caught.value, kinds.ModelInvalidRequestError)


@pytest.mark.parametrize("most", [1, 2, None])
def test_answers_come_in_order_and_callbacks_hear_of_each_call_once(model, way, most):
    seen = Seen()
    inputs = ["one", TOO_LONG, "two", "three"]
    answers = way(model, inputs, {"max_concurrency": most, "callbacks": [seen]}, return_exceptions=True)
    assert isinstance(answers[1], ContextOverflowError) and isinstance(answers[1], kinds.ContextOverflowError)
    assert [text(answers[at]) for at in (0, 2, 3)] == [text(model.invoke(inputs[at])) for at in (0, 2, 3)]
    assert sorted(seen.told) == ["end"] * 3 + ["error"] + ["start"] * 4


def test_the_first_error_is_raised(model, way):
    with pytest.raises(ContextOverflowError):
        way(model, ["one", TOO_LONG], None)
    assert way(model, [], None) == [] == way(model, [], None, return_exceptions=True)


def test_the_loop_of_a_thread_stays_its_own(model):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        for way in ("batch", "batch_as_completed"):
            for return_exceptions in (False, True):
                assert len(WAYS[way](model, ["a", "b"], None, return_exceptions=return_exceptions)) == 2
        assert asyncio.get_event_loop() is loop and not loop.is_closed()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_many_calls_need_no_thread_each(model):
    before, seen = threading.active_count(), Seen()
    pairs = list(model.batch_as_completed([str(n) for n in range(120)], {"callbacks": [seen]}, max_tokens=1))
    assert sorted(at for at, _ in pairs) == list(range(120))
    assert seen.n_threads - before < 60 and threading.active_count() <= before + 1


def test_leaving_answers_as_they_are_completed_stops_the_others(endless, at_rest):
    endless.invoke("loaded", max_tokens=1)
    before = threading.active_count()
    answers = endless.batch_as_completed([f"{n} and" for n in range(6)], {"max_concurrency": 2}, max_tokens=400)
    next(answers)
    answers.close()
    assert threading.active_count() == before and at_rest(endless)

    async def main():
        async with contextlib.aclosing(endless.abatch_as_completed(["a", "b", "c"], max_tokens=400)) as answers:
            async for _ in answers:
                break

    asyncio.run(main())
    assert at_rest(endless)


async def test_coroutines_run_beside_a_loop_with_the_callers_variables():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    async def main():
        await asyncio.sleep(0)
        return variable.get(), threading.current_thread().name

    async def count():
        for n in range(3):
            yield n, variable.get()
        raise ValueError("the end")

    assert batching.run(main) == ("here", "localllm-batch")
    found = []
    with pytest.raises(ValueError, match="the end"):
        for item in batching.iterated(count):
            found.append(item)
    assert found == [(0, "here"), (1, "here"), (2, "here")]
