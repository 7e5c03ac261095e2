"""`localllm optimize`, as a user types it, with rates that lie where they were kept."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localllm import machine
from localllm.hub.gguf import read_header
from localllm.hub.speed import Rates, TypeRate

COMMAND = [sys.executable, "-m", "localllm", "optimize"]
NAMES = ("F32", "F16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q4_K", "IQ4_NL")
RATES = Rates(
    tuple(TypeRate(name, name == "Q4_0", 3e11 if name == "Q4_0" else 1e11, 1e10) for name in NAMES),
    *(1e-6, 1e-10, 1e-10, 1e-9),
    n_threads=2,
)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home that holds rates of this machine for one and two threads, so that nothing is measured."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALLLM_HOME", str(folder))
    (folder / "machine").mkdir(parents=True)
    for n_threads in (1, 2):
        key = machine._key(n_threads)
        machine._write(machine._path(key), key, replace(RATES, n_threads=n_threads))
    return folder


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments, "--threads", "2"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **options)


def run_plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "localllm", *arguments], capture_output=True, text=True, timeout=60)


def models_in(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*.gguf"))


def test_a_dry_run_shows_the_warning_first_and_writes_nothing(smollm2, home):
    done = run("smollm2", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "") and models_in(home) == []
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Warning: ") and "rounded a second time" in lines[0]
    assert any(line.startswith("types") and "Q4_1" in line and "Q4_0" in line for line in lines)
    assert any(line.startswith("prompt, tokens/s") and " x " in line for line in lines)
    assert "estimate" in done.stdout and str(home / "optimized") in done.stdout


def test_with_yes_the_file_is_written_and_named(smollm2, home):
    done = run("smollm2", "--yes")
    path = Path(done.stdout.splitlines()[-1])
    name = "smollm2-135m-instruct-q4_0"
    assert done.returncode == 0 and done.stderr == f"localllm: '{name}' is a name for it now: localllm run {name}\n"
    assert json.loads(run_plain("info", name, "--json").stdout)["path"] == str(path)
    (entry,) = [one for one in json.loads(run_plain("list", "--json").stdout) if one["state"] == "local"]
    assert (entry["aliases"], entry["parent"]) == ([name], smollm2.name)
    assert path.parent == home / "optimized" and read_header(path).quantization == "Q4_0"
    again = run("smollm2", "--yes")
    assert again.returncode == 2 and "exists already" in again.stderr


def test_json_is_one_object(smollm2, home, tmp_path):
    target = tmp_path / "new.gguf"
    shown = run("smollm2", "--json", "--dry-run", "--output", str(target))
    plan = json.loads(shown.stdout)
    assert (plan["type"], plan["written"], plan["output"]) == ("Q4_0", False, str(target)) and not target.exists()
    assert plan["prefill_gain"] > 1 and plan["is_estimate"] and "Q4_1" in plan["before"]["types"]
    done = run("smollm2", "--json", "--yes", "--type", "q8_0", "-o", str(target))
    facts = json.loads(done.stdout)
    assert facts["written"] and done.stderr == ""
    assert read_header(target).tensor_types == facts["after"]["types"]


def test_without_a_terminal_nothing_is_written_unasked(smollm2, home):
    done = run("smollm2")
    assert done.returncode == 2 and done.stdout == "" and "--yes" in done.stderr and "--dry-run" in done.stderr
    assert models_in(home) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("smollm2", "--type", "IQ1_S"), 3, "importance matrix"),
        (("smollm2", "--type", "Q99"), 2, "type: 'Q99' is none of"),
        (("smollm2", "--type", "Q4_1"), 3, "already"),
        (("missing.gguf",), 3, "no such file"),
    ],
)
def test_refusals_are_one_line(home, arguments, code, words):
    done = run(*arguments, "--yes")
    assert (done.returncode, done.stdout) == (code, "") and words in done.stderr and "Traceback" not in done.stderr
    assert models_in(home) == []


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_on_a_terminal_it_asks(smollm2, home, answer, code, shown):
    mine, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, "smollm2", "--threads", "2"], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown(mine, r"\[y/N\]")
    assert models_in(home) == []
    os.write(mine, answer)
    out, _ = process.communicate(timeout=120)
    os.close(mine)
    assert process.returncode == code and len(models_in(home)) == (code == 0) and out.startswith(b"Warning: ")


def test_ctrl_c_leaves_no_part_of_a_file(smollm2, home, tmp_path, shown):
    target = tmp_path / "out" / "new.gguf"
    arguments = ["smollm2", "--yes", "--type", "IQ4_XS", "-o", str(target), "--threads", "1"]
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "COLUMNS": "120"}
    )
    os.close(theirs)
    shown(mine, r"[1-9][\d.]*/[\d.]+ .B")
    assert sorted(path.stat().st_size > 0 for path in target.parent.iterdir()) == [False, True]  # its lock, and the file
    process.send_signal(signal.SIGINT)
    err = shown(mine)
    process.communicate(timeout=120)
    os.close(mine)
    assert process.returncode == 130 and "Traceback" not in err
    assert list(target.parent.iterdir()) == []
