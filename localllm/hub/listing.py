"""What a repository holds: plain data, filled in by whoever asked the Hub or looked into a cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository.

    Attributes:
        path: str, relative to the repository's root, with "/" between folders.
        n_bytes: int, its size.
        oid: str, the git object id of the file, or of the pointer to it.
        sha256: str, of the content, 64 hex digits; None for a small file that git itself holds.
    """

    path: str
    n_bytes: int
    oid: str
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one commit.

    Attributes:
        repo: str, "owner/name" as the Hub spells it.
        revision: str, the branch, tag or commit that was asked for.
        commit: str, the commit that it meant, 40 hex digits.
        files: RepoFiles in the Hub's order.
    """

    repo: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...]
