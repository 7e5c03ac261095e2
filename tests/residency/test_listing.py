"""Files of other processes say what they hold, and are never believed more than they deserve."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import threading
from pathlib import Path

import pytest

from localllm import LocalModel
from localllm.cli.ps import _lines
from localllm.residency.listing import LoadedModel, _identity, others
from localllm.residency.registry import registry

GOOD = LoadedModel("org/m:Q4_0", "/m.gguf", "engine", 5, 7, None, 1000.0, 2.5, False, 1)
NONSENSE = [None, "", "x", -1, 1e308, math.inf, math.nan, 10**400, 2**63, [], {}, True, "a\0b", "\ud800"]


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def write(folder: Path, *models: object) -> None:
    pid = os.getppid()
    (folder / f"{pid}.json").write_text(json.dumps({"version": 1, **_identity(pid), "models": models}))


def test_what_a_living_process_holds(folder):
    write(folder, dataclasses.asdict(GOOD))
    assert others() == [dataclasses.replace(GOOD, pid=os.getppid())]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(LoadedModel)])
def test_nonsense_can_be_shown_or_is_left_out(folder, name):
    entries = [{**dataclasses.asdict(GOOD), name: value} for value in NONSENSE]
    write(folder, dataclasses.asdict(GOOD), *entries, None, [], {})
    found = others()
    assert found[0].reference == GOOD.reference and len(_lines(found)) == len(found) + 1
    for model in found:
        os.path.realpath(model.path)
        json.dumps(dataclasses.asdict(model), allow_nan=False)


@pytest.mark.parametrize("name", ["²3", "9" * 30, "-1", "1e3", ""])
def test_names_that_are_no_processes_are_passed_over(folder, name):
    (folder / f"{name}.json").write_text(json.dumps({"version": 1, "models": []}))
    (folder / "77.json").mkdir()
    os.mkfifo(folder / "78.json")
    assert others() == [] and len(list(folder.iterdir())) == 3


def test_weights_that_outlive_their_context_are_listed_until_they_go(models, monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    published, publish = threading.Event(), registry.publish
    monkeypatch.setattr(registry, "publish", lambda: (publish(), published.set()))

    def listed() -> list[str]:
        files = (tmp_path / "run").glob(f"{os.getpid()}-*.json")
        return [entry["purpose"] for path in files for entry in json.loads(path.read_text())["models"]]

    def wait_for(purposes: list[str]) -> None:
        while listed() != purposes:
            assert published.wait(30), listed()
            published.clear()

    handle = LocalModel(str(models["qwen3"]), n_ctx=128, n_threads=1)
    weights = handle.engine.model
    wait_for(["weights", "engine"])
    handle.close()
    gc.collect()
    wait_for(["weights"])
    del weights
    gc.collect()
    wait_for([])
