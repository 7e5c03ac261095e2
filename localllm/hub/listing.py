"""What a repository holds: plain data, filled in by whoever asked the Hub or looked into a cache."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MOST_BYTES = 2**63 - 1  # that a file can have (off_t)
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')


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


def is_size(value: object) -> bool:
    """Whether a value from elsewhere is a number of bytes that a file can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES


def size_in(digits: str) -> int | None:
    """The number of bytes that a header of an answer tells, in decimal digits; None if no file can have it."""
    # So many digits that Python itself would refuse to read them are possible, too.
    sound = digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_BYTES))
    return int(digits) if sound and is_size(int(digits)) else None


def is_strong_etag(text: object) -> bool:
    """Whether a text can be sent back in If-Range: a strong ETag (RFC 9110, 8.8.3), in ASCII."""
    return isinstance(text, str) and _STRONG_ETAG.fullmatch(text) is not None
