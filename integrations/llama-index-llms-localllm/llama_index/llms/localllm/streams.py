"""Streams of localllm as streams of LlamaIndex. Closing one closes the stream under it, which stops the work."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, closing
from typing import Any, ParamSpec, TypeVar

from llama_index.core.base.llms.types import (
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
)
from llama_index.core.program.utils import FlexibleModel
from llama_index.llms.localllm.responses import Growing, text_so_far
from llama_index.llms.localllm.structured import GrowingObject, Model, ended, progressed

from localllm import ChatDelta, Delta, Finished

P = ParamSpec("P")
Item = TypeVar("Item")
Stream = Callable[P, Generator[Item, None, None]]
AStream = Callable[P, Coroutine[Any, Any, AsyncGenerator[Item, None]]]


def stream_told(tell: Callable[[Any], Any]) -> Callable[[Stream[P, Item]], Stream[P, Item]]:
    """A decorator as `tell`, one of LlamaIndex's callbacks, for a method that gives a stream: what closes that stops the work.

    LlamaIndex's generator, which goes round the method's, does not close it. Python does when nobody holds it any more, but a
    handler that keeps what it is told (a LlamaDebugHandler, say) keeps the exception of the closing, and with it the stream.
    """

    def decorate(method: Stream[P, Item]) -> Stream[P, Item]:
        @functools.wraps(method)
        def told(*args: P.args, **kwargs: P.kwargs) -> Generator[Item, None, None]:
            begun: list[Generator[Item, None, None]] = []

            def begin(*args: P.args, **kwargs: P.kwargs) -> Generator[Item, None, None]:
                begun.append(method(*args, **kwargs))
                return begun[0]

            return with_work(tell(begin)(*args, **kwargs), begun[0])

        return told

    return decorate


def astream_told(tell: Callable[[Any], Any]) -> Callable[[AStream[P, Item]], AStream[P, Item]]:
    """Like `stream_told`, for coroutines."""

    def decorate(method: AStream[P, Item]) -> AStream[P, Item]:
        @functools.wraps(method)
        async def told(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Item, None]:
            begun: list[AsyncGenerator[Item, None]] = []

            async def begin(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Item, None]:
                begun.append(await method(*args, **kwargs))
                return begun[0]

            return awith_work(await tell(begin)(*args, **kwargs), begun[0])

        return told

    return decorate


def with_work(told: Generator[Item, None, None], work: Generator[Any, None, None]) -> Generator[Item, None, None]:
    """A stream that is made of another, which closing it closes too."""
    with closing(work):
        yield from told


async def awith_work(told: AsyncGenerator[Item, None], work: AsyncGenerator[Any, None]) -> AsyncGenerator[Item, None]:
    """Like `with_work`, for coroutines."""
    async with aclosing(work), aclosing(told):
        async for item in told:
            yield item


def grow(deltas: Generator[ChatDelta, None, None], model: str) -> ChatResponseGen:
    """The responses of a chat: each has the message so far, and what was added; `model` is its name in `raw`."""
    growing = Growing(model)
    try:
        for delta in deltas:
            yield growing.add(delta)
    finally:
        deltas.close()


async def agrow(deltas: AsyncGenerator[ChatDelta, None], model: str) -> ChatResponseAsyncGen:
    """Like `grow`, for coroutines."""
    growing = Growing(model)
    try:
        async for delta in deltas:
            yield growing.add(delta)
    finally:
        await deltas.aclose()


def grow_text(events: Generator[Delta | Finished, None, None], model: str) -> CompletionResponseGen:
    """The responses of a text that is continued, as `grow`."""
    so_far = ""
    try:
        for event in events:
            response = text_so_far(so_far, event, model)
            so_far = response.text
            yield response
    finally:
        events.close()


async def agrow_text(events: AsyncGenerator[Delta | Finished, None], model: str) -> CompletionResponseAsyncGen:
    """Like `grow_text`, for coroutines."""
    so_far = ""
    try:
        async for event in events:
            response = text_so_far(so_far, event, model)
            so_far = response.text
            yield response
    finally:
        await events.aclose()


def grow_object(responses: ChatResponseGen, output_cls: type[Model]) -> Generator[Model | FlexibleModel, None, None]:
    """An object each time that something of it is new; the last one is of its class."""
    growing = GrowingObject(output_cls)
    try:
        for response in responses:
            if growing.add(response) and growing.now is not None:
                yield progressed(growing.now)
        # Of the class only now: the stream has told its end, and the tokens that it took, whatever becomes of the object.
        if growing.end() and growing.now is not None:
            yield progressed(growing.now)
        ended(growing.now)
    finally:
        responses.close()


async def agrow_object(responses: ChatResponseAsyncGen, output_cls: type[Model]) -> AsyncGenerator[Model | FlexibleModel, None]:
    """Like `grow_object`, for coroutines."""
    growing = GrowingObject(output_cls)
    try:
        async for response in responses:
            if growing.add(response) and growing.now is not None:
                yield progressed(growing.now)
        # Of the class only now: the stream has told its end, and the tokens that it took, whatever becomes of the object.
        if growing.end() and growing.now is not None:
            yield progressed(growing.now)
        ended(growing.now)
    finally:
        await responses.aclose()
