"""The regular files of an uncompressed tar archive, one after the other; anything else in it is an error.

Archives come from elsewhere. Python's tarfile reads extended headers of whatever length into memory and follows what GNU, Solaris
and others added to the format; this reads what POSIX.1-2001 (pax) says of regular files, in bounded pieces.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from localllm.errors import CorruptFileError

BLOCK_BYTES = 512
_MAX_EXTENDED_BYTES = 64 << 10
_FIELD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]+)=")
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True)
class Member:
    """A file of an archive.

    Attributes:
        name: str, as it is written there: to be compared, never to become a path.
        n_bytes: int.
        start: int, where its content begins.
    """

    name: str
    n_bytes: int
    start: int


class TarReader:
    """Reads an archive from its beginning.

    Args:
        file: open for reading, at its beginning; can seek.
        path: Path, what errors call it.
        total_bytes: int, size of the archive.
    """

    def __init__(self, file: BinaryIO, path: Path, total_bytes: int) -> None:
        self.file = file
        self.path = path
        self.total_bytes = total_bytes
        self._next = 0

    def member(self) -> Member | None:
        """The next file; the archive's position is where its content begins. None at the end.

        Raises:
            CorruptFileError: Damaged, or something else than a regular file comes next.
            OSError: It cannot be read.
        """
        extended: dict[bytes, bytes] = {}
        while True:
            self.file.seek(self._next)
            block = self.file.read(BLOCK_BYTES)
            if not block.strip(b"\0"):
                return None
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except (tarfile.HeaderError, ValueError) as error:
                raise self.wrong(f"a header in it is damaged ({error})") from None
            start = self._next + BLOCK_BYTES
            n_bytes = _size(extended, info.size)
            if not 0 <= n_bytes <= self.total_bytes - start:
                raise self.wrong("it ends too early")
            self._next = start + -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES
            if info.type == tarfile.XHDTYPE and not extended and n_bytes <= _MAX_EXTENDED_BYTES:
                extended = self._fields(self.file.read(n_bytes))
                continue
            if info.type not in _REGULAR:
                raise self.wrong(f"it holds {info.name[:80]!r}, which is no regular file")
            name = extended.get(b"path", info.name.encode()).decode("utf-8", "replace")
            return Member(name, n_bytes, start)

    def _fields(self, data: bytes) -> dict[bytes, bytes]:
        """Fields of an extended header: their length in digits, a space, the key, "=", the value and a line feed."""
        found = {}
        at = 0
        while at < len(data):
            field = _FIELD.match(data, at)
            stop = at + int(field[1]) if field else 0
            if field is None or not field.end() < stop <= len(data) or data[stop - 1 : stop] != b"\n":
                raise self.wrong("an extended header in it is damaged")
            found[field[2]] = data[field.end() : stop - 1]
            at = stop
        return found

    def wrong(self, reason: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path}: no archive of a model, or a damaged one: {reason}; export the model once more")


def _size(extended: dict[bytes, bytes], n_bytes: int) -> int:
    given = extended.get(b"size")
    if given is None:
        return n_bytes
    return int(given) if given.isdigit() and len(given) <= 20 else -1
