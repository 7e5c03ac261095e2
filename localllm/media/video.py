"""Video: frames that ffmpeg decodes, or pictures with their times."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np

from localllm.errors import InvalidRequestError, MediaError, MissingPackageError
from localllm.media.content import Image, Video
from localllm.media.deadline import Deadline, OutOfTimeError
from localllm.media.images import load_image
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits
from localllm.media.probing import Stream, demuxer_of, input_arguments, probe
from localllm.media.programs import ProgramError, output
from localllm.media.sources import is_path, local_path, open_file, read_bytes

_HEAD_BYTES = 1024
_RATES = (0.001, 240.0)
_LARGEST_DENOMINATOR = 1001  # that of 29.97, which is 30000 / 1001


def load_video(
    source: Any, limits: MediaLimits = DEFAULT_LIMITS, name: str = "video", *, frames_per_second: float = 1.0
) -> Video:
    """Loads the frames of a video that are shown at 0, 1, 2, ... times 1 / `frames_per_second` seconds.

    The programs ffprobe and ffmpeg of the PATH decode it. They are handed the open file alone, told which of a few formats it is,
    and may open nothing else: what a playlist names is not read. Its sound is left out. A file that is cut short is an error if
    its kind tells where frames lie, as MP4 does; of others it gives the frames that are there.

    Args:
        source: what `sources.read_bytes` takes, holding MP4 or MOV, Matroska or WebM, AVI, MPEG-TS or GIF.
        limits: MediaLimits: max_pixels (of a frame, before it is decoded), max_side_pixels, max_frame_pixels (larger frames are
            scaled down to it), max_frames, max_total_pixels, decode_seconds, and those of the source.
        name: str, of the part of the request, with which messages of errors begin.
        frames_per_second: float, 0.001 to 240.

    Returns:
        Video, at least one frame.

    Raises:
        MediaError: It cannot be had, is damaged or no such video, or exceeds a limit.
        InvalidRequestError: An argument is of another type or out of its range.
        MissingPackageError: There are no programs ffmpeg and ffprobe.
    """
    rate = _rate(frames_per_second)
    ffmpeg, ffprobe = _programs(name)
    deadline = Deadline(limits.decode_seconds)
    with _opened(source, limits, name) as file:
        head = file.read(_HEAD_BYTES)
        demuxer = demuxer_of(head)
        if demuxer is None:
            raise MediaError(
                f"{name}: is no MP4, MOV, Matroska, WebM, AVI, MPEG-TS or GIF (it begins with {head[:8]!r}); convert it"
            )
        try:
            stream = probe(ffprobe, file.fileno(), demuxer, limits, deadline, name)
            frames = _decoded(ffmpeg, file.fileno(), demuxer, stream, rate, limits, deadline, name)
        except OutOfTimeError:
            raise MediaError(
                f"{name}: was not decoded after {limits.decode_seconds:g} seconds; cut it, or allow more with decode_seconds"
            ) from None
        except ProgramError as error:
            said = " ".join(str(error).split())[-300:].replace(f"file:/dev/fd/{file.fileno()}", "it")
            raise MediaError(f"{name}: this video is damaged or cut short ({said}); give a whole one") from None
    if not frames:
        raise MediaError(f"{name}: holds no frame; give a video that does")
    return Video(tuple(frames), tuple(float(number / rate) for number in range(len(frames))))


def video_of(frames: Sequence[Any], seconds: Sequence[float], limits: MediaLimits = DEFAULT_LIMITS, name: str = "video") -> Video:
    """Makes a video of pictures.

    Args:
        frames: what `load_image` takes, each.
        seconds: numbers, when each is shown, from the beginning; ascending, at least 0.
        limits: MediaLimits: max_frames, max_total_pixels, and those of a picture.
        name: str, of the part of the request; that of a frame is `name.frames[number]`.

    Returns:
        Video.

    Raises:
        What `load_image` raises, and MediaError or InvalidRequestError if the times are none or do not fit.
    """
    if isinstance(frames, (str, bytes)) or not isinstance(frames, Sequence) or not isinstance(seconds, Sequence):
        raise InvalidRequestError(f"{name}: the frames and their seconds have to be lists")
    if not frames or len(frames) != len(seconds):
        raise MediaError(f"{name}: {len(frames)} frames and {len(seconds)} times; give a time for each, and at least one")
    _check_count(len(frames), limits, name)
    times: list[float] = []
    for number, time in enumerate(seconds):
        if isinstance(time, bool) or not isinstance(time, (int, float, np.integer, np.floating)) or not math.isfinite(time):
            raise InvalidRequestError(f"{name}.seconds[{number}]: {time!r} is no number of seconds")
        if time < (times[-1] if times else 0):
            raise MediaError(f"{name}.seconds[{number}]: {time!r} comes before 0 or the one before it; sort the frames")
        times.append(float(time))
    images: list[Image] = []
    total = 0
    for number, frame in enumerate(frames):
        images.append(load_image(frame, limits, f"{name}.frames[{number}]", frame=True))
        total += images[-1].width * images[-1].height
        _check_total(total, limits, name)
    return Video(tuple(images), tuple(times))


# ---- inside


def _rate(frames_per_second: float) -> Fraction:
    number = isinstance(frames_per_second, (int, float)) and not isinstance(frames_per_second, bool)
    if not number or not _RATES[0] <= frames_per_second <= _RATES[1]:
        raise InvalidRequestError(f"frames_per_second: {frames_per_second!r} is no number from {_RATES[0]} to {_RATES[1]:g}")
    return Fraction(frames_per_second).limit_denominator(_LARGEST_DENOMINATOR)


def _programs(name: str) -> tuple[str, str]:
    ffmpeg, ffprobe = shutil.which("ffmpeg"), shutil.which("ffprobe")
    if ffmpeg is None or ffprobe is None:
        raise MissingPackageError(
            f"{name}: video needs the programs ffmpeg and ffprobe; install ffmpeg (apt-get install ffmpeg), or give "
            "frames as pictures with their times"
        )
    return ffmpeg, ffprobe


@contextmanager
def _opened(source: Any, limits: MediaLimits, name: str) -> Iterator[BinaryIO]:
    """A file that the programs can go back and forth in, as some formats need; one of ours has no name, and ends with us."""
    if is_path(source):
        with open_file(local_path(source, limits, name), limits, name) as file:
            yield file
        return
    data = read_bytes(source, limits, name)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        yield file


def _decoded(
    ffmpeg: str,
    descriptor: int,
    demuxer: str,
    stream: Stream,
    rate: Fraction,
    limits: MediaLimits,
    deadline: Deadline,
    name: str,
) -> list[Image]:
    if stream.seconds is not None:
        _check_count(math.floor(stream.seconds * rate), limits, name)
    width, height = _scaled(stream.width, stream.height, limits.max_frame_pixels)
    arguments = [
        *(ffmpeg, "-nostdin", "-hide_banner", "-loglevel", "error", "-xerror"),
        *input_arguments(descriptor, demuxer, limits),
        *("-map", "0:V:0", "-an", "-sn", "-dn"),
        # Rounded up, what is put at a time is what is shown then; ffmpeg's own choice is up to half a step too late.
        *("-vf", f"setpts=PTS-STARTPTS,fps={rate}:round=up,scale={width}:{height}"),
        *("-frames:v", str(limits.max_frames + 1), "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"),
    ]
    frames: list[Image] = []
    rest = bytearray()
    size = 3 * width * height
    with closing(output(arguments, deadline, (descriptor,))) as chunks:
        for chunk in chunks:
            rest += chunk
            while len(rest) >= size:
                _check_count(len(frames) + 1, limits, name)
                _check_total((len(frames) + 1) * width * height, limits, name)
                pixels = np.frombuffer(bytes(rest[:size]), np.uint8).reshape(height, width, 3)
                frames.append(Image(pixels, frame=True))
                del rest[:size]
    if rest:
        raise MediaError(f"{name}: ends in the middle of a frame; give a whole one")
    return frames


def _scaled(width: int, height: int, most_pixels: int) -> tuple[int, int]:
    factor = min(1.0, math.sqrt(most_pixels / (width * height)))
    return min(most_pixels, max(1, math.floor(width * factor))), min(most_pixels, max(1, math.floor(height * factor)))


def _check_count(count: int, limits: MediaLimits, name: str) -> None:
    if count > limits.max_frames:
        raise MediaError(
            f"{name}: has {count:,} frames or more, and {limits.max_frames:,} are allowed (max_frames); ask for fewer per second"
        )


def _check_total(pixels: int, limits: MediaLimits, name: str) -> None:
    if pixels > limits.max_total_pixels:
        raise MediaError(
            f"{name}: all frames together have more than the {limits.max_total_pixels:,} pixels of max_total_pixels; give fewer"
        )
