"""Why a model could not be loaded, as far as it matters to what is done about it."""

from __future__ import annotations

import re
from pathlib import Path

from localllm.errors import NativeError
from localllm.native.bindings import localllm as localllm_h

# How llama.cpp, its devices' libraries and the system say it; there is no code for it.
_PHRASES = re.compile(
    r"\b(failed|unable) to allocate\b|\bcannot allocate\b|\ballocation\b.*\bfailed\b|\bbad_alloc\b"
    r"|\bout of memory\b|\b(insufficient|not enough) (memory|space)\b|OutOf(Device|Host)Memory",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException, path: Path) -> bool:
    """Whether an allocation failed.

    Args:
        error: what loading raised.
        path: Path of the file, whose name may hold any words.
    """
    if isinstance(error, MemoryError) or (isinstance(error, NativeError) and error.status == localllm_h.LM_OUT_OF_MEMORY):
        return True
    text = str(error)
    for name in (str(path), str(path.parent), path.name):
        if len(name) > 1:  # "/" and "." are no names
            text = text.replace(name, "")
    return bool(_PHRASES.search(text))
