"""What to do about a model that is not here as it should be."""

from __future__ import annotations

import dataclasses
import shlex

from localllm.hub.entry import Entry
from localllm.hub.manifest import Manifest
from localllm.hub.reference import Reference
from localllm.hub.store import Store


def with_remedy(entry: Entry) -> Entry:
    """The entry, whose problem ends with the command that mends it."""
    remedy = _remedy(entry)
    return dataclasses.replace(entry, problem=f"{entry.problem.rstrip('.')}; {remedy}.") if remedy else entry


def absence(store: Store, reference: Reference) -> str:
    """Why a model of the Hub cannot be had from this machine: what its name is followed by, and is followed by what to do."""
    damaged = next(iter(store.find_manifests(reference)), None)
    if damaged is None or not (missing := damaged.missing()):
        return "is not on this machine"
    return f"is damaged ({missing[0].path} is missing or of a wrong size; localllm repair {_quoted(damaged)} mends it)"


def repair_of(path: str) -> str:
    """The command that fetches a file of a model with a record again; "" for any other file."""
    for manifest in Store().manifests():
        if any(str(manifest.place.pointer(manifest.commit, kept.file.path)) == path for kept in manifest.files):
            return f"localllm repair {_quoted(manifest)}"
    return ""


def _quoted(manifest: Manifest) -> str:
    return shlex.quote(manifest.reference)


def _remedy(entry: Entry) -> str:
    if not entry.problem or not entry.repo:
        return ""
    if entry.interrupted is not None and entry.interrupted.is_arriving:
        return "another program is fetching it now"
    does = "fetches the rest" if entry.state == "partial" else "mends it"
    return f"localllm repair {shlex.quote(entry.reference)} {does}"
