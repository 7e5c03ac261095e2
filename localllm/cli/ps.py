"""`localllm ps`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import localllm

if TYPE_CHECKING:
    from localllm.residency.listing import LoadedModel


def ps(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What programs of this user have loaded, and how much memory it takes."""
    models = localllm.loaded_models(everywhere=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(model) for model in models], ensure_ascii=False, indent=2))
    elif not models:
        print("nothing is loaded")
    else:
        print("\n".join(_lines(models)))


def _lines(models: Sequence[LoadedModel]) -> list[str]:
    """A table; every row is one line, so that other programs can read it."""
    rows = [("MODEL", "WHAT", "MiB", "CONTEXT", "KEPT", "SINCE", "PROCESS"), *map(_row, models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = (2, 3, 6)
    return ["  ".join(_padded(text, widths[at], at in numbers) for at, text in enumerate(row)) for row in rows]


def _padded(text: str, width: int, is_number: bool) -> str:
    return text.rjust(width) if is_number else text.ljust(width)


def _row(model: LoadedModel) -> tuple[str, ...]:
    kept = "pinned" if model.pinned else "" if model.keep_alive is None else f"{model.keep_alive:g} s"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.last_used))
    n_ctx = str(model.n_ctx) if model.n_ctx else ""
    return model.reference, model.purpose, f"{model.n_bytes / 2**20:,.1f}", n_ctx, kept, since, str(model.pid)
