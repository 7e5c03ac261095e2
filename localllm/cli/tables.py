"""Tables for people, tab-separated lines for programs; sizes, times and contexts as people write them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Container, Sequence
from typing import Literal

from localllm.cli.printable import printable
from localllm.errors import InvalidRequestError

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(|[kmgt]i?b?|b)", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([smhdw])", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str | int]], plain: Sequence[Sequence[str | int]]) -> None:
    """Prints a table with its head if standard output is a terminal, else a line for each row.

    Args:
        columns: names; those that begin with ">" are set flush right.
        rows: for a terminal.
        plain: for programs, in full and without a head.
    """
    if not sys.stdout.isatty():
        for row in plain:
            # A name with a tab or a line feed in it must not look like two, nor one with orders reach a terminal after all.
            print("\t".join(_CONTROL.sub(" ", str(cell)) for cell in row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(printable(str(cell))) for cell in row))
    Console(highlight=False).print(table)


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The lines of a table, its head being the first row; every row is one line, so that other programs can read it.

    Args:
        rows: texts, of the same number in each.
        right: places of the columns that are set flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ((text.rjust if at in right else text.ljust)(widths[at]) for row in rows for at, text in enumerate(row))
    return ["  ".join(cells).rstrip() for cells in zip(*[padded] * len(widths), strict=True)]


def size_text(n_bytes: int) -> str:
    """Bytes in the unit that suits them, of 1024: as messages and progress bars count."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}" if n_bytes < 100 * unit else f"{n_bytes / unit:,.0f} {name}"
    return f"{n_bytes} bytes"


def age_text(seconds_since_epoch: float | None) -> str:
    """How long ago something was; "" if that is not known."""
    if seconds_since_epoch is None:
        return ""
    seconds = max(0.0, time.time() - seconds_since_epoch)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"


def parse_size(option: str, text: str) -> int:
    """Bytes of a text such as "20GB", "512MiB" or "1e9" written out.

    Raises:
        InvalidRequestError: It is none; the message names the option.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidRequestError(f"{option}: {text!r} is no size; write it like 20GB, 512MiB or 1000000")
    unit = found[2].lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    return int(float(found[1]) * base ** _POWERS[unit.removesuffix("i")])


def parse_time(option: str, text: str) -> float:
    """Seconds of a text such as "30d" or "12h".

    Raises:
        InvalidRequestError: It is none; the message names the option.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise InvalidRequestError(f"{option}: {text!r} is no time; write it like 30d, 12h, 2w or 90m")
    return float(found[1]) * _SECONDS[found[2].lower()]


def parse_context(text: str) -> int | Literal["auto"]:
    """Tokens of a context, or "auto".

    Raises:
        InvalidRequestError: It is neither.
    """
    if text == "auto":
        return "auto"
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise InvalidRequestError(f"--n-ctx: {text!r} is neither a number of tokens nor 'auto'")
    return int(text)
