"""How plans look in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from localllm.cli.printable import printable
from localllm.cli.tables import size_text
from localllm.cli.wording import in_options
from localllm.hub.plan import Alternative, Plan
from localllm.hub.speed import Speed


def print_plan(plan: Plan) -> None:
    """Prints the table of quantizations and what was chosen."""
    console = Console()
    console.print(_table(plan), markup=False)
    if any(one.is_estimate for one in plan.alternatives):
        console.print("~: estimated from sizes and names; its own header was not read.", markup=False, highlight=False)
    console.print(printable(summary(plan), lines=True), markup=False, highlight=False, soft_wrap=True)
    for warning in plan.warnings:
        console.print(printable(f"Warning: {in_options(warning)}"), markup=False, highlight=False, soft_wrap=True)


def summary(plan: Plan) -> str:
    """What is chosen, why, and what it costs, in a few lines."""
    revision = "" if plan.revision == "main" else f" ({plan.revision})"
    lines = [f"{plan.repo}{revision} at commit {plan.commit[:7]}{f', {plan.licence}' if plan.licence else ''}", plan.reason]
    lines += plan.companions
    names = ", ".join(kept.file.path for kept in plan.files[:6]) + (", ..." if len(plan.files) > 6 else "")
    lines.append(f"{len(plan.files)} file{'s' if len(plan.files) > 1 else ''}: {names}")
    fetched = f"{size_text(plan.fetch_bytes)} of {size_text(plan.n_bytes)} to fetch"
    lines.append(f"{fetched}, {size_text(plan.disk_free_bytes)} free in {plan.cache}")
    memory = plan.memory
    parts = [
        ("weights", memory.weights_bytes),
        ("context", memory.kv_bytes + memory.state_bytes),
        ("scratch", memory.compute_bytes),
    ]
    parts += [("companions", memory.companions_bytes)] if memory.companions_bytes else []
    free = f", {size_text(plan.free_bytes)} free" if plan.free_bytes is not None else ""
    lines.append(f"{size_text(memory.total_bytes)} of memory ({', '.join(f'{name} {size_text(n)}' for name, n in parts)}){free}")
    if speed := next((one.speed for one in plan.alternatives if one.chosen), None):
        prompt, answer = _speed(speed)
        lines.append(
            f"Expected with {speed.n_tokens} tokens of prompt: {prompt} tokens/s of it, {answer} of the answer; estimates."
        )
    if plan.adapters:
        lines.append(f"Adapters that could be applied: {', '.join(plan.adapters)}")
    return "\n".join(lines)


def _table(plan: Plan) -> Table:
    """The quantizations, the best first; expected tokens per second of prompts and answers where they are known."""
    has_speed = any(one.speed for one in plan.alternatives)
    table = Table(box=None, pad_edge=False)
    for name in ("", "tag"):
        table.add_column(name)
    for name in ("size", "bits/weight", "memory", *(("prompt t/s", "answer t/s") if has_speed else ())):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for one in sorted(plan.alternatives, key=lambda one: (-one.bits_per_weight, one.path)):
        about = "~" if one.is_estimate else ""
        bits = f"{about}{one.bits_per_weight:.2f}" if one.bits_per_weight else ""
        memory = f"{about}{size_text(one.needed_bytes)}" if one.needed_bytes is not None else ""
        speed = tuple(f"{about}{cell}" if cell else "" for cell in _speed(one.speed)) if has_speed else ()
        table.add_row("*" if one.chosen else "", printable(one.tag), size_text(one.n_bytes), bits, memory, *speed, _verdict(one))
    return table


def _speed(speed: Speed | None) -> tuple[str, str]:
    if speed is None:
        return "", ""
    return f"{speed.prefill_tokens_per_second:.3g}", f"{speed.decode_tokens_per_second:.3g}"


def _verdict(one: Alternative) -> str:
    if one.missing_files:
        return f"{one.missing_files} file{'s' if one.missing_files > 1 else ''} missing"
    fits = {True: "fits", False: "does not fit", None: ""}[one.fits]
    return ", ".join(filter(None, (fits, "here" if one.is_here else "")))
