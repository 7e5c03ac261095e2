"""The Hub's cache on disk, as huggingface_hub 2.4 and llama.cpp share it.

    <cache>/models--owner--name/blobs/<checksum>             contents, or links into <cache>/blobs/ where the Hub shares them
    <cache>/models--owner--name/snapshots/<commit>/<path>    relative links to blobs, or the contents themselves
    <cache>/models--owner--name/refs/<revision>              a commit
    <cache>/.locks/models--owner--name/<checksum>.lock       held while a blob is written

A name that comes from outside becomes a part of a path only through the checks of `paths`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import HubError
from localllm.hub import environment
from localllm.hub.listing import RepoFile
from localllm.hub.looking import status_of
from localllm.hub.paths import checked_blob, checked_commit, checked_path, checked_repo, checked_revision
from localllm.hub.progress import CancelToken

# The Cache Directory Tagging Specification (bford.info/cachedir): backups pass over a folder with such a file.
_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder holds models that can be downloaded again.\n"
_LOCK_POLL_SECONDS = 0.2
_LOCK_MODE = 0o664  # users that share a cache wait for each other


@dataclass(frozen=True)
class RepoCache:
    """Where one repository is kept.

    Attributes:
        root: Path, the cache of all repositories.
        repo: str, "owner/name".
    """

    root: Path
    repo: str

    @classmethod
    def of(cls, repo: str, root: str | os.PathLike[str] | None = None) -> RepoCache:
        """The cache of a repository.

        Args:
            repo: "owner/name".
            root: the cache of all repositories; by default what the environment says (HF_HUB_CACHE, HF_HOME, ...).

        Raises:
            ReferenceFormatError: No name of a repository.
        """
        return cls(Path(root).expanduser() if root is not None else environment.cache_folder(), checked_repo(repo))

    @functools.cached_property
    def name(self) -> str:
        return "--".join(["models", *self.repo.split("/")])

    @functools.cached_property
    def folder(self) -> Path:
        return self.root / self.name

    @functools.cached_property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    def blob(self, name: str) -> Path:
        return self.blobs / checked_blob(name)

    def partial(self, name: str) -> Path:
        """What has come of a blob so far. Tools of the Hub know this ending, and offer to remove such files."""
        return self.blobs / f"{checked_blob(name)}.incomplete"

    def aside(self, name: str) -> Path:
        """Where a copy with another checksum is kept for a look at it."""
        return self.blobs / f"{checked_blob(name)}.corrupt"

    def lock(self, name: str) -> Path:
        return self.root / ".locks" / self.name / f"{checked_blob(name)}.lock"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / checked_commit(commit)

    def pointer(self, commit: str, path: str) -> Path:
        """The path by which a file is opened: its name, and those beside it, are the repository's."""
        return self.snapshot(commit).joinpath(*checked_path(path).split("/"))

    def find(self, commit: str, file: RepoFile) -> Path | None:
        """The file in its snapshot, whoever put it there; None if it is not there or has another size."""
        pointer = self.pointer(commit, file.path)
        return pointer if _n_bytes(pointer) == file.n_bytes else None

    def find_blob(self, file: RepoFile) -> Path | None:
        """The content, whatever snapshot it came with; None if it is not there or has another size."""
        blob = self.blob(checksum(file))
        return blob if _n_bytes(blob) == file.n_bytes else None

    def partial_bytes(self, file: RepoFile) -> int:
        """How much of the content has come so far."""
        return _n_bytes(self.partial(checksum(file))) or 0

    def read_ref(self, revision: str) -> str | None:
        """The commit that a branch or tag meant when it was last asked for; None if that is not known."""
        try:
            commit = (self.folder / "refs").joinpath(*checked_revision(revision).split("/")).read_text(encoding="ascii").strip()
            return checked_commit(commit)
        except (OSError, ValueError):
            return None

    def write_ref(self, revision: str, commit: str) -> None:
        """Notes what a branch or tag means. Nothing happens without that snapshot: scans take such a cache for damaged."""
        if revision == checked_commit(commit) or not self.snapshot(commit).is_dir() or self.read_ref(revision) == commit:
            return
        path = (self.folder / "refs").joinpath(*checked_revision(revision).split("/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.blobs / f".ref-{secrets.token_hex(8)}"
        self.blobs.mkdir(exist_ok=True)
        try:
            temporary.write_text(commit, encoding="ascii")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def prepare(self, commit: str, path: str, name: str) -> None:
        """Makes the folders that a file needs.

        Raises:
            HubError: The cache cannot be written.
        """
        folders = (self.blobs, self.pointer(commit, path).parent, self.lock(name).parent)
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.blobs, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.blobs))
        except OSError as error:
            raise unusable(self.root, error) from None
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            with contextlib.suppress(OSError):
                tag.write_text(_CACHE_TAG, encoding="ascii")

    def publish(self, name: str, commit: str, path: str) -> Path:
        """Lets a snapshot have a blob: by a relative link, else a hard link, else by moving it there.

        The first two keep the blob for further commits. HF_HUB_DISABLE_SYMLINKS rules the first out.

        Returns:
            Path, the file in the snapshot.
        """
        blob, pointer = self.blob(name), self.pointer(commit, path)
        if pointer.exists() and pointer.samefile(blob):
            return pointer
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.blobs / f".link-{secrets.token_hex(8)}"
        try:
            # Only what may go is ever named `temporary`: where no link can be made, the content itself moves in one step.
            (temporary if _linked(blob, pointer, temporary) else blob).replace(pointer)
        finally:
            temporary.unlink(missing_ok=True)
        return pointer


def checksum(file: RepoFile) -> str:
    """The name of a file's blob: its SHA-256, or git's SHA-1 of what is kept in git itself."""
    return checked_blob(file.sha256 or file.oid)


def unusable(root: Path, error: OSError) -> HubError:
    at = f": {error.filename}" if error.filename else ""
    return HubError(
        f"the cache {root} cannot be used ({error.strerror or error}{at}); mend that, or set HF_HUB_CACHE to another folder"
    )


def free_bytes(folder: Path) -> int:
    """Room on the file system that holds a folder, or will hold it once it is made."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


@contextlib.contextmanager
def locked(path: Path, cancel: CancelToken, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock that the Hub's client takes for the same blob, too.

    Args:
        path: from `RepoCache.lock`.
        cancel: ends waiting.
        waiting: called again and again while somebody else has it.
    """
    cancel.check()
    lock = _acquired(path, _LOCK_POLL_SECONDS)
    while lock is None:
        waiting()
        cancel.check()
        lock = _acquired(path, _LOCK_POLL_SECONDS)
    with lock:
        yield


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Holds a lock without waiting for it; tells whether it does, or somebody else has it.

    Args:
        path: from `RepoCache.lock`.
    """
    lock = _acquired(path, 0)
    if lock is None:
        yield False
        return
    with lock:
        yield True


def is_free(place: RepoCache, name: str) -> bool:
    """Whether nobody writes a blob now. A lock that was never taken, or cannot be, is not made for asking."""
    if not name or not os.access(place.lock(name), os.W_OK):
        return True
    with locked_if_free(place.lock(name)) as free:
        return free


def _acquired(path: Path, patience_seconds: float) -> contextlib.AbstractContextManager[object] | None:
    """A lock that is held until its end as a context; None if somebody else has it all the time.

    Raises:
        HubError: It cannot be taken by anybody.
    """
    import filelock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The second is for file systems without flock, as the Hub's client does it.
        for kind in (filelock.FileLock, filelock.SoftFileLock):
            with contextlib.suppress(NotImplementedError):
                return kind(path, mode=_LOCK_MODE).acquire(timeout=patience_seconds)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path))
    except filelock.Timeout:
        return None
    except OSError as error:
        raise unusable(path.parent, error) from None


def _n_bytes(path: Path) -> int | None:
    """Size of the regular file that a path leads to; None if it leads to none."""
    found = status_of(path)
    return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None


def _linked(blob: Path, pointer: Path, temporary: Path) -> bool:
    """Makes `temporary` what is to become `pointer`; made elsewhere, so that no snapshot ever holds half of something. False, and
    nothing is made, if the blob itself has to move there."""
    if not environment.flag("HF_HUB_DISABLE_SYMLINKS"):
        with contextlib.suppress(OSError):
            temporary.symlink_to(os.path.relpath(blob, pointer.parent))
            return True
    with contextlib.suppress(OSError):
        temporary.hardlink_to(blob.resolve())
        return True
    if not blob.is_symlink():
        return False
    shutil.copyfile(blob, temporary)
    return True
