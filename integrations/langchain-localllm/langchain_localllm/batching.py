"""Many calls at once: all are begun together, and the engine's batches take them up."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list

from langchain_localllm.errors import model_errors
from localllm.errors import InvalidRequestError

T = TypeVar("T")
Configs = RunnableConfig | Sequence[RunnableConfig] | None


def answers(
    model: Runnable[Any, Any], inputs: Sequence[Any], config: Configs, return_exceptions: bool, options: dict[str, Any]
) -> AsyncGenerator[tuple[int, Any], None]:
    """A model's answers to several inputs as they end, each with the place of its input.

    Args:
        model: what answers.
        inputs, config, return_exceptions: as of `Runnable.abatch`.
        options: of the calls.

    Raises:
        InvalidRequestError: "max_concurrency" is no number of calls.
        Exception: As the first that fails, unless exceptions are to be returned; the others are cancelled, and have ended.
    """

    async def answer(input: Any, config: RunnableConfig) -> Any:
        try:
            return await model.ainvoke(input, config, **options)
        except Exception as error:
            if return_exceptions:
                return error
            raise

    configs = get_config_list(config, len(inputs))
    calls = [lambda pair=pair: answer(*pair) for pair in zip(inputs, configs, strict=True)]
    return as_completed(calls, limit(configs))


# ---- methods of both models


def batch_as_completed(
    self: Runnable[Any, Any],
    inputs: Sequence[Any],
    config: Configs = None,
    *,
    return_exceptions: bool = False,
    **kwargs: Any,
) -> Generator[tuple[int, Any], None, None]:
    """Answers as they end, each with the place of its input; arguments as of `batch`. One thread serves them all."""
    return iterated(lambda: answers(self, inputs, config, return_exceptions, kwargs))


def abatch_as_completed(
    self: Runnable[Any, Any],
    inputs: Sequence[Any],
    config: Configs = None,
    *,
    return_exceptions: bool = False,
    **kwargs: Any,
) -> AsyncGenerator[tuple[int, Any], None]:
    """Like `batch_as_completed`, for coroutines; closing it stops them all."""
    return answers(self, inputs, config, return_exceptions, kwargs)


# ---- how they run


def limit(configs: Sequence[RunnableConfig]) -> int | None:
    """How many calls may be under way; None: all.

    Raises:
        InvalidRequestError: "max_concurrency" is no number of calls.
    """
    most: Any = configs[0].get("max_concurrency") if configs else None
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        with model_errors():
            raise InvalidRequestError(f"max_concurrency: must be a number of calls, at least 1, or None for all, not {most!r}")
    return most


async def in_order(answers: AsyncGenerator[tuple[int, T], None], n: int) -> list[T]:
    """All n answers, in the order of their inputs."""
    results: list[Any] = [None] * n
    async for at, result in answers:
        results[at] = result
    return results


async def as_completed(
    calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], limit: int | None
) -> AsyncGenerator[tuple[int, T], None]:
    """The results of several coroutines as they end, each with its place.

    Whatever ends it, by closing or an error, ends the others.

    Args:
        calls: what makes the coroutines.
        limit: int, how many may run at a time; None: all.
    """
    gate = asyncio.Semaphore(limit) if limit is not None else contextlib.nullcontext()
    done: asyncio.Queue[tuple[int, asyncio.Task[T]]] = asyncio.Queue()
    tasks: list[asyncio.Task[T]] = []

    async def run(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with gate:
            return await call()

    try:
        for at, call in enumerate(calls):
            task = asyncio.ensure_future(run(call))
            task.add_done_callback(lambda ended, at=at: done.put_nowait((at, ended)))  # type: ignore[misc]
            tasks.append(task)
            await asyncio.sleep(0)  # beginning a call takes a millisecond: the loop's other tasks come in between
        for _ in calls:
            at, ended = await done.get()
            yield at, ended.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- for callers that are no coroutines


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine; also where a loop runs in this thread already (Jupyter)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        return _ran(loop, loop.create_task(main()))
    aside = _Aside(main())
    try:
        return aside.result.result()
    finally:
        aside.stop()


def iterated(main: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
    """What an async generator gives, from one thread; closing the iterator closes it."""
    given: queue.SimpleQueue[Any] = queue.SimpleQueue()
    end = object()

    async def pump() -> None:
        async with contextlib.aclosing(main()) as results:
            async for result in results:
                given.put(result)

    aside = _Aside(pump())
    aside.result.add_done_callback(lambda _: given.put(end))
    try:
        while (result := given.get()) is not end:
            yield result
        aside.result.result()
    finally:
        aside.stop()


class _Aside(Generic[T]):
    """A coroutine that runs in a thread and a loop of its own.

    Attributes:
        result: Future of its result.
    """

    def __init__(self, main: Coroutine[Any, Any, T]) -> None:
        self.result: Future[T] = Future()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(main)  # with the caller's context variables
        self._thread = threading.Thread(target=self._work, name="localllm-batch")
        self._thread.start()

    def _work(self) -> None:
        try:
            result = _ran(self._loop, self._task)
        except BaseException as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(result)

    def stop(self) -> None:
        """Cancels it, unless it has ended, and waits for the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()


def _ran(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """The result of a task; its loop is closed with all that runs in it.

    asyncio.run would leave a thread without the loop that was set there.
    """
    try:
        return loop.run_until_complete(task)
    finally:
        try:
            loop.run_until_complete(_end_others())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
