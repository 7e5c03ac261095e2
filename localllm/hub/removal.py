"""Removes models: only what nothing else needs, so that whoever shares the cache never finds a link that leads nowhere.

The order makes every interruption harmless: first names in snapshots, then the contents they led to, then branches and snapshots
that nothing is left of, and the record last. What is interrupted is a broken model, which the same command removes for good.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from localllm.errors import HubError, InUseError, InvalidRequestError, LocalLLMError, PinnedError
from localllm.files import whole_path
from localllm.hub.catalog import Aliases
from localllm.hub.contents import contents, inode_of, is_payload, shared_links, uses
from localllm.hub.entry import Entry
from localllm.hub.inventory import entries_of, models_here, only_one, optimized_folder
from localllm.hub.layout import RepoCache, locked_if_free
from localllm.hub.looking import below
from localllm.hub.reference import EMBEDDED
from localllm.hub.removal_plan import Part, RemovalPlan, files_of, freed_by, locks_of, planned, references_of
from localllm.hub.resolve import expand
from localllm.hub.store import Store
from localllm.hub.unfinished import remove_left_behind

InUse = Callable[[Path], bool]


def plan_removal(store: Store, references: Sequence[str], *, force: bool = False, in_use: InUse | None = None) -> RemovalPlan:
    """What `remove` would take away, to the byte. Changes nothing.

    Args, Raises: See `remove`.
    """
    entries = models_here(store)
    chosen: dict[str, Entry] = {}
    for reference in references:
        for one in only_one(entries_of(store, reference, entries), reference):
            _refuse_what_is_not_ours(one, store)
            chosen[one.reference] = one
    for one in chosen.values():
        if one.pinned and not force:
            raise PinnedError(
                f"{one.reference} is pinned; localllm unpin {one.reference}, or remove it all the same (force=True)"
            )
        if one.interrupted is not None and one.interrupted.is_arriving:
            raise InUseError(f"{one.reference}: another program is fetching it; end that one, then remove it")
        if path := used_file(one, in_use):
            raise InUseError(f"{one.reference} is in use ({path}); end the program that uses it, then remove it")
    return planned(store, list(chosen.values()), entries)


def remove(
    store: Store, references: Sequence[str], *, force: bool = False, in_use: InUse | None = None, dry_run: bool = False
) -> RemovalPlan:
    """Removes models with everything that only they need; older commits that a reference without one means go with them, and
    so do the user's names for a file that was made for this machine.

    Args:
        store: Store.
        references: as users write them; each means one model. What another program brought goes only if no model with a record
            is meant, and then without its companions.
        force: bool, pinned ones, too.
        in_use: tells whether a program uses a file; None: none does.
        dry_run: bool, only tell.

    Returns:
        RemovalPlan, what went.

    Raises:
        ModelNotFoundError, ReferenceFormatError: A reference means nothing here; nothing is removed.
        InvalidRequestError: It means several models, or one that is not ours to remove. Nothing is removed.
        PinnedError, InUseError: Nothing is removed.
        HubError: The cache or the folder of records cannot be written.
    """
    if dry_run:
        return plan_removal(store, references, force=force, in_use=in_use)
    with store.changing():
        return carry_out(store, plan_removal(store, references, force=force, in_use=in_use))


def used_file(entry: Entry, in_use: InUse | None) -> Path | None:
    """A file of a model that is in use; None if none is."""
    return next((path for path in files_of(entry) if in_use is not None and in_use(path)), None)


def _refuse_what_is_not_ours(entry: Entry, store: Store) -> None:
    if entry.state == "embedded":
        package = EMBEDDED[entry.reference][0]
        raise InvalidRequestError(f"{entry.reference}: belongs to a Python package; pip uninstall {package} removes it")
    if entry.reference.startswith("ollama:"):
        raise InvalidRequestError(f"{entry.reference}: belongs to Ollama; ollama rm {entry.reference[7:]} removes it")
    if entry.state == "local" and not _is_inside(entry.path, optimized_folder()):
        named = f"; localllm alias {entry.aliases[0]} --remove forgets its name" if entry.aliases else ""
        raise InvalidRequestError(f"{entry.reference}: is a file of your own; remove it yourself{named}")


def _is_inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())


# ---- taking it away


def carry_out(store: Store, plan: RemovalPlan) -> RemovalPlan:
    """Does what a plan says, but for what has come into use since. To be called within `Store.changing`.

    Returns:
        RemovalPlan, what went.

    Raises:
        HubError: The cache cannot be written.
    """
    try:
        for part in plan.parts:
            _check_writable(part)
        freed = sum(_remove_part(part) for part in plan.parts)
        freed += sum(_remove_payload(path) for path in plan.payloads)
        freed += sum(_remove_folders(part) for part in plan.parts)
        for entry in plan.models:
            freed += _forget(store, entry)
        for path in plan.unfinished:
            freed += freed_by([path])
            remove_left_behind(path)
    except OSError as error:
        if isinstance(error, HubError):
            raise
        at = error.filename or store.cache
        raise HubError(f"{at}: {error.strerror or 'cannot be removed'}; mend that, and remove it again") from error
    return dataclasses.replace(plan, freed_bytes=freed)


def _check_writable(part: Part) -> None:
    """Rather no removal than half of one."""
    for folder in {path.parent for path in part.names} | {blob.path.parent for blob in part.blobs}:
        if folder.is_dir() and not os.access(folder, os.W_OK):
            raise HubError(f"{folder} cannot be written; nothing is removed")


def _remove_part(part: Part) -> int:
    with contextlib.ExitStack() as stack:
        sums = {blob.checksum for blob in part.blobs}
        held = {one for one in sums if not one or stack.enter_context(locked_if_free(part.place.lock(one)))}
        freed = sum(_unlink(path) for path in part.names)
        # A download that ended before we got its lock may have given a blob to another snapshot.
        used = uses(contents(part.place).named)
        going = [blob for blob in part.blobs if blob.checksum in held and not (blob.kind == "blob" and used.has(blob))]
        return freed + sum(_unlink(blob.path) for blob in going)


def _remove_payload(path: Path) -> int:
    """A shared content; whoever makes a link to it holds its lock."""
    if not is_payload(path):
        return 0
    with locked_if_free(path.with_name(f"{path.name}.lock")) as free:
        inode = inode_of(path)
        if not free or inode is None or shared_links(path.parent.parent.parent).get(inode):
            return 0
        return _unlink(path) + _unlink(references_of(path))


def _remove_folders(part: Part) -> int:
    """Snapshots of which nothing is left, after what refers to them; then the repository's folder."""
    place, freed = part.place, 0
    left = {one.commit for one in contents(place).named}
    emptied = [commit for commit in part.commits if commit not in left]
    for path, commit in contents(place).refs.items():
        if path in part.refs and (commit in emptied or not left):
            freed += _unlink(path)
            _prune(path.parent, place.folder / "refs")
    for commit in emptied:
        _remove_empty(place.folder / "snapshots" / commit)
    return freed + (_retire(place) if part.whole and not left else 0)


def _retire(place: RepoCache) -> int:
    """Takes a repository's folder out of everybody's sight at once, unless somebody is about to fill it; then removes it."""
    grave = place.root / ".locks" / place.name / f".removed-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        locks = [stack.enter_context(locked_if_free(lock)) for lock in locks_of(place)]
        found = contents(place)
        if not all(locks) or found.named or found.blobs:
            return 0
        grave.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.folder.rename(grave)
        except OSError:  # an empty repository harms nobody
            return 0
    freed = freed_by([path for path in below(grave) if path.is_file()])
    for path in grave.parent.glob(".removed-*"):  # also of one that was killed here
        shutil.rmtree(path)
    return freed


def _forget(store: Store, entry: Entry) -> int:
    if entry.manifest is not None:
        store.forget(entry.manifest)
    elif entry.foreign is None and entry.path is not None:  # a damaged record, or a model that was made for this machine
        _forget_names(entry, entry.path)
        return _unlink(entry.path)
    return 0


def _forget_names(entry: Entry, path: Path) -> None:
    """Takes the user's names for a file away, which nobody could ever mean anything by again."""
    names = Aliases()
    for name, meant in [(name, _meant(name)) for name in entry.aliases]:
        if meant == whole_path(path):
            names.remove(name)


def _meant(name: str) -> Path | None:
    """The file that a name of the user stands for; None if it is none."""
    try:
        found = expand(name)
    except LocalLLMError:  # it is nobody's name any more
        return None
    return whole_path(Path(found.name)) if found.source == "path" else None


def _unlink(path: Path) -> int:
    """Removes a name; gives what the disk gains by it."""
    try:
        status = path.lstat()
        path.unlink()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0


def _remove_empty(folder: Path) -> None:
    """A folder with the folders in it, as far as they are empty."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # something has come into it
            Path(path).rmdir()


def _prune(folder: Path, root: Path) -> None:
    """Folders that have become empty, up to a root that stays."""
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
