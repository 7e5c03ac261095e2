"""Work that an event loop must not do itself: it is done in a thread, and awaited."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

# A thread that runs Python may keep a loop waiting for 5 ms (sys.getswitchinterval), and several together for as many times that.
_one_thread: ThreadPoolExecutor | None = None


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What may take seconds, as loading weights: in a thread of the loop's own."""
    import asyncio

    return await asyncio.to_thread(function, *arguments, **named)


async def in_turn(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What takes milliseconds and many may ask for at once, as rendering a prompt: one after the other, in one thread for all."""
    import asyncio

    global _one_thread
    if _one_thread is None:
        _one_thread = ThreadPoolExecutor(1, "localllm-prepare")
    call = functools.partial(contextvars.copy_context().run, functools.partial(function, *arguments, **named))
    return await asyncio.get_running_loop().run_in_executor(_one_thread, call)


def _forked() -> None:
    global _one_thread
    _one_thread = None  # the thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
