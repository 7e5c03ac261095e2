"""Files that are no models: a typed error with the file's name and the reason, in a process that goes on working."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from localllm import LocalModel
from localllm.errors import LocalLLMError, ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError


def still_works(path) -> None:
    with LocalModel(path, n_ctx=256, n_threads=1) as model:
        assert model.complete("one two", max_tokens=2, temperature=0).tokens


def test_every_hostile_file_is_a_typed_error_in_one_process(hostile, models):
    for fault, path in hostile.items():
        with pytest.raises(LocalLLMError) as caught:
            LocalModel(path, n_ctx=256).complete("one two three", max_tokens=4)
        if isinstance(caught.value, ModelError):
            assert path.name in str(caught.value), fault
    still_works(models["qwen3"])


def test_odd_files_that_load_answer_or_fail_with_a_typed_error(builder, models):
    for path in builder.hostile(groups=("odd",)).values():
        try:
            model = LocalModel(path, n_ctx=256, n_threads=1)
            model.complete("one two three", max_tokens=4)
            model.chat([{"role": "user", "content": "hello"}], max_tokens=4)
        except LocalLLMError as error:
            assert str(error) and "std::exception" not in str(error)
    still_works(models["qwen3"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma3-mmproj", "projector"),
        ("qwen3-lora", "LoRA adapter"),
        ("qwen35-mtp-head", "draft"),
        ("qwen3-vocab-only", "vocabulary"),
        ("foobar", "foobar"),
        ("bert", "embeddings"),
    ],
)
def test_files_that_are_no_language_models_say_what_they_are(models, name, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        LocalModel(models[name]).complete("one")
    assert models[name].name in str(caught.value)
    still_works(models["qwen3"])


def test_an_unknown_architecture_is_unsupported_by_name(models):
    with pytest.raises(UnsupportedModelError, match="'foobar'.*update"):
        LocalModel(models["foobar"]).complete("one")


def test_missing_files_directories_and_empty_files(tmp_path, models):
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, kind in [(tmp_path / "none.gguf", ModelNotFoundError), (tmp_path, ModelFileError), (empty, ModelFileError)]:
        if path is tmp_path:
            empty.rename(tmp_path / "empty.bin")
        with pytest.raises(kind, match=str(path)):
            LocalModel(path).complete("one")
        if path is tmp_path:
            (tmp_path / "empty.bin").rename(empty)
    still_works(models["qwen3"])


def test_a_file_without_permission(tmp_path, models):
    """Root may read everything, so the check runs as somebody else where it can."""
    locked = tmp_path / "locked.gguf"
    locked.write_bytes(models["qwen3"].read_bytes())
    locked.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o055)
    program = (
        "import os\n"
        "from localllm.hub import gguf, reference\n"
        "from localllm.errors import ModelFileError\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        f"try:\n    gguf.read_header({str(locked)!r})\n"
        f"except ModelFileError as error: print('permission' in str(error), {locked.name!r} in str(error))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr


def test_the_native_layer_refuses_drafts_on_its_own(models):
    """Opened as a model a draft-only file is a segmentation fault in llama.cpp; the engine must not rely on the layer above."""
    from localllm import Engine

    with pytest.raises(ModelError, match="draft"):
        Engine(str(models["qwen35-mtp-head"]))
    with pytest.raises(ModelError, match="projector"):
        Engine(str(models["gemma3-mmproj"]))
