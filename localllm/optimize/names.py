"""Names of the user's for versions that were written."""

from __future__ import annotations

import re
from pathlib import Path

from localllm.errors import ModelNotFoundError, ReferenceFormatError
from localllm.files import whole_path
from localllm.hub.catalog import Aliases
from localllm.hub.resolve import expand


def register(path: Path) -> str:
    """Gives a written version a name of the user's, by which it is run: its file's name in small letters, without ".gguf".

    Args:
        path: Path, from `optimize`.

    Returns:
        str, the name; "" if that would be none, or stands for something else already (another file, a model of the catalog or an
        embedded one), which it goes on to do.

    Raises:
        HubError: The file of names is damaged or cannot be written.
    """
    names, name = Aliases(), re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).strip("-._").lower()
    target = str(whole_path(path))
    known = names.get(name)
    if not name or known not in (None, target) or (known is None and not _is_free(name)):
        return ""
    try:
        names.set(name, target)
    except ReferenceFormatError:  # too long, say
        return ""
    return name


def _is_free(name: str) -> bool:
    """Whether it is a possible name, which nothing has."""
    try:
        expand(name)
    except (ModelNotFoundError, ReferenceFormatError) as error:
        return isinstance(error, ModelNotFoundError)
    return False
