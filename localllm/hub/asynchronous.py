"""Long work of the hub beside an event loop: in a thread of its own, stopped when its task is."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from localllm.errors import DownloadCancelledError
from localllm.hub.progress import CancelToken

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls `function(*args, **options)` in a worker thread and waits for it without blocking the loop.

    Callbacks among the arguments are called in that thread.

    Args:
        function: takes a CancelToken as `cancel`, and ends soon once that is cancelled.
        args, options: its arguments. A `cancel` among them is cancelled when the waiting task is; without one, it gets its own.

    Returns:
        What the function returns.

    Raises:
        asyncio.CancelledError: The task was cancelled. The function has ended by then: it holds no lock and no file any more.
        What the function raises.
    """
    token: CancelToken = options.get("cancel") or CancelToken()
    call = functools.partial(contextvars.copy_context().run, functools.partial(function, *args, **{**options, "cancel": token}))
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


def twin(function: Callable[P, T], name: str) -> Callable[P, Coroutine[Any, Any, T]]:
    """The coroutine function that does what `function` does, by `in_thread`, with the same arguments.

    Args:
        function: takes a CancelToken as its keyword `cancel`.
        name: of the twin.
    """

    @functools.wraps(function)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await in_thread(function, *args, **options)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"`{function.__name__}` beside an event loop: cancelling the task stops it; `progress` is called by threads."
    return run
