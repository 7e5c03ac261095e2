"""Every example in the documentation runs as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localllm.hub.gguf import read_header

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "integrations/langchain-localllm/README.md"]


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page, text) for page in PAGES for text in pattern.findall((ROOT / page).read_text())]


@pytest.fixture(scope="module", autouse=True)
def hub_of_examples(hub_server, smollm2, tmp_path_factory) -> Iterator[None]:
    """A Hub that has the models which examples name; what it gives is a small one."""
    with hub_server.HubServer() as server, pytest.MonkeyPatch.context() as patch:
        server.add("Qwen/Qwen3-4B-GGUF", {"Qwen3-4B-Q4_K_M.gguf": smollm2, "Qwen3-4B-Q8_0.gguf": smollm2})
        patch.setenv("HF_ENDPOINT", server.endpoint)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("examples-cache")))
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, builder, makers, models, smollm2) -> Path:
    """A folder with the files that examples name; the adapters are noise, in small doses."""
    folder = tmp_path_factory.mktemp("examples")
    header = read_header(smollm2)
    base = {
        "metadata": {key: ["string", value] for key, value in header.metadata.items()},
        "tensors": {tensor.name: [None, tensor.shape, None] for tensor in header.tensors},
    }
    builder.write(makers.lora(base, ("blk.*.attn_q.weight",), deviation=0.01), folder / "pirate-lora.gguf")
    builder.write(makers.control(base, deviation=0.01), folder / "calm.gguf")
    shutil.copy(models["bert-reranker"], folder / "reranker.gguf")
    return folder


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=folder)


COMMANDS = [line for _, text in blocks("sh") for line in text.splitlines() if line.startswith("localllm ")]


@pytest.mark.parametrize(("page", "program"), blocks("python"))
def test_python_examples_run(workplace, page, program):
    done = run(["-c", program], workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(workplace, command):
    done = run(["-m", "localllm", *shlex.split(command)[1:]], workplace)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_examples_that_ask_for_a_capital_are_told_it(tmp_path):
    programs = [program for page, program in blocks("python") if page == "README.md" and "capital of France?" in program]
    asking = [program for program in programs if "rerank" not in program]
    assert len(asking) == 3
    for program in asking:
        done = run(["-c", program], tmp_path)
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
