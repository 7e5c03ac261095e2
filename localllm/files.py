"""Files that are replaced as a whole, and the paths of files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from localllm.errors import InvalidRequestError


def write_atomically(path: Path, *parts: Any, prefix: str = ".writing-", sync: bool = False) -> None:
    """Writes a file under another name first, so that nobody ever sees a part of it.

    Args:
        path: Path of the file; its folder must be there.
        parts: bytes or buffers, one after the other.
        prefix: str, how the other name begins.
        sync: bool, wait until the disk has it, so that it outlives a power cut.

    Raises:
        OSError: It cannot be written; what was there before is as it was.
    """
    temporary = path.parent / f"{prefix}{secrets.token_hex(8)}"
    try:
        # Not by tempfile, whose files nobody else may read.
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_new(target: Path) -> None:
    """Raises InvalidRequestError if there is something at `target`: nothing is ever written over."""
    if os.path.lexists(target):
        raise InvalidRequestError(f"output: {target} exists already; remove it, or name another file")


def publish(temporary: Path, target: Path) -> None:
    """Gives a file that is written its name, once the disk has it, and never in place of another.

    Raises:
        InvalidRequestError: There is something at `target`.
        OSError: The folder cannot be written.
    """
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        require_new(target)
        raise
    except OSError:  # a file system without hard links
        require_new(target)
        temporary.rename(target)


def whole_path(path: Path) -> Path:
    """The path from the root, without ".." in it; a link at its end stays one, and so means what it leads to later."""
    expanded = path.expanduser()
    return expanded.resolve() if expanded.name in ("", "..") else expanded.parent.resolve() / expanded.name
