"""Values that have to be JSON: what somebody's arguments and schemas hold may be none."""

from __future__ import annotations

import json
from typing import Any

from localllm.errors import InvalidRequestError


def written(value: Any, where: str) -> str:
    """A value as JSON text, its letters as they are.

    Args:
        value: dicts, lists, texts, numbers, bools and None.
        where: str, its place, with which messages begin.

    Raises:
        InvalidRequestError: It holds something else, itself, or a number that is not finite.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where}: cannot be written as JSON: {error}; give texts, numbers, lists and dicts") from error
