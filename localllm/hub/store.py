"""The models on this machine that this program knows: records beside the Hub's cache, and how a reference finds its files.

    <home>/models/<key>.json     one record for each model that was pulled
    <home>/models/<key>.used     empty; its time of change is when the model was used last

What a record names is found whatever became of branches since. What other programs brought into the cache is found, too, as far
as names and headers show that it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from localllm.errors import CorruptFileError, HubError, ModelError
from localllm.files import write_atomically
from localllm.hub import environment
from localllm.hub.catalog import home
from localllm.hub.foreign import Foreign, foreign_models
from localllm.hub.manifest import Manifest
from localllm.hub.names import FileName, match_tag, parse_name
from localllm.hub.paths import is_commit
from localllm.hub.reference import Reference

Found = TypeVar("Found", Manifest, Foreign)

logger = logging.getLogger("localllm.hub")

_RECORD, _USED = ".json", ".used"
_PATIENCE_SECONDS = 30  # for another program that is changing records at this moment
_COMMIT_DIGITS = 7  # of a commit's beginning, as git abbreviates it at least


class Store:
    """The models of this machine. Every call looks at the files anew, so several programs may share them.

    Args:
        folder: Path, for the records; None: `models` in LOCALLLM_HOME.
        cache: Path of the Hub's cache that is looked into for models of other programs; None: what the environment says.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, cache: str | os.PathLike[str] | None = None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._cache = Path(cache) if cache is not None else None

    @property
    def folder(self) -> Path:
        return self._folder or home() / "models"

    @property
    def cache(self) -> Path:
        return self._cache or environment.cache_folder()

    # ---- records

    def manifests(self, *, log: bool = True) -> list[Manifest]:
        """All records, the newest first. Damaged ones are left out, and logged unless `log` is False; `damaged` names them."""
        found = []
        for path in self._records():
            try:
                found.append(self._located(_record_in(path)))
            except FileNotFoundError:  # removed by another program meanwhile
                continue
            except (CorruptFileError, OSError) as error:
                logger.log(logging.WARNING if log else logging.DEBUG, "%s", error)
        return sorted(found, key=lambda manifest: -manifest.pulled_at)

    def damaged(self) -> list[tuple[Path, str]]:
        """Records that cannot be read, and why: what a path is followed by."""
        found = []
        for path in self._records():
            try:
                _record_in(path)
            except FileNotFoundError:
                continue
            except (CorruptFileError, OSError) as error:
                found.append((path, str(error).removeprefix(f"{path}: ")))
        return found

    def add(self, manifest: Manifest, *, whole: bool = False) -> None:
        """Keeps a record; one of the same commit and files is replaced, and stays pinned if it was.

        Args:
            manifest: Manifest.
            whole: bool, only if all its files are there now.

        Raises:
            HubError: The folder cannot be written, or files were to be there and were removed meanwhile.
        """
        with self.changing():
            # Whoever removes models holds the same lock: a record never names what has just gone.
            if whole and (missing := manifest.missing()):
                raise HubError(f"{manifest.reference}: {missing[0].path} was removed meanwhile by another program; pull it again")
            before = self._read(manifest.key)
            pinned = manifest.pinned or (before is not None and before.pinned)
            self._write(dataclasses.replace(manifest, pinned=pinned))
            self.touch(manifest)

    def change(self, manifest: Manifest, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Changes what a record says, as it is now; gives the new one.

        Raises:
            HubError: It is gone, or the folder cannot be written.
        """
        with self.changing():
            now = self._read(manifest.key)
            if now is None:
                raise HubError(f"{manifest.reference}: its record was removed meanwhile")
            changed = change(now)
            self._write(changed)
            return changed

    def forget(self, manifest: Manifest) -> None:
        """Removes a record, not the files.

        Raises:
            HubError: The folder cannot be written.
        """
        with self.changing():
            try:
                for suffix in (_USED, _RECORD):
                    self._path(manifest.key, suffix).unlink(missing_ok=True)
            except OSError as error:
                raise _unwritable(self.folder, error) from error

    def touch(self, manifest: Manifest) -> None:
        """Notes that a model is used now. A folder that cannot be written is no reason to fail."""
        with contextlib.suppress(OSError):
            self._path(manifest.key, _USED).touch()

    def last_used(self, manifest: Manifest) -> float:
        """When a model was used last, in seconds since the epoch; when it was pulled if it never was."""
        try:
            return max(manifest.pulled_at, self._path(manifest.key, _USED).stat().st_mtime)
        except OSError:
            return manifest.pulled_at

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock for changes of records and removal of files; may be taken again by whoever holds it.

        Raises:
            HubError: The folder cannot be written, or another program holds the lock for too long.
        """
        from filelock import FileLock, Timeout

        folder = self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock", timeout=_PATIENCE_SECONDS, is_singleton=True)
            lock.acquire()
        except Timeout:
            raise HubError(f"{folder}: another program has been changing records for {_PATIENCE_SECONDS} s; try again") from None
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            yield
        finally:
            lock.release()

    # ---- finding

    def find(self, reference: Reference) -> Path | None:
        """The (first) file of a model of the Hub that is here as a whole; None if it is not. Asks no network."""
        manifest = self.find_manifest(reference)
        if manifest is not None:
            self.touch(manifest)
            return manifest.first("model")
        foreign = self.find_foreign(reference)
        return foreign.path if foreign is not None else None

    def find_manifest(self, reference: Reference, *, whole: bool = True) -> Manifest | None:
        """The record that a reference means; of several the one that was pulled for it, then the newest.

        Args:
            reference: Reference, of the source "hub".
            whole: bool, only one all of whose files are there.
        """
        return next((one for one in self.find_manifests(reference) if not whole or not one.missing()), None)

    def find_manifests(self, reference: Reference, *, log: bool = True) -> list[Manifest]:
        """All records that a reference means, whole or not, the newest first; first of all those of what was pulled for it."""
        same = [one for one in self.manifests(log=log) if _is_of(one, reference)]
        meant = _meant(reference, same, lambda manifest: parse_name(manifest.paths("model")[0]))
        pulled = next((one.paths("model") for one in meant if one.asked == str(reference)), None)
        return sorted(meant, key=lambda manifest: manifest.paths("model") != pulled)

    def find_foreign(self, reference: Reference) -> Foreign | None:
        """What another program left in the cache, if it is whole by its names and headers."""
        meant = [one for one in self.find_foreigns(reference) if one.files.is_complete and one.files.name.role == "model"]
        return next((one for one in meant if is_sound(one)), None)

    def find_foreigns(self, reference: Reference) -> list[Foreign]:
        """All sets of files in the cache that a reference means, whole or not; those that a branch means come first."""
        if reference.endpoint:  # the cache does not tell where it is from
            return []
        found = foreign_models(self.cache, reference.name)
        if reference.revision:
            found = [one for one in found if reference.revision in (one.commit, *one.revisions) or _begins(one, reference)]
        return _meant(reference, found, lambda one: one.files.name)

    # ---- inside

    def _records(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix == _RECORD and not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise HubError(f"{self.folder}: {error.strerror or 'cannot be read'}") from error

    def _path(self, key: str, suffix: str) -> Path:
        return self.folder / f"{key}{suffix}"

    def _read(self, key: str) -> Manifest | None:
        try:
            return Manifest.read(self._path(key, _RECORD))
        except (FileNotFoundError, CorruptFileError):
            return None
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _write(self, manifest: Manifest) -> None:
        try:
            write_atomically(self._path(manifest.key, _RECORD), manifest.to_bytes(), sync=True)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _located(self, manifest: Manifest) -> Manifest:
        """The record with the cache where its files are now, if that was moved as a whole."""
        if manifest.place.folder.is_dir() or not dataclasses.replace(manifest, cache=self.cache).place.folder.is_dir():
            return manifest
        return dataclasses.replace(manifest, cache=self.cache)


def _record_in(path: Path) -> Manifest:
    """The record in a file of the folder; a copy under another name is none: it would make one model look like two."""
    manifest = Manifest.read(path)
    if manifest.key != path.stem:
        raise CorruptFileError(f"{path}: a copy of the record {manifest.key}{_RECORD}; remove it")
    return manifest


def _unwritable(folder: Path, error: OSError) -> HubError:
    return HubError(f"{folder}: {error.strerror or error}; mend that, or set LOCALLLM_HOME to another folder")


def _is_of(manifest: Manifest, reference: Reference) -> bool:
    if (manifest.endpoint, manifest.repo.lower()) != (reference.endpoint, reference.name.lower()):
        return False
    wanted = reference.revision or "main"
    return wanted in (manifest.revision, manifest.commit) or _begins(manifest, reference)


def _begins(found: Manifest | Foreign, reference: Reference) -> bool:
    """Whether the reference has the beginning of the commit, or the whole of it."""
    wanted = reference.revision.lower()
    is_hex = len(wanted) >= _COMMIT_DIGITS and is_commit(wanted.ljust(40, "0"))
    return is_hex and found.commit.startswith(wanted)


def _meant(reference: Reference, found: Sequence[Found], name_of: Callable[[Found], FileName]) -> list[Found]:
    """Those that the file or the tag of a reference means; without either, all."""
    if reference.file:
        return [one for one in found if reference.file in _paths(one)]
    if reference.tag:
        names = match_tag(reference.tag, [name_of(one) for one in found]).names
        return [one for one in found if name_of(one) in names]
    return list(found)


def _paths(found: Manifest | Foreign) -> tuple[str, ...]:
    return found.paths("model") if isinstance(found, Manifest) else tuple(file.path for file in found.files.files)


def is_sound(found: Foreign) -> bool:
    """Whether a set's headers say that it is a model, and all of it."""
    from localllm.hub.gguf import read_model

    try:
        return read_model(found.path).kind == "model"
    except (ModelError, HubError) as error:
        logger.warning("%s is passed over: %s", found.path, error)
        return False
