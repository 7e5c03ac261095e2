"""Names that come from users and repositories are data: which of them may become a part of a path or an address here."""

from __future__ import annotations

import re
import unicodedata

from localllm.errors import ReferenceFormatError

# huggingface_hub's rule for repository names; an owner is missing in the oldest ones.
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_MAX_REPO_CHARACTERS = 96
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Names of devices on Windows, with any extension: "Naming Files, Paths, and Namespaces" in Microsoft's documentation of Win32.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_MAX_PART_BYTES = 255


def checked_repo(repo: str) -> str:
    """`repo` itself.

    Raises:
        ReferenceFormatError: Not "owner/name" or "name" as the Hub allows them.
    """
    parts = repo.split("/")
    sound = len(parts) <= 2 and all(_REPO_PART.fullmatch(part) and "--" not in part and ".." not in part for part in parts)
    if not sound or len(repo) > _MAX_REPO_CHARACTERS or repo.endswith(".git"):
        raise ReferenceFormatError(f"{repo!r} is no name of a repository: give owner/name, of letters, digits, '-', '_' and '.'")
    return repo


def checked_revision(revision: str) -> str:
    """`revision` itself: a branch, a tag, a commit or a reference such as "refs/pr/1".

    Raises:
        ReferenceFormatError: It could not be a name in git, or not be a path here.
    """
    reason = _unsafe(revision) or ("git allows no white space in it" if any(map(str.isspace, revision)) else "")
    if reason:
        raise ReferenceFormatError(f"the revision {revision!r} is refused: {reason}; give a branch, a tag or a commit")
    return revision


def checked_commit(commit: str) -> str:
    """`commit` itself: 40 lower-case hexadecimal digits.

    Raises:
        ReferenceFormatError: It is anything else.
    """
    if not _COMMIT.fullmatch(commit):
        raise ReferenceFormatError(f"{commit!r} is no commit: 40 hexadecimal digits are expected")
    return commit


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def checked_blob(name: str) -> str:
    """`name` itself: the SHA-256 or git's SHA-1 of a content, in lower-case hexadecimal digits.

    Raises:
        ReferenceFormatError: It is anything else.
    """
    if not _BLOB.fullmatch(name):
        raise ReferenceFormatError(f"{name!r} is no checksum: 40 or 64 hexadecimal digits are expected")
    return name


def checked_path(path: str) -> str:
    """`path` itself: a file's path in a repository that stays inside a folder when it is appended to it, on every system.

    Raises:
        ReferenceFormatError: Absolute, with "." or "..", backslashes, colons, control characters, names that Windows reserves.
    """
    reason = _unsafe(path)
    if reason:
        raise ReferenceFormatError(f"the repository's file name {path!r} is refused: {reason}; such a file is never written here")
    return path


def _unsafe(path: str) -> str:
    """Why a relative POSIX path may not be used; "" if it may."""
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if "\\" in path or ":" in path:
        return "a backslash or colon is a separator on some systems"
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in path):
        return "it holds a control character"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"it holds the part {part!r}"
        if part[-1] in ". ":
            return f"Windows drops the end of {part!r}"
        if _DEVICES.fullmatch(part):
            return f"{part!r} is a device on Windows"
        if len(part.encode()) > _MAX_PART_BYTES:
            return f"a part is longer than {_MAX_PART_BYTES} bytes"
    return ""
