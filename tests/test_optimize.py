"""Versions of a model for this machine, from rates that are invented here."""

from __future__ import annotations

import hashlib
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localllm import LocalModel
from localllm.errors import (
    DiskSpaceError,
    IncompleteSetError,
    InvalidRequestError,
    LocalLLMError,
    ModelError,
    ModelFileError,
    NoGainError,
    UnsupportedModelError,
)
from localllm.hub.catalog import Aliases
from localllm.hub.gguf import read_header
from localllm.hub.resolve import expand
from localllm.hub.speed import Rates, TypeRate
from localllm.optimize import mixture_names, optimize, plan_optimize, register

FAST = ("Q4_0", "Q4_K")


def invented(fast=FAST, factor=3.0) -> Rates:
    """A CPU that reads all types alike, and multiplies some of them faster than the others."""
    names = ("F32", "F16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q4_K", "IQ4_NL", "Q3_K", "Q2_K")
    types = tuple(TypeRate(name, name in fast, 1e11 * (factor if name in fast else 1), 1e10) for name in names)
    return Rates(types, 1e-6, 1e-10, 1e-10, 1e-9, n_threads=2)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_fastest_of_about_the_same_quality_is_planned(smollm2):
    plan = plan_optimize(smollm2, invented(fast=("Q4_0",)))
    assert plan.type == "Q4_0" and plan.prefill_gain > 1.5 and plan.decode_gain > 1
    assert "rounded a second time" in plan.warning and "Q4_1" in plan.warning
    assert plan.header.quantization == "Q4_1" and plan.result.quantization == "Q4_0"
    # Types of far fewer bits are not chosen for their speed.
    with pytest.raises(NoGainError, match="name a type"):
        plan_optimize(smollm2, invented(fast=("Q2_K", "Q3_K")))


def test_where_nothing_is_faster_there_is_nothing_to_do(smollm2):
    with pytest.raises(NoGainError, match="no type of about .* bits per weight"):
        plan_optimize(smollm2, invented(fast=()))
    assert plan_optimize(smollm2, invented(fast=()), type="q5_1").type == "Q5_1"
    with pytest.raises(NoGainError, match="already"):
        plan_optimize(smollm2, invented(), type="Q4_1")


def test_an_unquantised_model_becomes_q8_0_without_a_warning(models, tmp_path):
    source = shutil.copy(models["qwen3"], tmp_path / "m.gguf")
    plain = optimize(plan_optimize(source, invented(), type="BF16"), tmp_path / "plain.gguf")
    assert read_header(plain).quantization == "BF16"
    plan = plan_optimize(plain, invented(fast=("Q8_0", "Q4_0")))
    assert (plan.type, plan.warning) == ("Q8_0", "")


def test_the_new_file_says_where_it_came_from_and_answers(smollm2, home):
    steps = []
    plan = plan_optimize(smollm2, invented(fast=("Q4_0",)))
    path = optimize(plan, progress=lambda done, total: steps.append((done, total)))
    assert path == home / "optimized" / "SmolLM2-135M-Instruct-Q4_0.gguf" and list(path.parent.iterdir()) == [path]
    header = read_header(path)
    assert header.tensor_types == plan.result.tensor_types and header.chat_template == plan.header.chat_template
    assert abs(header.file_bytes - plan.expected_bytes) < 4096
    assert header.metadata["localllm.parent.sha256"] == hashlib.sha256(smollm2.read_bytes()).hexdigest()
    assert header.metadata["localllm.parent.name"] == smollm2.name
    assert header.metadata["localllm.parent.types"].startswith("Q4_1")
    assert steps[-1] == (plan.expected_bytes, plan.expected_bytes) and steps == sorted(steps)
    answer = LocalModel(path).chat(
        [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        temperature=0,
        max_tokens=24,
    )
    assert "Paris" in (answer.message.content or "")


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K_M", "IQ4_NL", "BF16", "Q3_K_L", "MXFP4_MOE"])
@pytest.mark.parametrize("model", ["qwen3", "qwen3moe", "gemma3", "mamba2"])
def test_what_is_written_is_what_was_planned(models, tmp_path, model, name):
    plan = plan_optimize(models[model], invented(), type=name)
    header = read_header(optimize(plan, tmp_path / "new.gguf"))
    assert {one.name: one.type for one in header.tensors} == {one.name: one.type for one in plan.result.tensors}
    assert header.n_tensor_bytes == plan.result.n_tensor_bytes


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("IQ2_XXS", UnsupportedModelError, "importance matrix"),
        ("q2_k_s", UnsupportedModelError, "importance matrix"),
        ("Q9_9", InvalidRequestError, "^type: 'Q9_9' is none of .*Q4_0"),
        ("", InvalidRequestError, "^type: "),
        (5, InvalidRequestError, "^type: "),
    ],
)
def test_types_that_cannot_be_written_are_refused(models, name, error, words):
    with pytest.raises(error, match=words):
        plan_optimize(models["qwen3"], invented(), type=name)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gemma3-mmproj", "projector"),
        ("qwen3-lora", "LoRA"),
        ("qwen35-mtp-head", "draft"),
        ("qwen3-vocab-only", "vocabulary"),
        ("foobar", "architecture"),
    ],
)
def test_what_is_no_model_is_refused(models, model, words):
    with pytest.raises(ModelError, match=words):
        plan_optimize(models[model], invented(), type="Q4_0")


def test_hostile_files_are_errors(hostile, tmp_path):
    for fault, path in hostile.items():
        try:
            optimize(plan_optimize(path, invented(), type="Q8_0"), tmp_path / f"{fault}.gguf")
        except LocalLLMError:
            assert not list(tmp_path.iterdir()), fault
        for left in tmp_path.iterdir():
            read_header(left)
            left.unlink()


def test_a_set_of_files_becomes_one(models, tmp_path, split):
    first = split(models["qwen3"], tmp_path / "shards", 3)
    plan = plan_optimize(first, invented(), type="Q8_0")
    assert plan.default_output.name == "m-Q8_0.gguf"
    header = read_header(optimize(plan, tmp_path / "whole.gguf"))
    assert "split.count" not in header.metadata and len(header.tensors) == len(read_header(models["qwen3"]).tensors)
    files = sorted((tmp_path / "shards").iterdir())
    whole = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert header.metadata["localllm.parent.sha256"] == whole
    files[1].unlink()
    with pytest.raises(IncompleteSetError):
        plan_optimize(first, invented(), type="Q8_0")


@pytest.fixture
def split(builder):
    """A function that writes a model again as a set of files, and gives the first."""
    import gguf

    def write(path: Path, folder: Path, count: int) -> Path:
        folder.mkdir()
        reader = gguf.GGUFReader(path)
        for number in range(count):
            part = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
            writer = gguf.GGUFWriter(part, "")
            if number == 0:
                for field in reader.fields.values():
                    if not field.name.startswith("GGUF."):
                        writer.add_key_value(field.name, field.contents(), *field.types[:2])
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", count)
            writer.add_int32("split.tensors.count", len(reader.tensors))
            for tensor in reader.tensors[number::count]:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        return folder / f"m-00001-of-{count:05d}.gguf"

    return write


@pytest.mark.parametrize("make", ["file", "folder", "dangling link", "itself"])
def test_nothing_is_written_over(models, tmp_path, make):
    source = Path(shutil.copy(models["qwen3"], tmp_path / "source.gguf"))
    target = source if make == "itself" else tmp_path / "target.gguf"
    if make == "file":
        target.write_text("mine")
    elif make == "folder":
        target.mkdir()
    elif make == "dangling link":
        target.symlink_to(tmp_path / "elsewhere.gguf")
    before = source.read_bytes()
    with pytest.raises(InvalidRequestError, match="^output: .* exists already"):
        optimize(plan_optimize(source, invented(), type="Q8_0"), target)
    assert source.read_bytes() == before and len(list(tmp_path.iterdir())) == (1 if make == "itself" else 2)
    assert make != "file" or target.read_text() == "mine"


def test_an_interruption_leaves_nothing_and_does_not_wait_for_the_end(smollm2, tmp_path):
    seen = []

    def interrupt(done: int, total: int) -> None:
        seen.append(done)
        if done:
            raise KeyboardInterrupt

    plan = plan_optimize(smollm2, invented(), type="IQ4_XS")
    with pytest.raises(KeyboardInterrupt):
        optimize(plan, tmp_path / "new.gguf", interrupt)
    assert list(tmp_path.iterdir()) == [] and seen[-1] < plan.expected_bytes
    # The library can be used again at once.
    assert optimize(plan_optimize(smollm2, invented(), type="Q4_0"), tmp_path / "new.gguf").exists()


def test_a_source_that_has_changed_is_refused(models, tmp_path):
    source = Path(shutil.copy(models["qwen3"], tmp_path / "source.gguf"))
    plan = plan_optimize(source, invented(), type="Q8_0")
    shutil.copy(models["gemma3"], source)
    with pytest.raises(ModelFileError, match="changed"):
        optimize(plan, tmp_path / "new.gguf")
    assert list(tmp_path.iterdir()) == [source]


def test_too_little_room_is_said_before_anything_is_written(models, tmp_path, monkeypatch):
    plan = plan_optimize(models["qwen3"], invented(), type="Q8_0")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5))
    with pytest.raises(DiskSpaceError) as raised:
        optimize(plan, tmp_path / "new.gguf")
    assert (raised.value.needed_bytes, raised.value.free_bytes) == (plan.expected_bytes, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("free", ["plenty", "5"])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(smollm2, tmp_path, free):
    program = (
        "import signal, sys; sys.path.insert(0, sys.argv[3])\n"
        "from test_optimize import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "plan = plan_optimize(sys.argv[1], invented(), type='Q4_0')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "from localllm.errors import NativeError\n"
        "def full(done, total):\n"
        "    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5)\n"
        "try:\n    optimize(plan, sys.argv[2], full if sys.argv[4] == '5' else None)\n"
        "except (DiskSpaceError if sys.argv[4] == '5' else NativeError) as error:\n    print(error)\n"
    )
    arguments = [str(smollm2), str(tmp_path / "new.gguf"), str(Path(__file__).parent), free]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("and 5 are free" if free == "5" else str(smollm2)) in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(models, tmp_path, frozen):
    def use() -> None:
        with pytest.raises(ModelFileError, match=str(tmp_path)):
            optimize(plan_optimize(models["qwen3"], invented(), type="Q8_0"), tmp_path / "new.gguf")

    frozen(tmp_path, use)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(models, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError) as raised:
        optimize(plan_optimize(models["qwen3"], invented(), type="Q8_0"), tmp_path / "file" / "new.gguf")
    assert "file/new.gguf" in str(raised.value)


def test_mixtures_are_names_of_quantizations():
    from localllm.hub.names import parse_tag

    assert {"Q4_0", "Q4_K_M", "Q8_0", "F16"} <= set(mixture_names())
    assert all(parse_tag(name) for name in mixture_names())


assert resource  # for the program of a test above, which imports this module


# ---- its name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("My Model-Q4_0.gguf", "my-model-q4_0"),
        ("qwen3-4b.gguf", ""),  # of the catalog
        ("SmolLM2.gguf", ""),  # embedded
        ("mine.gguf", ""),  # another file's
        ("dangling.gguf", ""),  # of something that is gone, but the user's
        ("a" * 230 + ".gguf", ""),
        ("twice.gguf.gguf", ""),
        ("\u00fc.gguf", ""),
    ],
)
def test_a_name_that_stands_for_something_goes_on_to_do_so(tmp_path, monkeypatch, file, name):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    own = {"mine": "/elsewhere/mine.gguf", "dangling": "nothing-of-this-name"}
    for alias, reference in own.items():
        Aliases().set(alias, reference)
    before = {word: expand(word) for word in ("qwen3-4b", "smollm2", "mine")}
    for _ in range(2):
        assert register(tmp_path / file) == name
    assert Aliases().all() == own | ({name: str(tmp_path / file)} if name else {})
    assert {word: expand(word) for word in before} == before


def test_the_name_of_a_version_is_of_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "own"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert register(Path("../new.gguf")) == "new"
    assert Aliases().get("new") == str(tmp_path / "new.gguf")
