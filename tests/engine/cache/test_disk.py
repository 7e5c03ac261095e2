"""Files of states: written whole or not at all, and of no use when anything about them is wrong."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.engine.cache import disk
from localllm.engine.cache.disk import DiskStore, FolderBusy, state_key

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "cache", KEY, 100_000)


def files(store: DiskStore) -> list[Path]:
    return sorted(path for path in store.folder.iterdir() if path.suffix == ".lmstate")


def test_what_is_written_is_found_and_read_by_another_store(store):
    written = store.write([1, -2, 3], b"state" * 10, exact=True)
    (found,) = DiskStore(store.folder, KEY, 100_000).load()
    assert found == written and found.ids == (1, -2, 3) and found.exact
    assert bytes(store.read(found)) == b"state" * 10


def test_another_models_files_are_left_alone(store, caplog):
    store.write([1, 2], b"x", exact=False)
    assert list(DiskStore(store.folder, OTHER, 100_000).load()) == []
    assert len(files(store)) == 1 and caplog.text == ""


def test_states_of_other_adapters_are_others(store, caplog):
    plain, one, other = (store.write([1, 2], name, exact=False, steering=name) for name in (b"", b"one", b"other"))
    for stored, name in ((plain, b""), (one, b"one"), (other, b"other")):
        (found,) = DiskStore(store.folder, KEY, 100_000).load(name)
        assert found == stored and bytes(store.read(found)) == name
    assert list(store.load(b"none")) == [] and len(files(store)) == 3 and caplog.text == ""
    assert store.read(dataclasses.replace(one, steering=b"other")) is None
    assert DiskStore(store.folder, OTHER, 100_000).read(one) is None


@pytest.mark.parametrize("at", [0, 7, 8, 12, 44, 52, 60, 64, 90, 96, 100, 104, -1])
def test_a_changed_byte_anywhere_is_a_miss(store, at):
    stored = store.write([1, 2, 3], b"state" * 10, exact=False)
    data = bytearray(stored.path.read_bytes())
    data[at] ^= 0x40
    stored.path.write_bytes(bytes(data))
    fresh = DiskStore(store.folder, KEY, 100_000)
    assert [one for one in fresh.load() if fresh.read(one) is not None and one.ids == (1, 2, 3) and not one.exact] == []
    assert fresh.read(stored) is None


@pytest.mark.parametrize("size", [0, 5, 95, 96, 100, 108, 150])
def test_a_truncated_file_is_a_miss(store, size):
    stored = store.write([1, 2, 3], b"state" * 10, exact=False)
    stored.path.write_bytes(stored.path.read_bytes()[:size])
    assert list(DiskStore(store.folder, KEY, 100_000).load()) == [] and store.read(stored) is None


def test_another_version_is_a_miss_told_once(store, caplog, monkeypatch):
    monkeypatch.setattr(disk, "_VERSION", 0)
    stored = store.write([1, 2], b"x", exact=False)
    monkeypatch.undo()
    for _ in range(3):
        assert list(store.load()) == []
    assert caplog.text.count(stored.path.name) == 1 and "version 0" in caplog.text


def test_a_file_that_is_gone_is_a_miss(store):
    stored = store.write([1, 2], b"x", exact=False)
    stored.path.unlink()
    assert store.read(stored) is None


def test_the_budget_counts_all_files_and_the_least_recently_used_go(tmp_path):
    store = DiskStore(tmp_path, KEY, 1000)
    stored = [store.write([n], bytes(200), exact=False) for n in range(3)]
    for age, each in enumerate(stored):
        os.utime(each.path, (age + 1, age + 1))
    assert store.read(stored[0]) is not None, "reading is a use"
    store.write([9], bytes(200), exact=False)
    assert {tuple(one.ids) for one in store.load()} == {(0,), (2,), (9,)}
    assert store.write([10], bytes(2000), exact=False) is None
    assert sum(path.stat().st_size for path in files(store)) <= 1000


def test_writing_the_same_again_keeps_one_file(store):
    for n in range(3):
        store.write([1, 2], bytes([n]) * 10, exact=False)
    (found,) = store.load()
    assert bytes(store.read(found)) == bytes([2]) * 10 and len(files(store)) == 1


def test_read_only_changes_nothing(store):
    stored = store.write([1, 2], b"x" * 10, exact=False)
    os.utime(stored.path, (5, 5))
    reader = DiskStore(store.folder, KEY, 100_000, read_only=True)
    (found,) = reader.load()
    assert bytes(reader.read(found)) == b"x" * 10 and reader.write([3], b"y", exact=False) is None
    assert stored.path.stat().st_mtime == 5 and len(files(store)) == 1


def test_a_missing_folder_is_empty_when_read_only(tmp_path):
    assert list(DiskStore(tmp_path / "none", KEY, 100, read_only=True).load()) == [] and not (tmp_path / "none").exists()


def test_a_failed_write_leaves_nothing(store, monkeypatch, caplog):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert store.write([1, 2], b"x", exact=False) is None
    assert files(store) == [] and [path.name for path in store.folder.iterdir()] == [".lock"]
    assert "No space left" in caplog.text


def test_processes_share_a_folder(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from localllm.engine.cache.disk import DiskStore, FolderBusy\n"
        f"store = DiskStore(Path({str(tmp_path)!r}), b'k' * 32, 4000)\n"
        "for n in range(40):\n"
        "    while True:\n"
        "        try:\n"
        "            store.write([int(sys.argv[1]), n], bytes(300), exact=False)\n"
        "            break\n"
        "        except FolderBusy: pass\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    store = DiskStore(tmp_path, KEY, 4000)
    found = list(store.load())
    assert len(found) > 0 and sum(path.stat().st_size for path in files(store)) <= 4000
    assert all(store.read(one) is not None for one in found)


def test_a_folder_that_another_process_locks_is_not_waited_for(store):
    program = (
        "import fcntl, sys\n"
        f"file = open({str(store.folder / '.lock')!r}, 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    assert not store.busy()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert store.busy()
        with pytest.raises(FolderBusy):
            store.write([1, 2], b"x", exact=False)
        other.communicate()
    assert not store.busy() and store.write([1, 2], b"x", exact=False) is not None


def test_what_killed_writers_left_is_removed_and_nothing_else(store):
    for name in (".lmstate-part-a", ".lmstate-part-b", ".writing-mine", "notes.txt"):
        (store.folder / name).write_bytes(bytes(100))
    assert list(store.load()) == []
    store.write([1, 2], b"x", exact=False)
    (stored,) = files(store)
    assert {path.name for path in store.folder.iterdir()} == {".lock", ".writing-mine", "notes.txt", stored.name}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_what_is_no_file_is_passed_over(store):
    written = store.write([1, 2], b"x", exact=False)
    os.mkfifo(store.folder / "pipe.lmstate")
    (store.folder / "folder.lmstate").mkdir()
    (store.folder / "nowhere.lmstate").symlink_to(store.folder / "none")
    (found,) = DiskStore(store.folder, KEY, 100_000).load()
    assert found == written and store.write([3], bytes(99_000), exact=False) is not None
    assert (store.folder / "pipe.lmstate").exists()


FULL_DISK = """
import logging, resource, sys
from pathlib import Path
from localllm.engine.cache.disk import DiskStore
store = DiskStore(Path(sys.argv[1]), b"k" * 32, 10_000_000)
print(store.write([1], bytes(1000), exact=False) is not None)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print(store.write([2], bytes(500_000), exact=False), store.write([3], bytes(500_000), exact=False))
print(store.write([4], bytes(1000), exact=False) is not None)
"""
READ_ONLY_FOLDER = """
import os, sys
from pathlib import Path
from localllm.engine.cache.disk import DiskStore
folder = Path(sys.argv[1])
DiskStore(folder, b"k" * 32, 10_000).write([1], bytes(1000), exact=False).path.chmod(0o444)
folder.chmod(0o555)
(folder / ".lock").chmod(0o444)
if os.getuid() == 0: os.setuid(65534)
store = DiskStore(folder, b"k" * 32, 10_000)
(found,) = store.load()
print(len(store.read(found)), store.busy())
print(store.write([2], bytes(1000), exact=False), store.write([3], bytes(9900), exact=False))
"""


def output(program: str, folder: Path) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60)
    return done.stdout, done.stderr


def test_a_full_disk_loses_the_new_state_only(tmp_path):
    told, error = output(FULL_DISK, tmp_path)
    assert told == "True\nNone None\nTrue\n"
    assert error.count("passed over") == 1 and "too large" in error
    store = DiskStore(tmp_path, KEY, 10_000_000)
    assert sorted(one.ids for one in store.load()) == [(1,), (4,)] and len(list(tmp_path.iterdir())) == 3


def test_a_folder_without_permission_to_write_is_read_all_the_same(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "cache"
    told, error = output(READ_ONLY_FOLDER, folder)
    folder.chmod(0o755)
    assert told == "1000 False\nNone None\n" and error.count("Permission denied") == 1, error
    assert len(list(folder.glob("*.lmstate"))) == 1


def test_the_key_follows_the_content_and_not_the_name(tmp_path, models):
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(models["qwen3"].read_bytes())
    assert state_key(str(copy), 1) == state_key(str(models["qwen3"]), 1) != state_key(str(models["qwen3"]), 2)
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(bytes(data))
    assert state_key(str(copy), 1) != state_key(str(models["qwen3"]), 1)


def test_the_key_follows_weights_that_lie_in_the_middle(tmp_path):
    """A fine-tune may have the metadata, the size and the last layer of another."""
    path, size = tmp_path / "model.gguf", 32 * 2**20
    path.write_bytes(bytes(size))
    plain = state_key(str(path), 1)
    with path.open("r+b") as file:  # a layer: more than a 512th of the file
        file.seek(size // 2)
        file.write(b"\x01" * 2**17)
    assert state_key(str(path), 1) != plain
    path.write_bytes(b"")
    assert state_key(str(path), 1) != plain
