"""What the first bytes of a file say that it is, and how large: read here, before a decoder sees it.

Names of files and media types of addresses do not matter. Decoders allocate memory for what a header declares: that of Pillow for
WEBP does so when the file is opened.
"""

from __future__ import annotations

import struct

_WEBP_LEAST_BYTES = 30
# A picture that is sent in steps has about ten scans. Each of them may be a few bytes, and is decoded over all pixels.
MAX_SCANS = 100


def image_kind(data: bytes) -> str | None:
    """The format of a picture.

    Args:
        data: bytes of the file.

    Returns:
        str, "PNG", "JPEG", "WEBP", "GIF" or "BMP"; None: none of these.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    return "BMP" if data.startswith(b"BM") else None


def declared_size(kind: str, data: bytes) -> tuple[int, int] | None:
    """The size of a picture, where its decoder would act upon it, or warn of it, as soon as the file is opened.

    Args:
        kind: str, see `image_kind`.
        data: bytes of the file.

    Returns:
        (width, height) of WEBP and GIF; None for others.

    Raises:
        ValueError: The header is cut short or of an unknown kind.
    """
    try:
        if kind == "WEBP":
            return _webp_size(data)
        return _gif_size(data) if kind == "GIF" else None
    except (struct.error, IndexError):
        raise ValueError("its header is cut short") from None


def too_many_scans(data: bytes) -> bool:
    """Whether a JPEG file takes more steps than any sound one, and so more time than its size lets expect."""
    return data.count(b"\xff\xda") > MAX_SCANS  # in a scan 0xff is always followed by 0 or a restart marker


def _webp_size(data: bytes) -> tuple[int, int]:
    """See https://developers.google.com/speed/webp/docs/riff_container and RFC 6386, 9.1."""
    if len(data) < _WEBP_LEAST_BYTES:
        raise ValueError("its header is cut short")
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("it begins with no picture")


def _gif_size(data: bytes) -> tuple[int, int]:
    """That of the screen, enlarged to hold the first picture, as Pillow does. See the GIF89a specification, 18 to 24."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[place] == 0x21:  # an extension: a label, then blocks that begin with their length, the last of them empty
        place += 2
        while length := data[place]:
            place += length + 1
        place += 1
    if data[place] != 0x2C:
        raise ValueError("it holds no picture")
    left, top, own_width, own_height = struct.unpack_from("<HHHH", data, place + 1)
    return max(width, left + own_width), max(height, top + own_height)
