"""GBNF, looked at before it is used."""

from __future__ import annotations

import ctypes

from localllm.native.library import load


def takes(grammar: str, text: str) -> tuple[bool, int]:
    """Whether a text is one of a grammar's.

    Args:
        grammar: str, GBNF with a rule "root".
        text: str.

    Returns:
        (bool, int): whether the text may end where it does, and how many of its bytes the grammar takes.

    Raises:
        GrammarError: It is no grammar; says line and column.
    """
    native = load()
    data = text.encode()
    whole, taken = ctypes.c_bool(), ctypes.c_size_t()
    status = native.lm_grammar_check(grammar.encode(), data, len(data), ctypes.byref(whole), ctypes.byref(taken))
    native.check(status)
    return whole.value, taken.value
