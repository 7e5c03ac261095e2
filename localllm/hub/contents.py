"""What lies in the Hub's cache, name by name: which names lead to which bytes, so that removing some never harms others.

Bytes are known by device and inode: a link in a snapshot, the blob it leads to, a hard link to that and a content that
huggingface_hub 2 shares between repositories are one content.

    <cache>/blobs/<2 digits>/<xet hash>          such a shared content; `.refs` and `.lock` lie beside it
    <cache>/blobs/.huggingface-shared-blobs      says that the folder is that store
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localllm.hub.layout import RepoCache
from localllm.hub.looking import below, listed, status_of

Inode = tuple[int, int]
Kind = Literal["blob", "partial", "unlocked", "corrupt", "other"]

_SUM = r"([0-9a-f]{40}|[0-9a-f]{64})"
# Ours and the Hub's: whoever writes them holds the blob's lock.
_PARTIAL = re.compile(rf"{_SUM}(?:\.[0-9A-Za-z_-]+)?\.incomplete(?:\.json(?:\.[0-9a-f]+)?)?")
# llama.cpp's partial files, and what is about to become a link: written without a lock.
_UNLOCKED = re.compile(rf"{_SUM}\.downloadInProgress|()\.(?:link|ref)-[0-9a-f]{{16}}")
_CORRUPT = re.compile(rf"{_SUM}\.corrupt")
_STORE, _MARKER, _VERSION = "blobs", ".huggingface-shared-blobs", "1\n"
_PAYLOAD = re.compile(r"[0-9a-f]{64}")
_MAX_REF_BYTES = 4096


@dataclass(frozen=True)
class Named:
    """A file of a snapshot.

    Attributes:
        path: Path.
        commit: str, the snapshot's name.
        file: str, its path in the repository.
        blob: Path of the blob of this repository that it links to; None if it links to none.
        inode: Inode, None if it leads nowhere.
        n_bytes: int, of the content; 0 if it leads nowhere.
    """

    path: Path
    commit: str
    file: str
    blob: Path | None
    inode: Inode | None
    n_bytes: int


@dataclass(frozen=True)
class Blob:
    """A file of a repository's folder `blobs`.

    Attributes:
        path: Path.
        kind: "blob", "partial" (also its record), "unlocked" (half a file whose writer takes no lock), "corrupt" or "other".
        checksum: str, with which its name begins; "" for "other".
        inode: Inode of the content, None if it leads nowhere.
        n_bytes: int, of the content.
        is_link: bool, it is a link, e.g. to a shared content.
    """

    path: Path
    kind: Kind
    checksum: str
    inode: Inode | None
    n_bytes: int
    is_link: bool


@dataclass(frozen=True)
class Contents:
    """The folder of one repository.

    Attributes:
        place: RepoCache.
        named: Named files of all snapshots.
        blobs: Blobs.
        refs: what branches and tags mean: the path of the file -> its text, usually a commit.
    """

    place: RepoCache
    named: tuple[Named, ...]
    blobs: tuple[Blob, ...]
    refs: dict[Path, str]

    @property
    def inodes(self) -> dict[Inode, int]:
        """Every content that snapshots or blobs lead to, with its size."""
        both = [(one.inode, one.n_bytes) for one in self.named] + [(one.inode, one.n_bytes) for one in self.blobs]
        return {inode: n_bytes for inode, n_bytes in both if inode is not None}

    def orphans(self) -> tuple[Blob, ...]:
        """Blobs that no snapshot leads to."""
        used = uses(self.named)
        return tuple(blob for blob in self.blobs if blob.kind == "blob" and not used.has(blob))


@dataclass(frozen=True)
class Uses:
    """What some names need."""

    blobs: frozenset[Path]
    inodes: frozenset[Inode]

    def has(self, blob: Blob) -> bool:
        return blob.path in self.blobs or (not blob.is_link and blob.inode in self.inodes)


def uses(named: Iterable[Named]) -> Uses:
    """What some names of snapshots need: the blobs they link to, and the contents they are hard links of."""
    found = list(named)
    blobs = frozenset(one.blob for one in found if one.blob is not None)
    return Uses(blobs, frozenset(one.inode for one in found if one.inode is not None))


def contents(place: RepoCache) -> Contents:
    """Looks into a repository's folder. What disappears meanwhile is left out."""
    return Contents(place, tuple(_named(place)), tuple(_blobs(place)), _refs(place))


def _named(place: RepoCache) -> Iterator[Named]:
    root = place.folder / "snapshots"
    for folder, folders, names in os.walk(root):
        # Links to folders are no part of the layout, but they are names in a snapshot like any other.
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder, name)
            parts = path.relative_to(root).parts
            if len(parts) < 2:
                continue
            target = _target(path)
            blob = target if target is not None and target.parent == place.blobs else None
            found = status_of(path)
            yield Named(path, parts[0], "/".join(parts[1:]), blob, _inode(found), found.st_size if found else 0)


def _blobs(place: RepoCache) -> Iterator[Blob]:
    for path in listed(place.blobs):
        kind, checksum = _kind(path.name)
        found = status_of(path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            kind, checksum = "other", ""
        yield Blob(path, kind, checksum, _inode(found), found.st_size if found else 0, path.is_symlink())


def kind_of(name: str) -> Kind:
    """What a file of a folder `blobs` is, by its name."""
    return _kind(name)[0]


def _kind(name: str) -> tuple[Kind, str]:
    if re.fullmatch(_SUM, name):
        return "blob", name
    if found := _PARTIAL.fullmatch(name):
        return "partial", found[1]
    if found := _UNLOCKED.fullmatch(name):
        return "unlocked", found[1] or ""
    if found := _CORRUPT.fullmatch(name):
        return "corrupt", found[1]
    return "other", ""


def _refs(place: RepoCache) -> dict[Path, str]:
    found = {}
    for path in below(place.folder / "refs"):
        try:
            if path.is_file():
                with path.open("rb") as file:
                    found[path] = file.read(_MAX_REF_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return found


# ---- contents that repositories share


def shared_store(cache: Path) -> dict[Path, int]:
    """The shared contents of a cache with their sizes; none if it has no such store, or one of another version."""
    root = cache / _STORE
    try:
        marked = (root / _MARKER).read_text(encoding="ascii") == _VERSION and not root.is_symlink()
    except (OSError, UnicodeDecodeError):
        marked = False
    found = {}
    for folder in listed(root) if marked else ():
        for path in listed(folder):
            status = status_of(path, follow=False)
            if status is not None and stat.S_ISREG(status.st_mode) and is_payload(path):
                found[path] = status.st_size
    return found


def is_payload(path: Path) -> bool:
    """Whether a path is named like a shared content."""
    return _PAYLOAD.fullmatch(path.name) is not None and path.parent.name == path.name[:2]


def shared_links(cache: Path) -> dict[Inode, set[Path]]:
    """The links of all repositories of a cache, of models or of anything else, that lead to some content: Inode -> links."""
    found: dict[Inode, set[Path]] = {}
    for folder in listed(cache):
        if "--" not in folder.name:
            continue
        for path in listed(folder / "blobs"):
            if path.is_symlink() and (inode := _inode(status_of(path))) is not None:
                found.setdefault(inode, set()).add(path)
    return found


def inode_of(path: Path) -> Inode | None:
    """The content that a path leads to; None if it leads nowhere."""
    return _inode(status_of(path))


def disk_bytes(paths: Iterable[Path]) -> int:
    """What the contents that some paths lead to take; each content counts once."""
    found = {}
    for path in paths:
        if (status := status_of(path)) is not None:
            found[status.st_dev, status.st_ino] = status.st_size
    return sum(found.values())


# ---- inside


def _inode(status: os.stat_result | None) -> Inode | None:
    return (status.st_dev, status.st_ino) if status is not None else None


def _target(path: Path) -> Path | None:
    """What a link says, as an absolute path; None for what is no link."""
    try:
        return Path(os.path.normpath(path.parent / path.readlink()))
    except OSError:
        return None
