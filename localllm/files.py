"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any


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
