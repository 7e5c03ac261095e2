#!/usr/bin/env python3
"""Put llama.cpp's source, at the pinned commit, into vendor/llama.cpp.

The source travels inside the sdist of another package on the package index (vendor/pin.json names it), so that nothing
but the index is needed. pip downloads it, with whatever indexes, proxies and certificates it is configured for. The
archive's hash is pinned, and only llama.cpp's folder is taken out of it.

Needs the standard library only, because it runs before anything is installed. The build backend calls `ensure`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType

STAMP = ".localllm-commit"
REQUIRED = ("include/llama.h", "common/chat.h", "ggml/include/ggml.h", "tools/mtmd/mtmd.h", "src/llama-ext.h")
SCRATCH_PREFIX = ".fetch-"


class FetchError(Exception):
    """The source could not be provided; the message says what failed and what to do, in one sentence or two."""


@dataclass(frozen=True)
class Pin:
    """vendor/pin.json: which archive holds llama.cpp, and which commit of it that is."""

    package: str
    version: str
    sha256: str
    tree: str
    commit: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The path of llama.cpp's folder inside the archive, in parts."""
        return PurePosixPath(f"{self.package.replace('-', '_')}-{self.version}", self.tree).parts


def ensure(root: Path, archive: Path | None = None, force: bool = False, *, quiet: bool = False) -> Path:
    """Return `root`/vendor/llama.cpp, fetched first if it is missing (or if `force` asks for it again).

    A complete tree is used as it is: another commit than the pinned one is worth a warning on stderr, no more. With
    `archive` the sdist is read from that file instead of being downloaded. Nothing is left behind on failure.
    """
    vendor = root / "vendor"
    tree = vendor / "llama.cpp"
    pin = _read_pin(vendor / "pin.json")
    if _usable(tree, pin, force):
        return tree
    try:
        with _locked(vendor, quiet) as alone:
            # Another process may have finished while this one waited for the lock.
            if not _usable(tree, pin, force):
                if alone:
                    _remove_scratch(vendor)
                _fetch(vendor, tree, pin, archive, force, quiet)
    except OSError as error:
        raise FetchError(f"{_reason(error, vendor)}; {_remedy(error)}") from error
    return tree


def is_missing(root: Path) -> bool:
    """Whether `ensure` would have to fetch anything."""
    return not os.path.lexists(root / "vendor" / "llama.cpp")


# ---- the tree that is there -----------------------------------------------------------------------------------------


def tree_commit(tree: Path) -> str | None:
    """The commit that `tree` is at: by its stamp, else by its own git repository, else unknown."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (tree / STAMP).read_text("ascii").strip() or None
    if not os.path.lexists(tree / ".git"):
        return None
    # Without these git would ask the repository that a surrounding hook or script has chosen.
    env = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE")}
    try:
        git = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], env=env, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return git.stdout.strip() or None


def _usable(tree: Path, pin: Pin, force: bool) -> bool:
    """Whether `tree` can be used as it is. An incomplete one is an error, because it may be somebody's work."""
    if force or not os.path.lexists(tree):
        return False
    missing = _missing_file(tree)
    if missing:
        raise FetchError(
            f"{tree} is incomplete ({missing} is missing); remove that folder, or run "
            "`python3 vendor/fetch.py --force` to replace it"
        )
    commit = tree_commit(tree)
    if commit != pin.commit:
        found = f"commit {commit}" if commit else "an unknown commit"
        print(
            f"warning: {tree} is at {found}, localllm is written for commit {pin.commit} "
            "(`python3 vendor/fetch.py --force` replaces it)",
            file=sys.stderr,
        )
    return True


def _missing_file(tree: Path) -> str | None:
    return next((name for name in REQUIRED if not (tree / name).is_file()), None)


def _read_pin(path: Path) -> Pin:
    try:
        fields = json.loads(path.read_text("utf-8"))
        return Pin(**{name: str(fields[name]) for name in Pin.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"cannot read the pin in {path} ({error!r}); restore that file") from error


# ---- fetching -------------------------------------------------------------------------------------------------------


def _fetch(vendor: Path, tree: Path, pin: Pin, archive: Path | None, force: bool, quiet: bool) -> None:
    """Unpack the archive next to `tree` and move it there once it is complete."""
    with _scratch(vendor) as scratch, contextlib.ExitStack() as stack:
        if archive is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="localllm-fetch-"))
            _say(f"downloading the source of {pin.package} {pin.version}, which carries llama.cpp", quiet)
            archive = _download(pin, Path(folder))
        _verify(archive, pin)
        _say(f"unpacking llama.cpp at commit {pin.commit}", quiet)
        new = scratch / "new"
        _unpack(archive, pin.prefix, new)
        (new / STAMP).write_text(pin.commit + "\n", "ascii")
        _put_in_place(new, tree, scratch / "old", force)
    _say(f"{tree} is ready", quiet)


def _download(pin: Pin, folder: Path) -> Path:
    """Let pip download the pinned sdist into `folder`. pip checks the hash before it runs anything of the archive."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n", "utf-8")
    target, temporary = folder / "archive", folder / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", pin.package, "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(target), "--requirement", str(requirements)]
    # The tracker is the outer pip's, when a pip runs the build backend that called us.
    env = {name: value for name, value in os.environ.items() if name != "PIP_BUILD_TRACKER"}
    env.update(TMPDIR=str(temporary), PIP_REQUIRE_VIRTUALENV="0")
    code, output = _run(command, env)
    if code:
        raise FetchError(_pip_failure(pin, output))
    files = sorted(target.glob("*.tar.gz"))
    if len(files) != 1:
        raise FetchError(
            f"pip downloaded no sdist of {pin.package} {pin.version}; download it elsewhere and run "
            "`python3 vendor/fetch.py --archive FILE`"
        )
    return files[0]


def _run(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Run `command` in a process group of its own, which ends with us, and return its exit code and its output."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, output


def _pip_failure(pin: Pin, output: str) -> str:
    """What pip's `output` comes down to, and the way out."""
    what = f"{pin.package} {pin.version}"
    elsewhere = "download its sdist elsewhere and run `python3 vendor/fetch.py --archive FILE`"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named" in line and "pip" in line for line in lines[-1:]):
        return f"cannot download {what}, because {sys.executable} has no pip; run `{sys.executable} -m ensurepip`, or {elsewhere}"
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return (
            f"the index offers a {what} whose sha256 is not the one in vendor/pin.json; do not use it, and check which "
            f"index pip is configured for, or {elsewhere}"
        )
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
    reason = errors[-1].removeprefix("ERROR:").strip().rstrip(".")
    return f"pip could not download {what} ({reason}); check the network and pip's index settings, or {elsewhere}"


def _verify(archive: Path, pin: Pin) -> None:
    digest = hashlib.sha256()
    try:
        with archive.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise FetchError(f"cannot read {archive} ({error.strerror}); give the sdist of {pin.package}") from error
    if digest.hexdigest() != pin.sha256:
        raise FetchError(
            f"{archive} has sha256 {digest.hexdigest()}, but vendor/pin.json asks for {pin.sha256}; "
            f"get the sdist of {pin.package} {pin.version} again"
        )


# ---- unpacking ------------------------------------------------------------------------------------------------------


def _unpack(archive: Path, prefix: tuple[str, ...], target: Path) -> None:
    """Unpack the members of `archive` below `prefix` into the new folder `target`.

    The members are written one by one instead of by tarfile's `extract`, whose filters the older Pythons lack: a new
    file for each regular member, links only after all files, nothing else.
    """
    target.mkdir()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            _write_members(tar, prefix, target)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FetchError(f"{archive.name} is damaged ({error}); download it again") from error
    missing = _missing_file(target)
    if missing:
        raise FetchError(
            f"{archive.name} has no complete llama.cpp in {'/'.join(prefix)} ({missing} is missing); correct vendor/pin.json"
        )


def _write_members(tar: tarfile.TarFile, prefix: tuple[str, ...], target: Path) -> None:
    symlinks: list[tuple[Path, tarfile.TarInfo]] = []
    for member in tar:
        inner = _inner_path(member.name, prefix)
        if inner is None or ".git" in inner.parts:
            continue
        path = target / inner
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif os.path.lexists(path):
            raise FetchError(_unsafe(member, "it is there twice"))
        elif member.isreg():
            _write_file(tar, member, path)
        elif member.islnk():
            _copy_hard_link(member, prefix, target, path)
        elif member.issym():
            symlinks.append((path, member))
        else:
            raise FetchError(_unsafe(member, "it is neither a file, a folder nor a link"))
    _make_symlinks(symlinks, target)


def _inner_path(name: str, prefix: tuple[str, ...]) -> PurePosixPath | None:
    """The path below `prefix` of the member `name`; None if it lies elsewhere in the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise FetchError(f"the archive is unsafe: the member {name!r} points outside it; do not use this archive")
    if len(path.parts) <= len(prefix) or path.parts[: len(prefix)] != prefix:
        return None
    return PurePosixPath(*path.parts[len(prefix) :])


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is None:
        raise FetchError(_unsafe(member, "it has no content"))
    # The owner's executable bit goes to everybody whom the umask allows; no other bit of the archive counts.
    mode = 0o777 if member.mode & 0o100 else 0o666
    with source, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _copy_hard_link(member: tarfile.TarInfo, prefix: tuple[str, ...], target: Path, path: Path) -> None:
    """Write a hard link as a copy of the file that it names, which must have been unpacked before."""
    inner = _inner_path(member.linkname, prefix)
    if inner is None or not (target / inner).is_file():
        raise FetchError(_unsafe(member, f"it is a link to {member.linkname!r}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(target / inner, path)


def _make_symlinks(symlinks: list[tuple[Path, tarfile.TarInfo]], target: Path) -> None:
    for path, member in symlinks:
        if os.path.lexists(path):
            raise FetchError(_unsafe(member, "it is there twice"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(member.linkname)
    # Only now: a link may lead through another one.
    real = os.path.realpath(target)
    for path, member in symlinks:
        if os.path.commonpath([real, os.path.realpath(path)]) != real:
            raise FetchError(_unsafe(member, f"it is a link to {member.linkname!r}"))


def _unsafe(member: tarfile.TarInfo, why: str) -> str:
    return f"the archive is unsafe: the member {member.name!r} is refused, because {why}; do not use this archive"


# ---- the folder vendor/ ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(vendor: Path, quiet: bool) -> Iterator[bool]:
    """Hold the lock on `vendor`: on the folder itself, so that no lock file stays behind, even after a crash.

    Yields whether there is such a lock. On a file system without locks `_put_in_place` copes with losing the race.
    """
    alone = True
    handle = os.open(vendor, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that fetches llama.cpp", quiet)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(handle)


@contextlib.contextmanager
def _scratch(vendor: Path) -> Iterator[Path]:
    """A folder beside the tree, hence in the same file system, for what is not complete yet."""
    path = vendor / f"{SCRATCH_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_scratch(vendor: Path, of: str = "") -> None:
    """Remove the scratch folders of all processes, or of the one with the id `of`, which are not at work any more."""
    for path in vendor.glob(f"{SCRATCH_PREFIX}{of}*"):
        shutil.rmtree(path, ignore_errors=True)


def _put_in_place(new: Path, tree: Path, old: Path, force: bool) -> None:
    """Rename `new` to `tree`; with `force` a tree that is there goes to `old` first, and back if that fails."""
    try:
        if force and os.path.lexists(tree):
            tree.rename(old)
        new.rename(tree)
    except BaseException as error:
        if os.path.lexists(old) and not os.path.lexists(tree):
            old.rename(tree)
        lost_race = isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not lost_race or _missing_file(tree):
            raise


def _reason(error: OSError, vendor: Path) -> str:
    where = error.filename or vendor
    return f"cannot write {where} ({error.strerror or error})"


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free about 500 MB of disk space and try again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make that folder writable for this user and try again"
    return "correct that and try again"


# ---- the command line -----------------------------------------------------------------------------------------------


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Turn the first signal into an exception, and let none disturb the cleaning up that follows."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch llama.cpp's source at the pinned commit.")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="read this sdist instead of downloading it")
    parser.add_argument("--force", action="store_true", help="replace a tree that is there")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    root = Path(__file__).resolve().parent.parent
    try:
        ensure(root, options.archive, options.force, quiet=options.quiet)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # If the signal came in the middle of the removal; there is no other one.
        _remove_scratch(root / "vendor", of=f"{os.getpid()}-")
        print("error: interrupted, nothing was changed; run it again to fetch llama.cpp", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
