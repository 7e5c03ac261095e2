"""Which projector is whose, in folders where many files lie side by side."""

from __future__ import annotations

import shutil

import pytest

from localllm.hub.beside import modalities, projector_for
from localllm.hub.gguf import read_model


@pytest.fixture
def lay(models, tmp_path):
    """`lay("a.gguf", "mmproj-a.gguf", ...)`: a model of that name, and other models and projectors."""

    def lay(model, *others):
        shutil.copy(models["qwen3vl"], tmp_path / model)
        for other in others:
            shutil.copy(models["qwen3vl-mmproj" if "mmproj" in other else "qwen3"], tmp_path / other)
        return tmp_path / model

    return lay


CASES = [
    (("Eye-4B-Q4_K_M.gguf",), None),
    (("Eye-4B-Q4_K_M.gguf", "mmproj-Eye-4B-F16.gguf"), "mmproj-Eye-4B-F16.gguf"),
    (("Eye-4B-Q4_K_M.gguf", "Eye-4B-mmproj-f16.gguf"), "Eye-4B-mmproj-f16.gguf"),
    (("eye.gguf", "mmproj-Eye-f16.gguf"), "mmproj-Eye-f16.gguf"),
    # A name that says nothing belongs to the only model of the folder, in whatever quantizations.
    (("Eye-4B-Q4_K_M.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
    (("Eye-4B-Q4_K_M.gguf", "Eye-4B-Q8_0.gguf", "mmproj-model-f16.gguf"), "mmproj-model-f16.gguf"),
    (("Eye-4B-Q4_K_M.gguf", "Other-1B-Q8_0.gguf", "mmproj-F16.gguf"), None),
    # Another model's is never taken, though it has the right width.
    (("Eye-4B-Q4_K_M.gguf", "mmproj-Ear-4B-F16.gguf"), None),
    (("Eye-4B-Q4_K_M.gguf", "mmproj-Eye-4B-Pro-F16.gguf"), None),
    (("Eye-4B-Pro-Q4_K_M.gguf", "mmproj-Eye-4B-F16.gguf", "mmproj-Eye-4B-Pro-F16.gguf"), "mmproj-Eye-4B-Pro-F16.gguf"),
    # Of several the most precise that a CPU is quick with.
    (("eye.gguf", "mmproj-eye-Q8_0.gguf", "mmproj-eye-BF16.gguf", "mmproj-eye-F16.gguf"), "mmproj-eye-F16.gguf"),
    (("eye.gguf", "mmproj-eye-F32.gguf", "mmproj-eye-BF16.gguf"), "mmproj-eye-BF16.gguf"),
]


@pytest.mark.parametrize(("files", "expected"), CASES)
def test_the_projector_beside_a_model(lay, files, expected):
    path = lay(*files)
    found = projector_for(path, read_model(path))
    assert (found.name if found else None) == expected


def test_a_damaged_file_is_no_projector(lay):
    path = lay("eye.gguf")
    (path.parent / "mmproj-eye-F16.gguf").write_bytes(b"GGUF damaged")
    assert projector_for(path, read_model(path)) is None
    shutil.copy(path, path.with_name("mmproj-eye-BF16.gguf"))  # a model that is only called so
    assert projector_for(path, read_model(path)) is None


def test_what_a_model_takes(lay, models):
    path = lay("eye.gguf", "mmproj-eye-F16.gguf")
    header = read_model(path)
    assert modalities(path, header, "auto") == {"image"}
    assert modalities(path, header, None) == frozenset() == modalities(path, header, "/nowhere.gguf")
    assert modalities(path, header, str(models["gemma4-mmproj"])) == {"image", "audio"}
    assert modalities(path, header, __file__) == frozenset()
