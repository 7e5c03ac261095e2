"""What belongs to a model that was pulled: a record that outlives a moving branch, a renamed repository and a lost connection."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from localllm.errors import CorruptFileError, LocalLLMError
from localllm.hub import environment
from localllm.hub.layout import RepoCache
from localllm.hub.listing import Listing, RepoFile, is_size
from localllm.hub.paths import checked_blob, checked_commit, checked_path, checked_repo, checked_revision
from localllm.hub.plain_json import parsed

KeptRole = Literal["model", "projector", "draft"]
_VERSION = 1
_MAX_BYTES = 4 << 20
_KEY_DIGITS = 12
_YEAR_10000 = 253_402_300_800  # seconds since the epoch, in UTC; what is later has no date


@dataclass(frozen=True)
class KeptFile:
    """One file of a model's set.

    Attributes:
        role: "model", "projector" or "draft".
        file: RepoFile.
    """

    role: KeptRole
    file: RepoFile


@dataclass(frozen=True)
class Manifest:
    """One model on this machine, all of whose files were there, whole and checked, when this was written.

    Attributes:
        repo: str, "owner/name", the present name at that time.
        revision: str, branch, tag or commit that was asked for.
        commit: str, the commit that it meant.
        tag: str, quantization; "" if the file's name does not say.
        files: KeptFiles; those of the model first, in order.
        cache: Path, the cache of repositories that holds them.
        pulled_at: float, seconds since the epoch.
        endpoint: str, of another server than the usual one; "" for the usual.
        asked: str, the reference that was pulled.
        template_sha256: str, of the chat template in the model's header; "" without one.
        pinned: bool, never removed but by name.
    """

    repo: str
    revision: str
    commit: str
    tag: str
    files: tuple[KeptFile, ...]
    cache: Path
    pulled_at: float
    endpoint: str = ""
    asked: str = ""
    template_sha256: str = ""
    pinned: bool = False

    @property
    def key(self) -> str:
        """The record's name: another one for every commit, so that what a branch meant before stays known until it is removed."""
        said = "\n".join((self.endpoint, self.repo.lower(), self.revision, self.commit, self.paths("model")[0]))
        return f"{self.repo.replace('/', '--')}--{hashlib.sha256(said.encode()).hexdigest()[:_KEY_DIGITS]}"

    @property
    def reference(self) -> str:
        """What to write to get this model and no other."""
        from localllm.hub.names import parse_name
        from localllm.hub.reference import Reference

        path = self.paths("model")[0]
        revision = "" if self.revision == "main" else self.revision
        file = "" if self.tag and parse_name(path).tag == self.tag else path
        return str(Reference("hub", self.repo, revision, "" if file else self.tag, file, self.endpoint))

    @property
    def place(self) -> RepoCache:
        return RepoCache(self.cache, self.repo)

    @property
    def n_bytes(self) -> int:
        return sum(kept.file.n_bytes for kept in self.files)

    @property
    def listing(self) -> Listing:
        """The files as a listing of their repository, which may hold more."""
        return Listing(self.repo, self.revision, self.commit, tuple(kept.file for kept in self.files))

    def paths(self, role: KeptRole) -> tuple[str, ...]:
        """The paths of the files of one role in the repository, in order."""
        return tuple(kept.file.path for kept in self.files if kept.role == role)

    def first(self, role: KeptRole) -> Path | None:
        """The (first) file of a role on this machine, to be opened by this name; None if the set has none."""
        paths = self.paths(role)
        return self.place.pointer(self.commit, paths[0]) if paths else None

    def missing(self) -> tuple[RepoFile, ...]:
        """The files that are not there, or not of their size; contents are not read."""
        return tuple(kept.file for kept in self.files if self.place.find(self.commit, kept.file) is None)

    def to_bytes(self) -> bytes:
        data = dataclasses.asdict(self) | {"version": _VERSION, "cache": str(self.cache)}
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True).encode()

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads a record.

        Raises:
            CorruptFileError: It is none, or of another version of this program.
            OSError: It cannot be read.
        """
        if path.exists() and not path.is_file():  # whoever opens a pipe waits for ever
            raise CorruptFileError(f"{path}: no record of a model (it is no file); take it away")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        try:
            return cls.from_bytes(data)
        except CorruptFileError as error:
            raise CorruptFileError(f"{path}: {error}; remove it, and pull the model again") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The record that some bytes are; a CorruptFileError says what else they are."""
        try:
            if len(data) > _MAX_BYTES:
                raise ValueError("it is too large")
            fields = parsed(data)
            version = fields.pop("version", None)
            if version != _VERSION:
                raise ValueError(f"it is of version {version!r}, this program knows {_VERSION}")
            return _checked(fields)
        except (AttributeError, KeyError, TypeError, ValueError, LocalLLMError) as error:
            raise CorruptFileError(f"no record of a model ({error})") from error


def _checked(fields: dict[str, Any]) -> Manifest:
    """A record from plain data, of which nothing is believed: its names become paths."""
    files = tuple(_kept(one) for one in fields["files"])
    if not files or files[0].role != "model":
        raise ValueError("it names no model")
    for name in ("tag", "endpoint", "asked", "template_sha256"):
        _check_text(name, fields[name])
    if fields["endpoint"] and environment.endpoint(fields["endpoint"]) != fields["endpoint"]:
        raise ValueError("endpoint is not written as an address without a slash at its end")
    if fields["template_sha256"]:
        checked_blob(fields["template_sha256"])
    checked_repo(fields["repo"])
    checked_revision(fields["revision"])
    checked_commit(fields["commit"])
    if not isinstance(fields["pinned"], bool):
        raise TypeError("pinned is neither true nor false")
    changes = {"files": files, "cache": _folder(fields["cache"]), "pulled_at": _time(fields["pulled_at"])}
    return Manifest(**fields | changes)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in value):
        raise ValueError(f"{name} holds a control character")


def _folder(text: object) -> Path:
    if not isinstance(text, str) or b"\0" in os.fsencode(text):
        raise ValueError("cache is no path")
    return Path(text)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _YEAR_10000:
        raise ValueError(f"{value!r} is no time at which a model can have been pulled")
    return float(value)


def _kept(data: dict[str, Any]) -> KeptFile:
    file = RepoFile(**data["file"])
    if data["role"] not in get_args(KeptRole):
        raise ValueError(f"{data['role']!r} is no role")
    if not is_size(file.n_bytes):
        raise ValueError(f"{file.n_bytes!r} is no size")
    checked_path(file.path)
    checked_blob(file.oid)
    if file.sha256 is not None:
        checked_blob(file.sha256)
    return KeptFile(cast("KeptRole", data["role"]), file)
