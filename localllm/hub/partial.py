"""A file that is arriving: its bytes, their hash, and a record of who writes it.

The bytes lie beside the finished blobs, under the Hub's name for such files. A record in JSON beside them says for what content
they are, which machine writes them, and what the hash was at some earlier sizes. So a process that goes on after another one, or
after a power failure, trusts no more than what the hashes confirm.

Whoever writes holds the blob's lock. On some network file systems a lock excludes nobody on other machines. Therefore a copy that
another machine is visibly writing is left to it, and a private one is begun; and whoever finds in the end that the record is no
longer its own hashes the file once more from the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm.errors import DiskSpaceError, HubError
from localllm.hub.layout import free_bytes
from localllm.hub.listing import RepoFile, is_size, is_strong_etag
from localllm.hub.names import is_safe_path
from localllm.hub.paths import is_commit
from localllm.hub.plain_json import parsed
from localllm.hub.progress import CancelToken

if TYPE_CHECKING:
    from localllm.hub.body import Validator

RECORD = ".json"  # appended to the name of a partial file
_VERSION = 1
_CHECKPOINT_BYTES = 64 << 20
_RECORDED_FROM_BYTES = 1 << 20  # what is smaller is hashed again in the end, which costs less
_READ_BYTES = 1 << 20
_MAX_RECORD_BYTES = 4 << 20
_WATCHED_SECONDS = 60.0
_WATCH_SECONDS = 3.0
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Told = Callable[[int], None]


@dataclass(frozen=True)
class Record:
    """What is known about a partial file.

    Attributes:
        checksum: str, of the whole content.
        n_bytes: int, of the whole content.
        host: str, the machine that writes it.
        boot: str, which start of that machine; "" if it does not say.
        nonce: str, who writes it.
        origin: str, who has sent the latest part; "" if it gave no strong ETag.
        etag: str, that ETag.
        checkpoints: sizes, and the hash of so many first bytes; ascending.
        path, commit: str, the file in the repository that it was fetched for; "" if an older version of this program began it.
    """

    checksum: str
    n_bytes: int
    host: str
    boot: str
    nonce: str
    origin: str = ""
    etag: str = ""
    checkpoints: tuple[tuple[int, str], ...] = ()
    path: str = ""
    commit: str = ""


def new_digest(file: RepoFile) -> Any:
    """SHA-256, or for a file in git itself the SHA-1 of git's blob objects: "blob", its size, a zero byte, its content."""
    if file.sha256 is not None:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.n_bytes, usedforsecurity=False)


def hash_file(path: Path, file: RepoFile, cancel: CancelToken, told: Told) -> str:
    """The checksum of a whole file on disk, to be compared with the repository's."""
    digest, done = new_digest(file), 0
    with path.open("rb", buffering=0) as source:
        while piece := source.read(_READ_BYTES):
            cancel.check()
            digest.update(piece)
            done += len(piece)
            told(done)
    return str(digest.hexdigest())


class Partial:
    """The partial file of one blob, open for writing. To be used under the blob's lock.

    Args:
        path: Path, where it is.
        file: RepoFile, what it is to become.
        checksum: str, of the whole content.
        commit: str, of the repository, that it is fetched for.
        cancel: stops hashing and waiting.
        told: called with the number of bytes that are hashed while it is opened.
    """

    def __init__(self, path: Path, file: RepoFile, checksum: str, commit: str, cancel: CancelToken, told: Told) -> None:
        self.file = file
        nonce = secrets.token_hex(8)
        found = _record_of(path, checksum, file.n_bytes)
        if found is not None and _written_elsewhere(path, found, cancel):
            path, found = path.with_name(f"{checksum}.{nonce}.incomplete"), None
        self.path = path
        self._record = Record(checksum, file.n_bytes, platform.node(), _boot(), nonce, path=file.path, commit=commit)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)
        self._saved_bytes = 0
        self.n_bytes = 0
        self.digest = new_digest(file)
        try:
            self._adopt(found, cancel, told)
            self._save()
        except BaseException:
            self.close()
            raise

    @property
    def validator(self) -> Validator | None:
        """What the sender of the latest part called it."""
        from localllm.hub.body import Validator

        return Validator(self._record.origin, self._record.etag) if self._record.etag else None

    def comes_from(self, validator: Validator | None) -> None:
        """Notes who sends what follows."""
        origin, etag = (validator.origin, validator.etag) if validator else ("", "")
        if (origin, etag) != (self._record.origin, self._record.etag):
            self._record = replace(self._record, origin=origin, etag=etag)
            self._save()

    def write(self, data: bytes) -> None:
        """Appends.

        Raises:
            DiskSpaceError: No room; what fits is kept.
            HubError: The file cannot be written.
        """
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._handle, rest)
                self.digest.update(rest[:written])
                self.n_bytes += written
                rest = rest[written:]
        except OSError as error:
            raise self._cannot_write(error) from None
        if self.n_bytes - self._saved_bytes >= _CHECKPOINT_BYTES:
            points = (*self._record.checkpoints, (self.n_bytes, self.digest.hexdigest()))
            self._record = replace(self._record, checkpoints=points)
            self._save()

    def rewind(self) -> None:
        """Begins anew."""
        self._cut(0, new_digest(self.file), ())
        self._save()

    def finish(self, cancel: CancelToken, told: Told) -> str:
        """Brings everything to the disk, and returns its checksum."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise self._cannot_write(error) from None
        found = _record_of(self.path, self._record.checksum, self.file.n_bytes)
        if found is not None and found.nonce == self._record.nonce and os.fstat(self._handle).st_size == self.n_bytes:
            return str(self.digest.hexdigest())
        return hash_file(self.path, self.file, cancel, told)

    def move(self, target: Path) -> None:
        """Gives the file another name, for good; its record goes. A power failure may undo that, and lose nothing by it."""
        self.close()
        self.path.replace(target)
        if self.file.n_bytes >= _RECORDED_FROM_BYTES:
            _record_path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # ---- inside

    def _adopt(self, found: Record | None, cancel: CancelToken, told: Told) -> None:
        """Hashes what is there, and drops what is not confirmed."""
        size = os.fstat(self._handle).st_size
        expected = dict(found.checkpoints) if found else {}
        last: tuple[int, Any] = (0, new_digest(self.file))
        passed: list[tuple[int, str]] = []
        while self.n_bytes < size <= self.file.n_bytes:
            cancel.check()
            stop = min([size, *(point for point in expected if point > self.n_bytes)])
            piece = os.read(self._handle, min(_READ_BYTES, stop - self.n_bytes))
            if not piece:
                break
            self.digest.update(piece)
            self.n_bytes += len(piece)
            told(self.n_bytes)
            if self.n_bytes in expected:
                if self.digest.hexdigest() != expected[self.n_bytes]:
                    self.n_bytes = -1
                    break
                last = (self.n_bytes, self.digest.copy())
                passed.append((self.n_bytes, expected[self.n_bytes]))
        restarted = found is not None and found.boot != self._record.boot
        if self.n_bytes < 0 or restarted or size > self.file.n_bytes:
            # After a power failure the end of a file may be there in size only.
            self._cut(*last, tuple(passed))
            return
        self._record = replace(self._record, checkpoints=tuple(passed))
        if found is not None and self.n_bytes:
            self._record = replace(self._record, origin=found.origin, etag=found.etag)

    def _cut(self, n_bytes: int, digest: Any, checkpoints: tuple[tuple[int, str], ...]) -> None:
        try:
            os.ftruncate(self._handle, n_bytes)
        except OSError as error:
            raise self._cannot_write(error) from None
        os.lseek(self._handle, n_bytes, os.SEEK_SET)
        self.n_bytes, self.digest = n_bytes, digest
        self._record = replace(self._record, checkpoints=checkpoints)

    def _save(self) -> None:
        self._saved_bytes = self.n_bytes
        if self.file.n_bytes < _RECORDED_FROM_BYTES:
            return
        path = _record_path(self.path)
        temporary = path.with_name(f"{path.name}.{self._record.nonce}")
        try:
            temporary.write_text(json.dumps({"version": _VERSION, **asdict(self._record)}), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise self._cannot_write(error) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _cannot_write(self, error: OSError) -> HubError:
        folder = self.path.parent
        if error.errno in NO_ROOM:
            needed = self.file.n_bytes - self.n_bytes
            return no_room(self.file.path, folder, needed, free_bytes(folder), os.strerror(error.errno or 0))
        return HubError(
            f"{self.path} cannot be written ({error.strerror or error}); mend that, or set HF_HUB_CACHE to another folder"
        )


def no_room(
    path: str,
    folder: Path,
    needed_bytes: int,
    free: int,
    reason: str,
    remedy: str = "set HF_HUB_CACHE to a folder on another disk",
) -> DiskSpaceError:
    return DiskSpaceError(
        f"{path}: {needed_bytes:,} bytes are still to be written to {folder}, where {free:,} are free ({reason}); "
        f"make room (localllm gc), or {remedy}",
        needed_bytes,
        free,
    )


def remove_partial(path: Path) -> None:
    """A partial file that is no longer needed, and its record."""
    path.unlink(missing_ok=True)
    _record_path(path).unlink(missing_ok=True)


def told_by(path: Path) -> tuple[str, str]:
    """What file of the repository a partial file is of, and at which commit, as far as its record tells: ("", "")."""
    found = _read_record(path if path.suffix == RECORD else _record_path(path))
    return (found.path, found.commit) if found is not None and path.name.startswith(found.checksum) else ("", "")


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + RECORD)


def _record_of(path: Path, checksum: str, n_bytes: int) -> Record | None:
    """The record of a partial file; None if there is none for this content."""
    record = _read_record(_record_path(path)) if n_bytes >= _RECORDED_FROM_BYTES else None
    return record if record is not None and (record.checksum, record.n_bytes) == (checksum, n_bytes) else None


def _read_record(path: Path) -> Record | None:
    """None if there is none, or it is damaged: it only ever saves work."""
    try:
        with path.open("rb") as file:
            values = parsed(file.read(_MAX_RECORD_BYTES))
        if values.pop("version") != _VERSION:
            return None
        values["checkpoints"] = tuple((at, digest) for at, digest in values["checkpoints"])
        record = Record(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if _is_sound(record) else None


def _is_sound(record: Record) -> bool:
    texts = (record.checksum, record.host, record.boot, record.nonce, record.origin, record.path, record.commit)
    sent = record.etag == "" or is_strong_etag(record.etag)
    if not all(isinstance(text, str) for text in (*texts, *(digest for _, digest in record.checkpoints))):
        return False
    told = not record.path or (is_safe_path(record.path) and is_commit(record.commit))
    return sent and told and is_size(record.n_bytes) and all(is_size(at) for at, _ in record.checkpoints)


def _written_elsewhere(path: Path, record: Record, cancel: CancelToken) -> bool:
    """Whether another machine writes the file right now, although we hold the lock."""
    if record.host == platform.node():
        return False
    try:
        before = path.stat()
        if time.time() - before.st_mtime > _WATCHED_SECONDS:
            return False
        cancel.sleep(_WATCH_SECONDS)
        after = path.stat()
    except OSError:
        return False
    return (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
