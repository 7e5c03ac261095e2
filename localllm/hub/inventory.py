"""Every model on this machine, whoever brought it, and what each takes on the disk."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localllm.errors import HubError, InvalidRequestError, LocalLLMError, ModelError, ModelNotFoundError
from localllm.hub import ollama
from localllm.hub.catalog import Aliases, home
from localllm.hub.contents import Contents, Inode, contents, disk_bytes, inode_of
from localllm.hub.foreign import Foreign, repositories, sets_in
from localllm.hub.gguf import read_header
from localllm.hub.layout import RepoCache
from localllm.hub.manifest import Manifest
from localllm.hub.names import parse_name
from localllm.hub.paths import checked_path
from localllm.hub.reference import EMBEDDED, Reference, parse_reference
from localllm.hub.resolve import expand, resolve
from localllm.hub.store import Store, is_sound

logger = logging.getLogger("localllm.hub")

State = Literal["complete", "superseded", "broken", "partial", "foreign", "embedded", "ollama", "local"]
_OPTIMIZED = "optimized"
PARENT = "localllm.parent.name"  # metadata of what was made for this machine
_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Entry:
    """One model on this machine.

    Attributes:
        reference: str, what to write to get this model and no other.
        state: "complete"; "superseded" (complete, but the branch means a newer commit, which is here, too); "broken" (files are
            missing or of a wrong size, or the record is damaged); "partial" (what an interrupted download left); "foreign"
            (brought by another program, whole by its names and headers); "embedded" (in a Python package); "ollama"; "local" (a
            file that is known by an alias, or was optimized for this machine).
        path: Path of the (first) file, or of the damaged record; None for partial downloads.
        n_bytes: int, size of all its files, companions included, as far as it is known.
        disk_bytes: int, that they take on the disk now; what several names lead to counts once.
        quantization: str, "" if it is not known.
        repo, revision, commit: str, where it is from; "" if from no repository.
        pulled_at: float, seconds since the epoch; None if it is not known.
        used_at: float, when it was used last, as far as is known.
        pinned: bool.
        aliases: the user's names for it.
        companions: paths of its projector and draft in the repository.
        problem: str, what is wrong with it, one sentence; "" if nothing.
        parent: str, the model that it was made from for this machine; "" for all others.
        manifest: Manifest, its record; None if it has none.
        foreign: Foreign, for what other programs brought.
    """

    reference: str
    state: State
    path: Path | None
    n_bytes: int
    disk_bytes: int
    quantization: str = ""
    repo: str = ""
    revision: str = ""
    commit: str = ""
    pulled_at: float | None = None
    used_at: float | None = None
    pinned: bool = False
    aliases: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    problem: str = ""
    parent: str = ""
    manifest: Manifest | None = field(default=None, repr=False)
    foreign: Foreign | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        names = [each.name for each in dataclasses.fields(self) if each.name not in ("manifest", "foreign")]
        return {name: getattr(self, name) for name in names} | {"path": str(self.path) if self.path else None}


def models_here(store: Store) -> tuple[Entry, ...]:
    """Every model on this machine; those with records first, the newest first."""
    recorded = _recorded(store)
    manifests = [one.manifest for one in recorded if one.manifest is not None]
    others = [*_damaged(store), *_in_cache(store.cache, manifests), *_embedded(), *_ollama(), *_optimized()]
    return _with_aliases(store, _told_apart([*recorded, *others]))


def superseded(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The records of commits that a branch meant before; the newer one is here as a whole.

    Args:
        manifests: Manifests, the newest first.
    """
    found, whole = [], set()
    for one in manifests:
        key = (one.endpoint, one.repo.lower(), one.revision, one.paths("model"))
        if key in whole:
            found.append(one)
        elif not one.missing():
            whole.add(key)
    return found


def entries_of(store: Store, reference: str | os.PathLike[str], entries: Sequence[Entry] | None = None) -> list[Entry]:
    """The models that a reference means. Where records and other programs' files fit, only those with records.

    Args:
        store: Store.
        reference: as users write it.
        entries: Entries to choose from, None: `models_here(store)`.

    Raises:
        ModelNotFoundError: None is here.
        ReferenceFormatError: Not written as a reference.
    """
    entries = models_here(store) if entries is None else entries
    found = expand(reference)
    meant = [one for one in entries if _is_meant(one, found)] if found.source != "hub" else _of_hub(store, found, entries)
    if not meant:
        raise ModelNotFoundError(errno.ENOENT, "is not on this machine; localllm list shows what is", os.fspath(reference))
    return meant


def entry_of(store: Store, reference: str | os.PathLike[str], entries: Sequence[Entry] | None = None) -> Entry:
    """The one model that a reference means; of several versions the one that a run would take.

    Raises:
        InvalidRequestError: Several models are meant; the message lists them.
        What `entries_of` raises.
    """
    meant = only_one(entries_of(store, reference, entries), reference)
    return next((one for one in meant if one.state != "broken"), meant[0])


def only_one(meant: Sequence[Entry], reference: str | os.PathLike[str]) -> Sequence[Entry]:
    """The entries, if they are versions of one model.

    Raises:
        InvalidRequestError: They are several models; the message lists them.
    """
    models: dict[object, str] = {}
    for one in meant:
        files = one.manifest or (one.foreign.files if one.foreign else None)
        first = files.paths("model")[0] if isinstance(files, Manifest) else files.path if files else one.reference
        models.setdefault((one.repo.lower(), first), one.reference)
    if len(models) > 1:
        listed = ", ".join(list(models.values())[:8])
        raise InvalidRequestError(f"{os.fspath(reference)}: means {len(models)} models; name one of {listed}")
    return meant


def pin(store: Store, reference: str | os.PathLike[str], pinned: bool = True) -> Entry:
    """Keeps a model from being removed by anything but its name and force; or no longer.

    Raises:
        InvalidRequestError: The model has no record, or several are meant.
        What `entries_of` raises. HubError: The record cannot be written.
    """
    entry = entry_of(store, reference)
    if entry.manifest is None:
        raise InvalidRequestError(f"{entry.reference}: has no record here; only what was pulled can be pinned")
    manifest = store.change(entry.manifest, lambda now: dataclasses.replace(now, pinned=pinned))
    return dataclasses.replace(entry, pinned=manifest.pinned, manifest=manifest)


# ---- with records


def _recorded(store: Store) -> list[Entry]:
    manifests = store.manifests()
    old = {one.key for one in superseded(manifests)}
    return [_entry(store, one, one.key in old) for one in manifests]


def _entry(store: Store, manifest: Manifest, is_old: bool) -> Entry:
    missing = manifest.missing()
    lacking = ", ".join(file.path for file in missing[:4])
    names = [manifest.place.pointer(manifest.commit, kept.file.path) for kept in manifest.files]
    return Entry(
        reference=manifest.reference,
        state="broken" if missing else "superseded" if is_old else "complete",
        path=manifest.first("model"),
        n_bytes=manifest.n_bytes,
        disk_bytes=disk_bytes(names),
        quantization=manifest.tag,
        repo=manifest.repo,
        revision=manifest.revision,
        commit=manifest.commit,
        pulled_at=manifest.pulled_at,
        used_at=store.last_used(manifest),
        pinned=manifest.pinned,
        companions=(*manifest.paths("projector"), *manifest.paths("draft")),
        problem=f"{len(missing)} of its {len(names)} files are missing or of a wrong size: {lacking}." if missing else "",
        manifest=manifest,
    )


def _damaged(store: Store) -> list[Entry]:
    return [Entry(str(path), "broken", path, 0, 0, problem=f"{problem}.") for path, problem in store.damaged()]


# ---- without


def _in_cache(cache: Path, manifests: Sequence[Manifest]) -> Iterator[Entry]:
    """What the Hub's cache holds beside the models with records."""
    known = {_file_key(one.place, one.commit, path) for one in manifests for path in _paths(one)}
    kept = {(inode_of(one.place.folder), kept.file.sha256 or kept.file.oid) for one in manifests for kept in one.files}
    for name in repositories(cache):
        try:
            place = RepoCache.of(name, cache)
        except HubError:
            continue  # no name that the Hub would give
        found = [one for one in sets_in(place) if all(_is_safe(file.path) for file in one.files.files)]
        beside = [one for one in found if one.files.name.role in ("mmproj", "draft")]
        for one in found:
            if one.files.name.role == "model" and _file_key(place, one.commit, one.files.path) not in known:
                yield _foreign(one, tuple(other.files.path for other in beside if other.commit == one.commit))
        loose = _loose(contents(place), {checksum for folder, checksum in kept if folder == inode_of(place.folder)})
        if loose is not None:
            yield loose


def _paths(manifest: Manifest) -> list[str]:
    """Of all roles: what a record has as a draft could be taken for a model of its own."""
    return [kept.file.path for kept in manifest.files]


def _is_safe(path: str) -> bool:
    try:
        return bool(checked_path(path))
    except HubError:
        return False


def _file_key(place: RepoCache, commit: str, path: str) -> tuple[Inode | None, str, str]:
    return inode_of(place.folder), commit, path


def _foreign(found: Foreign, beside: tuple[str, ...]) -> Entry:
    names = [found.place.pointer(found.commit, file.path) for file in found.files.files]
    revision = "" if "main" in found.revisions else found.revisions[0] if found.revisions else found.commit
    tag = found.files.name.tag
    state: State = "foreign"
    problem = ""
    if not found.files.is_complete:
        state, problem = "partial", f"{len(found.files.missing)} of its {found.files.n_expected} files are missing."
    elif not is_sound(found):
        state, problem = "broken", "Its header is damaged, or is not that of a model."
    dates = [path.stat() for path in names if path.exists()]
    return Entry(
        reference=str(Reference("hub", found.place.repo, revision, tag, "" if tag else found.files.path)),
        state=state,
        path=found.path,
        n_bytes=found.files.n_bytes,
        disk_bytes=disk_bytes(names),
        quantization=tag,
        repo=found.place.repo,
        revision=revision or "main",
        commit=found.commit,
        pulled_at=max((date.st_mtime for date in dates), default=None),
        used_at=max((date.st_atime for date in dates), default=None),
        companions=beside,
        problem=problem,
        foreign=found,
    )


def _loose(found: Contents, kept: set[str]) -> Entry | None:
    """What interrupted downloads of a repository left that no record claims; of which files of it nobody can tell."""
    loose = [one for one in found.blobs if one.kind in ("partial", "unlocked") and one.checksum and one.checksum not in kept]
    sums = {one.checksum for one in loose}
    if not sums:
        return None
    n_bytes = disk_bytes(one.path for one in loose)
    problem = f"{len(sums)} files of it came in part; pull it again, and what came is continued."
    return Entry(found.place.repo, "partial", None, n_bytes, n_bytes, repo=found.place.repo, problem=problem)


def _embedded() -> Iterator[Entry]:
    for name in EMBEDDED:
        try:
            path = resolve(name)
        except ModelError:  # not installed
            continue
        n_bytes = path.stat().st_size
        yield Entry(name, "embedded", path, n_bytes, n_bytes, parse_name(path.name).tag)


def _ollama() -> Iterator[Entry]:
    for name in ollama.names():
        shown, _, tag = name.rpartition(":")
        try:
            found = ollama.find(shown, tag)
        except (ModelError, HubError) as error:
            yield Entry(f"ollama:{name}", "broken", None, 0, 0, problem=f"{getattr(error, 'strerror', None) or error}.")
            continue
        paths = [found.model, *found.projectors, *found.adapters]
        companions = tuple(path.name for path in found.projectors)
        used = found.model.stat().st_atime
        yield Entry(
            f"ollama:{name}", "ollama", found.model, found.n_bytes, disk_bytes(paths), used_at=used, companions=companions
        )


def optimized_folder() -> Path:
    """Where models lie that were made for this machine from others."""
    return home() / _OPTIMIZED


def _optimized() -> Iterator[Entry]:
    for path in sorted(optimized_folder().rglob("*.gguf")):
        if path.is_file():
            try:
                parent, problem = str(read_header(path).metadata.get(PARENT, "")), ""
            except ModelError as error:
                parent, problem = "", str(error)
            yield dataclasses.replace(_local(path), parent=parent, problem=problem)


def _local(path: Path, names: tuple[str, ...] = ()) -> Entry:
    status = path.stat()
    tag = parse_name(path.name).tag
    return Entry(
        str(path), "local", path, status.st_size, status.st_size, tag, pulled_at=status.st_mtime, used_at=status.st_atime,
        aliases=names,
    )  # fmt: skip


# ---- names


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each with a reference of its own: by its commit, and by its file where that does not suffice."""
    taken: set[str] = set()
    result = []
    for one in entries:
        choices = [one.reference]
        if one.manifest is not None or one.foreign is not None:
            path = one.manifest.paths("model")[0] if one.manifest else one.foreign.files.path if one.foreign else ""
            endpoint = one.manifest.endpoint if one.manifest else ""
            at = one.commit[:_COMMIT_DIGITS]
            named = "" if one.revision == "main" else one.revision
            for revision, tag, file in ((at, one.quantization, ""), (named, "", path), (at, "", path)):
                choices.append(str(Reference("hub", one.repo, revision, tag, file, endpoint)))
        chosen = next((choice for choice in choices if choice not in taken), choices[-1])
        taken.add(chosen)
        result.append(dataclasses.replace(one, reference=chosen))
    return result


def _with_aliases(store: Store, entries: list[Entry]) -> tuple[Entry, ...]:
    """The entries with the user's names for them, and files that are known by such a name only."""
    try:
        aliases = Aliases().all()
    except HubError as error:
        logger.warning("%s", error)
        return tuple(entries)
    for name in aliases:
        try:
            found = expand(name)
            meant = [one for one in entries if _is_meant(one, found)] if found.source != "hub" else _of_hub(store, found, entries)
            if not meant and found.source == "path":
                entries.append(_local(resolve(found.name)))
                meant = entries[-1:]
        except (LocalLLMError, OSError) as error:
            logger.warning("the name %s is passed over: %s", name, error)
            continue
        if meant:
            at = entries.index(meant[0])
            entries[at] = dataclasses.replace(meant[0], aliases=(*meant[0].aliases, name))
    return tuple(entries)


def _of_hub(store: Store, reference: Reference, entries: Sequence[Entry]) -> list[Entry]:
    """Those with records that a reference of the Hub means; else those of other programs; else interrupted downloads."""
    by_key = {one.manifest.key: one for one in entries if one.manifest is not None}
    found = [by_key[one.key] for one in store.find_manifests(reference) if one.key in by_key]
    if not found:
        by_name = {(one.commit, one.foreign.files.path): one for one in entries if one.foreign is not None and not one.manifest}
        meant = [by_name.get((one.commit, one.files.path)) for one in store.find_foreigns(reference)]
        found = [one for one in meant if one is not None and one.repo.lower() == reference.name.lower()]
    if not found and not (reference.tag or reference.file or reference.revision):
        found = [one for one in entries if one.state == "partial" and one.repo.lower() == reference.name.lower()]
    return found


def _is_meant(entry: Entry, reference: Reference) -> bool:
    """Whether a reference to something else than the Hub means an entry."""
    if reference.source == "path":
        try:
            return entry.path is not None and Path(reference.name).expanduser().samefile(entry.path)
        except (OSError, RuntimeError, ValueError):
            return False
    if entry.state == "embedded":
        return (reference.source, reference.name.lower()) == ("name", entry.reference)
    if entry.reference.startswith("ollama:"):
        own = parse_reference(entry.reference)
        return (reference.source, reference.name, reference.tag or "latest") == ("ollama", own.name, own.tag)
    return False
