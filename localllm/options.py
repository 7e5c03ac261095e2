"""Keyword options, dealt out to the data classes that have a field of that name. Unknown ones are errors."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from localllm.errors import InvalidRequestError


def fields(kind: Any) -> set[str]:
    """The names of a data class' fields."""
    return {field.name for field in dataclasses.fields(kind)}


def split(options: Mapping[str, Any], *kinds: Any, others: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Options by the data class that has them.

    Args:
        options: name -> value.
        kinds: data classes.
        others: names to suggest besides theirs, which the caller has taken out already.

    Returns:
        list of dict, one for each class.

    Raises:
        InvalidRequestError: No class has a field of that name.
    """
    names = [fields(kind) for kind in kinds]
    for name in options:
        if not any(name in known for known in names):
            raise unknown(name, set().union(*names, others))
    return [{name: value for name, value in options.items() if name in known} for known in names]


def unknown(name: str, known: set[str]) -> InvalidRequestError:
    """The error for an option that is none, with the nearest of those that there are."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
    return InvalidRequestError(f"{name}: unknown option{hint}")


def with_key(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a class whose `model_options` are shown and kept, with a token that stands in there as `api_key`.

    Raises:
        InvalidRequestError: There are two.
    """
    made, further = dict(options), options.get("model_options")
    if not isinstance(further, Mapping) or further.get("token") is None:
        return made
    if made.get("api_key") is not None:
        raise InvalidRequestError("api_key: given twice, here and as token in model_options")
    rest = {name: value for name, value in further.items() if name != "token"}
    return {**made, "model_options": rest, "api_key": further["token"]}


# How a model is run: at most the last digits of what it computes depend on these.
_RUNNING = frozenset({
    "n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "load_mode", "check_tensors", "use_extra_buffers",
    "parallel", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "flash_attention", "offload_kqv", "op_offload", "swa_full",
    "max_queue", "prefix_cache", "cache_ram_bytes", "cache_dir", "cache_disk_bytes", "cache_read_only", "kept_sequences",
    "mmproj_gpu", "media_batch_tokens", "media_ram_bytes", "media_disk_bytes", "media_limits",
    "speculation", "keep_alive", "pinned", "check_memory", "offline", "token",
})  # fmt: skip


def identifying(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a LocalModel those that what it computes depends on."""
    return {name: value for name, value in options.items() if name not in _RUNNING}
