"""What goes when models go: every name that is theirs, and every content that no other name needs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.hub.catalog import home
from localllm.hub.contents import Blob, Contents, Inode, contents, inode_of, kind_of, shared_links, shared_store, uses
from localllm.hub.entry import Entry
from localllm.hub.foreign import repositories
from localllm.hub.inventory import optimized_folder
from localllm.hub.layout import RepoCache, checksum, is_free
from localllm.hub.looking import below, listed
from localllm.hub.store import Store
from localllm.hub.unfinished import left_behind

_OWN_FOLDERS = frozenset({"blobs", "snapshots", "refs", "trees", ".no_exist"})  # of a repository, in huggingface_hub 2.4
_STATE_FOLDERS = ("run", "machine")  # of `residency.listing` and of `localllm.machine`, which this module may not import
_QUIET_SECONDS = 3600  # after which a file that is written without a lock is nobody's any more


@dataclass(frozen=True)
class Swept:
    """A file that belongs to no model that goes, and goes all the same.

    Attributes:
        path: Path.
        n_bytes: int, that the disk gains by it alone.
        reason: str, why it goes, one phrase.
    """

    path: Path
    n_bytes: int
    reason: str


@dataclass(frozen=True)
class RemovalPlan:
    """What a removal takes away, or took.

    Attributes:
        models: Entries that go.
        files: Paths of the files and links that go, blobs and what was only for them included.
        freed_bytes: int, by which the disk gets emptier; contents that other names lead to stay, and do not count.
        swept: Swept files, those of `files` that belong to none of the models.
        kept: what stays although it belongs to the models, and why, each a sentence.
    """

    models: tuple[Entry, ...]
    files: tuple[Path, ...]
    freed_bytes: int
    kept: tuple[str, ...] = ()
    swept: tuple[Swept, ...] = ()
    parts: tuple[Part, ...] = dataclasses.field(default=(), repr=False)
    payloads: tuple[Path, ...] = dataclasses.field(default=(), repr=False)
    unfinished: tuple[Path, ...] = dataclasses.field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        models = [entry.to_json() for entry in self.models]
        files = [str(path) for path in self.files]
        swept = [{"path": str(one.path), "n_bytes": one.n_bytes, "reason": one.reason} for one in self.swept]
        return {"models": models, "files": files, "freed_bytes": self.freed_bytes, "kept": list(self.kept), "swept": swept}


@dataclass(frozen=True)
class Part:
    """What goes of one repository.

    Attributes:
        place: RepoCache.
        names: Paths in snapshots.
        blobs: Blobs, partial files and damaged copies included.
        commits: of snapshots of which nothing is left.
        refs: files of branches and tags that mean these.
        whole: bool, the repository's folder goes, too.
    """

    place: RepoCache
    names: tuple[Path, ...]
    blobs: tuple[Blob, ...]
    commits: tuple[str, ...]
    refs: tuple[Path, ...]
    whole: bool


@dataclass(frozen=True)
class Sweep:
    """What goes beside models.

    Attributes:
        partials: bool, what interrupted downloads left, and damaged copies that were set aside.
        orphans: bool, blobs and shared contents that no snapshot leads to, and links in snapshots that lead nowhere.
    """

    partials: bool = True
    orphans: bool = True


def planned(store: Store, chosen: Sequence[Entry], entries: Sequence[Entry], sweep: Sweep | None = None) -> RemovalPlan:
    """What goes with some models, and of what lies about.

    Args:
        store: Store.
        chosen: Entries to remove.
        entries: Entries, all of this machine.
        sweep: Sweep, for all repositories; None: only what belongs to the chosen ones.
    """
    keys = {one.reference for one in chosen}
    staying = [one for one in entries if one.reference not in keys]
    kept: list[str] = []
    parts = []
    for place in _places(store, chosen, sweep):
        own = [one for one in chosen if _is_in(one, place)]
        others = [one for one in staying if _is_in(one, place)]
        part = _part(contents(place), own, others, sweep, kept)
        if part is not None:
            parts.append(part)
    payloads = _payloads({part.place.root for part in parts} | {store.cache}, parts, sweep)
    files = [path for part in parts for path in _files_of_part(part)]
    files += [beside for path in payloads for beside in (path, references_of(path)) if beside.exists()]
    files += [one.path for one in chosen if one.path is not None and one.manifest is None and one.foreign is None]
    unfinished = left_behind(_hidden(store)) if sweep is not None else []
    files += [path for path in unfinished if path.is_file()]
    swept: list[Swept] = []
    if sweep is not None:
        of_models = frozenset(planned(store, chosen, entries).files)
        swept = [Swept(path, freed_by([path]), _why_swept(path)) for path in files if path not in of_models]
    return RemovalPlan(
        models=tuple(chosen),
        files=tuple(files),
        freed_bytes=freed_by(files),
        kept=tuple(kept),
        swept=tuple(swept),
        parts=tuple(parts),
        payloads=tuple(payloads),
        unfinished=tuple(unfinished),
    )


def _why_swept(path: Path) -> str:
    kind = kind_of(path.name)
    if kind in ("partial", "unlocked"):
        return "an interrupted download"
    if kind == "corrupt":
        return "a damaged copy"
    return "a killed program left it" if path.name.startswith(".") else "nothing leads to it"


def _hidden(store: Store) -> Iterator[Path]:
    """Hidden files where this package itself writes. What else is in LOCALLLM_HOME, which may be a user's home, is not ours."""
    yield from (path for path in below(optimized_folder()) if path.name.startswith("."))
    for folder in (store.folder, home(), *(home() / name for name in _STATE_FOLDERS)):
        yield from (path for path in listed(folder) if path.name.startswith("."))


def _places(store: Store, chosen: Sequence[Entry], sweep: Sweep | None) -> list[RepoCache]:
    found = [_place(one, store.cache) for one in chosen]
    if sweep is not None:
        found += [RepoCache(store.cache, name) for name in repositories(store.cache)]
    return list({place.folder: place for place in found if place is not None}.values())


def _place(entry: Entry, cache: Path) -> RepoCache | None:
    if entry.manifest is not None:
        return entry.manifest.place
    if entry.foreign is not None:
        return entry.foreign.place
    return RepoCache(cache, entry.repo) if entry.repo else None


def _is_in(entry: Entry, place: RepoCache) -> bool:
    own = _place(entry, place.root)
    return own is not None and (own.folder == place.folder or inode_of(own.folder) == inode_of(place.folder) is not None)


def files_of(entry: Entry) -> list[Path]:
    """The names of a model's files."""
    if entry.manifest is not None:
        place, commit = entry.manifest.place, entry.manifest.commit
        return [place.pointer(commit, kept.file.path) for kept in entry.manifest.files]
    if entry.foreign is not None:
        return [entry.foreign.place.pointer(entry.commit, file.path) for file in entry.foreign.files.files]
    return [entry.path] if entry.path is not None else []


def _part(found: Contents, chosen: list[Entry], staying: list[Entry], sweep: Sweep | None, kept: list[str]) -> Part | None:
    place = found.place
    gone = _names(place, chosen, staying, kept)
    gone |= _dangling(found, chosen, staying, sweep)
    remaining = [one for one in found.named if one.path not in gone]
    used = uses(remaining)
    linked = {one.blob for one in found.named if one.path in gone and one.blob is not None}
    manifests = [one.manifest for one in staying if one.manifest is not None]
    needed = {checksum(one.file) for manifest in manifests for one in manifest.files}
    awaited = {checksum(file) for manifest in manifests for file in manifest.missing()}
    own = {checksum(one.file) for entry in chosen if entry.manifest is not None for one in entry.manifest.files}
    loose = {name for entry in chosen if entry.interrupted is not None for name in entry.interrupted.checksums}

    def goes(blob: Blob) -> bool:
        if blob.kind == "other":
            return False
        if blob.kind == "blob":
            # Programs that take no lock make the link only after the blob; whoever takes one leaves its file.
            is_left = place.lock(blob.checksum).exists() or _is_quiet(blob.path)
            meant = blob.path in linked or blob.checksum in own or (sweep is not None and sweep.orphans and is_left)
            return meant and not used.has(blob) and blob.checksum not in needed
        swept = sweep is not None and sweep.partials and (blob.kind != "unlocked" or _is_quiet(blob.path))
        unclaimed = blob.kind != "corrupt" and blob.checksum in loose
        return (swept or unclaimed or blob.checksum in own) and (blob.kind == "corrupt" or blob.checksum not in awaited)

    blobs = [blob for blob in found.blobs if goes(blob) and is_free(place, blob.checksum)]
    names = tuple(one.path for one in found.named if one.path in gone)
    touched = {one.commit for one in chosen if one.commit} | {one.commit for one in found.named if one.path in gone}
    emptied = tuple(sorted(touched - {one.commit for one in remaining}))
    whole = not remaining and len(blobs) == len(found.blobs) and _may_go(place)
    commits = _snapshots(place) if whole else emptied
    refs = tuple(path for path, commit in found.refs.items() if whole or commit in commits)
    if not (names or blobs or chosen or whole):
        return None
    return Part(place, names, tuple(blobs), tuple(commits), refs, whole)


def _names(place: RepoCache, chosen: list[Entry], staying: list[Entry], kept: list[str]) -> set[Path]:
    """The names in snapshots that go: not those of another model, nor companions of a model that another program brought."""

    def here(entry: Entry) -> Iterator[Path]:
        """The names of an entry's files, as this place spells them."""
        own = _place(entry, place.root)
        for path in files_of(entry):
            yield place.folder / path.relative_to(own.folder) if own is not None else path

    claimed = {path for one in staying if one.manifest is not None for path in here(one)}
    foreign = {one.commit for one in staying if one.foreign is not None}
    gone = set()
    for one in chosen:
        main = {place.pointer(one.commit, name) for name in one.manifest.paths("model")} if one.manifest is not None else set()
        for path in here(one):
            is_companion = one.manifest is not None and path not in main
            if path in claimed:
                kept.append(f"{path.name} stays: another model needs it.")
            elif is_companion and one.commit in foreign:
                kept.append(f"{path.name} stays: it lies beside a model that another program brought.")
            else:
                gone.add(path)
    return gone


def _dangling(found: Contents, chosen: list[Entry], staying: list[Entry], sweep: Sweep | None) -> set[Path]:
    """Links to blobs that are gone: in the snapshots of what goes, or in all; but not those that a repair will need."""
    commits = {one.commit for one in chosen}
    needed = {(one.commit, kept.file.path) for one in staying if one.manifest is not None for kept in one.manifest.files}
    lost = [one for one in found.named if one.inode is None and one.blob is not None and (one.commit, one.file) not in needed]
    return {one.path for one in lost if one.commit in commits or (sweep is not None and sweep.orphans)}


def _payloads(caches: Iterable[Path], parts: Sequence[Part], sweep: Sweep | None) -> list[Path]:
    """Shared contents that no repository leads to once the parts are gone."""
    going = {blob.path for part in parts for blob in part.blobs if blob.is_link}
    if not going and sweep is None:
        return []
    found = []
    for cache in caches:
        links = shared_links(cache)
        for path in shared_store(cache):
            users = links.get(inode_of(path) or (0, 0), set())
            if users <= going and (users or (sweep is not None and sweep.orphans)):
                found.append(path)
    return found


def _files_of_part(part: Part) -> list[Path]:
    listed = [*part.names, *(blob.path for blob in part.blobs), *part.refs]
    if part.whole:
        seen = set(listed)
        listed += [path for path in below(part.place.folder) if path not in seen and (path.is_symlink() or path.is_file())]
    return listed


def freed_by(files: Sequence[Path]) -> int:
    """What the disk gains by the end of some names: contents all of whose names are among them."""
    names: Counter[Inode] = Counter()
    found: dict[Inode, os.stat_result] = {}
    for path in files:
        with contextlib.suppress(OSError):  # gone meanwhile
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                names[status.st_dev, status.st_ino] += 1
                found[status.st_dev, status.st_ino] = status
    return sum(status.st_size for inode, status in found.items() if names[inode] >= status.st_nlink)


def _is_quiet(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _QUIET_SECONDS
    except OSError:
        return False


def _may_go(place: RepoCache) -> bool:
    """Whether a repository's folder holds nothing but what the Hub's layout knows, and nobody is writing there."""
    folder = place.folder
    try:
        known = not folder.is_symlink() and {path.name for path in folder.iterdir()} <= _OWN_FOLDERS
    except OSError:
        return False
    return known and all(is_free(place, path.stem) for path in locks_of(place))


def locks_of(place: RepoCache) -> list[Path]:
    return [path for path in (place.root / ".locks" / place.name).glob("*.lock") if len(path.stem) in (40, 64)]


def _snapshots(place: RepoCache) -> tuple[str, ...]:
    return tuple(path.name for path in listed(place.folder / "snapshots"))


def references_of(payload: Path) -> Path:
    """Where the Hub's client notes who uses a shared content."""
    return payload.with_name(f"{payload.name}.refs")
