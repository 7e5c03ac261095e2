"""Images, audio, video and files in the content of a message, in whichever form they were written."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localllm.chat.texts import require_whole_characters
from localllm.errors import InvalidRequestError

Kind = Literal["image", "audio", "video", "file"]

_DATA_URI = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)
_AUDIO_TYPES = {"mp3": "audio/mpeg"}
# What is text in itself, and needs no model that sees or hears.
_TEXT_TYPES = re.compile(r"text/.*|application/(json|xml|yaml|x-yaml|toml|javascript)")


@dataclass(frozen=True)
class Media:
    """One piece of media.

    Attributes:
        where: str, its place, e.g. "messages[0].content[1]".
        kind: "image", "audio", "video" or "file".
        mime_type: str, "" if nobody said.
        data: bytes, or None where it is only named.
        url: str, where it is; "".
        file_id: str, what a provider's store calls it; "".
        name: str, a file's name or title; "".
    """

    where: str
    kind: Kind
    mime_type: str = ""
    data: bytes | None = None
    url: str = ""
    file_id: str = ""
    name: str = ""

    @property
    def text(self) -> str | None:
        """What a file of text holds; None for other media.

        Raises:
            InvalidRequestError: It is no UTF-8.
        """
        if self.kind != "file" or self.data is None or not _TEXT_TYPES.fullmatch(self.mime_type):
            return None
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"{self.where}: a file of type {self.mime_type} that is no UTF-8 text: {error}") from error


def media_of(block: Mapping[str, Any], where: str) -> Media | None:
    """The media of a content block; None if it is a block of another kind.

    Understood are LangChain's blocks (v1: "base64", "url" or "file_id"; v0: "source_type"), OpenAI's ("image_url", "input_audio",
    "input_image", "file") and Anthropic's ("source").

    Raises:
        InvalidRequestError: It says it is media and holds none, or what it holds is no base64.
    """
    kind = block.get("type")
    if kind in ("image_url", "input_image"):
        return _of_url("image", _inner(block, "image_url"), where)
    if kind == "input_audio":
        inner = _inner(block, "input_audio")
        style = str(inner.get("format", ""))
        return Media(where, "audio", _AUDIO_TYPES.get(style, f"audio/{style}"), _decoded(inner.get("data"), where))
    if kind in ("file", "input_file") and isinstance(block.get("file"), Mapping):
        return _of_openai_file(block["file"], where)
    if kind in ("image", "audio", "video", "file", "document"):
        return _of_block("file" if kind == "document" else kind, block, where)
    return None


def _inner(block: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = block.get(name)
    return value if isinstance(value, Mapping) else {"url": value}


def _of_url(kind: Kind, inner: Mapping[str, Any], where: str, name: str = "") -> Media:
    url = inner.get("url")
    if not isinstance(url, str) or not url:
        raise InvalidRequestError(f"{where}: {_article(kind)} block without an address or a data URI")
    match = _DATA_URI.fullmatch(url)
    if match is None:
        return Media(where, kind, str(inner.get("mime_type") or ""), url=url, name=name)
    mime_type, options, data = match.groups()
    if ";base64" not in options:
        raise InvalidRequestError(f"{where}: a data URI of {_article(kind)} block has to be base64")
    return Media(where, kind, mime_type, _decoded(data, where), name=name)


def _of_openai_file(file: Mapping[str, Any], where: str) -> Media:
    name = str(file.get("filename") or "")
    if file.get("file_id"):
        return Media(where, "file", file_id=str(file["file_id"]), name=name)
    data = file.get("file_data")
    return _of_url("file", {"url": data}, where, name)


def _of_block(kind: Kind, block: Mapping[str, Any], where: str) -> Media:
    source = block.get("source")
    fields = {**block, **source} if isinstance(source, Mapping) else block
    mime_type = str(fields.get("mime_type") or fields.get("media_type") or "")
    name = str(fields.get("filename") or fields.get("title") or fields.get("name") or "")
    # Where v0 has a text, it stands under "url".
    style = fields.get("source_type") or (source.get("type") if isinstance(source, Mapping) else None)
    if style == "text":
        text = fields.get("url") or fields.get("text") or fields.get("data")
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}: {_article(kind)} block of text without text")
        require_whole_characters(where, text)
        return Media(where, kind, mime_type or "text/plain", text.encode(), name=name)
    data = fields.get("base64") or fields.get("data")
    if data is not None:
        return Media(where, kind, mime_type, _decoded(data, where), name=name)
    if fields.get("url"):
        return _of_url(kind, {"url": fields["url"], "mime_type": mime_type}, where, name)
    file_id = fields.get("file_id") or (fields.get("id") if style == "id" else None)
    if file_id:
        return Media(where, kind, mime_type, file_id=str(file_id), name=name)
    raise InvalidRequestError(f"{where}: {_article(kind)} block without base64, url or file_id")


def _decoded(data: Any, where: str) -> bytes:
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if not isinstance(data, str) or not data:
        raise InvalidRequestError(f"{where}: the data must be base64, not {type(data).__name__}")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise InvalidRequestError(f"{where}: the data are no base64: {error}") from error


def _article(kind: Kind) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def as_part(media: Media) -> dict[str, Any]:
    """Media as a part of a message of localllm, which knows whether the model can take it, and within which limits.

    Raises:
        InvalidRequestError: It is only named by the id that a provider's store gave it.
    """
    shown = f"{media.where}: {_article(media.kind)} block" + (f" ({media.mime_type})" if media.mime_type else "")
    if media.file_id:
        raise InvalidRequestError(
            f"{shown} with the file_id {media.file_id!r}, which means nothing on this machine; give the content"
        )
    source = {"bytes": media.data} if media.data is not None else {"url": media.url}
    return {"type": media.kind, "where": shown, **source}
