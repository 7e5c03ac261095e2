"""Pages of PDF documents as pictures."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from localllm.errors import InvalidRequestError, MediaError
from localllm.media.arrays import check_pixels
from localllm.media.content import Image
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits
from localllm.media.sources import read_bytes
from localllm.packages import require_packages

_POINTS_PER_INCH = 72
_RESOLUTIONS = (1.0, 2400.0)
# A PDF may have something in front of its header, as far as readers look for it.
_HEADER_WITHIN_BYTES = 1024
# PDFium is for one thread at a time, whatever document it works on.
_pdfium = threading.Lock()


def load_pages(
    source: Any,
    limits: MediaLimits = DEFAULT_LIMITS,
    name: str = "document",
    *,
    pages: Sequence[int] | None = None,
    dots_per_inch: float = 144.0,
) -> tuple[Image, ...]:
    """Draws pages of a PDF document on white, with annotations and what is filled into forms; scripts in it do not run.

    PDFium draws one page of this process at a time, and cannot be stopped while it does. A program that calls pypdfium2 itself
    must not do so meanwhile. What pictures in a page take while it is drawn, no limit holds for.

    Args:
        source: what `sources.read_bytes` takes, holding a PDF.
        limits: MediaLimits: max_pages, max_pixels and max_side_pixels of a page, and max_total_pixels, all of them checked before
            anything is drawn; and those of the source.
        name: str, of the part of the request, with which messages of errors begin.
        pages: ints, numbers of pages from 1 on, in the order of the result; None: all.
        dots_per_inch: float, 1 to 2,400; a page is as large as it says. 144 makes about 1,200 x 1,700 pixels of a letter.

    Returns:
        tuple of Image.

    Raises:
        MediaError: It cannot be had, is damaged, encrypted or no PDF, has no such pages, or exceeds a limit.
        InvalidRequestError: An argument is of another type or out of its range.
        MissingPackageError: pypdfium2 is not installed.
    """
    number = isinstance(dots_per_inch, (int, float)) and not isinstance(dots_per_inch, bool)
    if not number or not _RESOLUTIONS[0] <= dots_per_inch <= _RESOLUTIONS[1]:
        raise InvalidRequestError(
            f"dots_per_inch: {dots_per_inch!r} is no number from {_RESOLUTIONS[0]:g} to {_RESOLUTIONS[1]:g}"
        )
    _check_numbers(pages)
    (pypdfium2,) = require_packages(f"{name}: PDF documents need", "pypdfium2", extra="pdf")
    data = read_bytes(source, limits, name)
    if b"%PDF-" not in data[:_HEADER_WITHIN_BYTES]:
        raise MediaError(f"{name}: is no PDF document (it begins with {data[:8]!r}); convert it to one")
    with _pdfium:
        try:
            with closing(pypdfium2.PdfDocument(data)) as document:
                document.init_forms()
                indices = _indices(pages, len(document), limits, name)
                _check_sizes(document, indices, dots_per_inch / _POINTS_PER_INCH, limits, name)
                return tuple(_drawn(document, index, dots_per_inch / _POINTS_PER_INCH) for index in indices)
        except MediaError:
            raise
        except Exception as error:
            raise _unusable(error, name) from None


# ---- inside


def _check_numbers(pages: Sequence[int] | None) -> None:
    if pages is None:
        return
    if isinstance(pages, (str, bytes)) or not isinstance(pages, Sequence) or not pages:
        raise InvalidRequestError(f"pages: {pages!r} is no list of numbers of pages; give at least one, or None for all")
    for page in pages:
        if isinstance(page, bool) or not isinstance(page, int) or page < 1:
            raise InvalidRequestError(f"pages: {page!r} is no number of a page; the first one is 1")


def _indices(pages: Sequence[int] | None, count: int, limits: MediaLimits, name: str) -> list[int]:
    wanted = count if pages is None else len(pages)
    if wanted > limits.max_pages:
        raise MediaError(
            f"{name}: {wanted:,} pages are more than the {limits.max_pages:,} of max_pages; choose some with `pages`"
        )
    if wanted == 0:
        raise MediaError(f"{name}: holds no page; give a document that does")
    for page in pages or ():
        if page > count:
            raise MediaError(f"{name}: has no page {page:,}; give numbers from 1 to {count:,}")
    return list(range(count)) if pages is None else [page - 1 for page in pages]


def _check_sizes(document: Any, indices: Sequence[int], scale: float, limits: MediaLimits, name: str) -> None:
    total = 0
    for index in indices:
        width, height = (side * scale for side in document.get_page_size(index))
        if not (math.isfinite(width) and math.isfinite(height)):
            raise MediaError(f"{name}: page {index + 1} has no size; give a whole document")
        pixels = math.ceil(width), math.ceil(height)
        check_pixels(*pixels, limits, f"{name}, page {index + 1}")
        total += pixels[0] * pixels[1]
    if total > limits.max_total_pixels:
        raise MediaError(
            f"{name}: its pages together have {total:,} pixels, more than {limits.max_total_pixels:,} (max_total_pixels); "
            "choose fewer with `pages`, or lower dots_per_inch"
        )


def _drawn(document: Any, index: int, scale: float) -> Image:
    with closing(document[index]) as page, closing(page.render(scale=scale, rev_byteorder=True)) as bitmap:
        return Image(np.array(bitmap.to_numpy()))  # a copy: the bitmap's memory goes with it


def _unusable(error: Exception, name: str) -> MediaError:
    said = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    if "password" in said.lower():
        return MediaError(f"{name}: this PDF is encrypted; save it without a password")
    if isinstance(error, MemoryError):
        return MediaError(f"{name}: there is no memory to draw it; lower dots_per_inch")
    return MediaError(f"{name}: this PDF is damaged or cut short ({said}); give a whole one")
