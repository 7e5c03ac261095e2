"""Loads mutated pictures and sound in a process of its own, and tells on stdout what came of them, as JSON.

The address space is bounded above what the limits of the media allow: what asks for more gets none, and is counted.
"""

from __future__ import annotations

import io
import json
import random
import resource
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image as Pillow

from localllm.errors import MediaError
from localllm.media.images import load_image
from localllm.media.limits import MediaLimits
from localllm.media.sound import load_audio

LIMITS = MediaLimits(max_pixels=1_000_000, max_seconds=5)
RATE = 16_000
# 15 bytes for each pixel and 8 for each sample, as MediaLimits says, and what decoders need besides.
ALLOWED_BYTES = 15 * LIMITS.max_pixels + 8 * 5 * RATE + (16 << 20)
WORDS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 60_000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def pictures() -> list[bytes]:
    chance = np.random.default_rng(0)
    noise = Pillow.fromarray(np.kron(chance.integers(0, 256, (6, 8, 3), np.uint8), np.ones((5, 5, 1), np.uint8)))
    exif = Pillow.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[Pillow.Image, str, dict]] = [
        (noise, "PNG", {"exif": exif}),
        (noise.convert("RGBA"), "PNG", {}),
        (noise.convert("P"), "PNG", {"transparency": 3}),
        (noise.convert("L"), "PNG", {"save_all": True, "append_images": [noise.convert("L").rotate(90)]}),
        (noise.convert("I;16"), "PNG", {}),
        (noise.convert("1"), "PNG", {}),
        (noise, "JPEG", {"exif": exif}),
        (noise, "JPEG", {"progressive": True}),
        (noise.convert("CMYK"), "JPEG", {}),
        (noise.convert("L"), "JPEG", {}),
        (noise, "WEBP", {"exif": exif}),
        (noise.convert("RGBA"), "WEBP", {"lossless": True}),
        (noise, "WEBP", {"save_all": True, "append_images": [noise.rotate(90)]}),
        (noise, "GIF", {"save_all": True, "append_images": [noise.rotate(90)], "transparency": 1}),
        (noise, "BMP", {}),
        (noise.convert("P"), "BMP", {}),
    ]
    files = []
    for image, kind, options in kinds:
        data = io.BytesIO()
        image.save(data, kind, **options)
        files.append(data.getvalue())
    return files


def sounds() -> list[bytes]:
    wave = 0.5 * np.sin(np.arange(4000) * 0.1)
    files = []
    for samples, rate, kind, subtype in (
        (wave, 8_000, "WAV", "PCM_U8"),
        (np.stack([wave, -wave], 1), 8_000, "WAV", "PCM_16"),
        (wave, 44_100, "WAV", "FLOAT"),
        (wave, 16_000, "WAV", "IMA_ADPCM"),
        (wave, 16_000, "WAVEX", "PCM_24"),
        (np.stack([wave, -wave], 1), 16_000, "FLAC", "PCM_16"),
        (wave, 48_000, "FLAC", "PCM_24"),
        (wave, 16_000, "MP3", None),
        (np.stack([wave, -wave], 1), 44_100, "MP3", None),
    ):
        data = io.BytesIO()
        soundfile.write(data, samples, rate, format=kind, subtype=subtype)
        files.append(data.getvalue())
    return files


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """A file with bytes or words changed, cut short, with something put in or taken out, or spliced with another."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 30))):
        place = chance.randrange(len(made)) if chance.random() < 0.5 else chance.randrange(min(len(made), 64))
        match chance.randrange(6):
            case 0 | 1:
                made[place] ^= 1 << chance.randrange(8)
            case 2:
                form = chance.choice("<>") + chance.choice("BHI")
                width = struct.calcsize(form)
                word = struct.pack(form, chance.choice(WORDS) & (1 << 8 * width) - 1)
                made[place : place + width] = word
            case 3:
                made[place:place] = chance.randbytes(chance.choice((1, 2, 100)))
            case 4:
                del made[place : place + chance.choice((1, 2, 100))]
            case 5:
                made[place:] = chance.choice(others)[place:] if chance.random() < 0.3 else made[place:][::-1][:200]
        if not made:
            made += b"\0"
    if chance.random() < 0.2:
        del made[1 + chance.randrange(len(made)) :]
    return bytes(made)


def with_checksums(data: bytes) -> bytes:
    """A PNG file whose checksums are right, so that what is wrong is not refused for those."""
    made, place = bytearray(data), 8
    while place + 12 <= len(made):
        length = int.from_bytes(made[place : place + 4], "big")
        end = place + 8 + length
        if end + 4 > len(made):
            break
        made[end : end + 4] = zlib.crc32(made[place + 4 : end]).to_bytes(4, "big")
        place = end + 4
    return bytes(made)


def used_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(count: int) -> None:
    chance = random.Random(0)
    files: list[tuple[bytes, list[bytes], Callable[[bytes], object]]] = []
    for originals, load in (
        (pictures(), lambda data: load_image(data, LIMITS, "part")),
        (sounds(), lambda data: load_audio(data, RATE, LIMITS, "part")),
    ):
        for original in originals:
            load(original)  # what is loaded once and stays is there when memory is bounded
            files.append((original, originals, load))
    bound = used_bytes() + ALLOWED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    results: Counter[str] = Counter()
    for number in range(count):
        original, originals, load = files[number % len(files)]
        data = mutated(original, originals, chance)
        if number % 2 and data.startswith(b"\x89PNG"):
            data = with_checksums(data)
        try:
            results[type(load(data)).__name__] += 1
        except MediaError as error:
            kind = "without memory" if "memory" in str(error) else "refused" if str(error).startswith("part: ") else "nameless"
            results[kind] += 1
        except BaseException as error:
            results[f"{number}: {error!r}"] += 1
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
