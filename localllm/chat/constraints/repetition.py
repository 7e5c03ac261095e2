"""GBNF for many repetitions. llama.cpp refuses a lower limit above 2,000, and takes an upper one for none."""

from __future__ import annotations

# Repetitions that are written as they are.
MAX_PLAIN = 1000
# Limits above it are refused: no text is as long, and the rules should stay few.
MAX_COUNT = 10**18
_BLOCK = 256


def repeated(item: str, least: int, most: int | None, name: str) -> dict[str, str]:
    """Rules for `item` from `least` to `most` times, of which the one called `name` is the whole.

    It is written in blocks of 256, blocks of 256 blocks and so on, such that a text fits in few ways: each way that is open
    costs time at every token.

    Args:
        item: str, a GBNF expression.
        least: int, 0 or more.
        most: int, `least` or more; None for no limit.
        name: str, begins the names of all rules.
    """
    blocks = _Blocks(item, name)
    rest = f"{blocks.block(0)}*" if most is None else blocks.up_to(most - least)
    return {name: " ".join(part for part in (blocks.exactly(least), rest) if part) or '""', **blocks.rules}


class _Blocks:
    def __init__(self, item: str, name: str) -> None:
        self._name = name
        # As a rule, because llama.cpp counts what is in a bracket once for each repetition, and refuses too many.
        self.rules = {f"{name}-0": item}

    def block(self, level: int) -> str:
        """The rule for 256**level items."""
        name = f"{self._name}-{level}"
        if name not in self.rules:
            self.rules[name] = f"{self.block(level - 1)}{{{_BLOCK}}}"
        return name

    def exactly(self, n: int) -> str:
        parts = []
        level = 0
        while n:
            n, digit = divmod(n, _BLOCK)
            if digit:
                parts.append(f"{self.block(level)}{{{digit}}}")
            level += 1
        return " ".join(reversed(parts))

    def up_to(self, n: int) -> str:
        if n < _BLOCK:
            return f"{self.block(0)}{{0,{n}}}" if n else ""
        level = 1
        while n >= _BLOCK ** (level + 1):
            level += 1
        n_blocks, rest = divmod(n, _BLOCK**level)
        fewer = f"{self.block(level)}{{0,{n_blocks - 1}}} " if n_blocks > 1 else ""
        return f"({fewer}{self._below(level)} | {self.block(level)}{{{n_blocks}}} {self.up_to(rest)})"

    def _below(self, level: int) -> str:
        """The rule for fewer than 256**level items."""
        name = f"{self._name}-below-{level}"
        if name not in self.rules:
            less = f" {self._below(level - 1)}" if level > 1 else ""
            self.rules[name] = f"{self.block(level - 1)}{{0,{_BLOCK - 1}}}{less}"
        return name
