"""How a picture has to be turned to stand upright, from what the camera wrote beside it (EXIF 2.32, tag 0x0112)."""

from __future__ import annotations

import struct
from typing import Any

_ORIENTATION = 0x0112
_SHORT = 3


def orientation(exif: Any) -> int:
    """The orientation that EXIF data tell.

    Pillow's reader of EXIF warns of much that does not matter here, and reads all of it.

    Args:
        exif: bytes, with or without "Exif" in front; anything else says nothing.

    Returns:
        int, 1 to 8; 1, as it is, where they say nothing that makes sense.
    """
    if not isinstance(exif, bytes):
        return 1
    data = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return 1
    try:
        (place,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, place)
        for entry in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, values, value = struct.unpack_from(f"{order}HHIH", data, entry)
            if tag == _ORIENTATION:
                return int(value) if kind == _SHORT and values == 1 and 1 <= value <= 8 else 1
    except struct.error:  # it is cut short
        pass
    return 1


def upright(pixels: Any, orientation: int) -> Any:
    """Turns and mirrors a picture.

    Args:
        pixels: array [height, width, ...].
        orientation: int, 1 to 8: where the picture's first row and first column lie when it stands upright.

    Returns:
        array, a view of the same pixels; from 5 on height and width are exchanged.
    """
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    # In an exchanged picture the columns are what were rows.
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
