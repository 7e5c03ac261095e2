"""Rates of this machine: measured once, kept, and measured again when they cannot be used."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from localllm import machine
from localllm.errors import InvalidRequestError
from localllm.hub.speed import Rates, TypeRate
from localllm.native.library import Native


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def calls(monkeypatch):
    """Counts calls of the library; a short list of types stands for all, because each takes a while to measure."""
    counted = []
    call = Native.json_call

    def count(self, function, *arguments, **options):
        counted.append(function)
        found = call(self, function, *arguments, **options)
        return [entry for entry in found if entry["type"] in ("Q4_0", "Q4_1")] if function == "lm_speed_types" else found

    monkeypatch.setattr(Native, "json_call", count)
    monkeypatch.setattr(machine, "_ROUNDS", 1)
    return lambda: [name for name in counted if name in ("lm_speed_matrix", "lm_speed_layer")]


def kept(home):
    (path,) = (home / "machine").glob("rates-*.json")
    return path


def test_rates_are_measured_once_and_kept(home, calls):
    steps = []
    first = machine.rates(n_threads=1, progress=lambda done, total: steps.append((done, total)))
    measured = len(calls())
    assert measured == 3 and steps == [(at, 3) for at in range(1, 4)]
    assert {rate.type for rate in first.types} == {"Q4_0", "Q4_1"} and first.n_threads == 1 and first.cpu
    assert machine.rates(n_threads=1) == first and len(calls()) == measured
    data = json.loads(kept(home).read_text())
    assert data["key"]["threads"] == 1 and data["key"]["llama.cpp"]
    machine.rates(n_threads=1, refresh=True)
    assert len(calls()) == 2 * measured


INVENTED = Rates((TypeRate("Q4_0", True, 1e11, 1e10),), 1e-5, 1e-10, 1e-10, 1e-9, n_threads=1)


@pytest.mark.parametrize(
    "damage", ["", "{", "null", '{"key": {}}', "\udcff", "[" * 100_000, "KEY", "RATES"], ids=lambda text: text[:9]
)
def test_a_damaged_file_counts_as_none_and_is_said(home, caplog, damage):
    key = machine._key(1)
    path = machine._path(key)
    machine._write(path, key, INVENTED)
    assert machine._read(path, key) == INVENTED
    data = json.loads(path.read_text())
    if damage == "KEY":
        data["key"]["cpu"] = "another"
    if damage == "RATES":
        data["rates"]["types"][0]["flops_per_second"] = -1
    text = json.dumps(data) if damage in ("KEY", "RATES") else damage
    path.write_bytes(text.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING, "localllm.machine"):
        assert machine._read(path, key) is None
    assert "measured again" in caplog.text and str(path) in caplog.text


def test_a_damaged_file_is_measured_again_and_replaced(home, calls):
    key = machine._key(1)
    path = machine._path(key)
    machine._write(path, key, INVENTED)
    assert machine.rates(n_threads=1) == INVENTED and calls() == []
    path.write_text("{")
    found = machine.rates(n_threads=1)
    assert len(calls()) == 3 and kept(home) == path and machine._read(path, key) == found


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(home, calls, caplog):
    home.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "localllm.machine"):
        assert machine.rates(n_threads=1).types
    assert "measured again next time" in caplog.text and home.read_text().startswith("a file")


@pytest.mark.parametrize("n_threads", [-1, 513, 10**400, True, False, 1.5, 0.0, "2", "", []])
def test_wrong_threads_are_refused(home, n_threads):
    for ask in (machine.rates, machine.known_rates):
        with pytest.raises(InvalidRequestError, match="^n_threads: "):
            ask(n_threads=n_threads)
    assert not home.exists()


def test_two_processes_at_once_agree(home, tmp_path):
    program = (
        "from localllm.native.library import Native\n"
        "call = Native.json_call\n"
        "def few(self, function, *arguments, **options):\n"
        "    found = call(self, function, *arguments, **options)\n"
        "    if function == 'lm_speed_matrix': print('measured')\n"
        "    return found[:1] if function == 'lm_speed_types' else found\n"
        "Native.json_call = few\n"
        "from localllm import machine\n"
        "machine._ROUNDS = 1\n"
        "print(hash(machine.rates(n_threads=1).to_json().encode()))\n"
    )
    command = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)]
    lines = [process.communicate(timeout=120)[0].split() for process in running]
    assert len({answer[-1] for answer in lines}) == 1
    assert sorted(len(answer) for answer in lines) == [1, 1, 2]  # one has measured; the others have waited for it
    assert [process.returncode for process in running] == [0, 0, 0]


def test_what_other_programs_use_is_told_apart_from_our_own(monkeypatch, tmp_path):
    used = machine.others_seconds()
    assert used > 0 or not machine._STAT.exists()
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    for text in ("", "cpu", "cpu a b c", "cpu 1 2 3 4 5 6\n"):
        (tmp_path / "stat").write_text(text)
        assert machine.others_seconds() == 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = (10_000, 2_000, 300, 77, 77, 60, 7, 77, 77, 77)  # what is idle, waits or is stolen does not count
    (tmp_path / "stat").write_text(f"cpu {' '.join(str(one * ticks) for one in seconds)}\ncpu0 5\n")
    before, found, after = os.times(), machine.others_seconds(), os.times()
    assert 12_367 - after.user - after.system <= found <= 12_367 - before.user - before.system


def test_repacked_types_are_those_of_the_rates(home, calls):
    assert {"Q4_0", "Q4_1"} & machine.repacked_types() == machine.rates(n_threads=1).repacked
