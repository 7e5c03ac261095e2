"""A comparison as a picture."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.bench.figures import Result
from localllm.errors import InvalidRequestError
from localllm.files import write_atomically
from localllm.packages import require_packages

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from localllm.bench.compare import Comparison

_FORMATS = (".png", ".svg")
# Behind that, so few drafts are left that the lines say nothing.
_MOST_POSITIONS = 16
_PLAIN, _FASTER, _SLOWER = "#8a8a8a", "#2a7ab9", "#c4562f"


def require_drawable(path: str | os.PathLike[str]) -> Path:
    """Checks, before anything is measured, that a picture can be written.

    Args:
        path: the file; its name ends with ".png" or ".svg".

    Returns:
        Path of it.

    Raises:
        InvalidRequestError: Another ending, or a folder that is not there.
        MissingPackageError: matplotlib is not installed.
    """
    target = Path(path).expanduser()
    if target.suffix.lower() not in _FORMATS:
        raise InvalidRequestError(f"plot: {target} must end with {' or '.join(_FORMATS)}")
    if not target.parent.is_dir() or target.is_dir():
        raise InvalidRequestError(f"plot: {target} cannot be written; its folder must be there, and it must be no folder itself")
    require_packages("plot: pictures need", "matplotlib")
    return target


def draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Writes a picture: tokens per second by kind, and how much of drafts was right by its place in them.

    Kinds that failed are left out.

    Args:
        comparison: Comparison.
        path: the file, replaced as a whole; its name ends with ".png" or ".svg".

    Raises:
        What `require_drawable` raises.
        OSError: It cannot be written.
    """
    target = require_drawable(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    results = [one for one in comparison.results if one.error is None]
    figure = Figure(figsize=(10, 1.6 + 0.45 * max(4, len(results))), layout="constrained")
    left, right = figure.subplots(1, 2)
    _bars(left, results)
    _lines(right, results)
    figure.suptitle(Path(comparison.path).name)
    data = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):  # text stays text, which can be searched and read aloud
        figure.savefig(data, format=target.suffix.lower().removeprefix("."), dpi=150)
    write_atomically(target, data.getvalue())


def _bars(axes: Axes, results: list[Result]) -> None:
    speeds = [one.tokens_per_second or 0.0 for one in results]
    colours = [_PLAIN if one.speculation is None else _SLOWER if (one.ratio or 0) < 1 else _FASTER for one in results]
    bars = axes.barh([label(one) for one in results], speeds, color=colours)
    texts = [
        f"{one.tokens_per_second or 0:,.1f}" + (f"  × {one.ratio:.2f}" if one.speculation and one.ratio else "")
        for one in results
    ]
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xlim(0, 1.3 * max(speeds, default=0.0) or 1.0)
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second of answers")


def _lines(axes: Axes, results: list[Result]) -> None:
    from matplotlib.ticker import MaxNLocator

    for one in results:
        if shares := one.acceptance[:_MOST_POSITIONS]:
            axes.plot(range(1, len(shares) + 1), shares, marker="o", markersize=4, label=label(one))
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("place in the draft")
    axes.set_ylabel("part that was right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_lines():
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "nothing was drafted", ha="center", transform=axes.transAxes)


def label(one: Result) -> str:
    """The name of a result, with what it came to where that is another."""
    return one.name if not one.kind or one.name.startswith(one.kind) else f"{one.name}: {one.kind}"
