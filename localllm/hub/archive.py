"""A model in one file or folder, to be carried to a machine without a network: its record, and all its files.

    localllm-model.json     the record, without what concerns this machine only
    files/<path>            its files, in the record's order, named as in the repository

As a file it is an uncompressed tar archive, as tar itself reads it; as a folder it holds the same. Nothing of an archive counts
as here before all of it was found sound: names, sizes, checksums and headers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import (
    DiskSpaceError,
    DownloadCancelledError,
    HubError,
    IncompleteSetError,
    InvalidRequestError,
)
from localllm.hub.archive_import import Import
from localllm.hub.archive_parts import FILES, MARGIN_BYTES, RECORD, copy_checked, hashed, opened, unreadable
from localllm.hub.asynchronous import twin
from localllm.hub.entry import Entry
from localllm.hub.environment import expanded
from localllm.hub.foreign import Foreign
from localllm.hub.inventory import entry_of
from localllm.hub.layout import free_bytes
from localllm.hub.listing import RepoFile
from localllm.hub.manifest import KeptFile, Manifest
from localllm.hub.partial import NO_ROOM, no_room
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.store import Store
from localllm.hub.tar_reader import BLOCK_BYTES
from localllm.hub.unfinished import EXPORTING, unfinished

_COMPRESSED_SUFFIXES = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".zip", ".7z")


@dataclass(frozen=True)
class Exported:
    """An archive that was written.

    Attributes:
        path: Path.
        manifest: Manifest, of the model in it.
        n_bytes: int, of the model's files.
    """

    path: Path
    manifest: Manifest
    n_bytes: int


# ---- out


def export(
    store: Store,
    reference: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    folder: bool | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Exported:
    """Writes a model of this machine, companions included, into an archive. Every file is hashed on its way.

    Args:
        store: Store.
        reference: a model of the Hub that is here.
        target: file, or folder, to be written. It appears when it is complete.
        folder: bool, write a folder; None: if `target` ends in a slash.
        overwrite: bool, replace a file that is there by a file. Folders are never replaced, unless they are empty.
        progress: called with a Progress of the phase "checking" now and then.
        cancel: CancelToken; nothing is left of an export that was cancelled.

    Raises:
        ModelNotFoundError: It is not here.
        InvalidRequestError: Several models are meant, or one that is from no repository; or the target is there already.
        IncompleteSetError, CorruptFileError: Its files are missing or damaged.
        DiskSpaceError: No room.
        HubError: The target cannot be written.
    """
    entry, cancel = _exportable(entry_of(store, reference)), cancel or CancelToken()
    text = os.fspath(target)
    as_folder = text.endswith(("/", os.sep)) if folder is None else folder
    path = expanded(text, "the archive")
    try:
        if path.exists() and not _may_be_replaced(path, as_folder, overwrite):
            remedy = "a folder is never replaced" if as_folder else "or replace it (overwrite=True)"
            raise InvalidRequestError(f"{path} is there already; name another one{';' if as_folder else ','} {remedy}")
        if not as_folder and path.suffix.lower() in _COMPRESSED_SUFFIXES:
            raise InvalidRequestError(f"{path}: an archive is not compressed, as models hardly shrink; call it {path.stem}.tar")
        manifest = entry.manifest or _manifest_of(entry.foreign, progress, cancel)
        writer = _Writer(manifest, progress, cancel)
        with unfinished(path.parent, EXPORTING) as temporary:
            writer.check_room(path)
            (writer.write_folder if as_folder else writer.write_tar)(temporary)
            temporary.replace(path)
    except DownloadCancelledError:
        raise DownloadCancelledError(f"{path}: the export was cancelled; nothing of it is left") from None
    except OSError as error:
        if isinstance(error, HubError):
            raise
        if error.errno in NO_ROOM:
            raise writer.no_room(path, os.strerror(error.errno or 0)) from error
        raise HubError(f"{path} cannot be written: {error.strerror or error}; name another place") from error
    return Exported(path, manifest, manifest.n_bytes)


aexport = twin(export, "aexport")


def _may_be_replaced(path: Path, as_folder: bool, overwrite: bool) -> bool:
    if as_folder:
        return path.is_dir() and not any(path.iterdir())
    return overwrite and path.is_file()


def _exportable(entry: Entry) -> Entry:
    if entry.state in ("broken", "partial"):
        raise IncompleteSetError(f"{entry.reference}: {entry.problem}")
    if entry.manifest is None and entry.foreign is None:
        raise InvalidRequestError(f"{entry.reference}: is from no repository; copy its file, {entry.path}")
    return entry


def _manifest_of(found: Foreign | None, progress: ProgressCallback | None, cancel: CancelToken) -> Manifest:
    """The record of a model that another program brought."""
    assert found is not None
    revision = "main" if "main" in found.revisions or not found.revisions else found.revisions[0]
    named = [(found.place.pointer(found.commit, file.path), file) for file in found.files.files]
    files = tuple(KeptFile("model", _with_sums(path, file, progress, cancel)) for path, file in named)
    return Manifest(
        found.place.repo,
        revision if found.revisions else found.commit,
        found.commit,
        found.files.name.tag,
        files,
        found.place.root.absolute(),
        time.time(),
    )


def _with_sums(path: Path, file: RepoFile, progress: ProgressCallback | None, cancel: CancelToken) -> RepoFile:
    """A file with all checksums that its repository has: of those that the cache does not tell, each follows from the content."""
    if file.oid and file.sha256 is None:  # git itself holds it
        return file
    sha256 = file.sha256 or hashed(path, dataclasses.replace(file, sha256=""), progress, cancel)
    # Git holds a pointer to a large file: Git LFS specification, "The Pointer".
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {file.n_bytes}\n".encode()
    oid = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer, usedforsecurity=False).hexdigest()
    return dataclasses.replace(file, sha256=sha256, oid=oid)


@dataclass(frozen=True)
class _Writer:
    """Writes the files of one model."""

    manifest: Manifest
    progress: ProgressCallback | None
    cancel: CancelToken

    def check_room(self, path: Path) -> None:
        if self.manifest.n_bytes + MARGIN_BYTES > free_bytes(path.absolute().parent):
            raise self.no_room(path, f"of which {MARGIN_BYTES:,} have to stay free")

    def no_room(self, path: Path, reason: str) -> DiskSpaceError:
        free = free_bytes(path.absolute().parent)
        return no_room(path.name, path.parent, self.manifest.n_bytes, free, reason, "name a file on another disk")

    def write_tar(self, path: Path) -> None:
        with path.open("xb") as file:
            record = self._record()
            file.write(_tar_header(RECORD, len(record)) + record + _padding(len(record)))
            for kept in self.manifest.files:
                file.write(_tar_header(f"{FILES}/{kept.file.path}", kept.file.n_bytes))
                self._copy(kept.file, file.write)
                file.write(_padding(kept.file.n_bytes))
            file.write(bytes(2 * BLOCK_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def write_folder(self, path: Path) -> None:
        path.mkdir()
        for kept in self.manifest.files:
            target = path / FILES / kept.file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                self._copy(kept.file, file.write)
                file.flush()
                os.fsync(file.fileno())
        (path / RECORD).write_bytes(self._record())

    def _record(self) -> bytes:
        """The record without what concerns this machine only."""
        return dataclasses.replace(self.manifest, cache=Path(), pinned=False).to_bytes()

    def _copy(self, file: RepoFile, write: Callable[[bytes], object]) -> None:
        path = self.manifest.place.pointer(self.manifest.commit, file.path)
        try:
            source = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error
        with source:
            copy_checked(source.read, write, file, f"{path}: is damaged", self.progress, self.cancel)


def _tar_header(name: str, n_bytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = n_bytes
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(n_bytes: int) -> bytes:
    return bytes(-n_bytes % BLOCK_BYTES)


# ---- in


def import_(
    store: Store,
    source: str | os.PathLike[str],
    *,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Manifest:
    """Takes a model from an archive into the Hub's cache, where other programs find it, too. Asks no network.

    Checksums show that an archive is whole, not who made it: take only what you would download from its sender.

    Args:
        store: Store.
        source: file or folder that `export` wrote.
        progress: called with a Progress of the phase "checking" now and then.
        cancel: CancelToken; nothing is left of an import that was cancelled.

    Returns:
        Manifest, its record.

    Raises:
        InvalidRequestError: There is no such file, or it is something else than an archive of a model.
        CorruptFileError: The archive is damaged, or holds what no export would write. Nothing of it is here.
        DiskSpaceError: No room.
        HubError: The cache or the folder of records cannot be written.
    """
    path = expanded(os.fspath(source), "the archive")
    try:
        with opened(path) as archive:
            return Import(store, archive, progress, cancel or CancelToken()).run()
    except DownloadCancelledError:
        raise DownloadCancelledError(f"{path}: the import was cancelled; nothing of it is left") from None
    except OSError as error:
        if isinstance(error, HubError):
            raise
        raise HubError(f"{error.filename or path}: {error.strerror or error}; mend that, and import it again") from error


aimport = twin(import_, "aimport")
