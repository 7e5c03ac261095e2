"""Pictures of comparisons that are made up."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from localllm.bench import Comparison, Result, draw
from localllm.engine.speculation.tally import SpeculationStats
from localllm.errors import InvalidRequestError, MissingPackageError, UnsupportedModelError

RESULTS = (
    Result("none", "none", tokens_per_second=100.0, ratio=1.0),
    Result("auto", "draft-mtp", None, 9.0, 250.0, 2.5, speculation=SpeculationStats(10, 25, (10, 10), (9, 6), 0.1, 0.2, 0.0)),
    Result("ngram-mod", "ngram-mod", None, 9.0, 80.0, 0.8, speculation=SpeculationStats(10, 10, (), (), 0.1, 0.2, 0.0)),
    Result("draft-eagle3", error=UnsupportedModelError("no")),
)


def comparison(*results: Result) -> Comparison:
    return Comparison("folder/model & more.gguf", ("one",), 8, 1, 1, results)


def test_an_svg_shows_kinds_speeds_and_ratios_and_leaves_out_what_failed(tmp_path):
    target = tmp_path / "picture.svg"
    draw(comparison(*RESULTS), target)
    told = " ".join(filter(None, (text.strip() for text in ElementTree.parse(target).getroot().itertext())))
    for words in ("model & more.gguf", "none", "auto: draft-mtp", "250.0  × 2.50", "ngram-mod", "80.0  × 0.80", "100.0"):
        assert words in told, words
    assert "eagle3" not in told


def test_a_png_takes_the_place_of_an_older_one(tmp_path):
    target = tmp_path / "picture.PNG"
    target.write_bytes(b"old")
    draw(comparison(*RESULTS), target)
    assert target.read_bytes().startswith(b"\x89PNG\r\n") and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("results", [RESULTS[:1], RESULTS[2:], (Result("none", "none"),)])
def test_there_may_be_little_to_draw(tmp_path, results):
    target = tmp_path / "picture.svg"
    draw(comparison(*results), target)
    assert "nothing was drafted" in target.read_text()


@pytest.mark.parametrize("name", ["picture", "picture.pdf", "missing/picture.png", "folder.png", "model.gguf"])
def test_what_is_no_place_for_a_picture(tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InvalidRequestError, match="^plot: "):
        draw(comparison(*RESULTS), tmp_path / name)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install matplotlib"):
        draw(comparison(*RESULTS), tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []
