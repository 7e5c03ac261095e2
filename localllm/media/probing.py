"""What a video file holds, as its first bytes and ffprobe tell."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from localllm.errors import MediaError
from localllm.media.arrays import check_pixels
from localllm.media.deadline import Deadline
from localllm.media.limits import MediaLimits
from localllm.media.programs import output

_MAX_REPORT_BYTES = 1 << 16
_PACKET_BYTES = 188
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_ENTRIES = "stream=width,height,duration:stream_tags=rotate:stream_side_data=rotation:format=duration"


@dataclass(frozen=True)
class Stream:
    """The pictures of a video file.

    Attributes:
        width, height: int, pixels of a frame as it is shown, upright.
        seconds: float, how long the file says it lasts; None: it does not.
    """

    width: int
    height: int
    seconds: float | None


def demuxer_of(head: bytes) -> str | None:
    """The reader of ffmpeg for a file, so that it need not, and does not, guess: playlists and scripts are files, too.

    Args:
        head: bytes with which the file begins, at least 189 if there are so many.

    Returns:
        str, "mov", "matroska", "avi", "mpegts" or "gif"; None: none of these.
    """
    if head[4:8] in _BOXES:
        return "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    return "mpegts" if head[:1] == b"\x47" and head[_PACKET_BYTES : _PACKET_BYTES + 1] == b"\x47" else None


def input_arguments(descriptor: int, demuxer: str, limits: MediaLimits) -> tuple[str, ...]:
    """What ffmpeg and ffprobe are told of their input.

    Args:
        descriptor: int, of the open file.
        demuxer: str, see `demuxer_of`.
        limits: MediaLimits: max_pixels, which decoders heed whatever the file declares.
    """
    # Without a list of protocols a file could make ffmpeg open addresses, and without a list of formats other kinds of files.
    return (
        *("-protocol_whitelist", "file,pipe", "-format_whitelist", demuxer, "-f", demuxer),
        *("-max_pixels", str(limits.max_pixels), "-threads", "2", "-i", f"file:/dev/fd/{descriptor}"),
    )


def probe(ffprobe: str, descriptor: int, demuxer: str, limits: MediaLimits, deadline: Deadline, name: str) -> Stream:
    """Asks ffprobe.

    Args:
        ffprobe: str, path of the program.
        descriptor, demuxer, limits: see `input_arguments`.
        deadline: Deadline.
        name: str, of the part of the request.

    Returns:
        Stream.

    Raises:
        MediaError: There are no pictures in it, or too large ones.
        ProgramError, OutOfTimeError: See `programs.output`.
    """
    arguments = [
        *(ffprobe, "-v", "error", "-select_streams", "V:0", "-show_entries", _ENTRIES, "-of", "json"),
        *input_arguments(descriptor, demuxer, limits),
    ]
    report = b""
    with closing(output(arguments, deadline, (descriptor,))) as chunks:
        for chunk in chunks:
            report += chunk
            if len(report) > _MAX_REPORT_BYTES:
                raise MediaError(f"{name}: ffprobe says more of it than makes sense; convert it")
    try:
        found = json.loads(report)
        stream = found["streams"][0]
        width, height = int(stream["width"]), int(stream["height"])
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        raise MediaError(f"{name}: holds no pictures that ffprobe knows; convert it to MP4") from None
    if width < 1 or height < 1:  # as ffprobe says if the decoder does not take them
        raise MediaError(
            f"{name}: its pictures cannot be decoded, or have more than {limits.max_pixels:,} pixels (max_pixels); convert it"
        )
    check_pixels(width, height, limits, name)
    if round(_rotation(stream) / 90) % 2:
        width, height = height, width
    return Stream(width, height, _seconds(stream.get("duration"), found.get("format")))


def _rotation(stream: dict[str, Any]) -> float:
    """Degrees; older versions of ffprobe tell them as a tag."""
    beside, tags = stream.get("side_data_list"), stream.get("tags")
    told = [entry.get("rotation") for entry in (beside if isinstance(beside, list) else ()) if isinstance(entry, dict)]
    told.append(tags.get("rotate") if isinstance(tags, dict) else None)
    return next((degrees for degrees in map(_number, told) if degrees is not None), 0.0)


def _seconds(own: Any, whole: Any) -> float | None:
    seconds = _number(own)
    if seconds is None and isinstance(whole, dict):
        seconds = _number(whole.get("duration"))
    return seconds if seconds is None or seconds >= 0 else None


def _number(text: Any) -> float | None:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
