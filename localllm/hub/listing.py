"""What a repository holds at one commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository.

    Attributes:
        path: str, relative POSIX path as the repository has it; not to be trusted as a path on this machine.
        n_bytes: int, size of the content.
        oid: str, git's SHA-1 of the file, or of its LFS pointer.
        sha256: str or None, of the content; None for small files that are kept in git itself.
    """

    path: str
    n_bytes: int
    oid: str
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one commit.

    Attributes:
        repo: str, the repository's present name, whatever older name it was asked for by.
        revision: str, what was asked for: a branch, tag or commit.
        commit: str, 40 hexadecimal digits.
        files: tuple of RepoFile, as the Hub lists them.
    """

    repo: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...]
