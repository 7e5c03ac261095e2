"""Nothing that others have written gives orders to a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from localllm.cli.hub import header
from localllm.cli.info import describe, print_facts
from localllm.cli.plans import print_plan
from localllm.cli.printable import only_printable, print_json, printable, say
from localllm.cli.progress import transfer_bars
from localllm.cli.ps import _lines
from localllm.cli.tables import show_table
from localllm.hub.planner import plan
from localllm.hub.progress import Progress
from localllm.residency.listing import LoadedModel

EVIL = "a\x1b[2J\x1b]0;x\x07\r\x9b31m\u202eb\ud800"
_OWN = re.compile(r"\x1b\[[0-9;]*m")  # the styles of rich


def orders(text: str) -> set[str]:
    """What a terminal would obey, but for styles and line feeds."""
    return {one for one in _OWN.sub("", text) if not one.isprintable() and one != "\n"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    with contextlib.redirect_stdout(Terminal()) as shown, contextlib.redirect_stderr(shown):
        yield shown


@pytest.fixture
def evil(gguf_files, tmp_path: Path) -> Path:
    path = gguf_files.model(tmp_path / "evil-Q8_0.gguf", n_layers=1)[0]
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "x-Q8_0.gguf", "llama")
    writer.add_name(EVIL[:-1])
    writer.add_string(f"general.{EVIL[:-1]}", EVIL[:-1])
    writer.add_string("general.license", EVIL[:-1])
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            writer.add_uint32(key, int(field.contents()))
    gguf_files.add(writer, "token_embd.weight", (64, 256), "Q8_0")
    gguf_files.write(writer)
    return tmp_path / "x-Q8_0.gguf"


def test_texts_keep_what_is_harmless():
    assert printable("Müller 漢字 🙂 [red]") == "Müller 漢字 🙂 [red]"
    assert printable(EVIL) == r"a\x1b[2J\x1b]0;x\x07\r\x9b31m\u202eb\ud800"
    assert printable("a\nb\tc") == r"a\nb\tc" and printable("a\nb\tc\r", lines=True) == "a\nb\tc\\r"


def test_facts_of_a_file(evil):
    with terminal() as shown:
        print_facts(describe(*header(str(evil)), with_metadata=True))
    assert "\\x1b[2J" in shown.getvalue() and not orders(shown.getvalue())


def test_a_plan(evil, hub, store, client):
    hub.add("org/model", {"x\u202e-Q8_0.gguf": evil, "y-Q4_0.gguf": b"x"})
    made = plan("org/model:Q8_0", client=client, store=store)
    with terminal() as shown:
        print_plan(made)
    assert "\\u202e" in shown.getvalue() and "a\\x1b[2J" in shown.getvalue() and not orders(shown.getvalue())


def test_tables_lines_and_remarks():
    model = LoadedModel(EVIL, "p", "engine", 1, 1, None, 0.0, None, False, 1)
    with terminal() as shown:
        show_table(["A"], [[EVIL]], [[EVIL]])
        say(EVIL)
        print("\n".join(_lines([model])))
    assert shown.getvalue().replace("\n", "").count("\\x1b[2J") == 3 and not orders(shown.getvalue())


def test_bars(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as shown, transfer_bars() as told:
        told(Progress("downloading", EVIL, 1, 2, 0.0, None))
    assert "\\x1b[2J" in shown.getvalue() and not {"\x07", "\x9b", "\u202e"} & set(shown.getvalue())


def test_json_is_what_it_was(capsys):
    print_json({EVIL: [EVIL, 1]})
    text = capsys.readouterr().out
    assert json.loads(text) == {EVIL: [EVIL, 1]} and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_lines_for_programs_hold_no_controls(capsys):
    show_table(["A"], [[EVIL, "b"]], [["a\t\r\n\x1b\x9bü", "b"]])
    assert capsys.readouterr().out == "a     ü\tb\n"


def test_log_messages():
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(only_printable)
    handler.handle(logging.makeLogRecord({"msg": "%s\nb", "args": (EVIL,)}))
    assert out.getvalue().startswith(r"a\x1b[2J") and not orders(out.getvalue())
