"""Streams that are closed or dropped: the work ends, also where those that listen keep what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.localllm import LocalLLM
from pydantic import BaseModel, Field

QUESTION = [ChatMessage(role="user", content="What is it?")]
PROMPT = PromptTemplate("Something.")
ENDLESS: dict[str, Any] = {"max_tokens": 3500, "ignore_eos": True}


class Speech(BaseModel):
    """What is said."""

    text: str = Field(min_length=5000)


class Keeper(BaseEventHandler):
    """Keeps all events of instrumentation."""

    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def llm(tiny: Path) -> Iterator[LocalLLM]:
    """One whose listeners keep everything, and which does one thing at a time."""
    keeper, dispatcher = Keeper(), get_dispatcher()
    dispatcher.add_event_handler(keeper)
    debug = LlamaDebugHandler(print_trace_on_end=False)
    options = {"n_threads": 1, "parallel": 1}
    llm = LocalLLM(tiny, temperature=0, max_tokens=3500, model_options=options, callback_manager=CallbackManager([debug]))
    yield llm
    dispatcher.event_handlers.remove(keeper)
    assert all(len(pair) == 2 for pair in debug.get_event_pairs(CBEventType.LLM))
    llm.close()


def computed(llm: LocalLLM) -> int:
    """Tokens computed in all, once nothing else is under way: another request waits for that."""
    llm.chat(QUESTION, max_tokens=1)
    return llm.local_model.engine.stats().computed_tokens


STREAMS: dict[str, Any] = {
    "chat": lambda llm: llm.stream_chat(QUESTION, **ENDLESS),
    "completion": lambda llm: llm.stream_complete("Once", **ENDLESS),
    "formatted": lambda llm: llm.stream_complete("Once", formatted=True, **ENDLESS),
    "object": lambda llm: llm.stream_structured_predict(Speech, PROMPT, ENDLESS),
    "texts": lambda llm: llm.stream(PROMPT),
}
ASTREAMS: dict[str, Any] = {
    "chat": lambda llm: llm.astream_chat(QUESTION, **ENDLESS),
    "completion": lambda llm: llm.astream_complete("Once", **ENDLESS),
    "formatted": lambda llm: llm.astream_complete("Once", formatted=True, **ENDLESS),
    "object": lambda llm: llm.astream_structured_predict(Speech, PROMPT, ENDLESS),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_closed_stream_ends_the_work_whoever_keeps_what_it_is_told(llm, name, dropped):
    before = computed(llm)
    stream = STREAMS[name](llm)
    next(stream)
    if dropped:
        del stream
    else:
        stream.close()
    assert computed(llm) - before < 2000


@pytest.mark.parametrize("name", ASTREAMS)
async def test_so_does_one_of_coroutines(llm, name):
    before = computed(llm)
    stream = await ASTREAMS[name](llm)
    await stream.__anext__()
    await stream.aclose()
    assert computed(llm) - before < 2000


async def test_what_a_stream_raises_reaches_its_reader_and_those_that_listen(llm):
    stream = llm.stream_chat(QUESTION, **ENDLESS)
    next(stream)
    with pytest.raises(KeyError, match="mine"):
        stream.throw(KeyError("mine"))
    astream = await llm.astream_chat(QUESTION, **ENDLESS)
    await astream.__anext__()
    with pytest.raises(KeyError, match="mine"):
        await astream.athrow(KeyError("mine"))
