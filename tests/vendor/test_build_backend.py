"""vendor/build_backend.py, and what the sdist carries. Nothing is compiled here; `make dist-check` does that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

pytest.importorskip("scikit_build_core")

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "vendor" / "llama.cpp"
# What the build reads of llama.cpp, all files of it.
WHOLE_FOLDERS = ("cmake", "common", "ggml", "include", "licenses", "src", "vendor")
STATES = ("wheel", "sdist", "editable")

needs_source = pytest.mark.skipif(not LLAMA.exists(), reason="needs vendor/llama.cpp (python3 vendor/fetch.py)")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The backend, imported as a frontend does: with vendor/ first on the path and the project as working folder."""
    monkeypatch.syspath_prepend(str(ROOT / "vendor"))
    monkeypatch.chdir(ROOT)
    import build_backend

    yield build_backend
    for name in ("build_backend", "fetch"):
        del sys.modules[name]


# ---- hooks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_pip_is_required_only_to_fetch(backend: ModuleType, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = f"get_requires_for_build_{state}"
    own = getattr(backend._core, hook)(None)
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    assert getattr(backend, hook)() == [*own, "pip"]
    (tmp_path / "vendor" / "llama.cpp").mkdir(parents=True)
    assert getattr(backend, hook)({}) == own


def test_cmake_and_ninja_are_scikit_build_cores_business(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend._core, "get_requires_for_build_wheel", lambda settings: [f"cmake{settings}"])
    assert "cmake>=3" in backend.get_requires_for_build_wheel(">=3")


@pytest.mark.parametrize("state", STATES)
def test_the_source_is_ensured_before_a_build(backend: ModuleType, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(backend.fetch, "ensure", lambda root: calls.append(root))
    monkeypatch.setattr(backend._core, f"build_{state}", lambda *arguments: calls.append(arguments) or "name")
    arguments = ("out", {"a": "b"}) if state == "sdist" else ("out", {"a": "b"}, "metadata")
    assert getattr(backend, f"build_{state}")(*arguments) == "name"
    assert calls == [ROOT, arguments]


@pytest.mark.parametrize("state", STATES)
def test_a_failure_to_fetch_is_one_message(backend: ModuleType, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path) -> None:
        raise backend.fetch.FetchError("no network; do this")

    monkeypatch.setattr(backend.fetch, "ensure", fail)
    monkeypatch.setattr(backend._core, f"build_{state}", lambda *arguments: pytest.fail("built without the source"))
    with pytest.raises(SystemExit) as caught:
        getattr(backend, f"build_{state}")("out")
    assert caught.value.code == "localllm: no network; do this"


@pytest.mark.parametrize("state", ["wheel", "editable"])
def test_metadata_needs_no_source(backend: ModuleType, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = f"prepare_metadata_for_build_{state}"
    assert getattr(backend, hook) is getattr(backend._core, hook)


def test_a_frontend_finds_the_backend() -> None:
    hooks = pytest.importorskip("pyproject_hooks")
    caller = hooks.BuildBackendHookCaller(ROOT, "build_backend", backend_path=["vendor"])
    assert ("pip" in caller.get_requires_for_build_sdist()) == (not LLAMA.exists())


# ---- the sdist ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tarfile.TarInfo]:
    """The files of the sdist of this checkout, by their path in it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    # Not from the checkout, where a folder named build may lie.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("localllm-*.tar.gz")
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    with tarfile.open(path) as tar:
        return {member.name.partition("/")[2]: member for member in tar if not member.isdir()}


def files_below(folder: Path) -> set[str]:
    """The files below `folder` that are not by-products, relative to the checkout."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".git"} & set(path.parts)
    }


@needs_source
def test_the_sdist_carries_what_the_build_reads(sdist: dict[str, tarfile.TarInfo]) -> None:
    expected = {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "vendor/pin.json"}
    expected |= {f"vendor/{name}" for name in ("fetch.py", "build_backend.py", "check_dist.py")}
    expected |= {f"vendor/llama.cpp/{name}" for name in ("CMakeLists.txt", "LICENSE", "AUTHORS")}
    expected |= files_below(ROOT / "localllm" / "native" / "src")
    for name in WHOLE_FOLDERS:
        expected |= files_below(LLAMA / name)
    for name in ("tools/mtmd/models", "tools/mtmd/debug"):
        expected |= files_below(LLAMA / name)
    assert expected - set(sdist) == set()


@needs_source
def test_the_sdist_carries_the_commit(sdist: dict[str, tarfile.TarInfo]) -> None:
    stamp = "vendor/llama.cpp/.localllm-commit"
    assert (stamp in sdist) == (ROOT / stamp).is_file()


@needs_source
def test_every_file_that_cmake_names_is_carried(sdist: dict[str, tarfile.TarInfo]) -> None:
    """A word in a CMake file that is the path of a file there names something that a configuration may read."""
    scripts = [name for name in sdist if PurePosixPath(name).name == "CMakeLists.txt" or name.endswith(".cmake")]
    named = set()
    for script in scripts:
        text = re.sub(r"#.*", "", (ROOT / script).read_text("utf-8"))
        for word in re.findall(r"[\w.+-]+(?:/[\w.+-]+)*", text):
            path = os.path.normpath(ROOT / PurePosixPath(script).parent / word)
            if Path(path).is_file():
                named.add(Path(path).relative_to(ROOT).as_posix())
    assert len(named) > 200
    assert named - set(sdist) == set()


@needs_source
def test_the_licences_that_cmake_embeds_are_carried(sdist: dict[str, tarfile.TarInfo]) -> None:
    found = 0
    for script in [name for name in sdist if name.endswith("CMakeLists.txt")]:
        for licence in re.findall(r'license_add_file\("[^"]*" "([^"$]+)"\)', (ROOT / script).read_text("utf-8")):
            found += 1
            assert str(PurePosixPath(script).parent / licence) in sdist
    assert found >= 2


@needs_source
def test_the_sdist_carries_nothing_else(sdist: dict[str, tarfile.TarInfo]) -> None:
    allowed = {*WHOLE_FOLDERS, "tools", "CMakeLists.txt", "LICENSE", "AUTHORS", ".localllm-commit"}
    prefix = "vendor/llama.cpp/"
    of_llama = [name.removeprefix(prefix) for name in sdist if name.startswith(prefix)]
    assert {name.partition("/")[0] for name in of_llama} <= allowed
    tools = {name for name in of_llama if name.startswith("tools/")}
    assert all(name.startswith("tools/mtmd/") for name in tools)
    strays = (".git/", ".venv/", "build/", "dist/", "localllm/lib/", "tests/models/built/", ".ci/", "vendor/.fetch-")
    assert [name for name in sdist if name.startswith(strays)] == []
    assert [name for name in sdist if {"__pycache__", ".git"} & set(PurePosixPath(name).parts)] == []
    assert sum(member.size for member in sdist.values()) < 60e6
