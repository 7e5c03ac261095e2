"""What the encoder has made, by what it was made of: in RAM, and in files if there is a folder for them.

A file holds magic, version, BLAKE2b-256 of everything else, the key and the floats, little-endian. What is damaged, foreign or of
another version is a miss. Files are written beside their place and renamed; the ones that were used least recently go first.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import struct
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.errors import InvalidRequestError
from localllm.files import write_atomically

logger = logging.getLogger("localllm.media")

_MAGIC = b"LMROWS\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<8sI32s32sQ")
_SUFFIX = ".lmrows"


class RowCache:
    """Rows by key, the most recently used ones within a budget. Not for several threads at once.

    Args:
        ram_bytes: int, for all rows in RAM; 0: none are kept there.
        files: RowFiles, or None.

    Attributes:
        n_bytes: int, of the rows in RAM.
    """

    def __init__(self, ram_bytes: int, files: RowFiles | None = None) -> None:
        self._ram_bytes = ram_bytes
        self._files = files
        self._rows: OrderedDict[bytes, Any] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes, n_floats: int) -> Any | None:
        """The rows of a key, if they are so many floats."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        elif self._files is not None and (rows := self._files.read(key)) is not None:
            self._keep(key, rows)
        return rows if rows is not None and len(rows) == n_floats else None

    def put(self, key: bytes, rows: Any) -> None:
        """Keeps rows."""
        self._keep(key, rows)
        if self._files is not None:
            self._files.write(key, rows)

    def _keep(self, key: bytes, rows: Any) -> None:
        size = ctypes.sizeof(rows)
        if size > self._ram_bytes or key in self._rows:
            return
        self._rows[key] = rows
        self.n_bytes += size
        while self.n_bytes > self._ram_bytes:
            _, oldest = self._rows.popitem(last=False)
            self.n_bytes -= ctypes.sizeof(oldest)


@dataclass(frozen=True)
class RowFiles:
    """Rows in a folder that others may share.

    Attributes:
        folder: Path, made if it is missing.
        budget_bytes: int, for all files of rows in the folder.
        read_only: bool, never write, remove or touch a file.
    """

    folder: Path
    budget_bytes: int
    read_only: bool = False

    def __post_init__(self) -> None:
        if self.read_only:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequestError(f"{self.folder}: cannot be made or used: {error.strerror}") from error

    def read(self, key: bytes) -> Any | None:
        """The rows of a key; None if no file holds them, or only a damaged one."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s cannot be read: %s", path, error)
            return None
        rows = _unpack(key, data)
        if rows is None:
            logger.warning("%s is damaged, or of another version; it is not used", path)
        elif not self.read_only:
            with contextlib.suppress(OSError):  # only for the order in which files go
                os.utime(path)
        return rows

    def write(self, key: bytes, rows: Any) -> None:
        """Writes the rows of a key, and makes room for them."""
        path = self._path(key)
        if self.read_only or ctypes.sizeof(rows) + _HEADER.size > self.budget_bytes:
            return
        try:
            if not path.exists():
                write_atomically(path, *_pack(key, rows), prefix=".lmrows-part-")
                self._make_room()
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error)

    def _make_room(self) -> None:
        found = sorted(((entry.stat(), entry) for entry in self.folder.glob(f"*{_SUFFIX}")), key=lambda one: one[0].st_mtime)
        n_bytes = sum(stat.st_size for stat, _ in found)
        for stat, entry in found:
            if n_bytes <= self.budget_bytes:
                return
            entry.unlink(missing_ok=True)
            n_bytes -= stat.st_size

    def _path(self, key: bytes) -> Path:
        return self.folder / f"{key.hex()}{_SUFFIX}"


def _pack(key: bytes, rows: Any) -> tuple[bytes, Any]:
    body = memoryview(rows).cast("B")
    return _HEADER.pack(_MAGIC, _VERSION, _digest(key, body), key, len(rows)), body


def _unpack(key: bytes, data: bytes) -> Any | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, digest, own_key, n_floats = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if (magic, version, own_key) != (_MAGIC, _VERSION, key) or len(body) != 4 * n_floats or digest != _digest(key, body):
        return None
    return (ctypes.c_float * n_floats).from_buffer_copy(body)


def _digest(key: bytes, body: Any) -> bytes:
    return hashlib.blake2b(body, digest_size=32, key=key).digest()
