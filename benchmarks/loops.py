"""How long an event loop stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def stalls(work: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """How late a coroutine that sleeps for a millisecond, again and again, comes round during some work.

    Args:
        work: makes what is awaited.

    Returns:
        Milliseconds: the "median", the 99th of 100 ("p99") and the "worst"; and how often it slept, "n".
    """
    late: list[float] = []

    async def sleep() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(1000 * (time.perf_counter() - before) - 1)

    task = asyncio.ensure_future(sleep())
    await work()
    task.cancel()
    late.sort()
    return {"median": late[len(late) // 2], "p99": late[int(0.99 * (len(late) - 1))], "worst": late[-1], "n": len(late)}


def print_stalls(figures: dict[str, dict[str, float]]) -> None:
    """A table of what `stalls` has found."""
    print(f"{'loop stalls, ms':34} {'median':>7} {'p99':>7} {'worst':>7}")
    for name, late in figures.items():
        print(f"{name:34} {late['median']:7.2f} {late['p99']:7.2f} {late['worst']:7.2f}")
