"""Pictures: every kind that is read, right to the pixel, and those that mean no good."""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageFile, ImageOps

from localllm.errors import InvalidRequestError, MediaError, MissingPackageError
from localllm.media.images import load_image
from localllm.media.limits import MediaLimits

WHITE, BLACK = [255, 255, 255], [0, 0, 0]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *between: bytes) -> bytes:
    """A PNG file whose header says what it is told to; `rows` begin with their filter's number."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(between) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def webp(kind: bytes, data: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def canvas(width: int, height: int) -> bytes:
    return webp(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def pixels(source, **options) -> list:
    return load_image(source, **options).pixels.tolist()


# ---- every kind


@pytest.mark.parametrize("kind, options", [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_lossless_kinds_are_exact(pillow_bytes, gradient, kind, options):
    image = load_image(pillow_bytes(gradient, kind, **options))
    assert np.array_equal(image.pixels, gradient)
    assert (image.width, image.height, image.frame) == (6, 4, False)


@pytest.mark.parametrize(
    "kind, options", [("JPEG", {"quality": 100, "subsampling": 0}), ("JPEG", {"progressive": True}), ("GIF", {})]
)
def test_lossy_kinds_are_near(pillow_bytes, gradient, kind, options):
    smooth = np.kron(gradient[:2, :2], np.ones((16, 16, 1), np.uint8))
    assert np.abs(load_image(pillow_bytes(smooth, kind, **options)).pixels.astype(int) - smooth).max() < 12


def test_the_name_of_a_file_says_nothing(pillow_bytes, gradient, tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(pillow_bytes(gradient, "PNG"))
    assert np.array_equal(load_image(path).pixels, gradient)
    assert load_image(str(path), frame=True).frame


def test_the_same_picture_has_the_same_digest_whatever_held_it(pillow_bytes, gradient):
    held = [gradient, Pillow.fromarray(gradient), pillow_bytes(gradient, "PNG"), pillow_bytes(gradient, "BMP")]
    assert len({load_image(source).digest for source in held}) == 1


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_it_is_the_first_picture(pillow_bytes, kind):
    first, *others = (Pillow.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue"))
    options = {"lossless": True} if kind == "WEBP" else {}
    assert pixels(pillow_bytes(first, kind, save_all=True, append_images=others, **options))[3][3] == [255, 0, 0]


def test_a_pil_image_is_taken_where_it_stands_and_left_as_it_is(pillow_bytes):
    first, second = Pillow.new("RGB", (8, 8), "red"), Pillow.new("RGB", (8, 8), "lime")
    with Pillow.open(io.BytesIO(pillow_bytes(first, "GIF", save_all=True, append_images=[second]))) as animation:
        animation.seek(1)
        assert pixels(animation)[3][3] == [0, 255, 0]
        assert animation.tell() == 1
    transparent = Pillow.new("P", (1, 1))
    transparent.info["transparency"] = 0
    assert pixels(transparent) == [[WHITE]]
    assert transparent.mode == "P" and transparent.info == {"transparency": 0}


# ---- colours


@pytest.mark.parametrize(
    "mode, colour, expected",
    [
        ("1", 1, WHITE),
        ("1", 0, BLACK),
        ("L", 77, [77, 77, 77]),
        ("LA", (77, 255), [77, 77, 77]),
        ("LA", (77, 0), WHITE),
        ("RGB", (1, 2, 3), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 255), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), WHITE),
        ("RGBA", (0, 100, 255, 128), [127, 177, 255]),
        ("CMYK", (0, 0, 0, 0), WHITE),
        ("CMYK", (0, 255, 255, 0), [255, 0, 0]),
        ("YCbCr", (255, 128, 128), WHITE),
        ("HSV", (0, 255, 255), [255, 0, 0]),
        ("I;16", 65535, WHITE),
        ("I;16", 257 * 9, [9, 9, 9]),
    ],
)
def test_every_mode_becomes_red_green_and_blue(mode, colour, expected):
    assert pixels(Pillow.new(mode, (1, 1), colour)) == [[expected]]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_mode_that_does_not_say_what_is_white_is_refused(mode):
    with pytest.raises(MediaError, match=rf"^part: a PIL image of mode '{mode}' .*convert it to 'L' or 'RGB'"):
        load_image(Pillow.new(mode, (1, 1)), name="part")


def test_inks_of_a_jpeg(pillow_bytes):
    assert pixels(pillow_bytes(Pillow.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))[0][0] == pytest.approx([254, 0, 0], abs=3)


def test_a_palette_with_transparency(pillow_bytes):
    image = Pillow.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    assert pixels(pillow_bytes(image, "PNG")) == [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]
    assert pixels(pillow_bytes(image, "PNG", transparency=1)) == [[[255, 0, 0], WHITE, [0, 0, 255]]]
    assert pixels(pillow_bytes(image, "GIF", transparency=1)) == [[[255, 0, 0], WHITE, [0, 0, 255]]]
    assert pixels(pillow_bytes(image, "PNG", transparency=bytes([255, 0, 128]))) == [[[255, 0, 0], WHITE, [127, 127, 255]]]


@pytest.mark.parametrize(
    "depth, colour, row, transparent, expected",
    [
        (1, 0, bytes([0b10100000]), None, [255, 0, 255]),
        (2, 0, bytes([0b00011000]), None, [0, 85, 170]),
        (2, 0, bytes([0b00011000]), struct.pack(">H", 1), [0, 255, 170]),
        (4, 0, bytes([0x03, 0xA0]), None, [0, 51, 170]),
        (4, 0, bytes([0x03, 0xA0]), struct.pack(">H", 10), [0, 51, 255]),
        (8, 0, bytes([1, 2, 3]), struct.pack(">H", 2), [1, 255, 3]),
        (16, 0, struct.pack(">3H", 0, 257 * 100, 65535), None, [0, 100, 255]),
        (16, 0, struct.pack(">3H", 0, 257 * 100, 257 * 100 + 1), struct.pack(">H", 257 * 100), [0, 255, 100]),
    ],
)
def test_gray_of_all_depths(depth, colour, row, transparent, expected):
    between = () if transparent is None else (chunk(b"tRNS", transparent),)
    assert [pixel[0] for pixel in pixels(png(3, 1, depth, colour, b"\0" + row, *between))[0]] == expected


def test_colours_of_16_bits():
    row = b"\0" + struct.pack(">6H", 65535, 0, 256 * 7, 1000, 2000, 3000)
    assert pixels(png(2, 1, 16, 2, row)) == [[[255, 0, 7], [3, 7, 11]]]
    assert pixels(png(2, 1, 16, 2, row, chunk(b"tRNS", struct.pack(">3H", 1000, 2000, 3000)))) == [[[255, 0, 7], WHITE]]
    assert pixels(png(2, 1, 16, 6, b"\0" + struct.pack(">8H", 9, 9, 9, 0, 0, 65535, 0, 65535))) == [[WHITE, [0, 255, 0]]]
    assert pixels(png(2, 1, 16, 4, b"\0" + struct.pack(">4H", 0, 65535, 0, 0))) == [[BLACK, WHITE]]


# ---- orientation


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_camera_s_orientation_is_applied(pillow_bytes, gradient, kind, turn):
    exif = Pillow.Exif()
    exif[0x0112] = turn
    data = pillow_bytes(np.kron(gradient, np.ones((8, 8, 1), np.uint8)), kind, exif=exif)
    with Pillow.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
        assert np.array_equal(load_image(opened).pixels, expected)
    image = load_image(data)
    assert np.array_equal(image.pixels, expected)
    assert image.pixels.flags.c_contiguous


def tiff(order: str, *entries: tuple[int, int, int, int], start: int = 8) -> bytes:
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", start)
    # A short value stands at the beginning of its four bytes.
    return head + struct.pack(order + "H", len(entries)) + b"".join(struct.pack(order + "HHIHxx", *entry) for entry in entries)


@pytest.mark.parametrize(
    "exif, turned",
    [
        (tiff("<", (0x0112, 3, 1, 6)), True),
        (tiff(">", (0x010F, 2, 4, 0), (0x0112, 3, 1, 6)), True),
        (tiff("<", (0x0112, 3, 1, 0)), False),
        (tiff("<", (0x0112, 3, 1, 9)), False),
        (tiff("<", (0x0112, 4, 1, 6)), False),
        (tiff("<", (0x0112, 3, 2, 6)), False),
        (tiff("<", start=0xFFFFFFFF), False),
        (tiff("<", (0x0112, 3, 1, 6))[:-3], False),
        (b"II*\0", False),
        (b"nonsense", False),
        (b"", False),
    ],
)
def test_an_orientation_that_makes_no_sense_turns_nothing(pillow_bytes, gradient, exif, turned):
    image = load_image(pillow_bytes(gradient, "PNG", exif=b"Exif\0\0" + exif))
    assert (image.width, image.height) == ((4, 6) if turned else (6, 4))


# ---- limits


@pytest.mark.parametrize(
    "data",
    [
        png(60_000, 60_000, 8, 2, b""),
        png(2**31 - 1, 2**31 - 1, 8, 2, b""),
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 100, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\0;",
        b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + struct.pack("<HHHHB", 60_000, 60_000, 1, 1, 0) + b"\2\0;",
        b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, 60_000, 60_000, 3) + bytes(9) + b"\xff\xda\0\x0c\x03" + bytes(9),
        canvas(2**24, 200),
        canvas(60_000, 60_000),
        webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 0x3FFF, 0x3FFF) + bytes(20)),
        webp(b"VP8L", b"\x2f" + b"\xff" * 20),
    ],
)
def test_what_declares_too_many_pixels_is_refused_before_it_is_decoded(data, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            MediaError, match=r"^part: [\d,]+ x [\d,]+ (has more than 1,000 pixels \(max_pixels\)|is longer than)"
        ):
            load_image(data, MediaLimits(max_pixels=1000), "part")


def test_all_pixels_that_are_allowed_may_be_there_and_no_more(pillow_bytes):
    data = pillow_bytes(Pillow.new("L", (20_000, 10), 7))
    image = load_image(data, MediaLimits(max_pixels=200_000, max_side_pixels=20_000))
    assert image.pixels.shape == (10, 20_000, 3) and (image.pixels == 7).all()
    for limits, said in (({"max_pixels": 199_999}, "max_pixels"), ({"max_side_pixels": 19_999}, "max_side_pixels")):
        for source in (data, Pillow.new("L", (20_000, 10)), np.zeros((10, 20_000), np.uint8)):
            with pytest.raises(MediaError, match=rf"^part: 20,000 x 10 .*\({said}\)"):
                load_image(source, MediaLimits(**limits), "part")


def test_one_pixel(pillow_bytes):
    for kind in ("PNG", "BMP", "GIF", "WEBP", "JPEG"):
        assert np.abs(load_image(pillow_bytes(Pillow.new("RGB", (1, 1), "white"), kind)).pixels.astype(int) - 255).max() < 3


@pytest.mark.parametrize(
    "source", [png(0, 5, 8, 2, b""), png(5, 0, 8, 2, b""), Pillow.new("RGB", (0, 0)), np.zeros((0, 5, 3), np.uint8)]
)
def test_no_pixel(source):
    with pytest.raises(MediaError, match=r"^part: "):
        load_image(source, name="part")


def test_pillow_keeps_its_own_settings(pillow_bytes, gradient, monkeypatch):
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 1)
    assert np.array_equal(load_image(pillow_bytes(gradient), MediaLimits(max_pixels=24)).pixels, gradient)
    assert Pillow.MAX_IMAGE_PIXELS == 1 and not ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_jpeg_of_more_scans_than_make_sense_is_refused(pillow_bytes, gradient):
    data = pillow_bytes(gradient, "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(MediaError, match="more than 100 steps"):
        load_image(data[:-2] + scan * 100 + data[-2:])


# ---- damage


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_a_file_that_is_cut_short_is_an_error_wherever_that_is(pillow_bytes, kind):
    chance = np.random.default_rng(0)
    whole = pillow_bytes(chance.integers(0, 256, (32, 32, 3), np.uint8), kind)
    for length in range(1, len(whole) // 2, 37):
        with pytest.raises(MediaError, match="^part: "):
            load_image(whole[:length], name="part")


@pytest.mark.parametrize(
    "data, said",
    [
        (b"x", "is no PNG, JPEG, WEBP, GIF or BMP picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no PNG, JPEG, WEBP, GIF or BMP picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "is no PNG, JPEG, WEBP, GIF or BMP picture"),
        (b"II*\0\x08\0\0\0", "is no PNG, JPEG, WEBP, GIF or BMP picture"),
        (b"P6 1 1 255 abc", "is no PNG, JPEG, WEBP, GIF or BMP picture"),
        (b"\x89PNG\r\n\x1a\n", "this PNG is damaged or cut short"),
        (b"GIF89a", "this GIF is damaged"),
        (b"GIF89a\x01\0\x01\0\0\0\0;", "this GIF is damaged .*it holds no picture"),
        (b"RIFF\0\0\0\0WEBP", "this WEBP is damaged .*cut short"),
        (webp(b"ALPH", bytes(40)), "this WEBP is damaged .*begins with no picture"),
        (b"BM", "this BMP is damaged or cut short"),
        (b"\xff\xd8\xff", "this JPEG is damaged or cut short"),
    ],
)
def test_what_is_no_picture_is_an_error_that_says_so(data, said):
    with pytest.raises(MediaError, match=f"^part: .*{said}.*; (convert it to one|give a whole one)$") as caught:
        load_image(data, name="part")
    assert "0x" not in str(caught.value)  # no address of an object


def test_a_wrong_checksum_is_an_error(pillow_bytes, gradient):
    data = bytearray(pillow_bytes(gradient))
    data[data.index(b"IHDR") + 4 + 3] ^= 1
    with pytest.raises(MediaError, match="this PNG is damaged"):
        load_image(bytes(data))


def test_a_text_that_unpacks_to_much_is_an_error():
    bomb = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(200_000_000 // 4)))
    with pytest.raises(MediaError, match="this PNG is damaged"):
        load_image(png(1, 1, 8, 0, b"\0\0", bomb))


# ---- arrays


@pytest.mark.parametrize(
    "array, expected",
    [
        (np.array([[0, 9]], np.uint8), [[BLACK, [9, 9, 9]]]),
        (np.array([[[7]]], np.uint8), [[[7, 7, 7]]]),
        (np.array([[[1, 2, 3, 0], [1, 2, 3, 255]]], np.uint8), [[WHITE, [1, 2, 3]]]),
        (np.array([[0, 257 * 5, 65535]], np.uint16), [[BLACK, [5, 5, 5], WHITE]]),
        (np.array([[0, 0.5, 1]], np.float64), [[BLACK, [128, 128, 128], WHITE]]),
        (np.array([[[1, 0, 1]]], np.float16), [[[255, 0, 255]]]),
        (np.array([[False, True]]), [[BLACK, WHITE]]),
        (np.array([[0, 65535]], ">u2"), [[BLACK, WHITE]]),
    ],
)
def test_arrays_of_every_kind(array, expected):
    assert pixels(array) == expected


def test_an_array_may_lie_scattered_and_is_not_kept(gradient):
    source = gradient[::-1, ::2]
    image = load_image(source)
    assert np.array_equal(image.pixels, source)
    assert not np.shares_memory(image.pixels, gradient)


@pytest.mark.parametrize(
    "array, said",
    [
        (np.zeros(5, np.uint8), "an array of shape"),
        (np.zeros((1, 5, 5, 3), np.uint8), "an array of shape"),
        (np.zeros((3, 5, 5), np.uint8), "an array of shape"),
        (np.zeros((5, 5, 2), np.uint8), "an array of shape"),
        (np.zeros((5, 5), np.int32), "an array of int32 is no picture"),
        (np.zeros((5, 5), complex), "an array of complex128 is no picture"),
        (np.full((5, 5), "x"), "an array of <U1 is no picture"),
        (np.full((5, 5), 1.5), "not within 0 and 1"),
        (np.full((5, 5), -0.1), "not within 0 and 1"),
        (np.full((5, 5), np.nan), "not within 0 and 1"),
        (np.full((5, 5), np.inf), "not within 0 and 1"),
    ],
)
def test_an_array_that_is_no_picture(array, said):
    with pytest.raises(MediaError, match=f"^part: .*{said}"):
        load_image(array, name="part")


# ---- surroundings


def test_many_threads_load_at_once(pillow_bytes):
    files = [pillow_bytes(Pillow.new("RGB", (50, 50), (number, 0, 0)), "PNG") for number in range(8)]
    start = threading.Barrier(4)

    def load(worker: int) -> bool:
        start.wait()
        return all(load_image(files[turn % 8]).pixels[0, 0, 0] == turn % 8 for turn in range(worker, worker + 40))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(load, range(4)))


def test_nothing_stays_open(leaves_nothing, pillow_bytes, gradient, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(pillow_bytes(gradient))
    load_image(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(MediaError):
        load_image(path)


def test_a_source_of_another_type_is_an_error():
    with pytest.raises(InvalidRequestError, match="^part: a float is none of these"):
        load_image(1.5, name="part")


def test_without_pillow_it_says_how_to_get_it(monkeypatch, gradient):
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingPackageError, match=r"^part: pictures need PIL.Image; pip install 'localllm\[media\]'"):
        load_image(b"x", name="part")
    assert np.array_equal(load_image(gradient).pixels, gradient)
