"""Sound from files, addresses and arrays, as one channel of the rate that a model takes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from localllm.errors import InvalidRequestError, MediaError
from localllm.media.content import Audio
from localllm.media.lengths import missing_bytes
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits
from localllm.media.sources import read_bytes
from localllm.packages import require_packages

_RATES = range(1_000, 768_001)
_MAX_CHANNELS = 32
_BLOCK_SAMPLES = 1 << 18  # of all channels together
_FORMATS = ("WAV", "WAVEX", "FLAC", "MP3")
# So many bits of a sample are its fraction.
_FRACTION_BITS = {"int16": 15, "int32": 31}


def load_audio(source: Any, rate: int, limits: MediaLimits = DEFAULT_LIMITS, name: str = "audio") -> Audio:
    """Loads sound.

    Channels are mixed to their mean, and another rate is converted by soxr, "HQ". What kind of file it is, its first bytes say.

    Args:
        source: what `sources.read_bytes` takes, holding WAV, FLAC or MP3; or a pair (samples, rate): a numpy array [n_samples] or
            [n_samples, n_channels] of float32 or float64 (within -1 and 1), int16 or int32, and an int, samples per second.
        rate: int, samples per second that the result has; 1,000 to 768,000.
        limits: MediaLimits: max_seconds, which holds while it is read, and those of the source.
        name: str, of the part of the request, with which messages of errors begin.

    Returns:
        Audio, at least one sample.

    Raises:
        MediaError: It cannot be had, is empty, damaged, cut short or no such sound, holds NaN or infinity, or exceeds a limit.
        InvalidRequestError: The rate or the source is of no such type.
        MissingPackageError: soundfile or soxr is not installed.
    """
    if isinstance(rate, bool) or not isinstance(rate, int) or rate not in _RATES:
        raise InvalidRequestError(f"rate: {rate!r} is no whole number of samples per second from {_RATES[0]:,} to {_RATES[-1]:,}")
    (soxr,) = require_packages(f"{name}: sound needs", "soxr", extra="media")
    if isinstance(source, np.ndarray):
        raise InvalidRequestError(f"{name}: an array does not tell its rate; give a pair (samples, rate)")
    if isinstance(source, (tuple, list)):
        samples, own_rate = _pair(source, name)
        parts = _resampled(soxr, _blocks_of_array(samples, name), own_rate, rate, limits, name)
    else:
        parts = _decoded(soxr, read_bytes(source, limits, name), rate, limits, name)
    if not len(parts):
        raise MediaError(f"{name}: holds no sound at all, or less than one sample of {rate:,} per second; give more")
    if not np.isfinite(parts).all():
        raise MediaError(f"{name}: holds samples that are too large; give such within -1 and 1")
    return Audio(parts, rate)


# ---- inside


def _decoded(soxr: Any, data: bytes, rate: int, limits: MediaLimits, name: str) -> Any:
    if not (data[:4] == b"RIFF" and data[8:12] == b"WAVE") and not data.startswith((b"fLaC", b"ID3")) and not _is_mpeg(data):
        raise MediaError(f"{name}: is no WAV, FLAC or MP3 sound (it begins with {data[:8]!r}); convert it to one")
    if missing := missing_bytes(data):
        raise MediaError(f"{name}: this sound is cut short, {missing:,} of its bytes are missing; give a whole one")
    (soundfile,) = require_packages(f"{name}: sound needs", "soundfile", extra="media")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _FORMATS:
                raise MediaError(f"{name}: is {str(file.format)[:20]}, and no WAV, FLAC or MP3 sound; convert it to one")
            _check(file.samplerate, file.channels, name)
            return _resampled(soxr, _blocks_of_file(file, name), file.samplerate, rate, limits, name)
    except MediaError:
        raise
    except MemoryError:
        raise MediaError(f"{name}: there is no memory to decode this sound; give a shorter one") from None
    except Exception as error:  # soundfile's own, and what its callbacks stumble over
        said = getattr(error, "error_string", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise MediaError(f"{name}: this sound is damaged or cut short ({said.rstrip('.')}); give a whole one") from None


def _is_mpeg(data: bytes) -> bool:
    """A frame of MPEG audio begins with eleven bits that are set; then its version and layer."""
    return len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x18 != 0x08 and data[1] & 0x06 != 0


def _pair(source: Any, name: str) -> tuple[Any, int]:
    if len(source) != 2 or not isinstance(source[0], np.ndarray):
        raise InvalidRequestError(f"{name}: a {type(source).__name__} is no pair (samples, rate) of an array and a number")
    samples, rate = source
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise InvalidRequestError(f"{name}: {rate!r} is no whole number of samples per second")
    if samples.ndim == 1:
        samples = samples[:, None]
    if samples.ndim != 2:
        raise MediaError(f"{name}: an array of shape {samples.shape} is no sound; give [n_samples] or [n_samples, n_channels]")
    if str(samples.dtype) not in (*_FRACTION_BITS, "float32", "float64"):
        raise MediaError(f"{name}: an array of {samples.dtype} is no sound; give float32, float64, int16 or int32")
    _check(int(rate), samples.shape[1], name)
    return samples, int(rate)


def _check(rate: int, channels: int, name: str) -> None:
    if rate not in _RATES:
        raise MediaError(f"{name}: {rate:,} samples per second are not from {_RATES[0]:,} to {_RATES[-1]:,}; convert it")
    if not 1 <= channels <= _MAX_CHANNELS:
        raise MediaError(
            f"{name}: {channels:,} channels are not from 1 to {_MAX_CHANNELS}; give [n_samples, n_channels], or fewer of them"
        )


def _blocks_of_file(file: Any, name: str) -> Iterator[Any]:
    """Arrays [n, n_channels] of float32, until nothing more comes."""
    count = _BLOCK_SAMPLES // file.channels
    declared, total = file.frames, 0
    while len(block := file.read(count, dtype="float32", always_2d=True)):
        total += len(block)
        yield block
    # The length of MP3 is an estimate where its header does not tell it.
    if file.format != "MP3" and total < declared:
        raise MediaError(f"{name}: ends after {total:,} samples of {declared:,}; give a whole one")


def _blocks_of_array(samples: Any, name: str) -> Iterator[Any]:
    count = _BLOCK_SAMPLES // samples.shape[1]
    scale = 0.5 ** _FRACTION_BITS.get(str(samples.dtype), 0)
    for start in range(0, len(samples), count):
        yield samples[start : start + count] * np.float64(scale)


def _resampled(soxr: Any, blocks: Iterator[Any], own_rate: int, rate: int, limits: MediaLimits, name: str) -> Any:
    """float32 array [n_samples] of one channel. No more of what comes is kept than the result holds."""
    resampler = None if own_rate == rate else soxr.ResampleStream(own_rate, rate, 1, dtype="float32")
    parts: list[Any] = []
    total = 0
    for block in blocks:
        total += len(block)
        if total > limits.max_seconds * own_rate:
            raise MediaError(f"{name}: lasts longer than the {limits.max_seconds:g} seconds of max_seconds; cut it")
        if not np.isfinite(block).all():
            raise MediaError(f"{name}: holds samples that are no numbers (NaN or infinite); replace them")
        with np.errstate(over="ignore"):  # the caller looks at what comes out
            mono = block.mean(axis=1, dtype=np.float64).astype(np.float32)
        parts.append(mono if resampler is None else resampler.resample_chunk(mono))
    if resampler is not None:
        parts.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
