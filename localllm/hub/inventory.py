"""Every model on this machine, whoever brought it, and what each takes on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from localllm.errors import HubError, InvalidRequestError, ModelError, ModelNotFoundError
from localllm.hub import ollama
from localllm.hub.catalog import home
from localllm.hub.contents import Inode, contents, disk_bytes, inode_of
from localllm.hub.entry import Entry, State, local_entry
from localllm.hub.foreign import Foreign, repositories, sets_in
from localllm.hub.gguf import read_header
from localllm.hub.gguf_parse import begins_as_gguf
from localllm.hub.interrupted import Interrupted, interrupted, same_set
from localllm.hub.layout import RepoCache
from localllm.hub.looking import below, status_of
from localllm.hub.manifest import Manifest
from localllm.hub.meaning import is_meant, of_hub, told_apart, with_aliases
from localllm.hub.names import parse_name
from localllm.hub.paths import checked_path
from localllm.hub.reference import EMBEDDED, Reference
from localllm.hub.remedy import with_remedy
from localllm.hub.resolve import expand, resolve
from localllm.hub.store import Store, is_sound

_OPTIMIZED = "optimized"
PARENT = "localllm.parent.name"  # metadata of what was made for this machine


def models_here(store: Store) -> tuple[Entry, ...]:
    """Every model on this machine; those with records first, the newest first."""
    recorded = _recorded(store)
    manifests = [one.manifest for one in recorded if one.manifest is not None]
    others = [*_damaged(store), *_in_cache(store.cache, manifests), *_embedded(), *_ollama(), *_optimized()]
    return with_aliases(store, [with_remedy(one) for one in told_apart(store, [*recorded, *others])])


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
    meant = [one for one in entries if is_meant(one, found)] if found.source != "hub" else of_hub(store, found, entries)
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
    manifests = store.manifests(log=False)  # the damaged ones are entries, too
    old = {one.key for one in superseded(manifests)}
    return [_entry(store, one, one.key in old) for one in manifests]


def _entry(store: Store, manifest: Manifest, is_old: bool) -> Entry:
    problem = _problem_of(manifest)
    names = [manifest.place.pointer(manifest.commit, kept.file.path) for kept in manifest.files]
    return Entry(
        reference=manifest.reference,
        state="broken" if problem else "superseded" if is_old else "complete",
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
        problem=problem,
        manifest=manifest,
    )


def _problem_of(manifest: Manifest) -> str:
    """What a look at sizes and first bytes shows; "" if nothing is wrong."""
    if missing := manifest.missing():
        lacking = ", ".join(file.path for file in missing[:4])
        return f"{len(missing)} of its {len(manifest.files)} files are missing or of a wrong size: {lacking}."
    paths = [(kept.file.path, manifest.place.pointer(manifest.commit, kept.file.path)) for kept in manifest.files]
    damaged = [name for name, path in paths if not begins_as_gguf(path)]
    return f"{damaged[0]} is damaged: it does not begin as a GGUF file." if damaged else ""


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
        loose = interrupted(contents(place), {checksum for folder, checksum in kept if folder == inode_of(place.folder)})
        for one in found:
            if one.files.name.role == "model" and _file_key(place, one.commit, one.files.path) not in known:
                entry = _foreign(one, tuple(other.files.path for other in beside if other.commit == one.commit))
                rest = next((rest for rest in loose if entry.state == "partial" and _is_rest(rest, one)), None)
                if rest is not None:
                    loose.remove(rest)
                yield entry if rest is None else _with_rest(entry, rest)
        yield from (_loose(place, rest) for rest in loose)


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
    dates = [status for path in names if (status := status_of(path)) is not None]
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


def _is_rest(rest: Interrupted, found: Foreign) -> bool:
    return rest.commit == found.commit and same_set(rest.path, found.files.path)


def _with_rest(entry: Entry, rest: Interrupted) -> Entry:
    return dataclasses.replace(
        entry, n_bytes=entry.n_bytes + rest.n_bytes, disk_bytes=entry.disk_bytes + rest.n_bytes, interrupted=rest
    )


def _loose(place: RepoCache, rest: Interrupted) -> Entry:
    """What came in part of files of which no snapshot has anything."""
    n_files = len(rest.checksums)
    name = parse_name(rest.path)
    return Entry(
        reference=f"{place.repo}/{rest.path}@{rest.commit}",  # told apart later
        state="partial",
        path=None,
        n_bytes=rest.n_bytes,
        disk_bytes=rest.n_bytes,
        quantization=name.tag if name.role == "model" else "",
        repo=place.repo,
        commit=rest.commit,
        problem=f"{n_files} files of it came in part." if n_files > 1 else "A file of it came in part.",
        interrupted=rest,
    )


def _embedded() -> Iterator[Entry]:
    for name in EMBEDDED:
        try:
            path = resolve(name)
        except ModelError:  # not installed
            continue
        n_bytes = disk_bytes([path])
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
        status = status_of(found.model)
        used = status.st_atime if status is not None else None
        yield Entry(
            f"ollama:{name}", "ollama", found.model, found.n_bytes, disk_bytes(paths), used_at=used, companions=companions
        )


def optimized_folder() -> Path:
    """Where models lie that were made for this machine from others."""
    return home() / _OPTIMIZED


def _optimized() -> Iterator[Entry]:
    for path in sorted(path for path in below(optimized_folder()) if path.suffix == ".gguf" and path.is_file()):
        try:
            parent, problem = str(read_header(path).metadata.get(PARENT, "")), ""
        except ModelError as error:
            parent, problem = "", str(error)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            yield dataclasses.replace(local_entry(path), parent=parent, problem=problem)
