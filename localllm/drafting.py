"""What a model's drafts are made with: the file that was named, or one that came with the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from localllm.engine.config import ContextConfig, ModelConfig, SpeculationConfig
from localllm.engine.speculation.choice import not_of_kind
from localllm.engine.speculation.config import NGRAM_KIND, SpeculationKind
from localllm.errors import UnsupportedModelError
from localllm.hub.beside import pulled_with
from localllm.hub.gguf import Header, read_model
from localllm.hub.locate import locate


def with_draft(
    path: Path, header: Header, model: ModelConfig, context: ContextConfig, find: Callable[[str], Path]
) -> tuple[ModelConfig, ContextConfig]:
    """The configurations with the draft's file in place of what was given for it, and what "auto" comes to.

    Args:
        path: Path of the model.
        header: Header of it.
        model, context: ModelConfig and ContextConfig as they were given.
        find: gives the file that a reference means, fetched if need be.

    Raises:
        InvalidRequestError: The draft is not of the kind that was given.
        ModelFileError: It cannot be read.
        What `find` raises.
    """
    speculation = context.speculation
    assert isinstance(speculation, SpeculationConfig)
    if speculation.kind == "none":
        return model, context
    found = find(speculation.draft) if speculation.draft else None
    if found is None and header.has_mtp and (speculation.kind == "auto" or speculation.model_kind == "draft-mtp"):
        settled = speculation.resolved("draft-mtp") if speculation.kind == "auto" else speculation
        return replace(model, mtp=True), replace(context, speculation=settled)
    if found is None and speculation.kind == "auto":
        found = pulled_with(path, "draft")
    if found is None:
        settled = speculation.resolved(NGRAM_KIND) if speculation.kind == "auto" and not speculation.head else speculation
        return model, replace(context, speculation=settled)
    head = find(speculation.head) if speculation.head else None
    settled = replace(speculation, draft=str(found), head=str(head or ""), kind=_kind(speculation, found))
    return model, replace(context, speculation=settled)


def draft_file(reference: str, **options: Any) -> Path:
    """The file of a draft or a head: one on this machine, or one of the Hub, fetched if need be; options as of `locate`."""
    path = Path(reference).expanduser()
    return path if path.is_file() else locate(reference, **options)


def draft_kind(path: str | os.PathLike[str], *, has_head: bool = False) -> str:
    """The kind of speculation that a file drafts for, by its header; "" for files that cannot.

    Args:
        path: a GGUF file.
        has_head: bool, a LiLiCorr head goes with it.

    Raises:
        ModelFileError: It cannot be read.
    """
    header = read_model(path)
    if header.draft_kind == "dflash" and has_head:
        return "draft-lilicorr"
    return f"draft-{header.draft_kind}" if header.draft_kind else "draft-simple" if header.kind == "model" else ""


def _kind(speculation: SpeculationConfig, draft: Path) -> SpeculationKind:
    """What a draft is for, found out before any weights are loaded.

    Raises:
        InvalidRequestError: Not for what was said.
        UnsupportedModelError: For nothing.
    """
    own = cast("SpeculationKind", draft_kind(draft, has_head=bool(speculation.head)))
    if not own:
        raise UnsupportedModelError(f"{draft}: cannot draft for another model")
    if speculation.kind == "auto":
        return own
    if speculation.model_kind not in (None, own):
        raise not_of_kind(str(draft), speculation.model_kind, own)
    return speculation.kind
