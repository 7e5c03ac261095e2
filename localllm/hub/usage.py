"""What models take on the disk, by repository."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.hub.contents import Contents, Inode, contents, disk_bytes, inode_of, shared_store
from localllm.hub.foreign import repositories
from localllm.hub.inventory import optimized_folder
from localllm.hub.layout import RepoCache, free_bytes
from localllm.hub.looking import below
from localllm.hub.store import Store
from localllm.hub.unfinished import OPTIMIZING


@dataclass(frozen=True)
class RepoUsage:
    """What a repository takes on the disk.

    Attributes:
        repo: str, "owner/name".
        disk_bytes: int, all of it; each content counts once.
        shared_bytes: int, of this, contents that several snapshots, or other repositories, use, too.
        unreferenced_bytes: int, of blobs that no snapshot leads to.
        partial_bytes: int, of interrupted downloads.
        corrupt_bytes: int, of damaged copies that were set aside.
    """

    repo: str
    disk_bytes: int
    shared_bytes: int
    unreferenced_bytes: int
    partial_bytes: int
    corrupt_bytes: int


@dataclass(frozen=True)
class Usage:
    """What all models take on the disk.

    Attributes:
        cache: Path, the Hub's cache.
        repositories: RepoUsages, the largest first.
        disk_bytes: int, all of it; what repositories share counts once.
        shared_bytes, unreferenced_bytes, partial_bytes, corrupt_bytes: int, as for RepoUsage; contents of the shared store that
            no repository uses are unreferenced.
        optimized_bytes: int, of models that were made for this machine; part of `disk_bytes`.
        free_bytes: int, on the file system of the cache.
    """

    cache: Path
    repositories: tuple[RepoUsage, ...]
    disk_bytes: int
    shared_bytes: int
    unreferenced_bytes: int
    partial_bytes: int
    corrupt_bytes: int
    optimized_bytes: int
    free_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return dataclasses.asdict(self) | {"cache": str(self.cache)}


def usage(store: Store) -> Usage:
    """What the models of the Hub's cache, whoever brought them, and those made for this machine take on the disk."""
    cache = store.cache
    found = [contents(RepoCache(cache, name)) for name in repositories(cache)]
    users = Counter(inode for one in found for inode in one.inodes)
    rows = [_usage(one, users) for one in found]
    everything: dict[Inode, int] = {}
    shared: dict[Inode, int] = {}
    for one in found:
        everything |= one.inodes
        shared |= _shared(one, users)
    loose = {inode: size for path, size in shared_store(cache).items() if (inode := inode_of(path)) and inode not in everything}
    made = [path for path in below(optimized_folder()) if path.suffix == ".gguf" or path.name.startswith(OPTIMIZING)]
    optimized = disk_bytes(made)
    return Usage(
        cache=cache,
        repositories=tuple(sorted(rows, key=lambda row: (-row.disk_bytes, row.repo))),
        disk_bytes=sum(everything.values()) + sum(loose.values()) + optimized,
        shared_bytes=sum(shared.values()),
        unreferenced_bytes=sum(row.unreferenced_bytes for row in rows) + sum(loose.values()),
        partial_bytes=sum(row.partial_bytes for row in rows),
        corrupt_bytes=sum(row.corrupt_bytes for row in rows),
        optimized_bytes=optimized,
        free_bytes=free_bytes(cache),
    )


def _usage(found: Contents, users: Counter[Inode]) -> RepoUsage:
    def of(*kinds: str) -> int:
        return disk_bytes(blob.path for blob in found.blobs if blob.kind in kinds)

    return RepoUsage(
        repo=found.place.repo,
        disk_bytes=sum(found.inodes.values()),
        shared_bytes=sum(_shared(found, users).values()),
        unreferenced_bytes=disk_bytes(blob.path for blob in found.orphans()),
        partial_bytes=of("partial", "unlocked"),
        corrupt_bytes=of("corrupt"),
    )


def _shared(found: Contents, users: Counter[Inode]) -> dict[Inode, int]:
    """Contents that more than one snapshot, or more than one repository, uses."""
    snapshots: dict[Inode, set[str]] = {}
    for one in found.named:
        if one.inode is not None:
            snapshots.setdefault(one.inode, set()).add(one.commit)
    return {inode: size for inode, size in found.inodes.items() if len(snapshots.get(inode, ())) > 1 or users[inode] > 1}
