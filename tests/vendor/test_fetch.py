"""vendor/fetch.py: with small archives, without a network."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "vendor" / "fetch.py"
COMMIT = "1234567890abcdef1234567890abcdef12345678"
OTHER = "ffffffffffffffffffffffffffffffffffffffff"
TOP = "fake_llama-1.2"
TREE = f"{TOP}/vendor/llama.cpp"
BACKEND = """
import pathlib, time, os
def _metadata(directory):
    folder = pathlib.Path(directory, "fake_llama-1.2.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: fake-llama\\nVersion: 1.2\\n")
    return folder.name
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    marker = os.environ.get("TEST_HANG")
    if marker:
        pathlib.Path(marker).write_text(str(os.getpid()))
        time.sleep(120)
    return _metadata(directory)
def build_wheel(directory, config_settings=None, metadata_directory=None):
    raise RuntimeError("nobody should build this")
"""


def load_fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("localllm_vendor_fetch", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fetch = load_fetch()


# ---- archives -------------------------------------------------------------------------------------------------------


def regular(name: str, content: bytes = b"content\n", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def good_members() -> list[tuple[tarfile.TarInfo, bytes]]:
    """An sdist as the pinned one is: llama.cpp with a .git entry, and things around it that must stay out."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    return [
        regular(f"{TOP}/pyproject.toml", project.encode()),
        regular(f"{TOP}/backend.py", BACKEND.encode()),
        regular(f"{TOP}/PKG-INFO", b"Metadata-Version: 2.1\nName: fake-llama\nVersion: 1.2\n"),
        regular(f"{TOP}/vendor/other/file"),
        regular(f"{TOP}/vendor/llama.cpp.txt"),
        special(TREE, tarfile.DIRTYPE),
        regular(f"{TREE}/.git", b"gitdir: ../../.git/modules/vendor/llama.cpp\n"),
        regular(f"{TREE}/.gitmodules", b""),
        *(regular(f"{TREE}/{name}", name.encode()) for name in fetch.REQUIRED),
        regular(f"{TREE}/scripts/run.sh", b"#!/bin/sh\n", 0o755),
        regular(f"{TREE}/setuid", mode=0o4755),
        regular(f"{TREE}/large", os.urandom(1 << 16)),
        special(f"{TREE}/empty", tarfile.DIRTYPE),
    ]


def write_archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


@dataclass
class Checkout:
    """A checkout of the repository, as far as fetch.py looks at it."""

    root: Path
    links: Path

    @property
    def vendor(self) -> Path:
        return self.root / "vendor"

    @property
    def tree(self) -> Path:
        return self.vendor / "llama.cpp"

    def archive(self, *more: tuple[tarfile.TarInfo, bytes], pin: bool = True) -> Path:
        """Write an sdist with `more` members than the usual ones, and pin its hash."""
        path = write_archive(self.root / "fake_llama-1.2.tar.gz", [*good_members(), *more])
        if pin:
            self.pin(path)
        return path

    def pin(self, archive: Path) -> None:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        pin = {"package": "fake-llama", "version": "1.2", "tree": "vendor/llama.cpp", "commit": COMMIT}
        (self.vendor / "pin.json").write_text(json.dumps(pin | {"sha256": digest}))

    def make_tree(self, commit: str | None = COMMIT) -> None:
        for name in fetch.REQUIRED:
            path = self.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("old")
        if commit:
            (self.tree / fetch.STAMP).write_text(commit + "\n")

    def env(self, **more: str) -> dict[str, str]:
        """An environment in which pip knows no index, and no configuration of the machine's."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "GIT_"))}
        env.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.links))
        env.update(PYTHONDONTWRITEBYTECODE="1", **more)
        return env

    def command(self, *arguments: object, python: Path | str = sys.executable) -> list[str]:
        return [str(python), str(self.vendor / "fetch.py"), *map(str, arguments)]

    def run(self, *arguments: object, python: Path | str = sys.executable, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command("--quiet", *arguments, python=python), env=self.env(**more), capture_output=True, text=True
        )

    def snapshot(self) -> dict[str, tuple[int, bytes | str]]:
        """Everything in vendor/: the name, the mode and the content of each entry."""
        found: dict[str, tuple[int, bytes | str]] = {}
        for path in sorted(self.vendor.rglob("*")):
            info = path.lstat()
            content: bytes | str = b""
            if stat.S_ISLNK(info.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            found[str(path.relative_to(self.vendor))] = (info.st_mode, content)
        return found

    def assert_fails(self, *arguments: object, says: str, python: Path | str = sys.executable, **more: str) -> str:
        """Run the program, which must fail with one sentence that contains `says` and change nothing."""
        before = self.snapshot()
        done = self.run(*arguments, python=python, **more)
        assert done.returncode == 1, done.stderr
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert says in lines[0]
        assert done.stdout == ""
        assert self.snapshot() == before
        return lines[0]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root, links = tmp_path / "root", tmp_path / "links"
    (root / "vendor").mkdir(parents=True)
    links.mkdir()
    shutil.copy(SCRIPT, root / "vendor" / "fetch.py")
    return Checkout(root, links)


# ---- success --------------------------------------------------------------------------------------------------------


def test_unpacks_llama_cpp_and_nothing_else(checkout: Checkout) -> None:
    archive = checkout.archive()
    before = set(checkout.snapshot())
    tree = fetch.ensure(checkout.root, archive, quiet=True)
    assert tree == checkout.tree
    new = set(checkout.snapshot()) - before
    assert all(name == "llama.cpp" or name.startswith("llama.cpp/") for name in new)
    assert {f"llama.cpp/{name}" for name in fetch.REQUIRED} < new
    assert (tree / "include/llama.h").read_text() == "include/llama.h"
    assert not (tree / ".git").exists() and (tree / ".gitmodules").exists()
    assert (tree / "empty").is_dir()
    assert (tree / fetch.STAMP).read_text() == COMMIT + "\n"
    assert not fetch.is_missing(checkout.root)


def test_keeps_only_the_executable_bit(checkout: Checkout) -> None:
    archive = checkout.archive()
    old = os.umask(0o022)
    try:
        tree = fetch.ensure(checkout.root, archive, quiet=True)
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tree / name).stat().st_mode) for name in ("scripts/run.sh", "setuid", "large")}
    assert modes == {"scripts/run.sh": 0o755, "setuid": 0o755, "large": 0o644}


def test_a_git_folder_in_the_archive_stays_out(checkout: Checkout) -> None:
    members = [member for member in good_members() if member[0].name != f"{TREE}/.git"]
    members += [regular(f"{TREE}/.git/HEAD"), regular(f"{TREE}/.git/config")]
    archive = write_archive(checkout.root / "a.tar.gz", members)
    checkout.pin(archive)
    assert not (fetch.ensure(checkout.root, archive, quiet=True) / ".git").exists()


def test_the_program_says_what_it_does(checkout: Checkout) -> None:
    archive = checkout.archive()
    done = subprocess.run(checkout.command("--archive", archive), env=checkout.env(), capture_output=True, text=True, check=True)
    assert COMMIT in done.stderr and "is ready" in done.stderr and done.stdout == ""


def test_pip_downloads_by_name(checkout: Checkout) -> None:
    shutil.move(checkout.archive(), checkout.links)
    before = set(checkout.snapshot())
    done = checkout.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert {name.partition("/")[0] for name in set(checkout.snapshot()) - before} == {"llama.cpp"}


def test_links_inside_the_tree_are_fine(checkout: Checkout) -> None:
    archive = checkout.archive(
        special(f"{TREE}/a/sym", tarfile.SYMTYPE, "../include/llama.h"),
        special(f"{TREE}/folder", tarfile.SYMTYPE, "include"),
        special(f"{TREE}/a/hard", tarfile.LNKTYPE, f"{TREE}/scripts/run.sh"),
    )
    tree = fetch.ensure(checkout.root, archive, quiet=True)
    assert (tree / "a/sym").is_symlink() and (tree / "a/sym").read_text() == "include/llama.h"
    assert (tree / "folder/llama.h").is_file()
    assert (tree / "a/hard").read_text() == "#!/bin/sh\n" and os.access(tree / "a/hard", os.X_OK)
    (tree / "a/hard").write_text("changed")
    assert (tree / "scripts/run.sh").read_text() == "#!/bin/sh\n"


def test_what_a_killed_process_left_is_removed(checkout: Checkout) -> None:
    archive = checkout.archive()
    (checkout.vendor / ".fetch-dead" / "new").mkdir(parents=True)
    fetch.ensure(checkout.root, archive, quiet=True)
    assert not (checkout.vendor / ".fetch-dead").exists()


# ---- a tree that is there -------------------------------------------------------------------------------------------


def test_the_right_commit_is_used_silently(checkout: Checkout) -> None:
    checkout.archive()
    checkout.make_tree()
    before = checkout.snapshot()
    done = checkout.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert checkout.snapshot() == before


@pytest.mark.parametrize("commit, named", [(OTHER, f"commit {OTHER}"), (None, "an unknown commit")])
def test_another_commit_is_used_with_a_warning(checkout: Checkout, commit: str | None, named: str) -> None:
    checkout.archive()
    checkout.make_tree(commit)
    before = checkout.snapshot()
    done = checkout.run()
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ") and named in done.stderr and COMMIT in done.stderr
    assert done.stderr.count("\n") == 1
    assert checkout.snapshot() == before


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_comes_from_the_trees_own_repository(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    checkout.archive()
    checkout.make_tree(None)
    git(checkout.root, "init", "-q")
    git(checkout.root, "commit", "-q", "--allow-empty", "-m", "outer")
    assert fetch.tree_commit(checkout.tree) is None
    git(checkout.tree, "init", "-q")
    assert fetch.tree_commit(checkout.tree) is None
    git(checkout.tree, "commit", "-q", "--allow-empty", "-m", "inner")
    head = git(checkout.tree, "rev-parse", "HEAD")
    assert fetch.tree_commit(checkout.tree) == head
    monkeypatch.setenv("GIT_DIR", str(checkout.root / ".git"))
    assert fetch.tree_commit(checkout.tree) == head
    assert f"commit {head}" in checkout.run().stderr


@pytest.mark.parametrize("stamped", [True, False])
def test_a_half_unpacked_tree_is_an_error(checkout: Checkout, stamped: bool) -> None:
    archive = checkout.archive()
    checkout.make_tree(COMMIT if stamped else None)
    (checkout.tree / "include/llama.h").unlink()
    error = checkout.assert_fails("--archive", archive, says="remove that folder")
    assert str(checkout.tree) in error and "include/llama.h" in error and "--force" in error


def test_a_dangling_link_in_its_place_is_an_error(checkout: Checkout) -> None:
    checkout.archive()
    checkout.tree.symlink_to("nowhere")
    checkout.assert_fails(says="incomplete")


# ---- force ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [True, False])
def test_force_replaces_the_tree(checkout: Checkout, complete: bool) -> None:
    archive = checkout.archive()
    checkout.make_tree(OTHER)
    (checkout.tree / "mine").write_text("mine")
    if not complete:
        (checkout.tree / "include/llama.h").unlink()
    names = {path.name for path in checkout.vendor.iterdir()}
    done = checkout.run("--force", "--archive", archive)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (checkout.tree / "mine").exists()
    assert (checkout.tree / fetch.STAMP).read_text() == COMMIT + "\n"
    assert {path.name for path in checkout.vendor.iterdir()} == names


def test_force_replaces_a_link_and_not_its_target(checkout: Checkout, tmp_path: Path) -> None:
    archive = checkout.archive()
    checkout.make_tree(OTHER)
    shutil.move(checkout.tree, tmp_path / "elsewhere")
    checkout.tree.symlink_to(tmp_path / "elsewhere")
    fetch.ensure(checkout.root, archive, force=True, quiet=True)
    assert not checkout.tree.is_symlink()
    assert (tmp_path / "elsewhere" / fetch.STAMP).read_text() == OTHER + "\n"


def test_force_keeps_the_old_tree_when_it_fails(checkout: Checkout) -> None:
    archive = checkout.archive()
    checkout.make_tree(OTHER)
    archive.write_bytes(archive.read_bytes() + b"more")
    checkout.assert_fails("--force", "--archive", archive, says="sha256")


def test_force_puts_the_old_tree_back(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = checkout.archive()
    checkout.make_tree(OTHER)
    before = checkout.snapshot()
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        fetch.ensure(checkout.root, archive, force=True, quiet=True)
    assert checkout.snapshot() == before


# ---- bad archives ---------------------------------------------------------------------------------------------------


def test_wrong_hash(checkout: Checkout) -> None:
    archive = checkout.archive()
    archive.write_bytes(archive.read_bytes() + b"more")
    error = checkout.assert_fails("--archive", archive, says="sha256")
    assert str(archive) in error


def test_wrong_hash_of_a_download(checkout: Checkout) -> None:
    archive = checkout.archive()
    checkout.pin(checkout.vendor / "fetch.py")
    shutil.move(archive, checkout.links)
    checkout.assert_fails(says="sha256 is not the one")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.98])
def test_truncated_archive(checkout: Checkout, share: float) -> None:
    archive = checkout.archive()
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    checkout.pin(archive)
    checkout.assert_fails("--archive", archive, says="")


def test_not_an_archive(checkout: Checkout) -> None:
    archive = checkout.archive()
    archive.write_bytes(b"not an archive" * 100)
    checkout.pin(archive)
    checkout.assert_fails("--archive", archive, says="damaged")


def test_damaged_in_the_middle(checkout: Checkout) -> None:
    archive = checkout.archive()
    content = bytearray(archive.read_bytes())
    for position in range(len(content) // 2, len(content) // 2 + 20_000):
        content[position] ^= 0xFF
    archive.write_bytes(content)
    checkout.pin(archive)
    checkout.assert_fails("--archive", archive, says="")


def test_no_such_archive(checkout: Checkout) -> None:
    checkout.archive()
    error = checkout.assert_fails("--archive", checkout.root / "nothing.tar.gz", says="No such file")
    assert "nothing.tar.gz" in error


def test_archive_without_the_tree(checkout: Checkout) -> None:
    members = [member for member in good_members() if not member[0].name.startswith(TREE)]
    archive = write_archive(checkout.root / "a.tar.gz", members)
    checkout.pin(archive)
    checkout.assert_fails("--archive", archive, says="no complete llama.cpp")


@pytest.mark.parametrize("name", [f"{TREE}/include/llama.h", f"{TREE}/src/llama-ext.h"])
def test_archive_without_a_required_file(checkout: Checkout, name: str) -> None:
    members = [member for member in good_members() if member[0].name != name]
    archive = write_archive(checkout.root / "a.tar.gz", members)
    checkout.pin(archive)
    checkout.assert_fails("--archive", archive, says=name.removeprefix(f"{TREE}/"))


UNSAFE = {
    "parent": [regular(f"{TREE}/../../../../evil")],
    "parent outside the tree": [regular("../evil")],
    "parent that stays inside": [regular(f"{TREE}/a/../b")],
    "absolute": [regular("/evil")],
    "absolute symlink": [special(f"{TREE}/link", tarfile.SYMTYPE, "/etc/hostname")],
    "symlink to the parent": [special(f"{TREE}/link", tarfile.SYMTYPE, "../pin.json")],
    "symlink far out": [special(f"{TREE}/a/b/link", tarfile.SYMTYPE, "../../../../../../../etc/hostname")],
    "symlink through a symlink": [
        special(f"{TREE}/a/up", tarfile.SYMTYPE, ".."),
        special(f"{TREE}/link", tarfile.SYMTYPE, "a/up/../pin.json"),
    ],
    "file through a symlink": [
        special(f"{TREE}/link", tarfile.SYMTYPE, "../../.."),
        regular(f"{TREE}/link/evil"),
    ],
    "symlink over a file": [special(f"{TREE}/include/llama.h", tarfile.SYMTYPE, "../large")],
    "hard link out of the tree": [special(f"{TREE}/link", tarfile.LNKTYPE, f"{TOP}/PKG-INFO")],
    "hard link out of the archive": [special(f"{TREE}/link", tarfile.LNKTYPE, "../../etc/hostname")],
    "absolute hard link": [special(f"{TREE}/link", tarfile.LNKTYPE, "/etc/hostname")],
    "hard link to nothing": [special(f"{TREE}/link", tarfile.LNKTYPE, f"{TREE}/nothing")],
    "fifo": [special(f"{TREE}/fifo", tarfile.FIFOTYPE)],
    "device": [special(f"{TREE}/device", tarfile.CHRTYPE)],
    "twice": [regular(f"{TREE}/include/llama.h", b"another")],
}


@pytest.mark.parametrize("members", UNSAFE.values(), ids=UNSAFE.keys())
def test_unsafe_members_are_refused(checkout: Checkout, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    archive = checkout.archive(*members)
    outside = sorted(checkout.root.parent.rglob("*"))
    checkout.assert_fails("--archive", archive, says="the archive is unsafe")
    assert sorted(checkout.root.parent.rglob("*")) == outside


@pytest.mark.parametrize("content", ["", "[]", '{"package": "x"}'])
def test_damaged_pin(checkout: Checkout, content: str) -> None:
    (checkout.vendor / "pin.json").write_text(content)
    checkout.assert_fails(says="pin.json")


# ---- a machine that does not play along -----------------------------------------------------------------------------


def test_no_network(checkout: Checkout) -> None:
    checkout.archive()
    error = checkout.assert_fails(says="pip could not download fake-llama 1.2")
    assert "network" in error and "--archive FILE" in error


def test_python_without_pip(checkout: Checkout, tmp_path: Path) -> None:
    checkout.archive()
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    error = checkout.assert_fails(says="has no pip", python=tmp_path / "bare/bin/python")
    assert "-m ensurepip" in error and "--archive FILE" in error


def test_full_disk(checkout: Checkout) -> None:
    """Simulated by a limit on the size of files."""
    archive = checkout.archive()
    before = checkout.snapshot()
    command = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh", *checkout.command("--quiet", "--archive", archive)]
    done = subprocess.run(command, env=checkout.env(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write ") and "disk space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert checkout.snapshot() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_must_not_be_written(checkout: Checkout) -> None:
    archive = checkout.archive()
    checkout.vendor.chmod(0o555)
    try:
        checkout.assert_fails("--archive", archive, says="make that folder writable")
    finally:
        checkout.vendor.chmod(0o755)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@contextlib.contextmanager
def started(checkout: Checkout, *arguments: object, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program in the background; kill it at the end if it still runs."""
    process = subprocess.Popen(
        checkout.command("--quiet", *arguments), env=checkout.env(**more), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def assert_interrupted(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("error: interrupted") and errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("force", [False, True])
def test_interrupted_while_reading(checkout: Checkout, number: signal.Signals, force: bool) -> None:
    checkout.archive()
    if force:
        checkout.make_tree(OTHER)
    before = checkout.snapshot()
    # A pipe that nobody writes to: the program hangs with its work half done.
    pipe = checkout.root / "pipe"
    os.mkfifo(pipe)
    with started(checkout, "--archive", pipe, *["--force"] * force) as process:
        wait_for(lambda: list(checkout.vendor.glob(".fetch-*")))
        process.send_signal(number)
        assert_interrupted(process)
    assert checkout.snapshot() == before


def test_interrupted_while_pip_runs(checkout: Checkout, tmp_path: Path) -> None:
    shutil.move(checkout.archive(), checkout.links)
    before = checkout.snapshot()
    temporary, marker = tmp_path / "tmp", tmp_path / "marker"
    temporary.mkdir()
    with started(checkout, TMPDIR=str(temporary), TEST_HANG=str(marker)) as process:
        wait_for(lambda: marker.exists() and marker.read_text())
        process.send_signal(signal.SIGINT)
        assert_interrupted(process)
    assert checkout.snapshot() == before
    assert list(temporary.iterdir()) == []
    wait_for(lambda: not is_running(int(marker.read_text())))


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        # A killed process stays in the table until its parent, or whoever adopted it, has asked for it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_interrupted_while_unpacking(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = checkout.archive()
    before = checkout.snapshot()
    calls = iter(range(100))

    def copy(*arguments: object) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(fetch.shutil, "copyfileobj", copy)
    with pytest.raises(KeyboardInterrupt):
        fetch.ensure(checkout.root, archive, quiet=True)
    assert checkout.snapshot() == before


# ---- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_two_processes_at_once(checkout: Checkout, force: bool) -> None:
    archive = checkout.archive(*(regular(f"{TREE}/more/{number}", os.urandom(4096)) for number in range(300)))
    arguments = ["--archive", archive, *["--force"] * force]
    with started(checkout, *arguments) as one, started(checkout, *arguments) as two:
        results = [process.communicate(timeout=60)[1] for process in (one, two)]
        assert (one.returncode, two.returncode) == (0, 0), results
    assert sorted(path.name for path in checkout.vendor.iterdir()) == ["fetch.py", "llama.cpp", "pin.json"]
    assert len(list((checkout.tree / "more").iterdir())) == 300


def test_the_second_waits_for_the_first(checkout: Checkout) -> None:
    archive = checkout.archive()
    pipe = checkout.root / "pipe"
    os.mkfifo(pipe)
    with started(checkout, "--archive", pipe) as first:
        wait_for(lambda: list(checkout.vendor.glob(".fetch-*")))
        with started(checkout, "--archive", archive) as second:
            time.sleep(0.5)
            assert second.poll() is None
            assert len(list(checkout.vendor.glob(".fetch-*"))) == 1
            first.send_signal(signal.SIGINT)
            assert_interrupted(first)
            assert second.wait(60) == 0
    assert (checkout.tree / fetch.STAMP).is_file()


def test_without_locks_the_race_may_be_lost(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = checkout.archive()

    def no_locks(*arguments: object) -> None:
        raise OSError("no locks here")

    unpack = fetch._unpack

    def unpack_slowly(*arguments: object) -> None:
        unpack(*arguments)
        checkout.make_tree()

    others = checkout.vendor / ".fetch-1-other"
    others.mkdir()
    monkeypatch.setattr(fetch.fcntl, "flock", no_locks)
    monkeypatch.setattr(fetch, "_unpack", unpack_slowly)
    fetch.ensure(checkout.root, archive, quiet=True)
    assert (checkout.tree / "include/llama.h").read_text() == "old"
    others.rmdir()
    assert sorted(path.name for path in checkout.vendor.iterdir()) == ["fetch.py", "llama.cpp", "pin.json"]
