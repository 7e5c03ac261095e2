"""What a conversation needs to show pictures and sound to its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localllm.errors import InvalidRequestError, UnsupportedModelError
from localllm.media.content import Audio, Image, Video
from localllm.media.encoder import Encoder
from localllm.media.limits import MediaLimits
from localllm.media.sources import from_base64

# Seconds of a video between two texts that say how far it is, as llama.cpp has them.
_SECONDS_BETWEEN_TIMES = 5.0

#: What is shown: a text, a picture or a sound.
Shown = str | Image | Audio


class Eyes:
    """Makes pictures and sounds of parts of messages.

    Args:
        name: str, what the model is called in messages.
        open_encoder: gives the encoder, loaded if need be; None: the model has none. Called when a part has to be shown.
        limits: MediaLimits.
    """

    def __init__(self, name: str, open_encoder: Callable[[], Encoder | None], limits: MediaLimits) -> None:
        self._name = name
        self._open = open_encoder
        self._limits = limits
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder; something was looked at, so there is one."""
        assert self._encoder is not None
        return self._encoder

    def _opened(self, where: str) -> Encoder:
        if self._encoder is None:
            self._encoder = self._open()
        if self._encoder is None:
            raise InvalidRequestError(
                f"{where}: {self._name} takes only text, as it has no projector; name its file with mmproj=..., or take a model "
                "with one"
            )
        return self._encoder

    def look(self, where: str, part: Mapping[str, Any]) -> Sequence[Shown]:
        """What is shown for a part of a message.

        Args:
            where: str, its place, for messages.
            part: OpenAI's "image_url", "input_audio" and "file"; or "image", "audio", "video" and "file" with the source under
                the name of the type, or as "url", "path" or "base64". A video may also be a list of pictures as "frames", with
                their times as "seconds". A "where" names its place in what it was made of.

        Raises:
            InvalidRequestError: It is of no kind that is known, or names no source, or several.
            MediaError: The source cannot be read, is not what it seems, or exceeds a limit.
            UnsupportedModelError: The model takes no such thing.
        """
        kind, where = _KINDS.get(str(part.get("type"))), str(part.get("where") or where)
        if kind is None:
            raise InvalidRequestError(
                f"{where}: only parts of type {', '.join(_KINDS)} and text are understood, not {part.get('type')!r}"
            )
        self._opened(where)
        if kind == "video":
            self._require(where, "pictures", self.encoder.projector.has_images)
            return self._video(where, part)
        source = _source(where, kind, part)
        if kind == "audio":
            return [self._audio(where, source)]
        self._require(where, "pictures", self.encoder.projector.has_images)
        return [self._image(where, source)] if kind == "image" else self._pages(where, source)

    def _require(self, where: str, what: str, has: bool) -> None:
        if not has:
            raise UnsupportedModelError(f"{where}: the projector of {self._name} takes no {what}")

    def _image(self, where: str, source: Any) -> Image:
        if isinstance(source, Image):
            return source
        from localllm.media.images import load_image

        return load_image(source, self._limits, where)

    def _audio(self, where: str, source: Any) -> Audio:
        rate = self.encoder.projector.samples_per_second
        self._require(where, "sound", self.encoder.projector.has_audio)
        if isinstance(source, Audio) and source.rate == rate:
            return source
        from localllm.media.sound import load_audio

        return load_audio((source.samples, source.rate) if isinstance(source, Audio) else source, rate, self._limits, where)

    def _pages(self, where: str, source: Any) -> Sequence[Shown]:
        """A file: the pages of a PDF, else a picture."""
        from localllm.media.pages import load_pages
        from localllm.media.sources import read_bytes

        data = read_bytes(source, self._limits, where)
        return load_pages(data, self._limits, where) if data.startswith(b"%PDF-") else [self._image(where, data)]

    def _video(self, where: str, part: Mapping[str, Any]) -> Sequence[Shown]:
        from localllm.media.video import load_video, video_of

        if "frames" in part:
            video = video_of(part["frames"], part.get("seconds", ()), self._limits, where)
        else:
            source = _source(where, "video", part)
            video = source if isinstance(source, Video) else load_video(source, self._limits, where)
        return _with_times(video)


_KINDS = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "file": "file",
}
_NAMES = ("url", "path", "base64", "data", "file_data", "bytes")


def _source(where: str, kind: str, part: Mapping[str, Any]) -> Any:
    """Where the content of a part is: {"type": T, T: source}, with the source itself or what names it under url, path, ..."""
    inner = part.get(str(part["type"]), part.get(kind))
    if inner is None:
        inner = part
    if not isinstance(inner, Mapping):
        return inner
    found = [(name, inner[name]) for name in _NAMES if inner.get(name) is not None]
    if len(found) != 1:
        told = " and ".join(name for name, _ in found) or "nothing"
        raise InvalidRequestError(f"{where}: needs one source as {kind}, url, path or base64; there is {told}")
    name, value = found[0]
    if name == "base64" or (name in ("data", "file_data") and isinstance(value, str) and not value.startswith("data:")):
        return from_base64(value, where)
    return value


def _with_times(video: Video) -> list[Shown]:
    """A video's frames, with a text every few seconds that says how far it is."""
    shown: list[Shown] = []
    following = 0.0
    for frame, seconds in zip(video.frames, video.seconds, strict=True):
        if seconds >= following:
            minutes, rest = divmod(seconds, 60)
            shown.append(f"[{int(minutes)}m{rest:.1f}s]")
            following = seconds + _SECONDS_BETWEEN_TIMES
        shown.append(frame)
    return shown
