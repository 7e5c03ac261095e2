"""Free memory, from a /proc and /sys of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localllm.hub.free_memory import free_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux has")
GIB = 2**30


def machine(root: Path, available_gib: int, files: dict[str, str | int], group: str = "") -> Path:
    given = {
        "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1024 kB\nMemAvailable: {available_gib * GIB // 1024} kB\n",
        "proc/self/cgroup": group,
        **files,
    }
    for name, content in given.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "group", "free_gib", "limited_by"),
    [
        ({}, "", 32, "machine"),
        ({}, "0::/a/b", 32, "machine"),
        ({f"{V2}/memory.max": "max", f"{V2}/memory.current": 5 * GIB}, "0::/", 32, "machine"),
        ({f"{V2}/memory.max": 8 * GIB, f"{V2}/memory.current": 3 * GIB}, "0::/", 5, "/"),
        ({f"{V2}/a/b/memory.max": 8 * GIB, f"{V2}/a/b/memory.current": 3 * GIB}, "0::/a/b", 5, "/a/b"),
        ({f"{V2}/a/memory.max": 4 * GIB, f"{V2}/a/memory.current": GIB, f"{V2}/a/b/memory.max": "max",
          f"{V2}/a/b/memory.current": 1},
         "0::/a/b", 3, "/a"),
        ({f"{V2}/a/memory.max": 8 * GIB, f"{V2}/a/memory.current": 7 * GIB,
          f"{V2}/a/memory.stat": f"anon 1\ninactive_file {4 * GIB}"},
         "0::/a", 5, "/a"),
        ({f"{V2}/memory.max": 2 * GIB, f"{V2}/memory.current": 3 * GIB}, "0::/", 0, "/"),
        ({f"{V2}/memory.max": 8 * GIB, f"{V2}/memory.current": 2 * GIB}, "0::/../../host", 6, "/"),
        ({f"{V2}/memory.max": 8 * GIB, f"{V2}/memory.current": "?"}, "0::/", 32, "machine"),
        ({f"{V1}/d/memory.limit_in_bytes": 6 * GIB, f"{V1}/d/memory.usage_in_bytes": GIB}, "5:cpu,memory:/d\n1:x:/d", 5, "/d"),
        ({f"{V1}/memory.limit_in_bytes": 2**63 - 4096, f"{V1}/memory.usage_in_bytes": GIB}, "5:memory:/", 32, "machine"),
        ({f"{V1}/d/memory.limit_in_bytes": 6 * GIB, f"{V1}/d/memory.usage_in_bytes": 5 * GIB,
          f"{V1}/d/memory.stat": f"total_inactive_file {2 * GIB}"}, "5:memory:/d", 3, "/d"),
    ],
)  # fmt: skip
def test_the_smallest_limit_counts(tmp_path, files, group, free_gib, limited_by):
    found = free_memory(machine(tmp_path, 32, files, group))
    assert (found.free_bytes, found.limited_by) == (free_gib * GIB, limited_by)


def test_a_machine_that_has_less_than_its_group_counts(tmp_path):
    files = {f"{V2}/memory.max": 8 * GIB, f"{V2}/memory.current": 0}
    found = free_memory(machine(tmp_path, 2, files, "0::/"))
    assert (found.free_bytes, found.total_bytes, found.limited_by) == (2 * GIB, 64 * GIB, "machine")


def test_a_machine_that_says_nothing_is_an_error(tmp_path):
    with pytest.raises(OSError, match="meminfo"):
        free_memory(tmp_path)


def test_this_machine():
    found = free_memory()
    assert 0 <= found.free_bytes <= found.total_bytes
