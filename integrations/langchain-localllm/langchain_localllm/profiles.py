"""What a model can do, told from the header of its file."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.language_models import ModelProfile

from localllm import ControlVector, LocalModel, Lora
from localllm.engine.steering import adapters
from localllm.errors import LocalLLMError
from localllm.hub.beside import modalities
from localllm.hub.gguf import Header, read_header
from localllm.hub.locate import locate

# How templates write where thoughts begin or whether there are any.
_THINKS = re.compile(r"<think>|</think>|enable_thinking|reasoning_content|<\|channel\|?>|\[THINK\]|thinking_budget|<seed:think>")


def file_identity(reference: str) -> tuple[str, int, int] | None:
    """Path, size (bytes) and time of change (ns) of the file that a reference means now; None if it is not on this machine.

    Asks no network, and fetches nothing.
    """
    try:
        path = locate(reference, download=False)
        status = path.stat()
    except (LocalLLMError, OSError):
        return None
    return str(path), status.st_size, status.st_mtime_ns


def adapter_identities(model: LocalModel, options: Mapping[str, Any]) -> list[tuple[str, int, int] | None]:
    """The same of the adapters that a call uses. Engines look at these at each use.

    Args:
        model: LocalModel.
        options: of the call; its own adapters, if it names any.
    """
    loras = adapters("loras", model.loras if options.get("loras") is None else options["loras"], Lora)
    given = options.get("control_vectors")
    controls = adapters("control_vectors", model.control_vectors if given is None else given, ControlVector)
    return [file_identity(one.path) for one in (*loras, *controls)]


def profile_of(
    reference: str, *, n_ctx: Any, max_tokens: int | None, template: str | None, mmproj: str | None = "auto", urls: bool = False
) -> ModelProfile | None:
    """The profile of a model; None if its file is not on this machine, or cannot be read.

    Args:
        reference: str, as LocalModel takes it.
        n_ctx: int or "auto", tokens of the context as it will be made; 0: what the model was trained for.
        max_tokens: int, most tokens of an answer, or None.
        template: str, Jinja text in place of the file's; or None.
        mmproj: str, the projector, as LocalModel takes it.
        urls: bool, whether pictures are fetched from addresses.
    """
    identity = file_identity(reference)
    if identity is None:
        return None
    try:
        header = _header(*identity)
    except (LocalLLMError, OSError):
        return None
    trained = header.context_length
    limit = n_ctx if isinstance(n_ctx, int) and n_ctx else trained
    seen = modalities(Path(identity[0]), header, mmproj)
    images, pages = "image" in seen, "image" in seen and importlib.util.find_spec("pypdfium2") is not None
    thinks = bool(_THINKS.search(template if template and "{" in template else header.chat_template))
    profile: ModelProfile = {
        "name": header.name or reference,
        "open_weights": True,
        "text_inputs": True,
        "image_inputs": images,
        "image_url_inputs": images and urls,
        "pdf_inputs": pages,
        "audio_inputs": "audio" in seen,
        "video_inputs": images,
        "image_tool_message": images,
        "pdf_tool_message": pages,
        "text_outputs": True,
        "image_outputs": False,
        "audio_outputs": False,
        "video_outputs": False,
        "reasoning_output": thinks,
        "tool_calling": True,
        "tool_choice": True,
        "tool_call_streaming": True,
        "structured_output": True,
        "attachment": bool(seen),
        "temperature": True,
    }
    if limit:
        profile["max_input_tokens"] = limit
        profile["max_output_tokens"] = min(max_tokens or limit, limit)
    return profile


@functools.lru_cache(maxsize=32)
def _header(path: str, n_bytes: int, changed_ns: int) -> Header:
    return read_header(Path(path))
