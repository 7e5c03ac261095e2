"""Which files of a listing belong together, and what each set is for.

A set is what llama.cpp loads as one: a file, or all shards of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.hub.gguf import Header
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.names import FileName, Role, parse_name

if TYPE_CHECKING:
    from localllm.hub.manifest import KeptRole


@dataclass(frozen=True)
class FileSet:
    """Files that are loaded as one.

    Attributes:
        name: FileName of the first file that is there.
        files: RepoFiles in order.
        n_expected: int, how many there must be.
    """

    name: FileName
    files: tuple[RepoFile, ...]
    n_expected: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the files that are there."""
        return sum(file.n_bytes for file in self.files)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the shards that are not there, from 1."""
        have = {parse_name(file.path).shard for file in self.files}
        return tuple(n for n in range(1, self.n_expected + 1) if (n, self.n_expected) not in have) if self.n_expected > 1 else ()

    @property
    def is_complete(self) -> bool:
        return not self.missing

    @property
    def path(self) -> str:
        """Of the first file: what llama.cpp is given."""
        return self.files[0].path


def file_sets(listing: Listing) -> tuple[FileSet, ...]:
    """All sets of a listing, whole or not, in the order of their first files."""
    groups: dict[tuple[str, int], list[tuple[FileName, RepoFile]]] = {}
    for file in listing.files:
        name = parse_name(file.path)
        count = name.shard[1] if name.shard else 1
        # Without its number the path of a shard is the same for the whole set.
        key = file.path if name.shard is None else file.path[: -len("00001-of-00001.gguf")]
        groups.setdefault((key, count), []).append((name, file))
    sets = []
    for (_, count), members in groups.items():
        members.sort(key=lambda member: member[0].shard or (0, 0))
        sets.append(FileSet(members[0][0], tuple(file for _, file in members), count))
    return tuple(sets)


def models(listing: Listing) -> tuple[FileSet, ...]:
    """The sets of a listing that are models by their names, whole or not."""
    return tuple(one for one in file_sets(listing) if one.name.role == "model")


@dataclass(frozen=True)
class Grouped:
    """The sets of a repository by what they are for.

    Attributes:
        models, projectors, drafts, adapters: FileSets.
        others: paths of all other files.
    """

    models: tuple[FileSet, ...] = ()
    projectors: tuple[FileSet, ...] = ()
    drafts: tuple[FileSet, ...] = ()
    adapters: tuple[FileSet, ...] = ()
    others: tuple[str, ...] = ()


_ROLES: dict[str, Role] = {
    "model": "model", "projector": "mmproj", "draft": "draft", "adapter": "adapter", "control vector": "adapter",
    "vocabulary": "vocab",
}  # fmt: skip


def role_of(header: Header) -> Role:
    """What a file is for by its header, which knows better than its name.

    Args:
        header: Header of the file, or of the first file of a set.
    """
    if header.speech == "wavtokenizer":  # loads as a model, but only turns the tokens of another one into sound
        return "other"
    if header.metadata.get("general.type") == "imatrix":
        return "imatrix"
    return _ROLES.get(header.kind, "other")


def serves_as(header: Header, role: KeptRole) -> bool:
    """Whether a file can be used as what a record says that it is; any model can be a draft."""
    found = role_of(header)
    return found == {"model": "model", "projector": "mmproj", "draft": "draft"}[role] or (role == "draft" and found == "model")


def grouped(listing: Listing, roles: Mapping[str, Role] | None = None) -> Grouped:
    """Sorts the sets of a listing by role.

    Args:
        listing: Listing.
        roles: path of a first file -> role, for those whose header has told it (`role_of`); None: names alone count.
    """
    by_role: dict[str, list[FileSet]] = {"model": [], "mmproj": [], "draft": [], "adapter": []}
    others: list[str] = []
    for one in file_sets(listing):
        role = (roles or {}).get(one.path, one.name.role)
        if role in by_role:
            by_role[role].append(one)
        else:
            others += [file.path for file in one.files]
    sets = {role: tuple(found) for role, found in by_role.items()}
    return Grouped(sets["model"], sets["mmproj"], sets["draft"], sets["adapter"], tuple(others))
