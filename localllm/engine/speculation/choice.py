"""Which kind of draft is made for a model, and by what."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import model_params
from localllm.engine.speculation.config import MODEL_KINDS, NGRAM_KIND, SpeculationConfig, SpeculationKind
from localllm.errors import InvalidRequestError, UnsupportedModelError
from localllm.native.handles import Model
from localllm.native.library import Native, load


def wants_heads(context: ContextConfig) -> bool:
    """Whether a model has to be loaded with its heads for further tokens."""
    speculation = context.speculation
    assert isinstance(speculation, SpeculationConfig)
    return speculation.kind in ("auto", "draft-mtp") or "draft-mtp" in speculation.chain


def load_draft(context: ContextConfig, model: ModelConfig) -> Model | None:
    """The draft that a configuration names, loaded like the target but for what belongs to that file; None: it names none.

    Raises:
        ModelError: The file cannot be loaded.
    """
    speculation = context.speculation
    assert isinstance(speculation, SpeculationConfig)
    if not speculation.draft:
        return None
    config = replace(model, mtp=True, metadata_overrides=(), tensor_split=())
    return Model(str(Path(speculation.draft).expanduser()), model_params(load(), config), any_kind=True)


def settle(context: ContextConfig, model: Model, draft: Model | None) -> tuple[ContextConfig, Model | None]:
    """What "auto" comes to for a model, and who drafts.

    Args:
        context: ContextConfig.
        model: Model, the target.
        draft: Model for drafts, None: there is none.

    Returns:
        (ContextConfig without "auto", the Model that drafts: `draft`, or `model` for its own heads, or None).

    Raises:
        InvalidRequestError: A draft and a kind that is of no use to each other.
        UnsupportedModelError: The heads that are wanted are not there.
    """
    speculation = context.speculation
    assert isinstance(speculation, SpeculationConfig)
    if speculation.kind == "auto":
        speculation = speculation.resolved(_best_kind(model, draft, speculation))
    kind = speculation.model_kind
    if draft is not None and kind is None:
        raise InvalidRequestError(f"draft: {draft.path} is of no use without a kind of speculation that a model drafts")
    if draft is not None and kind is not None:
        own = _draft_kind(model.native, draft)
        if own != kind and not (kind == "draft-lilicorr" and own == "draft-dflash" and speculation.head):
            raise not_of_kind(draft.path, kind, own)
    if kind == "draft-mtp" and draft is None:
        _require_heads(model)
    settled = replace(context, speculation=speculation)
    return settled, draft if draft is not None else model if kind == "draft-mtp" else None


def not_of_kind(path: str, kind: SpeculationKind, own: str) -> InvalidRequestError:
    """The error for a draft that is of another kind than was said."""
    remedy = "kind='auto' would have found that"
    if kind == "draft-lilicorr" and own == "draft-dflash":
        remedy = "name the file of its LiLiCorr head (head=...), or take kind='draft-dflash'"
    return InvalidRequestError(f"kind: {path} is no {kind!r} but a {own!r}; {remedy}")


def _best_kind(model: Model, draft: Model | None, speculation: SpeculationConfig) -> SpeculationKind:
    if draft is not None:
        kind = _draft_kind(model.native, draft)
        return "draft-lilicorr" if speculation.head and kind == "draft-dflash" else kind
    return "draft-mtp" if model.n_mtp else NGRAM_KIND


def _draft_kind(native: Native, draft: Model) -> SpeculationKind:
    kind: SpeculationKind = native.json_call("lm_file_info", os.fsencode(draft.path))["draft_kind"]
    if kind not in MODEL_KINDS:
        raise UnsupportedModelError(f"{draft.path}: cannot draft for another model")
    return kind


def _require_heads(model: Model) -> None:
    if model.n_mtp:
        return
    architecture = model.metadata().get("general.architecture", "")
    if model.metadata().get(f"{architecture}.nextn_predict_layers", "0") in ("", "0"):
        raise UnsupportedModelError(f"{model.path}: has no heads for further tokens; take another kind, or name a draft that has")
    raise UnsupportedModelError(f"{model.path}: was loaded without its heads for further tokens (ModelConfig(mtp=True))")
