"""What goes with a model of this machine: what was pulled with it, or lies beside it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from localllm.errors import LocalLLMError
from localllm.hub.companions import projector_problem
from localllm.hub.gguf import Header, read_model
from localllm.hub.names import parse_name

_PRECISIONS = ("F16", "BF16", "F32", "Q8_0")


def pulled_with(path: Path, role: Literal["draft", "projector"]) -> Path | None:
    """The companion that was pulled with a model of the Hub."""
    from localllm.hub.store import Store

    real = os.path.realpath(path)
    for manifest in Store().manifests(log=False):
        first, found = manifest.first("model"), manifest.first(role)
        if first is not None and found is not None and os.path.realpath(first) == real and found.exists():
            return found
    return None


def projector_for(path: Path, header: Header) -> Path | None:
    """The projector of a model: the one that was pulled with it, else one in its folder that is called like it.

    A projector whose name says nothing ("mmproj-F16.gguf") is a model's if that is the only one in the folder. Of several the
    most precise that a CPU is quick with.
    """
    pulled = pulled_with(path, "projector")
    if pulled is not None:
        return pulled
    names = {one: parse_name(one.name) for one in sorted(path.parent.glob("*.gguf"))}
    bases = {_words(name.base) for name in names.values() if name.role == "model"}
    own = _words(parse_name(path.name).base)
    called = {one: _words(name.base) for one, name in names.items() if name.role == "mmproj"}
    alike = [one for one, words in called.items() if (own[: len(words)] == words if words else len(bases) == 1)]
    fitting = [one for one in alike if _fits(header, one)]
    return min(fitting, key=lambda one: (-len(called[one]), _precision(names[one].quant), one.name), default=None)


def modalities(path: Path, header: Header, mmproj: str | None) -> frozenset[str]:
    """What a model takes besides text ("image", "audio"), by the header of its projector; nothing is fetched.

    Args:
        path, header: of the model.
        mmproj: str, as of ProjectorConfig.
    """
    if mmproj is None:
        return frozenset()
    found = projector_for(path, header) if mmproj == "auto" else Path(mmproj).expanduser()
    try:
        return read_model(found).modalities - {"speech"} if found is not None and found.is_file() else frozenset()
    except LocalLLMError:  # says why when it is to be used
        return frozenset()


def _words(base: str) -> tuple[str, ...]:
    """What a name says of the model."""
    return tuple(word for word in re.split(r"[-._\s]+", base.lower()) if word not in ("", "mmproj", "model"))


def _fits(header: Header, path: Path) -> bool:
    try:
        return not projector_problem(header, read_model(path))
    except LocalLLMError:  # a damaged file beside a model says nothing about the model
        return False


def _precision(quant: str) -> int:
    return _PRECISIONS.index(quant) if quant in _PRECISIONS else len(_PRECISIONS)
