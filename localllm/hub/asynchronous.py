"""Long work of the hub beside an event loop: in a thread of its own, stopped when its task is."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from localllm.errors import DownloadCancelledError
from localllm.hub.progress import CancelToken

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, cancel: CancelToken | None = None, **options: Any) -> T:
    """Calls `function(*args, cancel=cancel, **options)` in a worker thread and waits for it without blocking the loop.

    Callbacks among the arguments are called in that thread.

    Args:
        function: takes a CancelToken as `cancel`, and ends soon once that is cancelled.
        args, options: its other arguments.
        cancel: CancelToken, which is cancelled when the waiting task is; None: one of its own.

    Returns:
        What the function returns.

    Raises:
        asyncio.CancelledError: The task was cancelled. The function has ended by then: it holds no lock and no file any more.
        What the function raises.
    """
    token = cancel or CancelToken()
    call = functools.partial(contextvars.copy_context().run, functools.partial(function, *args, cancel=token, **options))
    # Not the loop's own threads: those are few, and a download would keep one from everybody else for hours.
    pool = ThreadPoolExecutor(1, "localllm-hub")
    try:
        running = asyncio.get_running_loop().run_in_executor(pool, call)
    finally:
        pool.shutdown(wait=False)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
            token.cancel()
    if cancelled is not None:
        failure = running.exception()
        # A failure of another kind that came first is no longer anybody's, but it must not be lost either.
        raise cancelled from (None if isinstance(failure, DownloadCancelledError) else failure)
    return running.result()
