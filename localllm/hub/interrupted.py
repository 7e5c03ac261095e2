"""What interrupted downloads left that no record claims, by the sets of files that it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from localllm.hub.contents import Blob, Contents, disk_bytes
from localllm.hub.layout import is_free
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.names import parse_name
from localllm.hub.partial import told_by
from localllm.hub.sets import file_sets


@dataclass(frozen=True)
class Interrupted:
    """What came in part of one set of files, with the companions that were on their way.

    Attributes:
        path: str, of the set's first file of which something came, in the repository; "" where nobody can tell: then it is all
            that other programs left in the repository's folder.
        commit: str, that it was fetched at; "" if that is not known.
        blobs: Blobs, the partial files and their records.
        is_arriving: bool, a program is fetching it now.
    """

    path: str
    commit: str
    blobs: tuple[Blob, ...]
    is_arriving: bool

    @property
    def checksums(self) -> frozenset[str]:
        return frozenset(blob.checksum for blob in self.blobs)

    @property
    def n_bytes(self) -> int:
        return disk_bytes(blob.path for blob in self.blobs)


def interrupted(found: Contents, kept: Iterable[str]) -> list[Interrupted]:
    """What interrupted downloads left in a repository's folder.

    Args:
        found: Contents.
        kept: checksums that records claim.
    """
    claimed = frozenset(kept)
    loose = [blob for blob in found.blobs if blob.kind in ("partial", "unlocked") and blob.checksum]
    blobs: dict[str, list[Blob]] = {}
    for blob in loose:
        if blob.checksum not in claimed:
            blobs.setdefault(blob.checksum, []).append(blob)
    known: dict[str, list[RepoFile]] = {}
    unknown: list[Blob] = []
    for checksum, those in blobs.items():
        path, commit = next((told for blob in those if (told := told_by(blob.path))[0]), ("", ""))
        if path:
            known.setdefault(commit, []).append(RepoFile(path, 0, checksum, None))
        else:
            unknown += those
    rests = []
    for commit, files in known.items():
        for one in file_sets(Listing(found.place.repo, commit, commit, tuple(files))):
            rests.append(_made(found, one.path, commit, [blob for file in one.files for blob in blobs[file.oid]]))
    return [*_with_companions(rests), *([_made(found, "", "", unknown)] if unknown else [])]


def same_set(one: str, other: str) -> bool:
    """Whether two paths of a repository are of one file, or of shards of one."""
    return len(file_sets(Listing("", "", "", tuple(RepoFile(path, 0, "", None) for path in {one, other})))) == 1


def _made(found: Contents, path: str, commit: str, blobs: list[Blob]) -> Interrupted:
    is_arriving = any(not is_free(found.place, checksum) for checksum in {blob.checksum for blob in blobs})
    return Interrupted(path, commit, tuple(blobs), is_arriving)


def _with_companions(rests: list[Interrupted]) -> list[Interrupted]:
    """With one model among them, projectors and drafts of its commit were on their way for it."""
    models = [one for one in rests if parse_name(one.path).role == "model"]
    if len(models) != 1:
        return rests
    (model,) = models
    beside = [one for one in rests if one is not model and one.commit == model.commit]
    blobs = (*model.blobs, *(blob for one in beside for blob in one.blobs))
    whole = dataclasses.replace(model, blobs=blobs, is_arriving=any(one.is_arriving for one in (model, *beside)))
    return [whole, *(one for one in rests if one is not model and one not in beside)]
