"""Pictures that come as arrays of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from localllm.errors import MediaError
from localllm.media.limits import MediaLimits

_BAND_ROWS = 64


def check_pixels(width: int, height: int, limits: MediaLimits, name: str) -> None:
    """Refuses a picture by its size.

    Args:
        width, height: int, pixels.
        limits: MediaLimits: max_pixels and max_side_pixels.
        name: str, of the part of the request.

    Raises:
        MediaError: It has no pixels or too many.
    """
    if width < 1 or height < 1:
        raise MediaError(f"{name}: a picture of {width} x {height} holds no pixel; give one that does")
    if max(width, height) > limits.max_side_pixels:
        raise MediaError(
            f"{name}: {width:,} x {height:,} is longer than {limits.max_side_pixels:,} (max_side_pixels); make it smaller"
        )
    if width * height > limits.max_pixels:
        raise MediaError(
            f"{name}: {width:,} x {height:,} has more than {limits.max_pixels:,} pixels (max_pixels); make it smaller"
        )


def pixels_of_array(array: Any, limits: MediaLimits, name: str) -> Any:
    """Makes a picture of numbers.

    Args:
        array: numpy array [height, width] or [height, width, 1, 3 or 4] of bool, uint8, uint16 (to 65,535) or floats (0 to 1);
            gray, or red, green, blue, and alpha if there is a fourth: it is laid over white.
        limits: see `check_pixels`.
        name: str, of the part of the request.

    Returns:
        uint8 array [height, width, 3], a copy.

    Raises:
        MediaError: It has another shape, type or range, or too many pixels.
    """
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise MediaError(
            f"{name}: an array of shape {array.shape} is no picture; give [height, width] or [height, width, 1, 3 or 4]"
        )
    check_pixels(array.shape[1], array.shape[0], limits, name)
    values = _bytes_of(array, name)
    if values.shape[2] == 4:
        return over_white(values)
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values.copy()


def over_white(pixels: Any) -> Any:
    """Lays a picture that lets something through over white.

    Args:
        pixels: uint8 array [height, width, 4]; 255 of the last lets nothing through. What colours hide behind 0 does not matter.

    Returns:
        uint8 array [height, width, 3], rounded.
    """
    result = np.empty((*pixels.shape[:2], 3), np.uint8)
    for top in range(0, len(pixels), _BAND_ROWS):  # so that what is computed on the way takes no memory to speak of
        band = pixels[top : top + _BAND_ROWS].astype(np.uint16)
        alpha = band[:, :, 3:]
        result[top : top + _BAND_ROWS] = (band[:, :, :3] * alpha + (255 - alpha) * 255 + 127) // 255
    return result


def _bytes_of(array: Any, name: str) -> Any:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either order of bytes
        return of_16_bits(array)
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # also if one is no number
            raise MediaError(
                f"{name}: an array of {array.dtype} holds numbers that are not within 0 and 1; divide by the largest"
            )
        return (array.astype(np.float32) * 255 + 0.5).astype(np.uint8)
    raise MediaError(
        f"{name}: an array of {array.dtype} is no picture; give uint8 (to 255), uint16 (to 65,535) or floats (0 to 1)"
    )


def of_16_bits(values: Any) -> Any:
    """uint16 values up to 65,535 as the nearest uint8 up to 255."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
