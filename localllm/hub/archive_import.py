"""The steps from an archive to a model that is here."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import get_args

from localllm.errors import CorruptFileError, DiskSpaceError, HubError, IncompleteSetError, ModelError
from localllm.hub.archive_parts import MARGIN_BYTES, RECORD, Source, copy_checked, hashed
from localllm.hub.contents import contents
from localllm.hub.gguf import Header, merge_shards, read_header
from localllm.hub.layout import RepoCache, checksum, free_bytes, locked
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.manifest import KeptRole, Manifest
from localllm.hub.partial import NO_ROOM, no_room
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.sets import file_sets, serves_as
from localllm.hub.store import Store


class Import:
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
        try:
            return self._take()
        except OSError as error:
            if error.errno in NO_ROOM and not isinstance(error, HubError):
                raise self._no_room(self.manifest.n_bytes, os.strerror(error.errno or 0)) from error
            raise

    def _take(self) -> Manifest:
        with self.store.changing():
            pass  # a record can be written: told before everything is copied, not after that
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
            with self.store.changing():  # nobody removes files from here on until the record protects them
                self._publish()
                self.store.add(manifest, whole=True)
        return manifest

    def _record(self) -> Manifest:
        record = self.source.record()
        try:
            manifest = Manifest.from_bytes(record)
        except CorruptFileError as error:
            raise self.source.wrong(f"{RECORD} is {error}") from error
        files = [kept.file for kept in manifest.files]
        if len({file.path.casefold() for file in files}) != len(files):
            raise self.source.wrong("its record names a file twice")
        for file in files:
            # Other programs run what else a repository may hold.
            if not file.path.lower().endswith(".gguf"):
                raise self.source.wrong(f"its record names {file.path!r}, which is no GGUF file")
        if manifest.n_bytes > self.source.total_bytes:
            raise self.source.wrong(self.source.lacking(files))
        return dataclasses.replace(manifest, cache=self.store.cache.absolute(), pinned=False, pulled_at=time.time())

    def _check_room(self) -> None:
        lacking = {checksum(kept.file): kept.file.n_bytes for kept in self.manifest.files if self._found(kept.file) is None}
        needed = sum(lacking.values())
        if needed and needed + MARGIN_BYTES > free_bytes(self.place.blobs):
            raise self._no_room(needed, f"of which {MARGIN_BYTES:,} have to stay free")

    def _no_room(self, needed_bytes: int, reason: str) -> DiskSpaceError:
        return no_room(self.manifest.reference, self.place.root, needed_bytes, free_bytes(self.place.blobs), reason)

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
        return found is not None and hashed(found, file, self.progress, self.cancel) == checksum(file)

    def _found(self, file: RepoFile) -> Path | None:
        return self.place.find_blob(file) or self.place.find(self.manifest.commit, file)

    def _checked(self) -> Manifest:
        """The record, with what the headers say; they must be what the record takes the files for."""
        template = ""
        for role in get_args(KeptRole):
            files = [kept.file for kept in self.manifest.files if kept.role == role]
            if not files:
                continue
            header = self._header(role, files)
            if not serves_as(header, role):
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
            if name in self.staged:
                self.staged[name].replace(self.place.blob(name))
                del self.staged[name]
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
