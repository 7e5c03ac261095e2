"""How many threads to compute with."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


@functools.cache
def default_threads() -> int:
    """One per physical core that this process may use: its affinity, the container's quota, no hyper-threads."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [available, _physical_cores(_read(_CPUINFO)), _quota(_read(_CPU_MAX))]
    return max(1, min(limit for limit in limits if limit))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _physical_cores(cpuinfo: str) -> int:
    """Distinct (socket, core) pairs of Linux' cpuinfo; 0 if it does not tell."""
    sockets = re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    cores = re.findall(r"^core id\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return len(set(zip(sockets, cores, strict=True))) if len(sockets) == len(cores) else 0


def _quota(cpu_max: str) -> int:
    """Whole CPUs of a cgroup-v2 quota ("max 100000" or "150000 100000"); 0 if there is none."""
    fields = cpu_max.split()
    if len(fields) != 2 or not all(entry.isdigit() for entry in fields) or int(fields[1]) == 0:
        return 0
    return max(1, int(fields[0]) // int(fields[1]))
