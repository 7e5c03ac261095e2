"""What killed programs leave of large files goes; what is being written stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from localllm.hub.archive import export
from localllm.hub.garbage import gc
from localllm.hub.unfinished import EXPORTING, OPTIMIZING, left_behind, unfinished
from localllm.hub.usage import usage

WRITER = """
import sys, time
from pathlib import Path
from localllm.hub.unfinished import unfinished
with unfinished(Path(sys.argv[1]), sys.argv[2]) as path:
    path.write_bytes(bytes(1000))
    print(path.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer():
    """A function that starts a program which writes into a folder; gives it, and the name that it uses."""
    started = []

    def write(folder: Path, prefix: str = OPTIMIZING) -> tuple[subprocess.Popen[str], str]:
        folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), prefix], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield write
    for process in started:
        process.kill()
        process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_program_has_left_goes_with_the_next_one(writer, tmp_path):
    dead, _ = writer(tmp_path)
    _, being_written = writer(tmp_path)
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    assert len(names(tmp_path)) == 4
    with unfinished(tmp_path, OPTIMIZING) as path:
        assert names(tmp_path) == sorted([being_written, f"{being_written}.lock", f"{path.name}.lock"])
        path.mkdir()
        (path / "x").touch()
    assert names(tmp_path) == [being_written, f"{being_written}.lock"]


def test_gc_removes_what_no_living_program_writes(writer, store, tmp_path):
    folder = tmp_path / "own/optimized"
    dead, left = writer(folder)
    _, being_written = writer(folder)
    old, new = folder / f"{OPTIMIZING}{'0' * 16}", folder / f"{OPTIMIZING}{'1' * 16}"
    record = store.folder / f".writing-{'2' * 16}"
    record.parent.mkdir(parents=True)
    states = [tmp_path / "own" / name / f".writing-{'3' * 16}" for name in ("run", "machine", ".")]
    elsewhere = tmp_path / f"own/photos/.writing-{'4' * 16}"
    for path in (old, new, record, *states, elsewhere, folder / ".optimizing-mine", folder / ".hidden"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    for path in (old, record, elsewhere, *states):
        os.utime(path, (1, 1))
    assert usage(store).optimized_bytes == 2015
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    told = gc(store, dry_run=True).removal
    assert told.freed_bytes == 1025 and {path.name for path in told.files} == {left, old.name, record.name, states[0].name}
    assert gc(store).removal.freed_bytes == 1025 and list(store.folder.glob(".writing*")) == []
    assert elsewhere.exists() and not any(path.exists() for path in states)
    kept = [being_written, f"{being_written}.lock", new.name, ".optimizing-mine", ".hidden"]
    assert names(folder) == sorted(kept) and gc(store).removal.files == ()


def test_an_export_removes_what_a_killed_one_left(writer, hub, gguf, pulled, store, tmp_path):
    hub.add("org/model", {"model-Q4_0.gguf": gguf()})
    pulled("org/model:Q4_0")
    folder = tmp_path / "out"
    dead, _ = writer(folder, EXPORTING)
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    export(store, "org/model", folder / "model.tar")
    assert names(folder) == ["model.tar"]


def test_a_lock_alone_is_left_behind_and_what_is_fresh_is_not(tmp_path):
    lock = tmp_path / f"{OPTIMIZING}{'a' * 16}.lock"
    lock.touch()
    fresh = tmp_path / f"{OPTIMIZING}{'b' * 16}"
    fresh.touch()
    assert left_behind([lock, fresh, tmp_path / "gone"]) == [tmp_path / f"{OPTIMIZING}{'a' * 16}"]
    os.utime(fresh, (time.time() - 4000,) * 2)
    assert fresh in left_behind([fresh])


@pytest.mark.parametrize("removes", [False, True])
def test_whoever_looks_at_a_lock_before_it_is_held_takes_nothing_away(tmp_path, monkeypatch, removes):
    """Another program may look at the very moment in which the lock is there and not held yet."""
    touch, looks = Path.touch, []

    def look(path: Path, *args: object, **options: object) -> None:
        touch(path, *args, **options)
        if not looks:
            looks.append(filelock.FileLock(path, is_singleton=False))
            looks[0].acquire()
            if removes:
                path.unlink()

    monkeypatch.setattr(Path, "touch", look)
    with unfinished(tmp_path, OPTIMIZING) as path:
        path.write_bytes(b"x")
        looks[0].release()
        os.utime(path, (1, 1))
        assert left_behind(tmp_path.iterdir()) == []
    assert names(tmp_path) == []


def test_without_locks_age_tells(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with unfinished(tmp_path, OPTIMIZING) as path:
        path.touch()
        assert names(tmp_path) == [path.name] and left_behind([path]) == []
        lock = path.with_name(f"{path.name}.lock")
        lock.touch()
        assert left_behind([path]) == []
