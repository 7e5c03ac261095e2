"""Large files under a name for the meantime: what a killed program has left of one is told from what is being written.

    <folder>/<prefix><16 digits>          what is being written, a file or a folder
    <folder>/<prefix><16 digits>.lock     held by the program that writes it

Small files that are replaced as a whole (`files.write_atomically`) have no lock; they take no time.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

OPTIMIZING, CONVERTING, EXPORTING, _REPLACING = ".optimizing-", ".converting-", ".exporting-", ".writing-"
_NAME = re.compile(rf"(?:{'|'.join(map(re.escape, (OPTIMIZING, CONVERTING, EXPORTING, _REPLACING)))})[0-9a-f]{{16}}")
_LOCK = ".lock"
_QUIET_SECONDS = 3600  # after which what has no lock is nobody's any more


@contextlib.contextmanager
def unfinished(folder: Path, prefix: str) -> Iterator[Path]:
    """A name for what is to be written into a folder; in the end nothing has that name any more.

    What killed programs have left in the folder under such names goes first.

    Args:
        folder: Path, that exists.
        prefix: OPTIMIZING, CONVERTING or EXPORTING.

    Raises:
        OSError: The folder cannot be written.
    """
    for path in left_behind(folder.glob(f"{prefix}*")):
        remove_left_behind(path)
    with _own_name(folder, prefix) as path:
        try:
            yield path
        finally:
            _remove(path)
            _lock_of(path).unlink(missing_ok=True)


def left_behind(paths: Iterable[Path]) -> list[Path]:
    """Those of some paths that nobody writes any more; locks that belong to nothing else are among them."""
    ours = {path.with_name(path.name.removesuffix(_LOCK)) for path in paths if _NAME.fullmatch(path.name.removesuffix(_LOCK))}
    return sorted(path for path in ours if _is_left(path))


def remove_left_behind(path: Path) -> None:
    """Removes a path of `left_behind`, unless somebody has begun to write it."""
    lock = _lock_of(path)
    with _held(lock) if lock.exists() else contextlib.nullcontext(True) as is_held:
        if is_held is not False:
            _remove(path)
            lock.unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    lock = _lock_of(path)
    try:
        if lock.exists():
            with _held(lock) as is_held:
                if is_held is not None:
                    return is_held
        return time.time() - path.lstat().st_mtime > _QUIET_SECONDS
    except OSError:  # gone meanwhile, or of another user
        return False


@contextlib.contextmanager
def _own_name(folder: Path, prefix: str) -> Iterator[Path]:
    """A new name whose lock this program holds. One at whose lock another program looks before it is held is left to that."""
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}"
        lock = _lock_of(path)
        lock.touch()  # the lock itself would make a folder that is missing
        with _held(lock) as is_held:
            # Whoever looks may also have removed it, and then nobody else would see that it is held.
            if is_held is None or (is_held and lock.exists()):
                yield path
                return
        lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[bool | None]:
    """Holds a lock without waiting for it; tells whether it does, or somebody else has it. None: there are no locks here."""
    import filelock

    held = filelock.FileLock(lock)
    try:
        held.acquire(blocking=False)
    except filelock.Timeout:
        yield False
        return
    except NotImplementedError:  # a file system without flock: only age tells there
        lock.unlink(missing_ok=True)
        yield None
        return
    try:
        yield True
    finally:
        held.release()


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
