"""What is loaded, told to others: each process writes a small file for `localllm ps`, and takes it away when it ends."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localllm.engine.checks import MAX_FLOAT
from localllm.errors import LocalLLMError
from localllm.files import write_atomically
from localllm.hub.catalog import home

logger = logging.getLogger("localllm")

_VERSION = 1
_FOLDER = "run"
_NAME = re.compile("([0-9]{1,9})(-[0-9a-f]+)?[.]json", re.ASCII)
_PURPOSES = ("weights", "engine", "embedder", "ranker")
_MAX_SECONDS = 1e11  # some thousand years


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
        identity = _identity(os.getpid())
        text = json.dumps({"version": _VERSION, **identity, "models": entries}, indent=1)
        # Another machine, or a container, with the same folder may have a process of the same number.
        space = hashlib.sha256(f"{identity['boot']} {identity['space']}".encode()).hexdigest()[:8]
        try:
            path = home() / _FOLDER / f"{os.getpid()}-{space}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except (OSError, RuntimeError, LocalLLMError) as error:  # this user may have no folder of its own
            if not self._warned:
                logger.warning("what is loaded cannot be told (%s); `localllm ps` will not know of this process", error)
            self._warned = True
            return
        self._written, self._path = settled, path

    def remove(self) -> None:
        """Takes the file of this process away, if there is one."""
        path, self._path, self._written = self._path, None, []
        if path is not None and path.name.startswith(f"{os.getpid()}-"):  # else it is the parent's, who forked
            _unlink(path)


def others() -> list[LoadedModel]:
    """What other processes of this user hold, by their process number; what dead ones have left behind is taken away."""
    found = []
    for pid, path in _numbered():
        if pid == os.getpid() or (state := _read(path)) is None:
            continue
        own = _identity(pid)
        here = all(state.get(key) == own[key] for key in ("boot", "space"))
        ended = here and not (_is_alive(pid) and state.get("started") == own["started"])
        if ended or (state.get("boot") != own["boot"] and state.get("host") == own["host"]):
            _unlink(path)
        elif here:  # else of another machine or a container, whose process numbers say nothing
            found += [model for entry in state["models"] if (model := _entry(entry, pid)) is not None]
    return found


def _numbered() -> list[tuple[int, Path]]:
    """Files in order of the processes whose names they have."""
    try:
        paths = [path for path in (home() / _FOLDER).iterdir() if path.is_file()]
    except (OSError, RuntimeError, LocalLLMError):
        return []
    return sorted((int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name)))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(state, dict) and state.get("version") == _VERSION and isinstance(state.get("models"), list)
    return state if known else None


def _entry(entry: Any, pid: int) -> LoadedModel | None:
    """What a file says of something loaded; None if it is not what `Listing` writes."""
    names = [field.name for field in dataclasses.fields(LoadedModel)]
    if not isinstance(entry, dict) or any(name not in entry for name in names):
        return None
    found = LoadedModel(**{**{name: entry[name] for name in names}, "busy": None, "pid": pid})
    sound = (
        isinstance(found.reference, str)
        and _is_path(found.path)
        and found.purpose in _PURPOSES
        and _is_count(found.n_bytes)
        and _is_count(found.n_ctx)
        and _is_seconds(found.last_used, _MAX_SECONDS)
        and (found.keep_alive is None or _is_seconds(found.keep_alive, MAX_FLOAT))
        and isinstance(found.pinned, bool)
    )
    return found if sound else None


def _is_path(value: object) -> bool:
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_seconds(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most


def _identity(pid: int) -> dict[str, Any]:
    """What tells a process from a later one of the same number: when it began, and whose numbers these are."""
    try:
        # proc(5): the 22nd field, after the name in brackets, which may hold anything.
        started = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        started = ""
    return {"pid": pid, "started": started, "host": platform.node(), "boot": _boot(), "space": _namespace()}


@functools.cache
def _boot() -> str:
    """This machine since its start (random(4)): the first namespace of process numbers is called the same on every Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


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
