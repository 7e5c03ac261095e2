"""Pictures, sound and video in messages, as localllm takes them."""

from __future__ import annotations

from io import IOBase
from typing import Any

from llama_index.core.base.llms.types import AudioBlock, ImageBlock, VideoBlock

from localllm.errors import InvalidRequestError

_KINDS: tuple[tuple[type, str], ...] = ((ImageBlock, "image"), (AudioBlock, "audio"), (VideoBlock, "video"))


def media_part(where: str, block: Any) -> dict[str, Any] | None:
    """The part of a message that a block stands for; None if it is of another kind.

    What it holds is read by localllm, which knows whether the model can take it, and within which limits.

    Raises:
        InvalidRequestError: It has no source, or one that cannot be read; the message begins with `where`.
    """
    kind = next((kind for of, kind in _KINDS if isinstance(block, of)), None)
    if kind is None:
        return None
    place = f"{where}: {type(block).__name__}"
    return {"type": kind, "where": place, **_source(place, getattr(block, kind), block)}


def _source(where: str, data: Any, block: Any) -> dict[str, Any]:
    if isinstance(data, IOBase):
        try:
            data.seek(0)
            return {"bytes": data.read()}
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"{where}: its file cannot be read ({error})") from error
    if isinstance(data, bytes) and data:
        # LlamaIndex keeps what it was given as base64.
        return {"base64": data.decode("ascii", errors="replace")}
    if block.path is not None:
        return {"path": str(block.path)}
    if block.url is not None:
        return {"url": str(block.url)}
    raise InvalidRequestError(f"{where}: has neither data nor path nor url")
