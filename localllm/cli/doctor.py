"""`localllm doctor`: what this installation can do, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import localllm
from localllm.engine.threads import default_threads
from localllm.errors import InvalidRequestError, LocalLLMError, ModelError
from localllm.hub import environment
from localllm.hub.reference import EMBEDDED
from localllm.hub.resolve import resolve


def examine() -> dict[str, Any]:
    """Everything worth knowing, as plain data; `problems` is empty if all is well."""
    report: dict[str, Any] = {
        "localllm": localllm.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "build": None,
        "devices": [],
        "threads": default_threads(),
        "memory": _memory(),
        "caches": {},
        "embedded_models": {name: _installed(name) for name in EMBEDDED},
        "problems": [],
    }
    _examine_native(report)
    try:
        report["caches"] = _caches()
    except InvalidRequestError as error:
        report["problems"].append(str(error))
    for name, cache in report["caches"].items():
        if not cache["writable"]:
            report["problems"].append(f"the {name} cache {cache['path']} cannot be written")
    return report


def _examine_native(report: dict[str, Any]) -> None:
    from localllm.native.library import load

    try:
        native = load()
        report["libraries"] = str(native.directory)
        report["build"] = native.json_call("lm_build_info")
        report["devices"] = native.json_call("lm_devices")
    except LocalLLMError as error:
        report["problems"].append(str(error))
        return
    if not any(device["type"] == "cpu" for device in report["devices"]):
        report["problems"].append("no CPU backend was found next to the libraries: the installation is incomplete")
    if os.environ.get("LOCALLLM_LIBRARY_PATH"):
        report["note"] = "LOCALLLM_LIBRARY_PATH is set: the libraries are not those of the package"


def _memory() -> dict[str, int]:
    """Bytes of RAM, as the kernel and a container's limit leave them."""
    fields: dict[str, int] = {}
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        if rest.strip():
            fields[name] = int(rest.split()[0]) * 1024
    total, available = fields.get("MemTotal", 0), fields.get("MemAvailable", 0)
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    used = _read(Path("/sys/fs/cgroup/memory.current")).strip()
    if limit.isdigit() and used.isdigit():
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - int(used)))
    return {"total_bytes": total, "available_bytes": available}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _caches() -> dict[str, dict[str, Any]]:
    return {"huggingface": _folder(environment.cache_folder())}


def _folder(path: Path) -> dict[str, Any]:
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": os.access(existing, os.W_OK),
        "free_bytes": shutil.disk_usage(existing).free,
    }


def _installed(name: str) -> str | None:
    try:
        return str(resolve(name))
    except ModelError:
        return None


def print_report(report: dict[str, Any]) -> None:
    """Prints the report for a person."""
    console = Console(highlight=False, soft_wrap=True)
    say = console.print
    say(f"localllm {report['localllm']}, Python {report['python']}, {escape(report['platform'])}")
    build = report["build"]
    if build:
        say(f"libraries  {escape(report['libraries'])}")
        say(f"llama.cpp  {build['llama_version']} ({build['llama_commit']}), built with {escape(build['compiler'])}")
        kernels = "chosen at run time" if build["backend_dl"] else "for the machine it was built on"
        say(f"kernels    {kernels}; {escape(' '.join(build['system_info'].split()))}")
    for device in report["devices"]:
        memory = f"{_gib(device['memory_free_bytes'])} of {_gib(device['memory_total_bytes'])} free"
        say(f"device     {escape(device['name'])} ({device['type']}, {device['backend']}): "
            f"{escape(device['description'])}, {memory}")  # fmt: skip
    memory = report["memory"]
    say(f"memory     {_gib(memory['available_bytes'])} of {_gib(memory['total_bytes'])} available")
    say(f"threads    {report['threads']} by default")
    for name, cache in report["caches"].items():
        state = "" if cache["exists"] else " (does not exist yet)"
        say(f"cache      {name}: {escape(cache['path'])}{state}, {_gib(cache['free_bytes'])} free")
    for name, path in report["embedded_models"].items():
        say(f"model      {name}: {escape(path) if path else 'not installed'}")
    if "note" in report:
        say(f"note       {escape(report['note'])}")
    for problem in report["problems"]:
        say(f"[bold red]problem[/]    {escape(problem)}")
    if not report["problems"]:
        say("no problems found")


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
