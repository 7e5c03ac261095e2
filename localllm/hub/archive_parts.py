"""What an archive of a model consists of, and how one is read: as a file or as a folder."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from localllm.errors import CorruptFileError, HubError, InvalidRequestError
from localllm.hub.layout import checksum
from localllm.hub.listing import RepoFile
from localllm.hub.partial import hash_file, new_digest
from localllm.hub.progress import CancelToken, Meter, ProgressCallback
from localllm.hub.tar_reader import TarReader

RECORD, FILES = "localllm-model.json", "files"
MARGIN_BYTES = 64 << 20  # that stay free on a file system
_MAX_RECORD_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_TOO_SMALL = "its files are smaller than its record says"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}


class TarSource:
    """An archive in a file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path = path
        self.total_bytes = os.fstat(file.fileno()).st_size
        self._file = file
        self._reader = TarReader(file, path, self.total_bytes)

    def record(self) -> bytes:
        return self._file.read(self._expect(RECORD, None))

    @contextlib.contextmanager
    def content(self, file: RepoFile) -> Iterator[Callable[[int], bytes]]:
        """A function that reads the next file, which must be this one."""
        self._expect(f"{FILES}/{file.path}", file.n_bytes)
        yield self._file.read

    def lacking(self, files: Sequence[RepoFile]) -> str:
        """What is wrong with it if it is too small for its files."""
        return _TOO_SMALL

    def finish(self) -> None:
        if (member := self._reader.member()) is not None:
            raise self.wrong(f"it holds {member.name[:80]!r}, of which its record says nothing")

    def wrong(self, reason: str) -> CorruptFileError:
        return self._reader.wrong(reason)

    def _expect(self, name: str, n_bytes: int | None) -> int:
        member = self._reader.member()
        found = f"{member.name[:80]!r}" if member is not None else "its end"
        if member is None or member.name != name:
            raise self.wrong(f"{found} comes where {name!r} is expected")
        if member.n_bytes != n_bytes if n_bytes is not None else member.n_bytes > _MAX_RECORD_BYTES:
            raise self.wrong(f"{name} has {member.n_bytes:,} bytes")
        self._file.seek(member.start)
        return member.n_bytes


class FolderSource:
    """An archive in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total_bytes = sum(found.lstat().st_size for found in path.rglob("*") if found.is_file())

    def record(self) -> bytes:
        with self._open(RECORD) as file:
            return file.read(_MAX_RECORD_BYTES + 1)

    @contextlib.contextmanager
    def content(self, file: RepoFile) -> Iterator[Callable[[int], bytes]]:
        with self._open(f"{FILES}/{file.path}") as found:
            if os.fstat(found.fileno()).st_size != file.n_bytes:
                raise self.wrong(f"{file.path} has another size than its record says")
            yield found.read

    def lacking(self, files: Sequence[RepoFile]) -> str:
        """What is wrong with it if it is too small for its files."""
        gone = next((name for file in files if not os.path.lexists(self.path / (name := f"{FILES}/{file.path}"))), None)
        return f"{gone} is missing" if gone is not None else _TOO_SMALL

    def finish(self) -> None:
        """Other files in the folder do not matter."""

    def wrong(self, reason: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path}: no exported model, or a damaged one: {reason}; export the model once more")

    def _open(self, name: str) -> BinaryIO:
        path = self.path / name
        try:
            # Links would let an archive name files of this machine.
            inside = path.resolve() == self.path.resolve() / name and stat.S_ISREG(path.lstat().st_mode)
            if inside:
                return path.open("rb")
        except OSError as error:
            raise self.wrong(f"{name}: {error.strerror or 'cannot be read'}") from error
        raise self.wrong(f"{name} is no regular file")


Source = TarSource | FolderSource


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Opens an archive.

    Raises:
        InvalidRequestError: There is none, or it is something else.
    """
    if path.is_dir():
        yield FolderSource(path)
        return
    if not path.is_file():
        raise InvalidRequestError(f"{path}: no such file or folder")
    with path.open("rb") as file:
        head = file.read(8)
        if head[:4] == b"GGUF":
            raise InvalidRequestError(f"{path}: is a model itself, and needs no import: use it by its path, or give it an alias")
        if packed := next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), ""):
            raise InvalidRequestError(f"{path}: is compressed by {packed}; unpack that first")
        file.seek(0)
        yield TarSource(file, path)


def copy_checked(
    read: Callable[[int], bytes],
    write: Callable[[bytes], object],
    file: RepoFile,
    problem: str,
    progress: ProgressCallback | None,
    cancel: CancelToken,
) -> None:
    """Copies exactly the bytes of a file, and hashes them.

    Raises:
        CorruptFileError: They are fewer, or others; `problem` is how its message begins.
    """
    meter, digest, done = Meter(file.path, file.n_bytes, progress), new_digest(file), 0
    while done < file.n_bytes:
        cancel.check()
        piece = read(min(_READ_BYTES, file.n_bytes - done))
        if not piece:
            break
        digest.update(piece)
        write(piece)
        done += len(piece)
        meter.tell("checking", done)
    if done != file.n_bytes:
        raise CorruptFileError(f"{problem}: {file.path} has {done:,} bytes instead of {file.n_bytes:,}")
    if digest.hexdigest() != checksum(file):
        raise CorruptFileError(f"{problem}: {file.path} has the checksum {digest.hexdigest()}, not {checksum(file)}")
    meter.tell("finished", done)


def hashed(path: Path, file: RepoFile, progress: ProgressCallback | None, cancel: CancelToken) -> str:
    """The checksum of a file of this machine."""
    meter = Meter(file.path, file.n_bytes, progress)
    try:
        return hash_file(path, file, cancel, lambda done: meter.tell("checking", done))
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> HubError:
    """The error for a file of this machine that cannot be read."""
    return HubError(f"{path} cannot be read: {error.strerror or error}; mend that, and try again")
