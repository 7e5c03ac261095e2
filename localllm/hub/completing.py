"""Finishes what interrupted downloads left that no record claims: what belongs to those files, only the repository can tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from localllm.errors import RevisionNotFoundError
from localllm.hub.client import HubClient
from localllm.hub.download import DownloadOptions, download_all
from localllm.hub.entry import Entry
from localllm.hub.layout import RepoCache, checksum
from localllm.hub.listing import Listing
from localllm.hub.plan import PlanOptions
from localllm.hub.planner import plan
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.pull import pull
from localllm.hub.reference import Reference
from localllm.hub.sets import FileSet, file_sets
from localllm.hub.store import Store


def complete(
    store: Store,
    entry: Entry,
    client: HubClient,
    options: DownloadOptions,
    progress: ProgressCallback | None,
    cancel: CancelToken,
) -> tuple[str, ...]:
    """Fetches the rest of a partial model: of shards that another program brought, or of what came of files of a repository.

    Args:
        store: Store.
        entry: Entry, of the state "partial".
        client, options, progress, cancel: see `download_all`.

    Returns:
        The paths of the files that are whole now; () if the repository has none of them any more.

    Raises:
        What `pull` raises, but for DoesNotFitError.
    """
    for listing in _listings(entry, client, cancel):
        every = file_sets(listing)
        sets = [one for one in every if _came_in_part(entry, one) and one.is_complete]
        if not sets:
            continue
        # With a record, as the interrupted program would have; what other programs brought stays without.
        own = [one for one in sets if one.name.role == "model" and entry.interrupted is not None]
        beside = [one for one in every if one in sets or _is_here(RepoCache.of(listing.repo, store.cache), listing, one)]
        with_them = PlanOptions(projector=_projector(beside), draft=any(one.name.role == "draft" for one in beside))
        for one in own:
            reference = Reference("hub", listing.repo, _revision(listing), file=one.path)
            made = plan(str(reference), client=client, store=store, options=with_them, cancel=cancel)
            pull(made, client=client, store=store, download=options, force=True, progress=progress, cancel=cancel)
        if rest := [file for one in sets if one not in own for file in one.files]:
            # By its commit: the cache's branches stay where they are, but for what has no commit yet.
            at = listing if entry.foreign is None else dataclasses.replace(listing, revision=entry.commit)
            download_all(client, at, rest, cache=store.cache, options=options, progress=progress, cancel=cancel)
        return tuple(file.path for one in sets for file in one.files)
    return ()


def _listings(entry: Entry, client: HubClient, cancel: CancelToken) -> Iterator[Listing]:
    """The repository as it is now, and as it was when the download was broken off."""
    if entry.interrupted is not None:
        now = client.listing(entry.repo, "main", cancel)
        if entry.foreign is None or now.commit == entry.commit:
            yield now
    if entry.commit:
        try:
            yield client.listing(entry.repo, entry.commit, cancel)
        except RevisionNotFoundError:  # the history was rewritten
            return


def _revision(listing: Listing) -> str:
    return "" if listing.revision == "main" else listing.revision


def _came_in_part(entry: Entry, files: FileSet) -> bool:
    have = {file.path for file in entry.foreign.files.files} if entry.foreign is not None else set()
    sums = entry.interrupted.checksums if entry.interrupted is not None else frozenset()
    return any(file.path in have or checksum(file) in sums for file in files.files)


def _is_here(place: RepoCache, listing: Listing, files: FileSet) -> bool:
    return all(place.find(listing.commit, file) or place.find_blob(file) for file in files.files)


def _projector(sets: Sequence[FileSet]) -> str | bool:
    return next((one.path for one in sets if one.name.role == "mmproj"), False)
