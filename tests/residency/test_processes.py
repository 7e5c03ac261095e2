"""What other processes see, and how a process ends."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from localllm import loaded_models
from localllm.cli.ps import _lines
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
    assert [path.name.split("-")[0] for path in home.iterdir()] == [str(killed.pid)]
    assert json.loads(ps("--json")) == []
    assert list(home.iterdir()) == []


ENTRY = {
    "reference": "x", "path": "x", "purpose": "engine", "n_bytes": 1, "n_ctx": 1, "busy": None, "last_used": 1.0,
    "keep_alive": None, "pinned": False, "pid": 1,
}  # fmt: skip


@pytest.fixture
def told(home):
    """A function that writes what a process that is alive would have told, with changes, and gives the file."""

    alive = os.getppid()

    def write(models=(ENTRY,), name=f"{alive}-0.json", **changes):
        home.mkdir(parents=True, exist_ok=True)
        state = {"version": 1, **listing._identity(alive), "models": list(models), **changes}
        (home / name).write_text(json.dumps(state))
        return home / name

    return write


def test_files_that_mean_nothing_are_passed_over(home, told):
    path = told()
    assert [model.reference for model in listing.others()] == ["x"]
    for state in (b"", b"\xff", b"[]", b"{}", b"[" * 5000, path.read_bytes().replace(b'"version": 1', b'"version": 2')):
        path.write_bytes(state)
        assert listing.others() == [] and path.exists()
    for name in ("\u00b2.json", "9" * 25 + ".json", "notes.json", "-1.json", "1.json.bak", "\u0661.json"):
        told(name=name)
        assert listing.others() == [] and (home / name).exists()
    (home / "5.json").mkdir()
    assert listing.others() == []


@pytest.mark.parametrize(
    "entry",
    [
        {}, 5, None, [], dict.fromkeys(ENTRY), {**ENTRY, "reference": None}, {**ENTRY, "path": 5},
        {**ENTRY, "purpose": ["engine"]}, {**ENTRY, "purpose": "other"}, {**ENTRY, "n_bytes": True}, {**ENTRY, "n_bytes": -1},
        {**ENTRY, "n_bytes": 1e400}, {**ENTRY, "n_bytes": 10**400}, {**ENTRY, "n_ctx": 1.5}, {**ENTRY, "last_used": 1e300},
        {**ENTRY, "last_used": float("nan")}, {**ENTRY, "last_used": 10**400}, {**ENTRY, "keep_alive": "1"},
        {**ENTRY, "keep_alive": -1}, {**ENTRY, "pinned": None},
    ],
)  # fmt: skip
def test_entries_of_wrong_types_are_passed_over_and_the_others_are_told(told, entry):
    told([entry, {**ENTRY, "reference": "sound", "keep_alive": 1e30}])
    assert [model.reference for model in listing.others()] == ["sound"]
    assert "sound" in _lines(listing.others())[1]


@pytest.mark.parametrize(
    ("changes", "is_told", "stays"),
    [
        ({}, True, True),
        ({"host": "renamed"}, True, True),
        ({"started": "1"}, False, False),  # the same number, but another process
        ({"space": "pid:[1]"}, False, True),  # of a container
        ({"boot": "1", "host": "another", "started": "1"}, False, True),  # of another machine with the same folder
        ({"boot": "1", "started": "1"}, False, False),  # from before this machine was started
    ],
)
def test_whose_process_it_is(told, changes, is_told, stays):
    path = told(**changes)
    assert (bool(listing.others()), path.exists()) == (is_told, stays)


def test_processes_of_the_same_number_on_two_machines_have_a_file_each(home, told, local):
    path = told(name=f"{os.getpid()}-0.json", boot="1", host="another")
    other = path.read_bytes()
    model = local()
    model.complete("one", max_tokens=1)
    assert len(list(home.iterdir())) == 2 and path.read_bytes() == other
    model.close()
    assert list(home.iterdir()) == [path] and path.read_bytes() == other


def test_requests_write_nothing_and_a_folder_that_cannot_be_written_does_no_harm(local, home, monkeypatch, tmp_path, caplog):
    written = []
    write = listing.write_atomically
    monkeypatch.setattr(listing, "write_atomically", lambda path, *parts: (written.append(path), write(path, *parts)))
    model = local(keep_alive=1000)
    model.complete("one", max_tokens=1)
    registry.publish()
    n_written = len(written)
    for _ in range(5):
        model.complete("one", max_tokens=1)
    registry.publish()
    assert len(written) == n_written
    model.embed("one")
    assert len(written) == n_written + 1
    model.close()
    assert list(home.iterdir()) == []
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
        "import threading\n"
        "asked = threading.Event()\n"
        "def work():\n"
        "    while True:\n"
        "        try: model.complete('one', max_tokens=3)\n"
        "        except Exception: return\n"
        "        asked.set()\n"
        "threading.Thread(target=work, daemon=True).start(); asked.wait()"
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
        next(stream)
    except errors.ClosedError as error:
        print("child:", "fork" in str(error), len(model.complete("one", max_tokens=1).tokens), flush=True)
    own = LocalModel(sys.argv[2], n_ctx=256, n_threads=1)
    counts = [len(each.complete("one", max_tokens=2).tokens) for each in (own, before)]
    print("child:", counts, [entry.keep_alive for entry in loaded_models()], flush=True)
    sys.exit(0)
print("child ended with", os.waitpid(pid, 0)[1], flush=True)
stream.close()
print("parent:", len(model.complete("one", max_tokens=2).tokens), len(loaded_models()))
print([name.split("-")[0] for name in os.listdir(os.path.join(os.environ["LOCALLLM_HOME"], "run"))] == [str(os.getpid())])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_child_starts_with_nothing(models, home):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(models["qwen3"]), str(models["qwen3moe"])], capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "child: True 1", "child: [2, 2] [600.0, 600.0, None, None, 500.0]", "child ended with 0", "parent: 2 2", "True"
    ], done.stderr  # fmt: skip
    assert list(home.iterdir()) == []


def test_the_library_is_not_needed_to_list():
    program = (
        "import localllm; localllm.loaded_models(everywhere=True)\nfrom localllm.native import library; print(library._loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "None\n", done.stderr


FORK_WHILE_LOADING = """
import os, signal, sys, threading
from localllm import LocalModel
from localllm.residency import registry
stop, loading = threading.Event(), threading.Event()
def load():
    while not stop.is_set():
        with LocalModel(sys.argv[1], n_ctx=65536, n_threads=1, kept_sequences=0) as model:
            model.engine
def noted(make):
    def begin(*arguments, **options):
        loading.set()
        return make(*arguments, **options)
    return begin
registry.Model, registry.Engine = noted(registry.Model), noted(registry.Engine)
thread = threading.Thread(target=load)
thread.start()
ends = []
for _ in range(12):
    loading.clear()
    loading.wait()  # somewhere in a load, of weights or of a context
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with LocalModel(sys.argv[1], n_ctx=256, n_threads=1) as own:
            assert own.complete("one", max_tokens=1).tokens
        os._exit(0)
    ends.append(os.waitpid(pid, 0)[1])
    if ends[-1]:
        break
stop.set()
thread.join()
print(ends)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_child_loads_what_it_wants_while_its_parent_was_loading(models, home):
    program = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_LOADING, str(models["qwen3"])]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert done.stdout == f"{[0] * 12}\n", done.stderr
