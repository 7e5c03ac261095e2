"""Bars for what takes long, on standard error, if that is a terminal; else nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from localllm.cli.printable import printable, say
from localllm.errors import DownloadCancelledError
from localllm.hub import progress as events

_WORDS = {"waiting": "waiting", "checking": "checking", "downloading": "", "retrying": "retrying", "finished": ""}
_NAME_CHARACTERS = 48


@contextlib.contextmanager
def transfer_bars() -> Iterator[events.ProgressCallback]:
    """A callback for `pull` and its like that draws a bar for each file: what happens, bytes, rate, time left."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda event: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(event: events.Progress) -> None:
            if event.file not in tasks:
                tasks[event.file] = bars.add_task(_short(event.file), total=event.total_bytes)
            word = _WORDS[event.phase]
            bars.update(tasks[event.file], completed=event.done_bytes, description=f"{_short(event.file)} {word}".rstrip())

        yield show


@contextlib.contextmanager
def continuable() -> Iterator[None]:
    """Says, if a download is interrupted, that nothing is lost by it."""
    try:
        yield
    except (KeyboardInterrupt, DownloadCancelledError):
        say("localllm: interrupted; what came is kept, and the same command goes on with it")
        raise


@contextlib.contextmanager
def step_bar(text: str, *, is_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A callback that is told how much is done, and of how much, and draws one bar, which appears with the first step."""
    columns = (TextColumn(text), BarColumn(), DownloadColumn() if is_bytes else MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task = shown.add_task(text)

    def advance(n_done: int, n_all: int) -> None:
        shown.start()
        shown.update(task, completed=n_done, total=n_all)

    try:
        yield advance
    finally:
        shown.stop()


def _short(path: str) -> str:
    name = printable(path.rpartition("/")[2])
    return name if len(name) <= _NAME_CHARACTERS else f"…{name[-_NAME_CHARACTERS + 1 :]}"
