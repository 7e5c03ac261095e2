"""Looking at files and folders that other programs may remove at any moment: what has gone is not there, and no error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def status_of(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """The status of a path; None if it leads nowhere, or nobody may look.

    Args:
        path: Path.
        follow: bool, of what a link leads to.
    """
    try:
        return path.stat() if follow else path.lstat()
    except OSError:
        return None


def below(folder: Path) -> Iterator[Path]:
    """Everything in a folder and the folders in it; links to folders are not followed."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def listed(folder: Path) -> list[Path]:
    """What is in a folder, in order; [] if it is not there, or nobody may look."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
