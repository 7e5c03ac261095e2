"""Decoded pictures and sound: what they are, whatever file they came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from localllm.errors import InvalidRequestError

DIGEST_BYTES = 32


@dataclass(frozen=True, eq=False)
class Image:
    """A picture.

    Attributes:
        pixels: uint8 array [height, width, 3], red, green, blue; C-contiguous.
        frame: bool, it is one of a video, of which some models take two at a time.
        digest: 32 bytes that name the content: equal pictures have equal ones, whatever file they came from.
    """

    pixels: Any = field(repr=False)
    frame: bool = False
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import numpy as np  # a model that is shown nothing does without

        pixels = self.pixels
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise InvalidRequestError(f"image: {pixels.dtype} {pixels.shape} is no uint8 array [height, width, 3]")
        object.__setattr__(self, "pixels", np.ascontiguousarray(pixels))
        object.__setattr__(self, "digest", _digest(b"image", pixels.shape[:2], self.pixels))

    @property
    def width(self) -> int:
        """Pixels."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.pixels.shape[0])


@dataclass(frozen=True, eq=False)
class Audio:
    """Sound of one channel.

    Attributes:
        samples: float32 array [n_samples], mostly within -1 and 1; finite.
        rate: int, samples per second.
        digest: 32 bytes that name the content.
    """

    samples: Any = field(repr=False)
    rate: int
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import numpy as np

        samples = self.samples
        if samples.dtype != np.float32 or samples.ndim != 1 or not len(samples):
            raise InvalidRequestError(f"audio: {samples.dtype} {samples.shape} is no float32 array [n_samples]")
        if not np.isfinite(samples).all():
            raise InvalidRequestError("audio: holds samples that are no numbers")
        object.__setattr__(self, "samples", np.ascontiguousarray(samples))
        object.__setattr__(self, "digest", _digest(b"audio", (self.rate,), self.samples))

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate


@dataclass(frozen=True, eq=False)
class Video:
    """Pictures with the time at which each is shown, in seconds from the beginning, ascending."""

    frames: tuple[Image, ...] = field(repr=False)
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.frames or len(self.frames) != len(self.seconds):
            raise InvalidRequestError(f"video: {len(self.frames)} frames at {len(self.seconds)} times")
        if any(later < earlier for earlier, later in zip(self.seconds, self.seconds[1:], strict=False)):
            raise InvalidRequestError("video: its frames are in no order")


Medium = Image | Audio | Video


def _digest(kind: bytes, shape: tuple[int, ...], data: Any) -> bytes:
    head = kind + b":" + b",".join(str(size).encode() for size in shape) + b":"
    return hashlib.blake2b(memoryview(data).cast("B"), digest_size=DIGEST_BYTES, key=head[:64]).digest()
