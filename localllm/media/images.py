"""Pictures from files, addresses, other programs' objects and arrays."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from localllm.errors import MediaError
from localllm.media.arrays import check_pixels, of_16_bits, over_white, pixels_of_array
from localllm.media.content import Image
from localllm.media.headers import MAX_SCANS, declared_size, image_kind, too_many_scans
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits
from localllm.media.orientation import orientation, upright
from localllm.media.sources import read_bytes
from localllm.packages import require_packages

_DECODERS = {
    "PNG": ("PngImagePlugin", "PngImageFile"),
    "JPEG": ("JpegImagePlugin", "JpegImageFile"),
    "WEBP": ("WebPImagePlugin", "WebPImageFile"),
    "GIF": ("GifImagePlugin", "GifImageFile"),
    "BMP": ("BmpImagePlugin", "BmpImageFile"),
}
# How many bits PNG files have for gray, by Pillow's name of that, and what makes 8 of fewer.
_GRAY_FACTORS = {"L;2": 85, "L;4": 17}
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def load_image(source: Any, limits: MediaLimits = DEFAULT_LIMITS, name: str = "image", *, frame: bool = False) -> Image:
    """Loads a picture.

    What is partly transparent is laid over white. The orientation that a camera has noted (EXIF) is applied, colour profiles are
    not. Of an animation it is the first picture. What kind of file it is, its first bytes say, not its name.

    Args:
        source: what `sources.read_bytes` takes, holding PNG, JPEG, WEBP, GIF or BMP; or a PIL.Image.Image, at the frame where it
            stands; or a numpy array, see `arrays.pixels_of_array`.
        limits: MediaLimits: max_pixels and max_side_pixels, both checked before anything is decoded, and those of the source.
        name: str, of the part of the request, with which messages of errors begin.
        frame: bool, it is one of a video.

    Returns:
        Image.

    Raises:
        MediaError: It cannot be had, is damaged, cut short or no such picture, or exceeds a limit.
        InvalidRequestError: The source is of no such type.
        MissingPackageError: Pillow is not installed.
    """
    if isinstance(source, np.ndarray):
        return Image(pixels_of_array(source, limits, name), frame)
    pil = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(source, pil.Image):
        return Image(_decode(source, limits, name), frame)
    require_packages(f"{name}: pictures need", "PIL.Image", extra="media")
    return Image(_decode_file(read_bytes(source, limits, name), limits, name), frame)


# ---- inside


def _decode_file(data: bytes, limits: MediaLimits, name: str) -> Any:
    kind = image_kind(data)
    if kind is None:
        raise MediaError(f"{name}: is no PNG, JPEG, WEBP, GIF or BMP picture (it begins with {data[:8]!r}); convert it to one")
    try:
        size = declared_size(kind, data)
    except ValueError as error:
        raise MediaError(f"{name}: this {kind} is damaged ({error}); give a whole one") from None
    if size is not None:
        check_pixels(*size, limits, name)
    if kind == "JPEG" and too_many_scans(data):
        raise MediaError(f"{name}: this JPEG is decoded in more than {MAX_SCANS} steps; save it anew")
    # Pillow's own `open` would try what other programs have registered, and warn of what is checked here.
    plugin, decoder = _DECODERS[kind]
    (module,) = require_packages(f"{name}: {kind} needs", f"PIL.{plugin}", extra="media")
    try:
        with getattr(module, decoder)(io.BytesIO(data)) as image:
            return _decode(image, limits, name)
    except MediaError:
        raise
    except Exception as error:  # whatever a parser stumbles over: SyntaxError, struct.error, KeyError, zlib.error, ...
        raise _damaged(kind, error, name) from None


def _decode(image: Any, limits: MediaLimits, name: str) -> Any:
    """The pixels of a PIL image, uint8 [height, width, 3]."""
    width, height = image.size
    check_pixels(width, height, limits, name)
    transparent = _transparent_colour(image)
    try:
        image.load()
        exif = image.info.get("exif")
        pixels = _colours(image, transparent, name)
    except MediaError:
        raise
    except Exception as error:
        raise _damaged(image.format or "PIL image", error, name) from None
    return upright(pixels, orientation(exif))


def _damaged(kind: str, error: Exception, name: str) -> MediaError:
    if isinstance(error, MemoryError):
        return MediaError(f"{name}: there is no memory to decode this {kind}; make it smaller")
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return MediaError(f"{name}: this {kind} is damaged or cut short ({said}); give a whole one")


def _transparent_colour(image: Any) -> Any:
    """The colour that stands for nothing, where there is one, as it is after decoding; Pillow has that of the file.

    It has to be asked for before decoding: what the file holds is known until then.
    """
    colour = image.info.get("transparency")
    raw = image.tile[0][3] if getattr(image, "tile", None) else None
    raw = raw[0] if isinstance(raw, tuple) and raw else raw
    if isinstance(colour, tuple) and isinstance(raw, str) and ";16" in raw:
        return tuple(value >> 8 for value in colour)
    return colour * _GRAY_FACTORS[raw] if isinstance(colour, int) and raw in _GRAY_FACTORS else colour


def _colours(image: Any, transparent: Any, name: str) -> Any:
    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and image.format == "PNG"):  # before Pillow 11, PNG of 16 bits are "I"
        return _of_16_bit_gray(np.asarray(image), transparent)
    if mode in ("I", "F"):
        raise MediaError(f"{name}: a PIL image of mode {mode!r} does not say what is white; convert it to 'L' or 'RGB'")
    if mode in _WITH_ALPHA or transparent is not None:
        if transparent is not None:
            image = image.copy()
            image.info["transparency"] = transparent
        return over_white(np.asarray(image if image.mode == "RGBA" else image.convert("RGBA")))
    return np.array(image if mode == "RGB" else image.convert("RGB"))


def _of_16_bit_gray(values: Any, transparent: Any) -> Any:
    gray = of_16_bits(values)
    if isinstance(transparent, int):
        gray[values == transparent] = 255
    return np.repeat(gray[:, :, None], 3, axis=2)
