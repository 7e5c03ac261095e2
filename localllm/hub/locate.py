"""The file that a reference means, fetched if it is not on this machine."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from localllm.errors import ModelNotFoundError, OfflineError
from localllm.hub import environment
from localllm.hub.choose import Machine
from localllm.hub.download import DownloadOptions
from localllm.hub.memory import ContextOptions
from localllm.hub.plan import PlanOptions
from localllm.hub.progress import CancelToken, ProgressCallback
from localllm.hub.remedy import absence
from localllm.hub.resolve import expand, resolve
from localllm.hub.store import Store

logger = logging.getLogger("localllm.hub")


def locate(
    reference: str | os.PathLike[str],
    *,
    store: Store | None = None,
    download: bool = True,
    offline: bool | None = None,
    context: ContextOptions | None = None,
    machine: Callable[[], Machine] | None = None,
    options: DownloadOptions | None = None,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
    token: str | None = None,
) -> Path:
    """The (first) file of a model; one of the Hub is fetched unless it is here. What is here costs no request.

    Args:
        reference: whatever `resolve` takes.
        store: Store; None: the user's.
        download: bool, whether it may be fetched.
        offline: bool, never ask the network, or ask it whatever HF_HUB_OFFLINE says; None: what that says.
        context: ContextOptions that a quantization is chosen for, where the reference names none.
        machine: gives the Machine that it is chosen for, when that is needed; None: see `PlanOptions`.
        options, progress, cancel: see `pull`.
        token: str, for the Hub that the reference means; None: HF_TOKEN and so on, as for `pull`.

    Raises:
        OfflineError: It would have to be fetched, but offline mode is on.
        ModelNotFoundError: Neither a file nor a known name; or it would have to be fetched, and may not be.
        What `resolve` and `pull` raise.
    """
    store = store or Store()
    found = expand(reference)
    if found.source != "hub":
        return resolve(reference, store)
    path = store.find(found)
    if path is not None:
        return path
    if environment.offline(offline):
        raise OfflineError(f"{found} {absence(store, found)}, and offline mode is on; switch it off to fetch it")
    if not download:
        raise ModelNotFoundError(
            errno.ENOENT, f"{absence(store, found)}; fetch it with: localllm pull {found}", os.fspath(reference)
        )
    from localllm.hub.client import HubClient, client_for
    from localllm.hub.pull import pull

    logger.info("%s is not on this machine: fetching it", found)
    plans = PlanOptions(context=context or ContextOptions(), machine=machine() if machine else None)
    endpoint = found.endpoint
    with client_for(endpoint, offline) if token is None else HubClient(endpoint or None, token, offline) as client:
        pulled = pull(reference, client=client, store=store, options=plans, download=options, progress=progress, cancel=cancel)
    return pulled.path
