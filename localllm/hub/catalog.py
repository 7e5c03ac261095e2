"""Short names for models: those that come with this package (catalog.json), and the user's own on top.

A name stands for a reference. The user's names are kept in aliases.json in the folder LOCALLLM_HOME; a name of the user hides one
of the catalog.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.errors import HubError, ReferenceFormatError
from localllm.files import write_atomically
from localllm.hub.environment import expanded
from localllm.hub.plain_json import parsed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_ALIASES = "aliases.json"
_VERSION = 1
_PATIENCE_SECONDS = 30  # for another program that is changing names at this moment


@dataclass(frozen=True)
class CatalogEntry:
    """A well-known model.

    Attributes:
        name: str, in small letters.
        repo: str, "owner/name" on the Hub; "" for one that a Python package carries.
        quant: str, the usual tag.
        licence: str, SPDX identifier, or the name that its publisher gives it.
        projector: str, path of the projector in the repository; "" for none.
        package: str, the Python package that carries the model; "" for models of the Hub.
    """

    name: str
    repo: str
    quant: str
    licence: str
    projector: str = ""
    package: str = ""


@functools.cache
def catalog() -> dict[str, CatalogEntry]:
    """The models that come with this package, by name."""
    data = json.loads(Path(__file__).with_name("catalog.json").read_text("utf-8"))
    return {name: CatalogEntry(name, **entry) for name, entry in data["models"].items()}


def home() -> Path:
    """The folder for what this package keeps of its own: LOCALLLM_HOME, or the usual place for a user's data."""
    if given := os.environ.get("LOCALLLM_HOME"):
        return expanded(given, "LOCALLLM_HOME")
    from platformdirs import user_data_path

    return user_data_path("localllm")


class Aliases:
    """The user's names. Each call reads the file; changes are made under a lock, and the file is replaced as a whole.

    Args:
        folder: Path, where aliases.json lies or will lie; None: `home()`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        return (self._folder or home()) / _ALIASES

    def all(self) -> dict[str, str]:
        """All names with what they stand for.

        Raises:
            HubError: The file is damaged; nothing is changed.
        """
        try:
            text = self.path.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise HubError(f"{self.path}: {error.strerror or 'cannot be read'}") from error
        except UnicodeDecodeError as error:
            raise self._damaged("it is no text") from error
        return self._parse(text)

    def get(self, name: str) -> str | None:
        """What a name stands for, in whatever case it is written; None if it is not one of the user's."""
        return self.all().get(name.lower())

    def set(self, name: str, reference: str) -> None:
        """Gives a name to a reference, or another reference to a name.

        Args:
            name: str, letters, digits, ".", "-", "_".
            reference: str, what it stands for; not checked here.

        Raises:
            ReferenceFormatError: Not a possible name, or an empty reference.
            HubError: The file is damaged or cannot be written.
        """
        if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
            raise ReferenceFormatError(
                f"{name!r} is no possible name: use letters, digits, '.', '-' and '_', and no .gguf at the end"
            )
        if not reference.strip() or reference.lower() == name.lower():
            raise ReferenceFormatError(f"{name}: {reference!r} is nothing that a name can stand for")
        self._change(lambda names: {**names, name.lower(): reference})

    def remove(self, name: str) -> bool:
        """Takes a name away; False if there was none.

        Raises:
            HubError: The file is damaged or cannot be written.
        """
        found = self.get(name) is not None
        if found:
            self._change(lambda names: {key: value for key, value in names.items() if key != name.lower()})
        return found

    def _change(self, change: Any) -> None:
        from filelock import FileLock

        path = self.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock", timeout=_PATIENCE_SECONDS):
                names = {"version": _VERSION, "aliases": change(self.all())}
                write_atomically(path, json.dumps(names, indent=2, sort_keys=True).encode(), sync=True)
        except OSError as error:
            reason = (
                "another program holds its lock" if isinstance(error, TimeoutError) else error.strerror or "cannot be written"
            )
            raise HubError(f"{path}: {reason}") from error

    def _parse(self, text: str) -> dict[str, str]:
        try:
            data = parsed(text)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        names = data.get("aliases") if isinstance(data, dict) else None
        if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
            raise self._damaged("it holds no table of names")
        if data.get("version") != _VERSION:
            raise self._damaged(f"it is of version {data.get('version')!r}, this program knows {_VERSION}")
        return {name.lower(): value for name, value in names.items() if _NAME.fullmatch(name)}

    def _damaged(self, reason: str) -> HubError:
        return HubError(f"{self.path}: not a file of names ({reason}); mend it or take it away")
