"""What LlamaIndex wants to know of a model, from its file's header."""

from __future__ import annotations

from dataclasses import dataclass

from localllm import LocalModel
from localllm.engine.cache.disk import state_key
from localllm.errors import LocalLLMError, ModelNotFoundError
from localllm.hub.gguf import Header
from localllm.hub.locate import locate
from localllm.hub.resolve import expand, resolve

# Of a context that is to be as large as fits, before it is known how large that is. A LocalModel's default.
_LIKELY_N_CTX = 4096


@dataclass(frozen=True)
class Facts:
    """What is known of a model.

    Attributes:
        context_window: int, tokens of a prompt and its answer.
        has_template: bool, it can chat, and whoever can chat can be given tools: their form is ours where the template has none.
    """

    context_window: int
    has_template: bool


def facts(model: LocalModel) -> Facts | None:
    """Facts about a model that is on this machine; None: it is not, and would have to be fetched first.

    Loads neither weights nor vocabulary. The header is read once, and that takes tens of milliseconds.

    Raises:
        ModelError: There is no such model, or its file is damaged.
    """
    found = expand(model.reference)
    if found.source == "hub" and not _is_here(model):
        return None
    return _facts(model, model.header)


def fingerprint(model: LocalModel) -> str:
    """What tells the model's file, and those of its adapters, from others; "" if one is not here, for nothing is fetched."""
    try:
        locate(model.reference, download=False)
        adapters = [*(one.path for one in model.loras), *(one.path for one in model.control_vectors)]
        return "+".join([model.fingerprint, *(state_key(str(resolve(path)), ()).hex() for path in adapters)])
    except (LocalLLMError, OSError):  # told of when it is asked; a description has to be possible without the file
        return ""


def presumed(model: LocalModel) -> Facts:
    """What is to be expected of a model that is not on this machine; asks nothing."""
    n_ctx = model.context_config.n_ctx
    return Facts(n_ctx if isinstance(n_ctx, int) and n_ctx else _LIKELY_N_CTX, True)


def _is_here(model: LocalModel) -> bool:
    if model.loaded:
        return True
    try:
        locate(model.reference, download=False, offline=False)
    except ModelNotFoundError:
        return False
    return True


def _facts(model: LocalModel, header: Header) -> Facts:
    placement = model.placement
    n_ctx = model.context_config.n_ctx
    if placement is not None:
        n_ctx = placement.n_ctx
    trained = header.context_length or _LIKELY_N_CTX
    window = min(trained, _LIKELY_N_CTX) if n_ctx == "auto" else n_ctx or trained
    learned = next((tensor.shape[-1] for tensor in header.tensors if tensor.name == "position_embd.weight"), window)
    has_template = bool(header.chat_template or model.chat_template)
    return Facts(min(window, learned), has_template)
