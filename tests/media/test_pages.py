"""Pages of PDF documents: drawn right, bounded before they are drawn, and errors where nothing can be drawn."""

from __future__ import annotations

import io
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pypdfium2
import pytest
from PIL import Image as Pillow

from localllm.errors import InvalidRequestError, MediaError, MissingPackageError
from localllm.media.limits import MediaLimits
from localllm.media.pages import load_pages


def pdf(*objects: str, trailer: str = "") -> bytes:
    """A PDF file of objects numbered from 1 on, of which the first is the catalog."""
    data, places = b"%PDF-1.7\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj {text} endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    tail = f"trailer <</Size {len(objects) + 1} /Root 1 0 R {trailer}>>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + (head + tail).encode()


def page(box: str, drawing: str = "", more: str = "", **catalog: str) -> bytes:
    """A document of one page."""
    stream = f"<</Length {len(drawing)}>> stream\n{drawing}\nendstream"
    return pdf(
        f"<</Type /Catalog /Pages 2 0 R {' '.join(f'/{key} {value}' for key, value in catalog.items())}>>",
        "<</Type /Pages /Kids [3 0 R] /Count 1>>",
        f"<</Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents 4 0 R {more}>>",
        stream,
    )


@pytest.fixture(scope="module")
def colours() -> bytes:
    """Three pages of 72 x 36 points: red, green, blue."""
    data = io.BytesIO()
    first, *others = (Pillow.new("RGB", (72, 36), colour) for colour in ("red", "lime", "blue"))
    first.save(data, "PDF", save_all=True, append_images=others, resolution=72)
    return data.getvalue()


def dominant(image) -> int:
    return int(image.pixels.mean(axis=(0, 1)).argmax())


def test_every_page_becomes_a_picture_of_its_size(colours, tmp_path):
    (tmp_path / "a.pdf").write_bytes(colours)
    for source in (colours, tmp_path / "a.pdf", io.BytesIO(colours)):
        images = load_pages(source, dots_per_inch=72)
        assert [dominant(image) for image in images] == [0, 1, 2]
        assert {(image.width, image.height) for image in images} == {(72, 36)}
    assert load_pages(colours)[0].pixels.shape == (72, 144, 3)


def test_chosen_pages_come_in_the_order_of_the_choice(colours):
    assert [dominant(image) for image in load_pages(colours, pages=[3, 1, 3])] == [2, 0, 2]
    assert [dominant(image) for image in load_pages(colours, pages=range(2, 4))] == [1, 2]


def test_what_is_drawn_stands_upright_on_white_in_its_colours():
    image = load_pages(page("0 0 4 2", "1 0 0 rg 0 0 2 1 re f 0 0 1 rg 2 1 2 1 re f"), dots_per_inch=72)[0]
    red, blue, white = [255, 0, 0], [0, 0, 255], [255, 255, 255]
    assert image.pixels.tolist() == [[white, white, blue, blue], [red, red, white, white]]
    turned = load_pages(page("0 0 4 2", "1 0 0 rg 0 0 2 1 re f", "/Rotate 90"), dots_per_inch=72)[0]
    assert turned.pixels.shape == (4, 2, 3) and turned.pixels[0, 0].tolist() == red


def test_a_page_is_bounded_before_anything_is_drawn(colours, monkeypatch):
    monkeypatch.setattr(pypdfium2.PdfPage, "render", None)
    for limits, said in (
        ({"max_pixels": 2000}, r"part, page 1: 72 x 36 has more than 2,000 pixels \(max_pixels\)"),
        ({"max_side_pixels": 70}, r"part, page 1: 72 x 36 is longer than 70 \(max_side_pixels\)"),
        ({"max_total_pixels": 72 * 36 * 3 - 1}, r"part: its pages together have 7,776 pixels, .*\(max_total_pixels\)"),
        ({"max_pages": 2}, "part: 3 pages are more than the 2 of max_pages"),
        ({"max_bytes": 100}, r"part: has .* bytes or more, .*\(max_bytes\)"),
    ):
        with pytest.raises(MediaError, match=f"^{said}"):
            load_pages(colours, MediaLimits(**limits), "part", dots_per_inch=72)
    with pytest.raises(MediaError, match="^part: 4 pages are more than the 3 of max_pages"):
        load_pages(colours, MediaLimits(max_pages=3), "part", pages=[1, 1, 1, 1])


@pytest.mark.parametrize("box", ["0 0 100000 100000", "0 0 2000000000 5", "0 0 5 2147483000"])
def test_a_page_that_says_it_is_huge(box):
    with pytest.raises(MediaError, match="^part, page 1: .*(max_side_pixels|max_pixels)|^part: page 1 has no size"):
        load_pages(page(box), name="part")


def test_all_the_pages_are_chosen_that_limits_allow(colours):
    assert len(load_pages(colours, MediaLimits(max_pages=3, max_total_pixels=72 * 36 * 3), dots_per_inch=72)) == 3


@pytest.mark.parametrize("pages, said", [([4], "has no page 4; give numbers from 1 to 3"), ([1, 10**30], "has no page 1,000")])
def test_a_page_that_is_not_there(colours, pages, said):
    with pytest.raises(MediaError, match=f"^part: {said}"):
        load_pages(colours, name="part", pages=pages)


@pytest.mark.parametrize("pages", [[], [0], [-1], [True], ["1"], [1.0], "1", 1, {1}])
def test_pages_that_are_no_numbers_of_pages(pages):
    with pytest.raises(InvalidRequestError, match="^pages: "):
        load_pages(b"%PDF-", pages=pages)


@pytest.mark.parametrize("resolution", [0, -1, 0.5, 2401, float("nan"), "72", None, True])
def test_a_resolution_that_is_none(resolution):
    with pytest.raises(InvalidRequestError, match="^dots_per_inch: "):
        load_pages(b"%PDF-", dots_per_inch=resolution)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"x", "is no PDF document"),
        (bytes(1024) + b"%PDF-1.7", "is no PDF document"),
        (b"%PDF-1.7\n", "is damaged or cut short"),
        (pdf("<</Type /Catalog /Pages 2 0 R>>", "<</Type /Pages /Kids [] /Count 0>>"), "(holds no page|is damaged)"),
        (
            pdf("<<>>", trailer="/Encrypt <</Filter /Standard /V 1 /R 2 /P -1 /O <" + "00" * 32 + "> /U <" + "00" * 32 + ">>>"),
            "is encrypted; save it without a password",
        ),
    ],
)
def test_what_is_no_document_that_can_be_drawn(data, said):
    with pytest.raises(MediaError, match=f"^part: .*{said}"):
        load_pages(data, name="part")


def test_many_threads_draw_at_once(colours):
    start = threading.Barrier(4)

    def draw(worker: int) -> list[int]:
        start.wait()
        return [dominant(image) for _ in range(5) for image in load_pages(colours)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(4))) == [[0, 1, 2] * 5] * 4


def test_damaged_documents_are_errors_or_pictures(leaves_nothing, colours):
    chance = random.Random(0)
    for _ in range(150):
        data = bytearray(colours)
        for _ in range(chance.choice((1, 3, 20))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        try:
            images = load_pages(bytes(data), MediaLimits(max_pixels=100_000), "part")
        except MediaError as error:
            assert str(error).startswith("part")
        else:
            assert all(image.pixels.dtype == np.uint8 for image in images)


def test_without_pypdfium2_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(MissingPackageError, match=r"^part: PDF documents need pypdfium2; pip install 'localllm\[pdf\]'"):
        load_pages(b"%PDF-", name="part")
