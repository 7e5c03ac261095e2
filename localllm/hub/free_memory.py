"""How much memory a program may still take on this machine, and what limits it.

On Linux the kernel's own estimate (MemAvailable) counts, and every control group up the tree that this process is in: in a
container the group is often the smaller of the two, and nothing else tells of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60  # v1 writes "no limit" as a number close to 2**63


@dataclass(frozen=True)
class FreeMemory:
    """Memory that is free.

    Attributes:
        free_bytes: int, what can be taken without swapping.
        total_bytes: int, of the machine, or of the control group that limits it.
        limited_by: str, "machine" or the control group's name.
    """

    free_bytes: int
    total_bytes: int
    limited_by: str = "machine"


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The free memory now.

    Args:
        root: Path, the folder that holds proc and sys.

    Raises:
        OSError: The system does not tell.
    """
    if not sys.platform.startswith("linux"):
        import psutil  # type: ignore[import-untyped, unused-ignore]

        memory = psutil.virtual_memory()
        return FreeMemory(int(memory.available), int(memory.total))
    return min([_machine(root), *_groups(root)], key=lambda memory: memory.free_bytes)


def _machine(root: Path) -> FreeMemory:
    fields = _fields(root / "proc/meminfo")
    # Kernels before 3.14 do not have it; then what holds no data at all is a safe guess.
    available = fields.get("MemAvailable:", fields.get("MemFree:"))
    if available is None or "MemTotal:" not in fields:
        raise OSError(f"{root / 'proc/meminfo'} does not say how much memory there is")
    return FreeMemory(available * 1024, fields["MemTotal:"] * 1024)


def _groups(root: Path) -> list[FreeMemory]:
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            found += _walk(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _walk(root / "sys/fs/cgroup/memory", path, *names)
    return found


def _walk(mount: Path, path: str, limit_name: str, used_name: str, cache_name: str) -> list[FreeMemory]:
    """The groups with a limit, from the process's own one up to the root of the mount."""
    # A process may see only a part of the tree: parts that lead out of it, or are not there, are passed over.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    found = []
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        # What was read from files counts as used, though the kernel drops it when memory is needed: a model that was just
        # downloaded, for one.
        cache = _fields(folder / "memory.stat").get(cache_name, 0)
        found.append(FreeMemory(max(0, limit - max(0, used - cache)), limit, "/" + "/".join(parts[:depth])))
    return found


def _fields(path: Path) -> dict[str, int]:
    fields = {}
    for line in _lines(path):
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            fields[words[0]] = int(words[1])
    return fields


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None  # "max" is no limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
