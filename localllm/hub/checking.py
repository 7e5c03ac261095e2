"""Is what is here still what the repository has? And if not: fetching what is damaged, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localllm.errors import HubError, InvalidRequestError, ModelError
from localllm.hub import ollama
from localllm.hub.asynchronous import twin
from localllm.hub.client import HubClient, client_for
from localllm.hub.contents import Inode, contents, inode_of
from localllm.hub.download import DownloadOptions, download_all
from localllm.hub.entry import Entry
from localllm.hub.gguf import read_header, read_model
from localllm.hub.inventory import entries_of, models_here
from localllm.hub.layout import RepoCache
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.looking import status_of
from localllm.hub.partial import hash_file
from localllm.hub.paths import is_commit
from localllm.hub.progress import CancelToken, Meter, ProgressCallback
from localllm.hub.store import Store

FileState = Literal["sound", "not hashed", "unknown", "missing", "size", "header", "content"]
_DAMAGED: tuple[FileState, ...] = ("size", "header", "content")


@dataclass(frozen=True)
class FileCheck:
    """What was found of one file.

    Attributes:
        path: str, in its repository; the name of the file for what is from none.
        state: "sound" (size, header and hash are right), "not hashed" (size and header are), "unknown" (they are, but nothing
            tells the hash), "missing", or what is wrong: "size", "header" or "content".
        problem: str, one sentence; "" if nothing is wrong.
        n_bytes: int, that it has to have, or has.
    """

    path: str
    state: FileState
    problem: str
    n_bytes: int

    @property
    def is_damaged(self) -> bool:
        return self.state in _DAMAGED


@dataclass(frozen=True)
class Checked:
    """What was found of one model.

    Attributes:
        entry: Entry.
        files: FileChecks, of all its files.
    """

    entry: Entry
    files: tuple[FileCheck, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether a file or the record is damaged."""
        return any(file.is_damaged for file in self.files) or (not self.files and bool(self.entry.problem))

    @property
    def is_missing(self) -> bool:
        """Whether a file is missing."""
        return any(file.state == "missing" for file in self.files)

    @property
    def is_sound(self) -> bool:
        return not self.is_damaged and not self.is_missing

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        files = [dataclasses.asdict(file) for file in self.files]
        facts = {"reference": self.entry.reference, "state": self.entry.state, "problem": self.entry.problem}
        return {**facts, "is_sound": self.is_sound, "files": files}


def verify(
    store: Store,
    references: Sequence[str | os.PathLike[str]] | None = None,
    *,
    deep: bool = True,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> tuple[Checked, ...]:
    """Checks sizes, headers and, if `deep`, hashes of models on this machine. Asks no network.

    Files with a record are checked against it, those of other programs against the names of their blobs.

    Args:
        store: Store.
        references: models to check, of a repository alone all that are here; None: all of the Hub's cache, but not what
            interrupted downloads left.
        deep: bool, read the whole files; what several models share is read once.
        progress: called with a Progress of the phase "checking" now and then.
        cancel: CancelToken.

    Raises:
        ModelNotFoundError, ReferenceFormatError, InvalidRequestError: A reference means nothing here, or what an interrupted
            download left.
        DownloadCancelledError: By `cancel`.
    """
    meant = _meant(store, references)
    for one in meant:
        if one.state == "partial":
            raise InvalidRequestError(f"{one.reference}: is not here as a whole; localllm repair {one.reference} completes it")
    check = _Check(deep, progress, cancel or CancelToken())
    return tuple(Checked(entry, tuple(check.of(entry))) for entry in meant)


averify = twin(verify, "averify")


def _meant(store: Store, references: Sequence[str | os.PathLike[str]] | None) -> list[Entry]:
    entries = models_here(store)
    if references is None:
        # A damaged record belongs to no repository any more; its model has to be pulled again.
        of_hub = [one for one in entries if one.repo or (one.state == "broken" and one.path is not None)]
        return [one for one in of_hub if one.state != "partial"]
    found: dict[str, Entry] = {}
    for reference in references:
        found |= {one.reference: one for one in entries_of(store, reference, entries)}
    return list(found.values())


@dataclass
class _Check:
    """Checks files; remembers what was hashed."""

    deep: bool
    progress: ProgressCallback | None
    cancel: CancelToken
    hashed: dict[tuple[Inode, int, bool], str] = field(default_factory=dict)

    def of(self, entry: Entry) -> Iterator[FileCheck]:
        files = list(_expected(entry))
        checks = [self.file(path, file) for path, file in files]
        path = entry.path
        whole = path is not None and len(checks) > 1 and not any(check.problem for check in checks)
        # Each shard may be sound, and yet not be of this set.
        if whole and (problem := _problem(lambda: read_model(path or ""))):
            checks[0] = dataclasses.replace(checks[0], state="header", problem=problem)
        yield from checks

    def file(self, path: Path, expected: RepoFile) -> FileCheck:
        self.cancel.check()
        try:
            n_bytes = path.stat().st_size
        except OSError:
            return FileCheck(expected.path, "missing", "It is not there.", expected.n_bytes)
        if n_bytes != expected.n_bytes:
            problem = f"It has {n_bytes:,} bytes instead of {expected.n_bytes:,}."
            return FileCheck(expected.path, "size", problem, expected.n_bytes)
        name = expected.sha256 or expected.oid
        if self.deep and name and (problem := self._content_problem(path, expected, name)):
            return FileCheck(expected.path, "content", problem, n_bytes)
        if problem := _problem(lambda: read_header(path)):
            return FileCheck(expected.path, "header", problem, n_bytes)
        return FileCheck(expected.path, ("sound" if self.deep else "not hashed") if name else "unknown", "", n_bytes)

    def _content_problem(self, path: Path, expected: RepoFile, name: str) -> str:
        try:
            found = self._hash(path, expected)
        except OSError as error:  # a bad disk, or no permission
            return f"It cannot be read: {error.strerror or error}."
        return f"Its checksum is {found}, not {name}." if found != name else ""

    def _hash(self, path: Path, expected: RepoFile) -> str:
        status = path.stat()
        key = ((status.st_dev, status.st_ino), status.st_mtime_ns, expected.sha256 is None)
        if key not in self.hashed:
            meter = Meter(expected.path, expected.n_bytes, self.progress)
            self.hashed[key] = hash_file(path, expected, self.cancel, lambda done: meter.tell("checking", done))
            meter.tell("finished", expected.n_bytes)
        return self.hashed[key]


def _problem(read: Any) -> str:
    try:
        read()
    except (ModelError, HubError) as error:
        return f"Its header is damaged: {getattr(error, 'strerror', None) or error}."
    return ""


def _expected(entry: Entry) -> Iterator[tuple[Path, RepoFile]]:
    """Where a model's files are, and what they have to be."""
    if entry.manifest is not None:
        place, commit = entry.manifest.place, entry.manifest.commit
        yield from ((place.pointer(commit, kept.file.path), kept.file) for kept in entry.manifest.files)
    elif entry.foreign is not None:
        place, files = entry.foreign.place, entry.foreign.files.files
        names = _names(place) if not all(file.sha256 or file.oid for file in files) else {}
        for file in files:
            path = place.pointer(entry.commit, file.path)
            yield path, file if file.sha256 or file.oid else _named(file, names.get(inode_of(path) or (0, 0), ""))
    elif entry.state == "ollama":
        name, _, tag = entry.reference.removeprefix("ollama:").rpartition(":")
        found = ollama.find(name, tag)
        for path in (found.model, *found.projectors, *found.adapters):
            yield path, _as_it_is(path, path.name.removeprefix("sha256-"))
    elif entry.path is not None and entry.state != "broken":
        yield entry.path, _as_it_is(entry.path, None)


def _as_it_is(path: Path, sha256: str | None) -> RepoFile:
    """A file of no repository, whose size nothing else tells."""
    status = status_of(path)
    return RepoFile(path.name, status.st_size if status is not None else 0, "", sha256)


def _names(place: RepoCache) -> dict[Inode, str]:
    """What the names of blobs say about contents that are hard links to them."""
    return {blob.inode: blob.checksum for blob in contents(place).blobs if blob.kind == "blob" and blob.inode is not None}


def _named(file: RepoFile, name: str) -> RepoFile:
    return dataclasses.replace(file, oid=name) if is_commit(name) else dataclasses.replace(file, sha256=name or None)


# ---- mending


@dataclass(frozen=True)
class Repaired:
    """What was done for one model.

    Attributes:
        entry: Entry, as it was before.
        files: paths of the files that are sound again.
        problem: str, why it is still not sound, one sentence; "" if it is.
    """

    entry: Entry
    files: tuple[str, ...]
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {"reference": self.entry.reference, "files": list(self.files), "problem": self.problem}


def repair(
    store: Store,
    references: Sequence[str | os.PathLike[str]] | None = None,
    *,
    client: HubClient | None = None,
    deep: bool = True,
    download: DownloadOptions | None = None,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> tuple[Repaired, ...]:
    """Fetches files that are missing or damaged once more, of the very commit that was pulled, and nothing else. What an
    interrupted download left is completed if it is named.

    A damaged file keeps its name until a good one takes its place; no link ever leads nowhere.

    Args:
        store: Store.
        references: models to mend; None: all with records. Others are mended only if they are named.
        client: HubClient, None: one for the endpoint that a model is from. Your token goes to the usual endpoint only.
        deep: bool, find damage by hashes; otherwise by sizes and headers only.
        download: DownloadOptions; files are always hashed.
        progress: called with a Progress now and then.
        cancel: CancelToken; what has come is kept.

    Returns:
        Repaired, of every model that was not sound.

    Raises:
        What `verify` raises.
        NetworkError, OfflineError, FileNotInRepoError and other kinds of HubError: A file cannot be had; see `download`.
    """
    options = dataclasses.replace(download or DownloadOptions(), recheck=True)
    cancel = cancel or CancelToken()
    check = _Check(deep, progress, cancel)
    found = []
    for entry in _meant(store, references):
        if entry.state == "partial":
            found.append(_completed(store, entry, client, options, progress, cancel))
            continue
        checked = Checked(entry, tuple(check.of(entry)))
        if not checked.is_sound and (references is not None or entry.foreign is None):
            found.append(_repaired(checked, client, options, progress, cancel))
    return tuple(found)


arepair = twin(repair, "arepair")


def _completed(
    store: Store,
    entry: Entry,
    client: HubClient | None,
    options: DownloadOptions,
    progress: ProgressCallback | None,
    cancel: CancelToken,
) -> Repaired:
    from localllm.hub.completing import complete

    with contextlib.nullcontext(client) if client is not None else client_for("") as asked:
        files = complete(store, entry, asked, options, progress, cancel)
    problem = "" if files else "The repository has no such files any more; localllm gc removes what came of them."
    return Repaired(entry, files, problem)


def _repaired(
    checked: Checked,
    client: HubClient | None,
    options: DownloadOptions,
    progress: ProgressCallback | None,
    cancel: CancelToken,
) -> Repaired:
    entry = checked.entry
    wanted = [file.path for file in checked.files if file.is_damaged or file.state == "missing"]
    if not wanted:
        return Repaired(entry, (), entry.problem)
    if entry.manifest is None and entry.foreign is None:
        raise InvalidRequestError(f"{entry.reference}: is from no repository, and cannot be fetched again")
    if client is not None:
        _fetch(entry, wanted, client, options, progress, cancel)
    else:
        with client_for(entry.manifest.endpoint if entry.manifest is not None else "") as own:
            _fetch(entry, wanted, own, options, progress, cancel)
    still = {check.path: check.problem for check in _Check(False, None, cancel).of(entry) if check.problem}
    problem = "".join(f"The repository itself has {path} like this: {why}" for path, why in list(still.items())[:1])
    return Repaired(entry, tuple(path for path in wanted if path not in still), problem)


def _fetch(
    entry: Entry,
    wanted: Iterable[str],
    client: HubClient,
    options: DownloadOptions,
    progress: ProgressCallback | None,
    cancel: CancelToken,
) -> None:
    place = entry.manifest.place if entry.manifest is not None else entry.foreign.place if entry.foreign is not None else None
    assert place is not None
    if entry.manifest is not None:
        known = {kept.file.path: kept.file for kept in entry.manifest.files}
    else:  # what its damaged file should be, only the repository tells
        known = {file.path: file for file in client.listing(entry.repo, entry.commit, cancel).files}
    # By its commit: the cache's branches stay where they are.
    listing = Listing(entry.repo, entry.commit, entry.commit, tuple(known.values()))
    files = [known[path] for path in wanted if path in known]
    download_all(client, listing, files, cache=place.root, options=options, progress=progress, cancel=cancel)
