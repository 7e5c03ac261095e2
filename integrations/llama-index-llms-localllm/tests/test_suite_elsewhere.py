"""The conformance suite says of another class what that one can do, and what it cannot."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from localllm import LocalModel

HERE = Path(__file__).parent
CHOSEN = [
    "test_deltas_add_up[stream]",
    "test_usage[async]",
    "test_a_named_tool_is_called[now-sync]",
    "test_objects_grow_and_are_never_blank[astream]",
]


@pytest.fixture(scope="module")
def verdicts(tiny: Path) -> dict[str, set[str]]:
    """Of some tests, what came of them with LlamaIndex's class for Ollama."""
    spec = importlib.util.spec_from_file_location("localllm_ollama_server", HERE / "ollama_server.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = [f"{HERE / 'test_conformance.py'}::{name}" for name in CHOSEN]
    arguments = ["-rA", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore", *chosen]
    with LocalModel(tiny, n_threads=1, parallel=2) as model, module.OllamaServer(model, max_tokens=100) as server:
        options = {"model": "m", "base_url": server.url, "context_window": 4096, "temperature": 0}
        environment = {"CONFORMANCE_LLM": "llama_index.llms.ollama:Ollama", "CONFORMANCE_OPTIONS": json.dumps(options)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            env={**os.environ, **environment},
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=120,
        )
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {kind: {name for verdict, name in found if verdict == kind} for kind in ("PASSED", "FAILED", "ERROR")}


def test_the_suite_tells_what_another_class_can_do(verdicts):
    assert not verdicts["ERROR"]
    assert verdicts["PASSED"] == {"test_deltas_add_up", "test_usage"}
    # It knows no choice among tools; and it yields objects in which nothing is written yet.
    assert verdicts["FAILED"] == {"test_a_named_tool_is_called", "test_objects_grow_and_are_never_blank"}
