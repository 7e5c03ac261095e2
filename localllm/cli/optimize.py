"""`localllm optimize`: a version of a model that is faster on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localllm.cli.printable import print_json, printable, say
from localllm.cli.tables import size_text
from localllm.errors import InvalidRequestError

if TYPE_CHECKING:  # every command imports this module
    from localllm.hub.gguf import Header
    from localllm.hub.speed import Rates
    from localllm.optimize import OptimizePlan

_SHOWN_TYPES = 4


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a model that is on this machine.")],
    to_type: Annotated[str | None, typer.Option("--type", help="Tensor types to write, e.g. Q4_0; the best if missing.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write, which must not exist.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    threads: Annotated[int, typer.Option("--threads", help="Threads; 0: one per physical core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
) -> None:
    """Write a version of a model that is faster on this machine's CPU. Says first what is gained, and what is lost."""
    from localllm.cli.progress import step_bar
    from localllm.hub.locate import locate
    from localllm.optimize import optimize, plan_optimize, register, require_new

    source = locate(model, download=False)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise InvalidRequestError("--yes: missing, and nobody can be asked; give --yes to write, or --dry-run to look")
    plan = plan_optimize(source, _rates(threads), type=to_type)
    target = output if output is not None else plan.default_output
    if not as_json:
        _print_plan(plan, target)
    if not dry_run:
        require_new(target)
    written = not dry_run and (yes or typer.confirm(f"Write {printable(str(target))}?", err=True))
    if written:
        with step_bar("writing", is_bytes=True) as advance:
            optimize(plan, target, advance)
    name = register(target) if written else ""
    if as_json:
        result = {**facts(plan), "output": str(target), "written": written, "name": name}
        print_json(result)
    elif written:
        print(target)
        if name:
            say(f"localllm: {name!r} is a name for it now: localllm run {name}")
    if not (written or dry_run):
        raise typer.Exit(1)


def facts(plan: OptimizePlan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "source": str(plan.source),
        "type": plan.type,
        "reason": plan.reason,
        "warning": plan.warning,
        "threads": plan.n_threads,
        "before": _version(plan, plan.header),
        "after": _version(plan, plan.result),
        "prefill_gain": round(plan.prefill_gain, 2),
        "decode_gain": round(plan.decode_gain, 2),
        "is_estimate": True,
    }


def _version(plan: OptimizePlan, header: Header) -> dict[str, Any]:
    speed = plan.before if header is plan.header else plan.after
    return {
        "types": header.tensor_types,
        "bytes": header.file_bytes,
        "bits_per_weight": round(header.bits_per_weight, 2),
        "prefill_tokens_per_second": round(speed.prefill_tokens_per_second, 1),
        "decode_tokens_per_second": round(speed.decode_tokens_per_second, 1),
        "not_measured": dict(speed.assumed),
    }


def _print_plan(plan: OptimizePlan, target: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    if plan.warning:
        console.print(printable(f"Warning: {plan.warning}"), markup=False, style="yellow")
    console.print(plan.reason, markup=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "now", plan.type, ""):
        table.add_column(heading, justify="left" if not heading else "right")
    now, then = plan.before, plan.after
    table.add_row("types", _types(plan.header), _types(plan.result))
    table.add_row("size", size_text(plan.header.file_bytes), size_text(plan.expected_bytes))
    rows = (
        ("prompt", now.prefill_tokens_per_second, then.prefill_tokens_per_second, plan.prefill_gain),
        ("answer", now.decode_tokens_per_second, then.decode_tokens_per_second, plan.decode_gain),
    )
    for name, before, after, gain in rows:
        table.add_row(f"{name}, tokens/s", f"{before:.0f}", f"{after:.0f}", f"x {gain:.2f}")
    console.print(table)
    console.print(f"Expected with {plan.n_threads} threads and {now.n_tokens} tokens of prompt: an estimate.", markup=False)
    console.print(printable(f"To be written: {target}"), markup=False)


def _types(header: Header) -> str:
    names = list(header.tensor_types)
    return ", ".join(names[:_SHOWN_TYPES]) + (", ..." if len(names) > _SHOWN_TYPES else "")


def _rates(threads: int) -> Rates:
    from localllm.cli.progress import step_bar
    from localllm.machine import rates

    with step_bar("measuring this machine, once") as advance:
        return rates(n_threads=threads, progress=advance)
