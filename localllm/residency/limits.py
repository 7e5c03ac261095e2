"""How much memory this process may take: what the user says, and what the system says."""

from __future__ import annotations

import os
import re

from localllm.errors import InvalidRequestError
from localllm.hub.free_memory import free_memory

BUDGET_VARIABLE = "LOCALLLM_MEMORY_BUDGET"


def budget_bytes(given: int | None) -> int | None:
    """The most that all models together may take: what the program has set, else the environment; None: nothing bounds it.

    Raises:
        InvalidRequestError: The variable holds no whole number.
    """
    if given is not None:
        return given
    text = os.environ.get(BUDGET_VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,30}", text):
        raise InvalidRequestError(f"{BUDGET_VARIABLE}: {text!r} is not a whole number of bytes")
    return int(text)


def free_bytes() -> int | None:
    """What is free of the machine's memory; None if the system does not tell."""
    try:
        return free_memory().free_bytes
    except OSError:
        return None
