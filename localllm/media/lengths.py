"""Whether a file holds all of the sound that it declares; libsndfile takes a WAV or MP3 that is cut short as it is."""

from __future__ import annotations

# What programs write that do not know the length beforehand: they send the file on while they make it. Such a length lies above
# this, whatever has been taken off for the header.
_UNKNOWN_BYTES = 0x7FFF_0000
# Where the table of an MP3 file may begin: behind the head of its first frame, which is at most 4 + 2 + 32 bytes long.
_TABLE_WITHIN_BYTES = 64
_HAS_FRAMES, _HAS_BYTES = 1, 2


def missing_bytes(data: bytes) -> int:
    """How many bytes of its sound a file lacks.

    Args:
        data: bytes of the file.

    Returns:
        int; 0 also if the file does not tell its length, or holds no sound: that is the decoder's business.
    """
    if data[:4] == b"RIFF":
        return _missing_of_wav(data)
    return 0 if data[:4] == b"fLaC" else _missing_of_mp3(data)


def _missing_of_wav(data: bytes) -> int:
    place = 12
    while place + 8 <= len(data):
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        if data[place : place + 4] == b"data":
            return 0 if size >= _UNKNOWN_BYTES else max(0, place + 8 + size - len(data))
        place += 8 + size + size % 2  # chunks begin at even places
    return 0


def _missing_of_mp3(data: bytes) -> int:
    """By the table "Xing" or "Info" in the first frame. One percent may be missing: not all encoders count alike."""
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:  # its length has 7 bits in each byte
        start = 10 + (data[6] << 21 | data[7] << 14 | data[8] << 7 | data[9])
    head = data[start : start + _TABLE_WITHIN_BYTES]
    place = max(head.find(b"Xing"), head.find(b"Info"))
    if place < 0:
        return 0
    flags = int.from_bytes(head[place + 4 : place + 8], "big")
    if not flags & _HAS_BYTES:
        return 0
    place += start + (12 if flags & _HAS_FRAMES else 8)
    size = int.from_bytes(data[place : place + 4], "big")
    missing = start + size - len(data)
    return missing if missing > size // 100 else 0
