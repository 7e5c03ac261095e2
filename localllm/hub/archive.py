"""A model in one file or folder, to be carried to a machine without a network: its record, and all its files.

    localllm-model.json     the record, without what concerns this machine only
    files/<path>            its files, in the record's order, named as in the repository

As a file it is an uncompressed tar archive, as tar itself reads it; as a folder it holds the same. Nothing of an archive counts
as here before all of it was found sound: names, sizes, checksums and headers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import (
    CorruptFileError,
    DownloadCancelledError,
    HubError,
    IncompleteSetError,
    InvalidRequestError,
    ModelError,
)
from localllm.hub.archive_parts import FILES, RECORD, Source, copy_checked, opened
from localllm.hub.asynchronous import in_thread
from localllm.hub.contents import contents
from localllm.hub.foreign import Foreign
from localllm.hub.gguf import Header, merge_shards, read_header
from localllm.hub.inventory import Entry, entry_of
from localllm.hub.layout import RepoCache, checksum, free_bytes, locked
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.manifest import KeptFile, Manifest
from localllm.hub.partial import hash_file, no_room
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.sets import file_sets, role_of
from localllm.hub.store import Store
from localllm.hub.tar_reader import BLOCK_BYTES

_MARGIN_BYTES = 64 << 20
_KINDS = {"model": "model", "projector": "mmproj", "draft": "draft"}


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
        overwrite: bool, replace a file that is there. Folders are never replaced, unless they are empty.
        progress: called with a Progress of the phase "checking" now and then.
        cancel: CancelToken; nothing is left of an export that was cancelled.

    Raises:
        ModelNotFoundError: It is not here.
        InvalidRequestError: Several models are meant, or one that is from no repository; or the target is there already.
        IncompleteSetError, CorruptFileError: Its files are missing or damaged.
        DiskSpaceError: No room.
        HubError: The target cannot be written.
    """
    entry = entry_of(store, reference)
    manifest = _exportable(entry)
    text = os.fspath(target)
    as_folder = text.endswith(("/", os.sep)) if folder is None else folder
    path = Path(text).expanduser()
    if path.exists() and not (path.is_dir() and as_folder and not any(path.iterdir())) and not (overwrite and path.is_file()):
        raise InvalidRequestError(f"{path} is there already; name another one{'' if as_folder else ', or overwrite it'}")
    writer = _Writer(manifest, progress, cancel or CancelToken())
    temporary = path.parent / f".writing-{secrets.token_hex(8)}"
    try:
        writer.check_room(path)
        (writer.write_folder if as_folder else writer.write_tar)(temporary)
        temporary.replace(path)
    except DownloadCancelledError:
        raise DownloadCancelledError(f"{path}: the export was cancelled; nothing of it is left") from None
    except OSError as error:
        if isinstance(error, HubError):
            raise
        raise HubError(f"{path} cannot be written: {error.strerror or error}; name another place") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    return Exported(path, manifest, manifest.n_bytes)


async def aexport(
    store: Store,
    reference: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    folder: bool | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Exported:
    """`export` without blocking the event loop."""
    return await in_thread(export, store, reference, target, folder=folder, overwrite=overwrite, progress=progress, cancel=cancel)


def _exportable(entry: Entry) -> Manifest:
    if entry.state in ("broken", "partial"):
        raise IncompleteSetError(f"{entry.reference}: {entry.problem} Mend it with: localllm repair {entry.reference}")
    if entry.manifest is not None:
        return entry.manifest
    if entry.foreign is not None:
        return _manifest_of(entry.foreign)
    raise InvalidRequestError(f"{entry.reference}: is from no repository; copy its file, {entry.path}")


def _manifest_of(found: Foreign) -> Manifest:
    """The record of a model that another program brought."""
    revision = "main" if "main" in found.revisions or not found.revisions else found.revisions[0]
    files = tuple(KeptFile("model", _with_sums(found.place.pointer(found.commit, file.path), file)) for file in found.files.files)
    return Manifest(
        found.place.repo,
        revision if found.revisions else found.commit,
        found.commit,
        found.files.name.tag,
        files,
        found.place.root.absolute(),
        time.time(),
    )


def _with_sums(path: Path, file: RepoFile) -> RepoFile:
    """A file with all checksums that its repository has: of those that the cache does not tell, each follows from the content."""
    if file.oid and file.sha256 is None:  # git itself holds it
        return file
    sha256 = file.sha256 or hash_file(path, dataclasses.replace(file, sha256=""), CancelToken(), lambda done: None)
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
        free = free_bytes(path.absolute().parent)
        if self.manifest.n_bytes + _MARGIN_BYTES > free:
            raise no_room(path.name, path.parent, self.manifest.n_bytes, free, f"of which {_MARGIN_BYTES:,} have to stay free")

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
        with path.open("rb", buffering=0) as source:
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
    path = Path(source).expanduser()
    try:
        with opened(path) as archive:
            return _Import(store, archive, progress, cancel or CancelToken()).run()
    except DownloadCancelledError:
        raise DownloadCancelledError(f"{path}: the import was cancelled; nothing of it is left") from None
    except OSError as error:
        if isinstance(error, HubError):
            raise
        raise HubError(f"{error.filename or path}: {error.strerror or error}; mend that, and import it again") from error


async def aimport(
    store: Store,
    source: str | os.PathLike[str],
    *,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Manifest:
    """`import_` without blocking the event loop."""
    return await in_thread(import_, store, source, progress=progress, cancel=cancel)


class _Import:
    """The steps from an archive to a model that is here."""

    def __init__(self, store: Store, source: Source, progress: ProgressCallback | None, cancel: CancelToken) -> None:
        self.store = store
        self.source = source
        self.progress = progress
        self.cancel = cancel
        self.manifest = self._record()
        self.place: RepoCache = self.manifest.place
        self.staged: dict[str, Path] = {}

    def run(self) -> Manifest:
        self._check_room()
        sums = sorted({checksum(kept.file) for kept in self.manifest.files})
        folders = (self.place.blobs, self.place.folder / "snapshots", self.place.lock(sums[0]).parent)
        with contextlib.ExitStack() as stack:
            stack.callback(self._clean)
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            # All of them until the end, so that nobody takes what is staged for left over; in order, so that two never block.
            for name in sums:
                stack.enter_context(locked(self.place.lock(name), self.cancel, lambda: None))
            for kept in self.manifest.files:
                self._stage(kept.file)
            self.source.finish()
            manifest = self._checked()
            self._publish()
            self.store.add(manifest, whole=True)
        return manifest

    def _record(self) -> Manifest:
        try:
            manifest = Manifest.from_bytes(self.source.record(), RECORD)
        except CorruptFileError as error:
            raise self.source.wrong(str(error)) from error
        files = [kept.file for kept in manifest.files]
        if len({file.path.casefold() for file in files}) != len(files):
            raise self.source.wrong("its record names a file twice")
        for file in files:
            # Other programs run what else a repository may hold.
            if not file.path.lower().endswith(".gguf"):
                raise self.source.wrong(f"its record names {file.path!r}, which is no GGUF file")
        if manifest.n_bytes > self.source.total_bytes:
            raise self.source.wrong("its files are smaller than its record says")
        return dataclasses.replace(manifest, cache=self.store.cache.absolute(), pinned=False, pulled_at=time.time())

    def _check_room(self) -> None:
        free = free_bytes(self.place.blobs)
        if self.manifest.n_bytes + _MARGIN_BYTES > free:
            reason = f"of which {_MARGIN_BYTES:,} have to stay free"
            raise no_room(self.manifest.reference, self.place.root, self.manifest.n_bytes, free, reason)

    def _stage(self, file: RepoFile) -> None:
        """Brings a file beside the blobs, under a name that says that it is not one yet."""
        name = checksum(file)
        with self.source.content(file) as read:
            if name in self.staged or self._is_here(file):
                return
            path = self.place.blobs / f"{name}.{secrets.token_hex(8)}.incomplete"
            self.staged[name] = path
            with path.open("xb") as target:
                copy_checked(read, target.write, file, f"{self.source.path}: is damaged", self.progress, self.cancel)
                target.flush()
                os.fsync(target.fileno())

    def _is_here(self, file: RepoFile) -> bool:
        found = self._found(file)
        return found is not None and hash_file(found, file, self.cancel, lambda done: None) == checksum(file)

    def _found(self, file: RepoFile) -> Path | None:
        return self.place.find_blob(file) or self.place.find(self.manifest.commit, file)

    def _checked(self) -> Manifest:
        """The record, with what the headers say; they must be what the record takes the files for."""
        template = ""
        for role in ("model", "projector", "draft"):
            files = [kept.file for kept in self.manifest.files if kept.role == role]
            if not files:
                continue
            header = self._header(role, files)
            if role_of(header) != _KINDS[role] and not (role == "draft" and role_of(header) == "model"):
                raise self.source.wrong(f"{files[0].path} is a {header.kind}, not a {role}")
            template = header.chat_template if role == "model" else template
        digest = hashlib.sha256(template.encode()).hexdigest() if template else ""
        return dataclasses.replace(self.manifest, template_sha256=digest)

    def _header(self, role: str, files: list[RepoFile]) -> Header:
        """The header of the set that the files of a role are, by their names and by what they say themselves."""
        sets = file_sets(Listing(self.manifest.repo, self.manifest.revision, self.manifest.commit, tuple(files)))
        if len(sets) != 1 or sets[0].missing or sets[0].files != tuple(files):
            raise self.source.wrong(f"{files[0].path} and the other files of the {role} are not one set")
        try:
            headers = [read_header(self.staged.get(checksum(file)) or self._found(file) or Path(file.path)) for file in files]
            if headers[0].metadata.get("split.count", 1) not in (0, len(files)):
                raise IncompleteSetError("it is one of more files")
            return merge_shards(headers)
        except (ModelError, IncompleteSetError) as error:
            reason = getattr(error, "strerror", None) or error
            raise self.source.wrong(f"{files[0].path} cannot be used as {role} ({reason})") from error

    def _publish(self) -> None:
        commit = self.manifest.commit
        for kept in self.manifest.files:
            name = checksum(kept.file)
            self.place.prepare(commit, kept.file.path, name)
            if staged := self.staged.pop(name, None):
                staged.replace(self.place.blob(name))
            if self.place.blob(name).exists():
                self.place.publish(name, commit, kept.file.path)
        # What a branch means here is not for an archive to say, unless nothing is known.
        if self.place.read_ref(self.manifest.revision) is None:
            self.place.write_ref(self.manifest.revision, commit)

    def _clean(self) -> None:
        """Removes what was staged and not published, and the folders that were made for nothing else."""
        for path in self.staged.values():
            path.unlink(missing_ok=True)
        found = contents(self.place)
        if not (found.named or found.blobs or found.refs):
            for folder in (self.place.blobs, self.place.folder / "snapshots", self.place.folder):
                with contextlib.suppress(OSError):  # somebody else has begun to use it
                    folder.rmdir()
