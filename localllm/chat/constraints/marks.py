"""Values that stand in a schema for rules of ours, until llama.cpp's converter has made a grammar of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from localllm.chat.constraints.repetition import repeated

# A number stands for a number: formats that write strings without quotes treat the two differently.
_TEXT = "\ue000localllm:{}\ue001"
_NUMBER = 7_310_054_300_000_000
# What stands for the upper limit of a repetition; the converter keeps limits in 32 bits.
_COUNT = 1_000_000_000
_IS_TEXT = re.compile(_TEXT.format("[0-9]+"))
_N_NUMBERS = 10**9

_PIECES = re.compile(
    r'(?P<item>(?<![A-Za-z0-9-])[A-Za-z0-9-]+|\("," space [A-Za-z0-9-]+\))(?P<count>\{0,[0-9]+\})'
    r'|"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*',
    re.DOTALL,
)


def text(rule: str, rules: dict[str, str]) -> dict[str, Any]:
    """A schema in the place of a GBNF expression for a JSON string."""
    mark = _TEXT.format(len(rules))
    rules[f'"\\"{mark}\\""'] = rule
    return {"const": mark}


def other(rule: str, rules: dict[str, str]) -> dict[str, Any]:
    """A schema in the place of a GBNF expression for JSON that is no string."""
    mark = _NUMBER + len(rules)
    rules[f'"{mark}"'] = rule
    return {"const": mark}


def count(least: int, most: int | None, rules: dict[str, str], *, offset: int = 0) -> int:
    """An upper limit in the place of a repetition that llama.cpp's parser does not keep. The lower limit must be left away.

    Args:
        least, most: int, the repetitions; None for no limit.
        offset: int, what the converter subtracts.
    """
    # Apart by more than the offset, or two of them could look the same.
    mark = _COUNT + 2 * len(rules)
    rules[f"{{0,{mark - offset}}}"] = f"{least},{'' if most is None else most}"
    return mark


def is_mark(value: Any) -> bool:
    """Whether a value of a caller's looks like ours."""
    if isinstance(value, str):
        return _IS_TEXT.fullmatch(value) is not None
    return isinstance(value, (int, float)) and _NUMBER <= value < _NUMBER + _N_NUMBERS


def with_rules(grammar: str, rules: Mapping[str, str]) -> str:
    """A grammar that was made of prepared schemas, with the expressions in the places of their marks."""
    if not rules:
        return grammar
    name = "repeated"
    while name in grammar:
        name += "-more"
    added: dict[str, str] = {}
    names: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        limits = rules.get(match["count"] or "")
        if limits is None:
            rule = rules.get(match.group())
            return match.group() if rule is None else f"({rule})"
        if match.group() not in names:
            least, _, most = limits.partition(",")
            names[match.group()] = f"{name}{len(names)}"
            added.update(repeated(match["item"], int(least), int(most) if most else None, names[match.group()]))
        return names[match.group()]

    result = _PIECES.sub(replaced, grammar)
    if not added:
        return result
    return "\n".join([result.rstrip("\n"), *(f"{rule} ::= {body}" for rule, body in added.items()), ""])
