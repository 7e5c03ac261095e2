"""Finding and checking the shared libraries: every failure names file, symbol or version."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.errors import NativeLibraryError
from localllm.native import library
from localllm.native.bindings import localllm as localllm_h


@pytest.fixture(scope="module")
def built() -> Path:
    return library.load().directory


def load_in_child(folder: Path) -> str:
    """The error of loading from `folder`, in a process of its own (a library is loaded once per process)."""
    program = (
        "from localllm.errors import NativeLibraryError\n"
        "from localllm.native.library import Native, find_library_dir\n"
        "try:\n    Native(find_library_dir())\nexcept NativeLibraryError as error: print(error)"
    )
    environment = {"LOCALLLM_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_libraries_elsewhere_load(built, tmp_path):
    shutil.copytree(built, tmp_path / "lib")
    assert load_in_child(tmp_path / "lib") == ""


def test_a_missing_folder_and_missing_files_are_named(built, tmp_path):
    assert "folder does not exist" in load_in_child(tmp_path / "nowhere")
    shutil.copytree(built, tmp_path / "lib")
    (tmp_path / "lib" / library.file_name("localllm-mtmd")).unlink()
    message = load_in_child(tmp_path / "lib")
    assert "no liblocalllm-mtmd" in message and str(tmp_path) in message and "LOCALLLM_LIBRARY_PATH" in message


def test_a_damaged_library_is_named(built, tmp_path):
    shutil.copytree(built, tmp_path / "lib")
    broken = tmp_path / "lib" / library.file_name("localllm-llama")
    broken.write_bytes(broken.read_bytes()[:1000])
    message = load_in_child(tmp_path / "lib")
    assert "cannot load" in message and "localllm-llama" in message


def test_a_library_of_another_interface_version_is_refused_with_both_versions(built, monkeypatch):
    version = localllm_h.LM_ABI_VERSION
    monkeypatch.setattr(localllm_h, "LM_ABI_VERSION", version + 97)
    with pytest.raises(NativeLibraryError, match=f"interface version {version}, .* needs {version + 97}"):
        library.Native(built)


def test_a_missing_function_is_named_with_its_file(built, monkeypatch):
    monkeypatch.setitem(localllm_h.FUNCTIONS, "lm_not_there", (None, ()))
    with pytest.raises(NativeLibraryError, match="liblocalllm.*lacks the function lm_not_there"):
        library.Native(built)


def test_another_layout_is_refused_with_both_numbers(built, monkeypatch):
    table = library.load().lm_layout_json()
    assert b'"n_tokens": [0, 4]' in table
    other = table.replace(b'"n_tokens": [0, 4]', b'"n_tokens": [8, 4]')
    monkeypatch.setattr(library.Native, "lm_layout_json", lambda self: other, raising=False)
    with pytest.raises(NativeLibraryError, match="n_tokens"):
        library.Native(built)


def test_loading_happens_once():
    assert library.load() is library.load()


def test_an_unknown_function_is_an_attribute_error():
    with pytest.raises(AttributeError, match="llama_nonsense"):
        library.load().llama_nonsense()


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files with readelf")
def test_our_libraries_need_one_another_by_names_nobody_else_has(built):
    """Another package's libllama.so may be in the process already: it must never be taken for ours."""
    for path in built.glob("*.so"):
        dynamic = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
        foreign = [name for name in needed if ("llama" in name or "ggml" in name or "mtmd" in name) and "localllm" not in name]
        assert foreign == [], path.name
        assert "[$ORIGIN]" in dynamic, path.name
