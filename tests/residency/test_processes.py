"""What other processes see, and how a process ends."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from localllm import loaded_models
from localllm.residency import listing
from localllm.residency.registry import registry

HOLD = """
import sys
from localllm import LocalModel
model = LocalModel(sys.argv[1], n_ctx=256, n_threads=1, keep_alive=600, pinned=True)
model.complete("one", max_tokens=1)
print("loaded", flush=True)
sys.stdin.readline()
model.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A folder for the state of every process of a test."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    registry.publish()
    yield tmp_path / "home" / "run"
    registry._listing.remove()


def ps(*arguments):
    done = subprocess.run([sys.executable, "-m", "localllm", "ps", *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def hold(path):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )  # fmt: skip


def say(process):
    process.stdin.write("\n")


def test_another_process_lists_what_is_held(models, home):
    with hold(models["qwen3"]) as process:
        assert process.stdout.readline() == "loaded\n"
        found = json.loads(ps("--json"))
        assert [entry["purpose"] for entry in found] == ["weights", "engine"]
        for entry in found:
            assert (entry["pid"], entry["reference"], entry["path"]) == (process.pid, str(models["qwen3"]), str(models["qwen3"]))
            assert (entry["keep_alive"], entry["pinned"], entry["busy"]) == (600, True, None) and entry["n_bytes"] > 100_000
        assert [entry["n_ctx"] for entry in found] == [0, 256]
        table = ps()
        assert str(process.pid) in table and "qwen3" in table and "pinned" in table and len(table.splitlines()) == 3
        assert [model.pid for model in loaded_models(everywhere=True)] == [process.pid] * 2 and loaded_models() == []
        say(process)
        assert process.stdout.readline() == "closed\n"
        assert json.loads(ps("--json")) == [] and list(home.iterdir()) == []
        say(process)
    assert process.returncode == 0
    assert ps() == "nothing is loaded\n"


def test_a_process_that_ends_takes_its_file_along_and_that_of_a_killed_one_is_taken_away(models, home):
    with hold(models["qwen3"]) as ends, hold(models["qwen3"]) as killed:
        for process in (ends, killed):
            process.stdout.readline()
        assert len(list(home.iterdir())) == 2
        killed.kill()
        killed.wait(30)
        say(ends), say(ends)
        assert ends.wait(30) == 0
    assert [path.name for path in home.iterdir()] == [f"{killed.pid}.json"]
    assert json.loads(ps("--json")) == []
    assert list(home.iterdir()) == []


def test_files_that_mean_nothing_are_passed_over(home):
    home.mkdir(parents=True)
    alive = os.getppid()
    good = {"version": 1, **listing._identity(alive), "models": []}
    entry = {
        "reference": "x", "path": "x", "purpose": "engine", "n_bytes": 1, "n_ctx": 1, "busy": None, "last_used": 1.0,
        "keep_alive": None, "pinned": False, "pid": alive,
    }  # fmt: skip
    states = [
        b"", b"\xff", b"[]", b"{}", b"[" * 5000, json.dumps({**good, "version": 2}).encode(),
        json.dumps({**good, "models": [{}, 5, {**entry, "n_ctx": 1}]}).encode(),
    ]  # fmt: skip
    counts = []
    for state in states:
        (home / f"{alive}.json").write_bytes(state)
        (home / "notes.json").write_text("mine")
        counts.append(len(listing.others()))
    assert counts == [0, 0, 0, 0, 0, 0, 1]
    # The same number, but another process; and one of another container.
    (home / f"{alive}.json").write_text(json.dumps({**good, "space": "pid:[1]", "models": [entry]}))
    assert listing.others() == [] and (home / f"{alive}.json").exists()
    (home / f"{alive}.json").write_text(json.dumps({**good, "started": "1", "models": [entry]}))
    assert listing.others() == [] and not (home / f"{alive}.json").exists()
    assert (home / "notes.json").exists()


def test_requests_write_nothing_and_a_folder_that_cannot_be_written_does_no_harm(local, home, monkeypatch, tmp_path, caplog):
    written = []
    write = listing.write_atomically
    monkeypatch.setattr(listing, "write_atomically", lambda path, *parts: (written.append(path), write(path, *parts)))
    model = local(keep_alive=1000)
    for _ in range(5):
        model.complete("one", max_tokens=1)
    registry.publish()
    assert len(written) == 1
    model.embed("one")
    assert len(written) == 2
    model.close()
    assert not (home / f"{os.getpid()}.json").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "file"))
    caplog.set_level(logging.WARNING, "localllm")
    for name in ("qwen3", "qwen3moe"):
        assert local(name).complete("one", max_tokens=1).tokens
    assert sum("localllm ps" in record.getMessage() for record in caplog.records) == 1
    assert loaded_models(everywhere=True)


ENDS = {
    "nothing": "",
    "closed": "model.close()",
    "a stream": "stream = model.stream_complete('one', temperature=0, ignore_eos=True); next(stream)",
    "a thread that asks": (
        "import threading, time\n"
        "def work():\n"
        "    while True:\n"
        "        try: model.complete('one', max_tokens=3)\n"
        "        except Exception: return\n"
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.2)"
    ),
    "an error": "raise SystemExit(0)",
    "unloading": "model.complete('one', max_tokens=1)",
    "a pool": (
        "import concurrent.futures\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(lambda _: model.complete('one', max_tokens=1), range(8)))"
    ),
}
PROGRAM = """
import sys
from localllm import LocalModel
model = LocalModel(sys.argv[1], n_ctx=256, n_threads=1, keep_alive={keep_alive})
model.complete("one", max_tokens=1)
{end}
"""


@pytest.mark.parametrize(("end", "keep_alive"), [*((end, 0) for end in ENDS), ("nothing", 600), ("a thread that asks", None)])
def test_a_process_ends_cleanly_whatever_is_under_way(models, home, end, keep_alive):
    program = PROGRAM.format(end=ENDS[end], keep_alive=keep_alive)
    done = subprocess.run([sys.executable, "-c", program, str(models["qwen3"])], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not home.exists() or list(home.iterdir()) == []


FORK = """
import os, sys
from localllm import LocalModel, errors, loaded_models
model = LocalModel(sys.argv[1], n_ctx=256, n_threads=1, keep_alive=600)
before = LocalModel(sys.argv[2], n_ctx=512, n_threads=1, keep_alive=500)
before.tokenize("x")
stream = model.stream_complete("one", temperature=0, ignore_eos=True)
next(stream)
pid = os.fork()
if pid == 0:
    assert loaded_models() == []
    try:
        model.complete("one", max_tokens=1)
    except errors.ClosedError as error:
        print("child:", "fork" in str(error), flush=True)
    own = LocalModel(sys.argv[2], n_ctx=256, n_threads=1)
    counts = [len(each.complete("one", max_tokens=2).tokens) for each in (own, before)]
    print("child:", counts, [entry.keep_alive for entry in loaded_models()], flush=True)
    sys.exit(0)
print("child ended with", os.waitpid(pid, 0)[1], flush=True)
stream.close()
print("parent:", len(model.complete("one", max_tokens=2).tokens), len(loaded_models()))
print(os.path.exists(os.path.join(os.environ["LOCALLLM_HOME"], "run", f"{os.getpid()}.json")))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_child_starts_with_nothing(models, home):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(models["qwen3"]), str(models["qwen3moe"])], capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "child: True", "child: [2, 2] [None, None, 500.0]", "child ended with 0", "parent: 2 2", "True"
    ], done.stderr  # fmt: skip
    assert list(home.iterdir()) == []


def test_the_library_is_not_needed_to_list():
    program = (
        "import localllm; localllm.loaded_models(everywhere=True)\nfrom localllm.native import library; print(library._loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "None\n", done.stderr
