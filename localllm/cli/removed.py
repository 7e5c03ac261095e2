"""What a removal takes away, or took: shown, and asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from localllm.cli import exits
from localllm.cli.printable import print_json, say
from localllm.cli.tables import show_table, size_text

if TYPE_CHECKING:
    from localllm.hub.removal_plan import RemovalPlan

_MOST_ASKED = 20  # names in a question


def older_commits(plan: RemovalPlan) -> dict[str, str]:
    """Reasons for what goes with a model without having been named."""
    if len(plan.models) < 2:
        return {}
    return {one.reference: "an older commit of it" for one in plan.models if one.state == "superseded"}


def show_removed(plan: RemovalPlan, reasons: dict[str, str], dry_run: bool, as_json: bool, more: dict[str, Any]) -> None:
    """Prints models, then what else goes, then the sum, which counts what they share once.

    Args:
        plan: RemovalPlan.
        reasons: why a model goes, by its reference.
        dry_run: bool, nothing has gone.
        as_json: bool.
        more: for JSON only.
    """
    if as_json:
        return print_json(plan.to_json() | {"reasons": reasons} | more | {"dry_run": dry_run})
    plain: list[list[str | int]] = [[one.reference, one.disk_bytes, reasons.get(one.reference, "")] for one in plan.models]
    plain += [[str(one.path), one.n_bytes, one.reason] for one in plan.swept]
    rows: list[list[str | int]] = [[name, size_text(int(n_bytes)), reason] for name, n_bytes, reason in plain]
    show_table(["MODEL", ">SIZE", "REASON"], rows, [*plain, ["total", plan.freed_bytes, ""]] if plain else [])
    if sys.stdout.isatty():
        for sentence in plan.kept:
            say(sentence)
        say(f"{'would free' if dry_run else 'freed'} {exact_size(plan.freed_bytes)}")
    return None


def ask(plan: RemovalPlan, reasons: dict[str, str]) -> None:
    """Asks before anything goes; "no" ends the command."""
    names = [f"{one.reference} ({reasons[one.reference]})" if one.reference in reasons else one.reference for one in plan.models]
    names += [f"{one.path} ({one.reason})" for one in plan.swept]
    for name in names[:_MOST_ASKED]:
        say(f"  {name}")
    if len(names) > _MOST_ASKED:
        say(f"  and {len(names) - _MOST_ASKED} more; --dry-run lists them")
    if not typer.confirm(f"Remove this and free {exact_size(plan.freed_bytes)}?", err=True):
        raise typer.Exit(exits.FAILURE)


def exact_size(n_bytes: int) -> str:
    """Bytes to the last one, and as people read them."""
    rounded = size_text(n_bytes)
    return rounded if rounded.endswith(" bytes") else f"{n_bytes:,} bytes ({rounded})"
