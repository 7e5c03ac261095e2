"""What is known of one model on this machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localllm.hub.foreign import Foreign
from localllm.hub.interrupted import Interrupted
from localllm.hub.manifest import Manifest
from localllm.hub.names import parse_name

State = Literal["complete", "superseded", "broken", "partial", "foreign", "embedded", "ollama", "local"]


@dataclass(frozen=True)
class Entry:
    """One model on this machine.

    Attributes:
        reference: str, what to write to get this model and no other.
        state: "complete"; "superseded" (complete, but the branch means a newer commit, which is here, too); "broken" (files are
            missing or of a wrong size, or the record is damaged); "partial" (what an interrupted download left); "foreign"
            (brought by another program, whole by its names and headers); "embedded" (in a Python package); "ollama"; "local" (a
            file that is known by an alias, or was optimized for this machine).
        path: Path of the (first) file, or of the damaged record; None for partial downloads.
        n_bytes: int, size of all its files, companions included, as far as it is known.
        disk_bytes: int, that they take on the disk now; what several names lead to counts once.
        quantization: str, "" if it is not known.
        repo, revision, commit: str, where it is from; "" if from no repository.
        pulled_at: float, seconds since the epoch; None if it is not known.
        used_at: float, when it was used last, as far as is known.
        pinned: bool.
        aliases: the user's names for it.
        companions: paths of its projector and draft in the repository.
        problem: str, what is wrong with it, one sentence; "" if nothing.
        parent: str, the model that it was made from for this machine; "" for all others.
        manifest: Manifest, its record; None if it has none.
        foreign: Foreign, for what other programs brought.
        interrupted: Interrupted, what interrupted downloads left of it; None if it is whole, or has a record.
    """

    reference: str
    state: State
    path: Path | None
    n_bytes: int
    disk_bytes: int
    quantization: str = ""
    repo: str = ""
    revision: str = ""
    commit: str = ""
    pulled_at: float | None = None
    used_at: float | None = None
    pinned: bool = False
    aliases: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    problem: str = ""
    parent: str = ""
    manifest: Manifest | None = field(default=None, repr=False)
    foreign: Foreign | None = field(default=None, repr=False)
    interrupted: Interrupted | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        names = [each.name for each in dataclasses.fields(self) if each.name not in ("manifest", "foreign")]
        return {name: getattr(self, name) for name in names} | {"path": str(self.path) if self.path else None}


def local_entry(path: Path, names: tuple[str, ...] = ()) -> Entry:
    """A file of no repository, and the user's names for it; OSError if it has gone."""
    status = path.stat()
    tag = parse_name(path.name).tag
    return Entry(
        str(path), "local", path, status.st_size, status.st_size, tag, pulled_at=status.st_mtime, used_at=status.st_atime,
        aliases=names,
    )  # fmt: skip
