"""What the operating system tells of the machine."""

from __future__ import annotations

import logging

import pytest

from localllm.hub.here import cpu_flags, this_machine

MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"
CPUINFO = {
    "x86": ("processor : 0\nflags\t\t: fpu sse2 avx2 fma\nbugs : x\n", {"avx2", "fpu"}, {"Q4_0", "Q4_K"}),
    "arm": ("processor : 0\nFeatures\t: fp asimd asimddp i8mm\n", {"asimddp"}, {"Q8_0", "Q4_0"}),
    "neither": ("processor : 0\n", set(), set()),
}


@pytest.mark.parametrize("name", CPUINFO)
def test_a_machine_by_its_proc(tmp_path, name, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    text, flags, repacked = CPUINFO[name]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert flags <= set(cpu_flags(tmp_path)) and bool(flags) == bool(cpu_flags(tmp_path))
    machine = this_machine(tmp_path, margin_bytes=1 << 30)
    assert machine.free_bytes == (4 << 30) - (1 << 30) and machine.on_cpu
    assert repacked <= machine.repacked and bool(repacked) == bool(machine.repacked)
    assert this_machine(tmp_path, margin_bytes=1 << 40).free_bytes == 0


def test_memory_that_nobody_tells_is_not_known(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    with caplog.at_level(logging.WARNING, "localllm.hub"):
        assert this_machine(tmp_path).free_bytes is None
    assert "not known" in caplog.text and cpu_flags(tmp_path) == ()
