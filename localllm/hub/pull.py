"""Carries out a plan: fetches the files that belong together, looks into them, and only then says that the model is here."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import (
    CorruptFileError,
    DiskSpaceError,
    DoesNotFitError,
    HubError,
    IncompleteSetError,
    InvalidRequestError,
    ModelError,
)
from localllm.hub.asynchronous import twin
from localllm.hub.client import HubClient, client_for
from localllm.hub.download import DownloadOptions, download_all
from localllm.hub.gguf import Header, read_model
from localllm.hub.listing import Listing
from localllm.hub.manifest import KeptRole, Manifest
from localllm.hub.plan import Plan, PlanOptions, smaller_for_disk
from localllm.hub.planner import plan
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.sets import serves_as
from localllm.hub.store import Store

logger = logging.getLogger("localllm.hub")


@dataclass(frozen=True)
class Pulled:
    """A model that is on this machine now.

    Attributes:
        manifest: Manifest, its record.
        path: Path of the model's (first) file.
        projector, draft: Path of the companion's (first) file; None if there is none.
        plan: Plan that was carried out; `plan.fetch_bytes` is what it had to fetch.
        template_diff: str, how the chat template differs from that of the version which was here before, as a unified diff; ""
            if it does not. A template is a program: look at what a new version changes.
    """

    manifest: Manifest
    path: Path
    projector: Path | None
    draft: Path | None
    plan: Plan
    template_diff: str = ""


def pull(
    reference: str | os.PathLike[str] | Plan,
    *,
    client: HubClient | None = None,
    store: Store | None = None,
    options: PlanOptions | None = None,
    download: DownloadOptions | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Pulled:
    """Makes sure that a model and what belongs to it are on this machine, whole and checked.

    What is here already is hashed, not fetched; what came in parts is continued. Nothing counts as here before all of it is.

    Args:
        reference: a model of the Hub, a name for one, or a Plan.
        client: HubClient; None: as for `plan`.
        store: Store; None: the user's.
        options: PlanOptions, for a reference; a Plan has its own.
        download: DownloadOptions.
        force: bool, fetch it even if it does not fit into memory.
        progress: called with a Progress now and then, by one thread at a time.
        cancel: CancelToken; what has come is kept.

    Raises:
        InvalidRequestError: A Plan and options.
        DoesNotFitError: It needs more memory than there is, and `force` is not given. Nothing was fetched.
        DiskSpaceError, CorruptFileError, NetworkError, DownloadCancelledError and other kinds of HubError: See `download`.
        What `plan` raises.
    """
    store = store or Store()
    if isinstance(reference, Plan) and options is not None:
        raise InvalidRequestError("options: a Plan was made with its own; give the reference, or leave them out")
    if not isinstance(reference, Plan):
        made = plan(reference, client=client, store=store, options=options, cancel=cancel)
    else:
        made = reference
    if made.fits is False and not force:
        raise does_not_fit(made)
    if client is not None:
        return _carry_out(made, client, store, download, progress, cancel)
    with client_for(made.endpoint) as own:
        return _carry_out(made, own, store, download, progress, cancel)


apull = twin(pull, "apull")


def does_not_fit(made: Plan) -> DoesNotFitError:
    """The error for a model that needs more memory than there is."""
    needed, free = made.memory.total_bytes, made.free_bytes or 0
    smaller = [one for one in made.alternatives if one.fits and not one.missing_files]
    remedy = f"take {smaller[-1].tag}, or " if smaller else ""
    return DoesNotFitError(
        f"{made.repo}:{made.tag} needs {needed / 2**30:.1f} GiB of memory with this context, but {free / 2**30:.1f} GiB are "
        f"free; {remedy}ask for a smaller context, free some memory, or fetch it all the same (force=True)",
        needed,
        free,
    )


def _carry_out(
    made: Plan,
    client: HubClient,
    store: Store,
    options: DownloadOptions | None,
    progress: ProgressCallback | None,
    cancel: CancelToken | None,
) -> Pulled:
    with store.changing():
        pass  # records can be written: told before hours of downloading, not after them
    files = tuple(kept.file for kept in made.files)
    listing = Listing(made.repo, made.revision, made.commit, files)
    try:
        download_all(client, listing, files, cache=made.cache, options=options, progress=progress, cancel=cancel)
    except DiskSpaceError as error:
        raise DiskSpaceError(f"{error}{smaller_for_disk(made)}", error.needed_bytes, error.free_bytes) from error
    manifest = Manifest(
        repo=made.repo,
        revision=made.revision,
        commit=made.commit,
        tag=made.tag,
        files=made.files,
        cache=made.cache.absolute(),
        pulled_at=time.time(),
        endpoint=made.endpoint,
        asked=made.reference,
    )
    with store.changing():  # nobody removes files from here on until the record protects them
        if missing := manifest.missing():
            raise HubError(f"{manifest.reference}: {missing[0].path} was removed meanwhile by another program; pull it again")
        headers = {role: _checked(manifest, role) for role in ("model", "projector", "draft") if manifest.paths(role)}
        template = headers["model"].chat_template
        before = _before(store, manifest)
        manifest = _with_template(manifest, template)
        store.add(manifest)
    path = manifest.first("model")
    assert path is not None
    diff = _template_diff(before, manifest, template)
    return Pulled(manifest, path, manifest.first("projector"), manifest.first("draft"), made, diff)


def _checked(manifest: Manifest, role: KeptRole) -> Header:
    """The header of what was fetched, which must be what the plan took it for."""
    path = manifest.first(role)
    assert path is not None
    try:
        header = read_model(path)
    except (ModelError, IncompleteSetError) as error:
        raise CorruptFileError(f"{manifest.repo}: what it holds cannot be used as {role}: {error}") from error
    if not serves_as(header, role):
        raise CorruptFileError(f"{manifest.repo}: {path.name} is a {header.kind}, not a {role}")
    return header


def _with_template(manifest: Manifest, template: str) -> Manifest:
    return dataclasses.replace(manifest, template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "")


def _before(store: Store, manifest: Manifest) -> Manifest | None:
    """The newest version of the same model that the same branch or tag has meant so far."""

    def means(one: Manifest) -> tuple[object, ...]:
        return one.repo, one.endpoint, one.revision, one.paths("model")

    return next((one for one in store.manifests() if means(one) == means(manifest)), None)


def _template_diff(before: Manifest | None, manifest: Manifest, template: str) -> str:
    if before is None or before.template_sha256 == manifest.template_sha256:
        return ""
    logger.warning("%s: its chat template is another one than in the version of commit %s", manifest.reference, before.commit[:7])
    path = before.first("model")
    try:
        old = read_model(path).chat_template if path is not None else ""
    except (ModelError, HubError):  # its files were removed; then only that it changed is known
        old = ""
    lines = difflib.unified_diff(old.splitlines(), template.splitlines(), before.commit[:7], manifest.commit[:7], lineterm="")
    return "\n".join(lines)
