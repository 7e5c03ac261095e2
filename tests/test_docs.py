"""Every example in the documentation runs as it stands, but for the path of a model that does not come with localllm."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "integrations/langchain-localllm/README.md"]


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page, text) for page in PAGES for text in pattern.findall((ROOT / page).read_text())]


COMMANDS = [line for _, text in blocks("sh") for line in text.splitlines() if line.startswith("localllm ")]


def with_models(text: str, models: dict[str, Path]) -> str:
    return text.replace("path/to/reranker.gguf", str(models["bert-reranker"]))


@pytest.mark.parametrize(("page", "program"), blocks("python"))
def test_python_examples_run(page, program, models):
    program = with_models(program, models)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, models):
    arguments = shlex.split(with_models(command, models))[1:]
    done = subprocess.run([sys.executable, "-m", "localllm", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_first_and_the_last_example_say_what_they_are_meant_to():
    programs = [program for page, program in blocks("python") if page == "README.md"]
    for program in (programs[0], programs[-1]):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert done.stdout.startswith("The capital of France is Paris.")


def test_the_stream_of_the_readme_is_stopped_early():
    (program,) = [program for _, program in blocks("python") if "stream.close()" in program]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.count(".") <= 3


def test_there_are_examples():
    assert len(blocks("python")) >= 6 and len(COMMANDS) >= 3


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named), named
