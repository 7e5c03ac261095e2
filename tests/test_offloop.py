"""What a loop has done beside itself."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from localllm import LocalModel
from localllm.offloop import in_thread, in_turn

WHO = contextvars.ContextVar("WHO", default="nobody")


async def test_what_is_done_in_turn_is_done_by_one_thread_in_the_order_of_the_calls():
    done = []

    def work(number: int) -> int:
        done.append((number, threading.get_ident()))
        return number

    assert await asyncio.gather(*(in_turn(work, number) for number in range(50))) == list(range(50))
    assert [number for number, _ in done] == list(range(50)) and len({thread for _, thread in done}) == 1


@pytest.mark.parametrize("run", [in_thread, in_turn])
async def test_errors_and_context_come_through(run):
    def work(*, failing: bool) -> str:
        if failing:
            raise KeyError("no")
        return WHO.get()

    WHO.set("me")
    assert await run(work, failing=False) == "me"
    with pytest.raises(KeyError, match="no"):
        await run(work, failing=True)


def test_loops_one_after_another_and_forked_children():
    for _ in range(3):
        assert asyncio.run(in_turn(threading.get_ident)) != threading.get_ident()
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(0 if asyncio.run(in_turn(lambda: 7)) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_forty_prompts_are_prepared_by_one_thread(models):
    """Many threads together would stall the loop for as many times the 5 ms that Python gives each."""
    seen = set()
    with LocalModel(models["qwen3"], n_ctx=1024, parallel=4, n_threads=1) as model:
        await model.acomplete("one", max_tokens=1)

        def prepared(*arguments):
            seen.add(threading.current_thread().name)
            return request(*arguments)

        request, model._completion = model._completion, prepared
        before = threading.active_count()
        await asyncio.gather(*(model.acomplete(f"number {number}", max_tokens=2) for number in range(40)))
        assert threading.active_count() == before and len(seen) == 1
