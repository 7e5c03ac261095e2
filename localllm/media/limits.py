"""How much of a picture, sound, video or document is taken in, and where it may come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from localllm.errors import InvalidRequestError


@dataclass(frozen=True)
class MediaLimits:
    """Bounds for one medium. What exceeds one is refused by a MediaError that names the bound.

    Attributes:
        max_bytes: int, of the encoded file, however it is given; 64 MiB.
        max_pixels: int, of one picture, page or frame before it is scaled; 64 million. A picture takes up to 15 bytes for each
            while it is decoded.
        max_side_pixels: int, width or height; 32,768.
        max_seconds: float, of sound; an hour. It takes up to 8 bytes for each sample of the rate that is asked for.
        max_frames: int, of a video; 256.
        max_frame_pixels: int; frames of a video with more of them are scaled down to it; one million.
        max_pages: int, of a document; 32.
        max_total_pixels: int, of all frames or pages of one medium together, 3 bytes each; 256 million.
        fetch_seconds: float, for everything that one address takes, redirects included; 30.
        decode_seconds: float, that the programs which decode a video may take; 60.
        allow_urls: bool, http:// and https:// addresses are fetched; not unless it is set.
        allow_files: bool, paths and file:// addresses are read. A server that gets them from others should unset it.
        allow_private_addresses: bool, addresses may also lead into this machine or a private network. Whoever gets addresses
            from others must not set it.

    Raises:
        InvalidRequestError: A number that is none, or not above 0.
    """

    max_bytes: int = 64 << 20
    max_pixels: int = 64_000_000
    max_side_pixels: int = 32_768
    max_seconds: float = 3_600.0
    max_frames: int = 256
    max_frame_pixels: int = 1_000_000
    max_pages: int = 32
    max_total_pixels: int = 256_000_000
    fetch_seconds: float = 30.0
    decode_seconds: float = 60.0
    allow_urls: bool = False
    allow_files: bool = True
    allow_private_addresses: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise InvalidRequestError(f"{field.name}: {value!r} is neither True nor False")
                continue
            kinds = int if field.type == "int" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise InvalidRequestError(f"{field.name}: {value!r} is no {'whole number' if kinds is int else 'number'}")
            if not (value > 0 and math.isfinite(value)):
                raise InvalidRequestError(f"{field.name}: {value!r} is not above 0, or endless")


DEFAULT_LIMITS = MediaLimits()
