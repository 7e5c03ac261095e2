"""Numbers and names that Python itself refuses: an error of one line, or an answer, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "localllm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("gc", "--dry-run", "--max-size", "9" * 400), {}),
        (("gc", "--dry-run", "--older-than", "9" * 400 + "d"), {}),
        (("run", "smollm2", "x", "--n-gpu-layers", "²"), {}),
        (("run", "smollm2", "x", "--n-gpu-layers", "9" * 5000), {}),
        (("run", "smollm2", "x"), {"LOCALLLM_MEMORY_BUDGET": "9" * 5000}),
    ],
    ids=["size", "time", "superscript", "layers", "budget"],
)
def test_numbers_that_are_none_are_wrong_arguments(arguments, environment, tmp_path):
    done = run(*arguments, LOCALLLM_HOME=str(tmp_path), HF_HOME=str(tmp_path / "hub"), **environment)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr and done.stderr


def test_a_name_that_cannot_be_encoded_is_shown_all_the_same(tmp_path):
    (tmp_path / "aliases.json").write_text('{"version": 1, "aliases": {"a": "\\ud800/x"}}')
    done = run("alias", "--json", LOCALLLM_HOME=str(tmp_path))
    assert done.returncode == 0 and json.loads(done.stdout) == {"a": "\ud800/x"}
    assert run("alias", LOCALLLM_HOME=str(tmp_path)).stdout == "a\t\\ud800/x\n"


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "LOCALLLM_HOME", "OLLAMA_MODELS"])
def test_a_home_that_nobody_has_is_a_wrong_argument(name, tmp_path):
    done = run("list", **{"LOCALLLM_HOME": str(tmp_path), "HF_HOME": str(tmp_path), name: "~nobody9/x"})
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(
        f"localllm: {name}: nobody knows which folder the '~'"
    )


def test_a_user_without_a_home_of_any_kind_can_use_what_is_here(tmp_path):
    environment = {"HOME": "/dev/null", "LOCALLLM_HOME": "", "HF_HOME": "", "XDG_CACHE_HOME": "", "XDG_DATA_HOME": ""}
    assert "smollm2" in run("list", **environment).stdout
    done = run("pull", "org/model", HF_ENDPOINT="http://127.0.0.1:9", **environment)
    assert done.returncode == 15  # no word of a token that could not be read
