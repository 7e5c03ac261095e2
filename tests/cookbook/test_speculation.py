"""cookbook/speculation.py, with the embedded model and with the trained ones."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from localllm import LocalModel

PROGRAM = Path(__file__).parents[2] / "cookbook" / "speculation.py"


@pytest.fixture
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cookbook_speculation", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("draft", "kind"), [("", "draft-mtp"), ("eagle3", "draft-eagle3"), ("dspark", "draft-dspark")])
def test_auto_finds_what_drafts_and_the_answer_is_the_same(program, trained, capsys, draft, kind):
    question = "Tell a story about Maria."
    file = str(trained.with_name(f"tiny-trained-qwen35-{draft}.gguf")) if draft else ""
    seen = program.main(str(trained), file, question)
    with LocalModel(trained) as plain:
        answer = plain.chat([{"role": "user", "content": question}], temperature=0, max_tokens=128)
    assert (seen["kind"], seen["text"]) == (kind, answer.message.content)
    assert seen["stats"].accepted_tokens > 0 and seen["stats"].tokens_per_pass > 1
    assert f"{kind}: {seen['stats'].tokens_per_pass:.2f} tokens per pass" in capsys.readouterr().out


def test_it_runs_as_it_is_called_and_is_listed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["speculation.py"])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    out = capsys.readouterr().out
    assert "[server]" in out and "ngram-map-k: " in out and " tokens per pass, " in out
    text = PROGRAM.read_text()
    assert f"python cookbook/{PROGRAM.name} " in text.split('"""')[1]
    assert text.endswith('\n\nif __name__ == "__main__":\n    main(*sys.argv[1:])\n')
    assert f"`{PROGRAM.name}`" in (PROGRAM.parent / "README.md").read_text()
