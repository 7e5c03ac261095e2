"""Work in a thread beside the loop: results, failures, and what a cancelled task leaves behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from localllm.errors import CorruptFileError, DownloadCancelledError
from localllm.hub.asynchronous import in_thread
from localllm.hub.progress import CancelToken

HERE = contextvars.ContextVar("HERE", default="")


async def test_the_result_comes_from_another_thread_that_sees_the_callers_context():
    def work(a, *, b, cancel):
        assert not cancel.cancelled
        return a, b, HERE.get(), threading.current_thread() is threading.main_thread()

    HERE.set("task")
    assert await in_thread(work, 1, b=2) == (1, 2, "task", False)


async def test_failures_come_as_they_are():
    def work(*, cancel):
        raise CorruptFileError("x.gguf: damaged")

    with pytest.raises(CorruptFileError, match="x.gguf"):
        await in_thread(work)


async def test_the_loop_goes_on_and_many_may_wait_at_once():
    gate = threading.Barrier(40)

    def work(*, cancel):
        gate.wait(30)
        return 1

    assert sum(await asyncio.gather(*(in_thread(work) for _ in range(40)))) == 40


async def test_a_cancelled_task_cancels_the_token_and_waits_for_the_work_to_end():
    started, ended = threading.Event(), threading.Event()

    def work(*, cancel):
        started.set()
        try:
            cancel.sleep(30)
        finally:
            ended.set()

    token = CancelToken()
    task = asyncio.create_task(in_thread(work, cancel=token))
    await asyncio.to_thread(started.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (token.cancelled, ended.is_set()) == (True, True)


async def test_a_failure_beside_a_cancellation_is_told_as_its_cause():
    started = threading.Event()

    def work(*, cancel):
        started.set()
        try:
            cancel.sleep(30)
        except DownloadCancelledError:
            raise CorruptFileError("x.gguf: damaged") from None

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(started.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, CorruptFileError)


async def test_the_callers_token_ends_the_work_without_cancelling_the_task():
    token = CancelToken()
    task = asyncio.create_task(in_thread(lambda *, cancel: cancel.sleep(30), cancel=token))
    await asyncio.sleep(0)
    token.cancel()
    with pytest.raises(DownloadCancelledError):
        await task
