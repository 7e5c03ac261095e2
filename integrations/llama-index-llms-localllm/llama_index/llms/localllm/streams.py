"""Streams of localllm as streams of LlamaIndex. Closing one closes the stream under it, which stops the work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

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
        ended(growing.now)
    finally:
        await responses.aclose()
