"""What is loaded, told to others: each process writes a small file for `localllm ps`, and takes it away when it ends."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localllm.files import write_atomically
from localllm.hub.catalog import home

logger = logging.getLogger("localllm")

_VERSION = 1
_FOLDER = "run"


@dataclass(frozen=True)
class LoadedModel:
    """Something that a process has loaded.

    Attributes:
        reference: str, what the LocalModel was made with.
        path: str, the file, or the first one of a set.
        purpose: "weights", which the others of the same file share, or the context of an "engine", "embedder" or "ranker".
        n_bytes: int, by llama.cpp's own numbers; of weights that are mapped from a file, how much is mapped.
        n_ctx: int, cells in tokens; 0 for weights.
        busy: bool, requests are under way; None: another process holds it, which does not tell.
        last_used: float, seconds since the epoch; of another process, when it last loaded or unloaded anything.
        keep_alive: float, seconds until it is unloaded when idle; None: it stays.
        pinned: bool, it does not make way for others.
        pid: int, the process that holds it.
    """

    reference: str
    path: str
    purpose: Literal["weights", "engine", "embedder", "ranker"]
    n_bytes: int
    n_ctx: int
    busy: bool | None
    last_used: float
    keep_alive: float | None
    pinned: bool
    pid: int


class Listing:
    """The file of this process. A folder that cannot be written is logged once, and does no harm."""

    def __init__(self) -> None:
        self._written: list[LoadedModel] = []
        self._path: Path | None = None
        self._warned = False

    def write(self, models: Sequence[LoadedModel]) -> None:
        """Tells of everything that this process has loaded; of nothing, the file goes."""
        if not models:
            self.remove()
            return
        # When it was used last changes with every request, for which no file is to be written.
        settled = [dataclasses.replace(model, busy=None, last_used=0.0) for model in models]
        if settled == self._written:
            return
        entries = [{**dataclasses.asdict(model), "busy": None} for model in models]
        text = json.dumps({"version": _VERSION, **_identity(os.getpid()), "models": entries}, indent=1)
        try:
            path = home() / _FOLDER / f"{os.getpid()}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no folder of its own
            if not self._warned:
                logger.warning("what is loaded cannot be told (%s); `localllm ps` will not know of this process", error)
            self._warned = True
            return
        self._written, self._path = settled, path

    def remove(self) -> None:
        """Takes the file of this process away, if there is one."""
        path, self._path, self._written = self._path, None, []
        if path is not None and path.name == f"{os.getpid()}.json":
            _unlink(path)


def others() -> list[LoadedModel]:
    """What other processes of this user hold, by their process number; what dead ones have left behind is taken away."""
    found = []
    try:
        numbered = (path for path in (home() / _FOLDER).glob("*.json") if path.stem.isdigit())
        paths = sorted(numbered, key=lambda path: int(path.stem))
    except (OSError, RuntimeError):
        return []
    for path in paths:
        pid = int(path.stem)
        if pid == os.getpid() or (state := _read(path)) is None:
            continue
        own = _identity(pid)
        if state.get("space") != own["space"]:
            continue  # of a container, say, whose process numbers say nothing here
        if _is_alive(pid) and state.get("started") == own["started"]:
            found += [model for entry in state["models"] if (model := _entry(entry, pid)) is not None]
        else:
            _unlink(path)
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(state, dict) and state.get("version") == _VERSION and isinstance(state.get("models"), list)
    return state if known else None


def _entry(entry: Any, pid: int) -> LoadedModel | None:
    names = [field.name for field in dataclasses.fields(LoadedModel)]
    if not isinstance(entry, dict) or any(name not in entry for name in names):
        return None
    return LoadedModel(**{**{name: entry[name] for name in names}, "busy": None, "pid": pid})


def _identity(pid: int) -> dict[str, Any]:
    """What tells a process from a later one of the same number: when it began, and whose numbers these are."""
    try:
        # proc(5): the 22nd field, after the name in brackets, which may hold anything.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return {"pid": pid, "started": started, "space": space}


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.info("%s cannot be taken away (%s)", path, error.strerror)
