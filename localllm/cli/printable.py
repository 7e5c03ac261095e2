"""What others have written, shown on a terminal: names, headers and answers of servers can hold orders to it."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

# What JSON leaves as it is: further controls, half pairs of UTF-16, and what turns the direction of writing.
_CONTROLS = re.compile("[\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with escapes, as Python writes them, for what a terminal would obey or not show.

    Args:
        text: str.
        lines: bool, line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def say(text: str) -> None:
    """Prints a remark to standard error."""
    print(printable(text, lines=True), file=sys.stderr)


def print_json(data: Any) -> None:
    """Prints plain data to standard output."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    print(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def only_once() -> Callable[[logging.LogRecord], bool]:
    """A filter that lets each message pass once: a command looks at the same files several times."""
    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        known = text in told
        told.add(text)
        return not known

    return is_new


def only_printable(record: logging.LogRecord) -> bool:
    """A filter for handlers that write to a terminal."""
    record.msg, record.args = printable(record.getMessage(), lines=True), None
    return True
