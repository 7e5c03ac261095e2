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
    from rich.table import Table

    from localllm.residency.listing import LoadedModel


def ps(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What programs of this user have loaded, and how much memory it takes."""
    models = localllm.loaded_models(everywhere=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(model) for model in models], ensure_ascii=False, indent=2))
    elif not models:
        print("nothing is loaded")
    else:
        from rich.console import Console

        Console(soft_wrap=True).print(_table(models), markup=False)


def _table(models: Sequence[LoadedModel]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("model", "what", "MiB", "context", "kept", "since", "process"):
        table.add_column(name, justify="right" if name in ("MiB", "context", "process") else "left")
    for model in models:
        kept = "pinned" if model.pinned else "" if model.keep_alive is None else f"{model.keep_alive:g} s"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.last_used))
        context = str(model.n_ctx) if model.n_ctx else ""
        table.add_row(model.reference, model.purpose, f"{model.n_bytes / 2**20:,.1f}", context, kept, since, str(model.pid))
    return table
