"""Escapes in JSON strings: llama.cpp's grammars take \\ud800, half of a character, for one."""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
_ANY = f'"u" {_HEX}{{4}}'
# RFC 8259, section 7: a character beyond the first plane is written as a pair.
_PAIR = f'[89abAB] {_HEX}{{2}} "\\\\u" [dD] [c-fC-F] {_HEX}{{2}}'
_WHOLE = f'"u" ([0-9a-ce-fA-CE-F] {_HEX}{{3}} | [dD] ([0-7] {_HEX}{{2}} | {_PAIR}))'


def whole_escapes(grammar: str) -> str:
    """A grammar of llama.cpp's making whose escapes are whole characters, a pair of them counted as one."""
    return grammar.replace(_ANY, _WHOLE)
