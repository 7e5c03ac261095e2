"""Copies of states in files, which outlive the process.

One file per prefix, named after what it holds. Layout, little-endian: magic, version, key of what the state depends on, number
of ids, number of bytes, flags, BLAKE2b-256 of everything else; then the ids as int32, then the bytes. A file is written beside
its place and renamed, so that no reader ever sees a part of one. Whatever is damaged, foreign or of another version is a miss,
told of once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.files import write_atomically

logger = logging.getLogger("localllm.engine")

_MAGIC = b"LMSTATE\x00"
_VERSION = 1
_HEADER = struct.Struct("<8sI32sQQI32s")
_EXACT = 1

_SUFFIX = ".lmstate"
_PART = ".lmstate-part-"
# What is read of a model file for its fingerprint, in bytes: 4 MiB in all, whatever its size.
_END, _PLACE, _PLACES = 2**20, 2**12, 512


class FolderBusy(Exception):
    """Another process writes into the folder, for as long as it likes: try again later."""


@dataclass(frozen=True)
class Stored:
    """A file: the prefix that it holds, the bytes of its state, and the key of the steering that it was computed with."""

    path: Path
    ids: tuple[int, ...]
    n_bytes: int
    exact: bool
    steering: bytes = b""


class DiskStore:
    """The files of one model and context in a folder that others may share.

    Args:
        folder: Path, made if it is missing.
        key: 32 bytes, the fingerprint of all that a state depends on; files with another key are left alone.
        budget_bytes: int, for all files of the folder; the ones that were used least recently go first.
        read_only: bool, never write, remove or touch a file.
    """

    def __init__(self, folder: Path, key: bytes, budget_bytes: int, read_only: bool = False) -> None:
        self.folder = folder
        self._key = key
        self._budget_bytes = budget_bytes
        self._read_only = read_only
        self._told: set[Path] = set()
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, steering: bytes = b"") -> Iterator[Stored]:
        """What the folder holds for this key and steering, the least recently used first. Reads no states."""
        for path in sorted(self._files(), key=_last_use):
            stored = self._read_header(path, steering)
            if stored is not None:
                yield stored

    def read(self, stored: Stored) -> Any | None:
        """The bytes of a state as a ctypes-ready buffer, None if the file is of no use (any more)."""
        try:
            data = stored.path.read_bytes()
        except OSError as error:
            self._tell(stored.path, error.strerror or "cannot be read")
            return None
        if len(data) < _HEADER.size:
            self._tell(stored.path, "damaged")
            return None
        *kind, n_ids, n_bytes, flags, checksum = _HEADER.unpack_from(data)
        start = _HEADER.size + 4 * n_ids
        key = self._steered(stored.steering)
        sound = kind == [_MAGIC, _VERSION, key] and len(data) == start + n_bytes
        if not sound or checksum != _checksum(key, flags, data[_HEADER.size : start], data[start:]):
            self._tell(stored.path, "damaged")
            return None
        if not self._read_only:
            with contextlib.suppress(OSError):
                os.utime(stored.path)
        return bytearray(data[start:])

    def write(self, ids: Sequence[int], data: Any, exact: bool, steering: bytes = b"") -> Stored | None:
        """Stores a state. None if it does not fit, the folder cannot be written, or the store is read-only.

        Raises:
            FolderBusy: Another process is writing.
        """
        body = memoryview(data).cast("B")
        if self._read_only or _HEADER.size + 4 * len(ids) + len(body) > self._budget_bytes:
            return None
        key = self._steered(steering)
        packed = struct.pack(f"<{len(ids)}i", *ids)
        flags = _EXACT if exact else 0
        path = self.folder / (hashlib.blake2b(key + packed, digest_size=20).hexdigest() + _SUFFIX)
        header = _HEADER.pack(_MAGIC, _VERSION, key, len(ids), len(body), flags, _checksum(key, flags, packed, body))
        try:
            with self._lock() as alone:
                if alone:
                    self._remove_parts()
                self._make_room(len(header) + len(packed) + len(body), path)
                write_atomically(path, header, packed, body, prefix=_PART)
        except OSError as error:
            self._tell(self.folder, error.strerror or "cannot be written")
            return None
        return Stored(path, tuple(ids), len(body), exact, steering)

    def busy(self) -> bool:
        """Whether another process writes into the folder now."""
        try:
            with self._lock():
                return False
        except FolderBusy:
            return True
        except OSError:
            return False  # `write` will tell

    # ---- inside

    def _steered(self, steering: bytes) -> bytes:
        """The key of states that were computed with these adapters."""
        return hashlib.blake2b(self._key + steering, digest_size=32).digest() if steering else self._key

    def _files(self) -> list[Path]:
        try:
            # Whatever else bears such a name (a pipe would be waited for) is passed over.
            return [path for path in self.folder.iterdir() if path.suffix == _SUFFIX and path.is_file()]
        except OSError:
            return []

    def _read_header(self, path: Path, steering: bytes) -> Stored | None:
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                if len(head) < _HEADER.size or not head.startswith(_MAGIC):
                    self._tell(path, "not a state file")
                    return None
                _, version, key, n_ids, n_bytes, flags, _ = _HEADER.unpack(head)
                if version != _VERSION:
                    self._tell(path, f"of version {version}")
                    return None
                if key != self._steered(steering):
                    return None
                if os.fstat(file.fileno()).st_size != _HEADER.size + 4 * n_ids + n_bytes:
                    self._tell(path, "damaged")
                    return None
                ids = struct.unpack(f"<{n_ids}i", file.read(4 * n_ids))
                return Stored(path, ids, n_bytes, bool(flags & _EXACT), steering)
        except (OSError, struct.error) as error:
            self._tell(path, str(error))
            return None

    def _remove_parts(self) -> None:
        """Removes what writers left that were killed; with the lock held, nobody else is writing."""
        for path in self.folder.glob(_PART + "*"):
            path.unlink(missing_ok=True)

    def _make_room(self, n_bytes: int, path: Path) -> None:
        files = [other for other in self._files() if other != path]
        used = sum(_size(other) for other in files)
        for other in sorted(files, key=_last_use):
            if used + n_bytes <= self._budget_bytes:
                return
            used -= _size(other)
            other.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """One writer at a time, also among processes, so that the budget is counted by one of them. False: nothing can tell.

        Never waits: the other process may have been stopped, and answers are not to wait for it.

        Raises:
            FolderBusy: Another process has it.
        """
        try:
            import fcntl
        except ImportError:
            yield False
            return
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderBusy(f"{self.folder}: another process is writing") from error
            yield True

    def _tell(self, path: Path, reason: str) -> None:
        if path not in self._told:
            self._told.add(path)
            logger.warning("state cache: %s is passed over: %s", path, reason)


def _checksum(key: bytes, flags: int, packed_ids: bytes, body: Any) -> bytes:
    digest = hashlib.blake2b(struct.pack("<I", flags) + key, digest_size=32)
    digest.update(packed_ids)
    digest.update(body)
    return digest.digest()


def _last_use(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def state_key(path: str, facts: object) -> bytes:
    """The fingerprint of a model file and of `facts` that shape its states: 32 bytes.

    The file counts by its size, its first and last MiB and places spread over all of it, not by its name or date: two fine-tunes
    of a model may have the same metadata, and the same weights at both ends.
    """
    digest = hashlib.blake2b(digest_size=32)
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(struct.pack("<Q", size))
        for start in (0, max(0, size - _END)):
            file.seek(start)
            digest.update(file.read(_END))
        for start in range(0, size, max(1, size // _PLACES)):
            file.seek(start)
            digest.update(file.read(_PLACE))
    digest.update(repr(facts).encode())
    return digest.digest()
