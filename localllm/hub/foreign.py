"""Models in the Hub's cache, whoever brought them there: what the folders show."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from localllm.hub.layout import RepoCache
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.looking import below, listed, status_of
from localllm.hub.paths import is_commit
from localllm.hub.sets import FileSet, file_sets

_PREFIX = "models--"
_MAX_FILES = 100_000  # of a snapshot


@dataclass(frozen=True)
class Foreign:
    """A set of files in a snapshot.

    Attributes:
        place: RepoCache.
        commit: str, of the snapshot.
        revisions: names of branches and tags that mean this commit, as far as the cache tells.
        files: FileSet; oid and sha256 are what the name of the blob tells, "" and None where it tells nothing.
    """

    place: RepoCache
    commit: str
    revisions: tuple[str, ...]
    files: FileSet

    @property
    def path(self) -> Path:
        """The first file."""
        return self.place.pointer(self.commit, self.files.path)


def repositories(cache: Path) -> list[str]:
    """The names of all repositories of models in a cache."""
    # No cache, or none that may be read, is an empty one: nothing in it can be used.
    names = [path.name for path in listed(cache) if path.name.startswith(_PREFIX) and path.is_dir()]
    return [name[len(_PREFIX) :].replace("--", "/", 1) for name in names]


def foreign_models(cache: Path, repo: str) -> list[Foreign]:
    """All sets of GGUF files of a repository that a cache holds, in any snapshot; those that a branch means come first.

    Args:
        cache: Path, of all repositories.
        repo: str, in whatever case.
    """
    own = next((name for name in repositories(cache) if name.lower() == repo.lower()), None)
    return sets_in(RepoCache(cache, own)) if own is not None else []


def sets_in(place: RepoCache) -> list[Foreign]:
    """All sets of GGUF files of one repository, in any snapshot; those that a branch means come first."""
    refs = _refs(place)
    found = []
    for commit in _commits(place):
        revisions = tuple(name for name, meant in refs.items() if meant == commit)
        listing = Listing(place.repo, revisions[0] if revisions else commit, commit, snapshot_files(place, commit))
        found += [Foreign(place, commit, revisions, files) for files in file_sets(listing)]
    return sorted(found, key=lambda one: ("main" not in one.revisions, not one.revisions))


def snapshot_files(place: RepoCache, commit: str) -> tuple[RepoFile, ...]:
    """The GGUF files of a snapshot; links that lead nowhere are left out."""
    snapshot = place.snapshot(commit)
    found: list[RepoFile] = []
    for folder, _, names in os.walk(snapshot):
        for name in names:
            path = Path(folder, name)
            if name.lower().endswith(".gguf") and len(found) < _MAX_FILES:
                found += _files(path, path.relative_to(snapshot).as_posix())
    return tuple(sorted(found, key=lambda file: file.path))


def _files(path: Path, name: str) -> list[RepoFile]:
    """What the cache tells of a file, if it is one: the name of its blob is the checksum of the content."""
    status = status_of(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return []
    try:
        blob = path.readlink().name
    except OSError:  # it is no link, or no longer there
        blob = ""
    is_sum = len(blob) == 64 and all(digit in "0123456789abcdef" for digit in blob)
    return [RepoFile(name, status.st_size, blob if is_commit(blob) else "", blob if is_sum else None)]


def _commits(place: RepoCache) -> list[str]:
    """All snapshots, the newest first."""
    found = [(path.name, status_of(path)) for path in listed(place.folder / "snapshots") if is_commit(path.name)]
    dates = {name: status.st_mtime for name, status in found if status is not None and stat.S_ISDIR(status.st_mode)}
    return sorted(dates, key=lambda name: (-dates[name], name))


def _refs(place: RepoCache) -> dict[str, str]:
    """The commits of branches and tags that the cache knows."""
    root = place.folder / "refs"
    names = [path.relative_to(root).as_posix() for path in below(root) if path.is_file()]
    return {name: commit for name in names if (commit := place.read_ref(name)) is not None}
