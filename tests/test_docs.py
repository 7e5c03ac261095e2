"""Every example in the documentation runs as it stands."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from localllm import machine
from localllm.engine.threads import default_threads
from localllm.hub.gguf import read_header
from localllm.hub.gguf_parse import TENSOR_TYPES
from localllm.hub.speed import Rates, TypeRate

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "integrations/langchain-localllm/README.md",
    "integrations/llama-index-llms-localllm/README.md",
    "integrations/llama-index-embeddings-localllm/README.md",
    "integrations/llama-index-postprocessor-localllm-rerank/README.md",
]


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


@pytest.fixture(scope="module", autouse=True)
def rates_are_known(tmp_path_factory) -> Iterator[None]:
    """The machine's rates are where they were kept, so that commands do not measure them, which takes half a minute of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALLLM_HOME", str(tmp_path_factory.mktemp("examples-own")))
        n_threads = default_threads()
        key = machine._key(n_threads)
        types = tuple(
            TypeRate(name, name == "Q4_0", 3e11 if name == "Q4_0" else 1e11, 1e10) for name, _, _ in TENSOR_TYPES.values()
        )
        machine._write(machine._path(key), key, Rates(types, 1e-6, 1e-10, 1e-10, 1e-9, n_threads=n_threads))
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, builder, makers, models, smollm2, trained) -> Path:
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
    shutil.copy(models["bert"], folder / "embedding.gguf")
    shutil.copy(trained, folder / "target.gguf")
    shutil.copy(models["qwen3vl"], folder / "seeing.gguf")
    shutil.copy(models["qwen3vl-mmproj"], folder / "mmproj-seeing.gguf")
    Image.new("RGB", (96, 64), "steelblue").save(folder / "picture.png")
    shutil.copy(trained.with_name("tiny-trained-qwen35-eagle3.gguf"), folder / "draft.gguf")
    return folder


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=folder)


COMMANDS = [line for _, text in blocks("sh") for line in text.splitlines() if line.startswith("localllm ")]


@functools.cache
def ran(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program's run, which several tests look at."""
    return run(["-c", program], folder)


@pytest.mark.parametrize(("page", "program"), blocks("python"))
def test_python_examples_run(workplace, page, program):
    done = ran(program, workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(workplace, command):
    done = run(["-m", "localllm", *shlex.split(command)[1:]], workplace)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_examples_that_ask_for_a_capital_are_told_it(workplace):
    programs = [program for page, program in blocks("python") if page == "README.md" and "capital of France?" in program]
    asking = [program for program in programs if "rerank" not in program]
    assert len(asking) == 3
    for program in asking:
        done = ran(program, workplace)
        assert done.stdout.startswith("The capital of France is Paris.")


def test_the_stream_of_the_readme_is_stopped_early(workplace):
    (program,) = [program for _, program in blocks("python") if "stream.close()" in program]
    assert ran(program, workplace).stdout.count(".") <= 3


def test_there_are_examples():
    assert len(blocks("python")) >= 6 and len(COMMANDS) >= 3


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named), named
