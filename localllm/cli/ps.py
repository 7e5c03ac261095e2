"""`localllm ps`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import localllm
from localllm.cli.printable import print_json, printable
from localllm.cli.tables import aligned

if TYPE_CHECKING:
    from localllm.residency.listing import LoadedModel


def ps(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What programs of this user have loaded, and how much memory it takes."""
    models = localllm.loaded_models(everywhere=True)
    if as_json:
        print_json([dataclasses.asdict(model) for model in models])
    elif not models:
        print("nothing is loaded")
    else:
        print("\n".join(_lines(models)))


def _lines(models: Sequence[LoadedModel]) -> list[str]:
    head = ("MODEL", "WHAT", "MiB", "CONTEXT", "KEPT", "SINCE", "PROCESS")
    return aligned([head, *map(_row, models)], (2, 3, 6))


def _row(model: LoadedModel) -> tuple[str, ...]:
    kept = "pinned" if model.pinned else "" if model.keep_alive is None else f"{model.keep_alive:g} s"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.last_used))
    n_ctx = str(model.n_ctx) if model.n_ctx else ""
    return printable(model.reference), model.purpose, f"{model.n_bytes / 2**20:,.1f}", n_ctx, kept, since, str(model.pid)
