"""Keyword options, dealt out to the data classes that have a field of that name. Unknown ones are errors."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from localllm.errors import InvalidRequestError


def fields(kind: Any) -> set[str]:
    """The names of a data class' fields."""
    return {field.name for field in dataclasses.fields(kind)}


def split(options: Mapping[str, Any], *kinds: Any, others: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Options by the data class that has them.

    Args:
        options: name -> value.
        kinds: data classes.
        others: names to suggest besides theirs, which the caller has taken out already.

    Returns:
        list of dict, one for each class.

    Raises:
        InvalidRequestError: No class has a field of that name.
    """
    names = [fields(kind) for kind in kinds]
    for name in options:
        if not any(name in known for known in names):
            raise unknown(name, set().union(*names, others))
    return [{name: value for name, value in options.items() if name in known} for known in names]


def unknown(name: str, known: set[str]) -> InvalidRequestError:
    """The error for an option that is none, with the nearest of those that there are."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
    return InvalidRequestError(f"{name}: unknown option{hint}")
