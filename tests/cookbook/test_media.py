"""The programs of cookbook/media, with tiny models that see and hear: what they did, not what such models say."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

FOLDER = Path(__file__).parents[2] / "cookbook" / "media"


@pytest.fixture
def program():
    def load(name):
        spec = importlib.util.spec_from_file_location(f"cookbook_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="module")
def seeing(models):
    return {"mmproj": str(models["qwen3vl-mmproj"]), "n_threads": 1, "n_ctx": 4096}


@pytest.fixture
def pictures(tmp_path):
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
    return [str(path) for path in sorted(tmp_path.glob("*.png"))]


def test_each_picture_is_encoded_once(program, models, seeing, pictures, capsys):
    answers = program("describe").main(str(models["qwen3vl"]), *pictures, **seeing)
    counts = [(answer.usage.media_encoded, answer.usage.media_cached) for answer in answers]
    assert counts == [(1, 0), (1, 1), (1, 2), (0, 3)]
    assert all(later.usage.cached_tokens >= earlier.usage.prompt_tokens for earlier, later in itertools.pairwise(answers))
    assert "1 encoded, 2 kept" in capsys.readouterr().out


def test_numbers_of_a_chart(program, models, seeing):
    module = program("chart")
    found = module.main(str(models["qwen3vl"]), **seeing)
    assert found["best_day"] in module.SALES and 0 <= found["bars"] <= 9


def test_a_recording_is_heard_once(program, models, tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.sin(np.arange(8000) / 10).astype(np.float32) * 0.2, 8000)
    options = {"mmproj": str(models["gemma4-mmproj"]), "n_threads": 1, "n_ctx": 2048}
    first, second = program("listen").main(str(models["gemma4"]), str(path), **options)
    assert (first.usage.media_encoded, second.usage.media_encoded, second.usage.media_cached) == (1, 0, 1)


def test_pictures_are_found_by_what_is_said_of_them(program, models, seeing, pictures):
    folder = str(Path(pictures[0]).parent)
    found, answer = program("picture_search").main(
        folder, "Where is the cat?", str(models["qwen3vl"]), str(models["bert"]), **seeing
    )
    assert found.metadata["path"].name in ("0.png", "1.png", "2.png") and answer.usage_metadata["input_tokens"] > 0


def test_an_agent_looks_at_what_its_tool_gives_back(program, models, seeing):
    messages = program("image_tool").main(str(models["qwen3vl"]), **seeing)
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[1].tool_calls[0]["name"] == "take_picture" and messages[2].content[0]["type"] == "image"
    assert messages[3].text


def test_all_of_them_are_listed_and_say_how_they_are_called():
    listed = (FOLDER.parent / "README.md").read_text()
    for path in FOLDER.glob("*.py"):
        text = path.read_text()
        assert f"python cookbook/media/{path.name} " in text.split('"""')[1]
        assert text.endswith('\n\nif __name__ == "__main__":\n    main(*sys.argv[1:])\n')
        assert f"`{path.name}`" in listed
