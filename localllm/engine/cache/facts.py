"""What the states of a context depend on, so that one is never used where another would have been computed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from localllm.engine.cache.disk import DiskStore, state_key
from localllm.engine.config import ContextConfig, SpeculationConfig
from localllm.engine.params import cells
from localllm.errors import InvalidRequestError
from localllm.native.handles import Model

# Fields of ContextConfig that shape a state; the others only say how it is computed.
_STATE_FIELDS = ("flash_attention", "type_k", "type_v", "swa_full", "rope_freq_base", "rope_freq_scale")


def state_facts(model: Model, config: ContextConfig, draft: Model | None = None) -> dict[str, Any]:
    """What a state depends on besides the model file, the adapters and the tokens, by name; values as JSON has them.

    Args:
        model: Model.
        config: ContextConfig.
        draft: Model whose state is a part of it; None: there is none.
    """
    build = model.native.json_call("lm_build_info")["llama_commit"]
    overrides = hashlib.blake2b(b"".join(model.overrides), digest_size=16).hexdigest() if model.overrides else ""
    fields = {name: getattr(config, name) for name in _STATE_FIELDS}
    facts = {"llama.cpp": build, "metadata_overrides": overrides, "n_ctx": _rope_length(model, config), **fields}
    if draft is not None:
        assert isinstance(config.speculation, SpeculationConfig)
        own = "" if draft is model else state_key(draft.path, ()).hex()
        facts["draft"] = f"{config.speculation.model_kind} {own}".rstrip()  # a head has no state
    return facts


def _rope_length(model: Model, config: ContextConfig) -> str:
    """Whether the length of the context changes the positions: some models (Phi-3) have other factors for long contexts."""
    metadata = model.metadata()
    original = metadata.get(f"{metadata.get('general.architecture')}.rope.scaling.original_context_length", "")
    n_ctx = cells(config, model.native.llama_model_n_ctx_train(model.pointer))
    if not original.isdigit():
        return ""
    return f"{'more than' if n_ctx > int(original) else 'up to'} {original}"


def open_store(model: Model, config: ContextConfig, draft: Model | None = None) -> DiskStore | None:
    """The folder of states for a model, its context and its draft; None: there is to be none.

    Raises:
        InvalidRequestError: It cannot be made.
    """
    if not config.cache_dir or not config.prefix_cache:
        return None
    key = state_key(model.path, list(state_facts(model, config, draft).values()))
    try:
        return DiskStore(Path(config.cache_dir).expanduser(), key, config.cache_disk_bytes, config.cache_read_only)
    except OSError as error:
        raise InvalidRequestError(f"cache_dir: {config.cache_dir} cannot be made or used: {error.strerror}") from error
