"""Which models of this machine a reference means, and what to write to mean just one of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from localllm.errors import HubError, LocalLLMError
from localllm.hub.catalog import Aliases
from localllm.hub.entry import Entry, local_entry
from localllm.hub.names import match_tag, parse_name
from localllm.hub.naming import loss_text
from localllm.hub.reference import PARTIAL, Reference, parse_reference
from localllm.hub.resolve import expand, resolve
from localllm.hub.store import Store

logger = logging.getLogger("localllm.hub")

_COMMIT_DIGITS = 12


def told_apart(store: Store, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each with a reference of its own: by its commit, and by its file where that does not suffice."""
    told = _told_apart(entries)
    loose = [one for one in told if one.interrupted is not None]
    named = {one.reference: _own_reference(store, one, told) for one in loose}
    return [dataclasses.replace(one, reference=named[one.reference]) if one in loose else one for one in told]


def _own_reference(store: Store, entry: Entry, entries: Sequence[Entry]) -> str:
    """What means an interrupted download and nothing else, although another commit of the same files may be here."""
    path = entry.foreign.files.path if entry.foreign else entry.interrupted.path if entry.interrupted else ""
    name, at = parse_name(path), entry.commit[:_COMMIT_DIGITS]
    choices = [Reference("hub", entry.repo, revision, file=name.path) for revision in ("", at) if name.path]
    tagged = [Reference("hub", entry.repo, revision, name.tag) for revision in ("", at) if name.tag and name.role == "model"]
    if not name.path:
        choices = [Reference("hub", entry.repo, tag=PARTIAL)]
    sure = [one for one in (*tagged, *choices) if of_hub(store, one, entries) == [entry]]
    return str(next(iter(sure), choices[-1]))


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    taken: set[str] = set()
    result = []
    for one in entries:
        choices = [one.reference]
        if one.manifest is not None or one.foreign is not None:
            path = one.manifest.paths("model")[0] if one.manifest else one.foreign.files.path if one.foreign else ""
            endpoint = one.manifest.endpoint if one.manifest else ""
            at = one.commit[:_COMMIT_DIGITS]
            named = "" if one.revision == "main" else one.revision
            for revision, tag, file in ((at, one.quantization, ""), (named, "", path), (at, "", path)):
                choices.append(str(Reference("hub", one.repo, revision, tag, file, endpoint)))
        chosen = next((choice for choice in choices if choice not in taken), choices[-1])
        taken.add(chosen)
        result.append(dataclasses.replace(one, reference=chosen))
    return result


def with_aliases(store: Store, entries: list[Entry]) -> tuple[Entry, ...]:
    """The entries with the user's names for them, and files that are known by such a name only."""
    try:
        aliases = Aliases().all()
    except HubError as error:
        logger.warning("%s", error)
        return tuple(entries)
    for name, stands_for in aliases.items():
        try:
            found = expand(name)
            meant = [one for one in entries if is_meant(one, found)] if found.source != "hub" else of_hub(store, found, entries)
            if not meant and found.source == "path":
                entries.append(local_entry(resolve(found.name)))
                meant = entries[-1:]
        except (LocalLLMError, OSError) as error:
            entries.append(_lost(name, stands_for, error))
            continue
        if meant:
            at = entries.index(meant[0])
            entries[at] = dataclasses.replace(meant[0], aliases=(*meant[0].aliases, name))
    return tuple(entries)


def _lost(name: str, stands_for: str, error: Exception) -> Entry:
    """What a name stands for that means nothing any more, most often because its file was deleted."""
    return Entry(stands_for, "broken", None, 0, 0, aliases=(name,), problem=loss_text(name, error))


def of_hub(store: Store, reference: Reference, entries: Sequence[Entry]) -> list[Entry]:
    """Those with records that a reference of the Hub means; else those of other programs; else what came in part."""
    by_key = {one.manifest.key: one for one in entries if one.manifest is not None}
    found = [by_key[one.key] for one in store.find_manifests(reference, log=False) if one.key in by_key]
    if not found:
        by_name = {(one.commit, one.foreign.files.path): one for one in entries if one.foreign is not None and not one.manifest}
        meant = [by_name.get((one.commit, one.files.path)) for one in store.find_foreigns(reference)]
        found = [one for one in meant if one is not None and one.repo.lower() == reference.name.lower()]
    return found or [one for one in entries if one.foreign is None and _is_rest_of(one, reference)]


def _is_rest_of(entry: Entry, reference: Reference) -> bool:
    """Whether a reference of the Hub means what an interrupted download left that no set of files in a snapshot has."""
    if entry.interrupted is None or entry.repo.lower() != reference.name.lower() or reference.endpoint:
        return False
    if reference.revision not in ("", "main") and not (entry.commit and entry.commit.startswith(reference.revision.lower())):
        return False
    path = entry.interrupted.path
    if reference.tag.lower() == PARTIAL:
        return not path
    if reference.tag:
        return bool(path and match_tag(reference.tag, [parse_name(path)]).names)
    return not reference.file or reference.file == path


def is_meant(entry: Entry, reference: Reference) -> bool:
    """Whether a reference to something else than the Hub means an entry."""
    if reference.source == "path":
        try:
            return entry.path is not None and Path(reference.name).expanduser().samefile(entry.path)
        except (OSError, RuntimeError, ValueError):
            return False
    if entry.state == "embedded" and entry.path is not None:
        same_tag = not reference.tag or match_tag(reference.tag, [parse_name(entry.path.name)]).names
        return (reference.source, reference.name.lower()) == ("name", entry.reference) and bool(same_tag)
    if entry.reference.startswith("ollama:"):
        own = parse_reference(entry.reference)
        return (reference.source, reference.name, reference.tag or "latest") == ("ollama", own.name, own.tag)
    return False
