"""The catalog, and the user's names: atomic, locked, never lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from localllm.errors import HubError, ReferenceFormatError
from localllm.hub.catalog import Aliases, catalog, home
from localllm.hub.names import parse_name, parse_tag
from localllm.hub.reference import EMBEDDED, parse_reference


def test_every_entry_is_sound():
    assert len(catalog()) >= 25 and set(EMBEDDED) <= set(catalog())
    for name, entry in catalog().items():
        assert name == name.lower() and parse_reference(name, lambda text: False).name == name
        assert entry.licence and parse_tag(entry.quant)
        if entry.package:
            assert name in EMBEDDED and not entry.repo
        else:
            assert str(parse_reference(f"{entry.repo}:{entry.quant}", lambda text: False)) == f"{entry.repo}:{entry.quant}"
        if entry.projector:
            assert parse_name(entry.projector).role == "mmproj"


def test_names_are_kept_and_are_blind_to_case(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "new" / "folder"))
    assert home() == tmp_path / "new" / "folder"
    aliases = Aliases()
    assert aliases.all() == {} and aliases.get("x") is None and not aliases.remove("x")
    aliases.set("Mine", "org/repo:Q4_K_M")
    aliases.set("other", "./x.gguf")
    assert Aliases().get("MINE") == "org/repo:Q4_K_M"
    aliases.set("mine", "org/other")
    assert aliases.all() == {"mine": "org/other", "other": "./x.gguf"}
    assert aliases.remove("MINE") and aliases.all() == {"other": "./x.gguf"}
    assert [path.name for path in home().glob(".writing*")] == []


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "-x", "x" * 97, "model.gguf", "../x"])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(ReferenceFormatError, match="no possible name"):
        Aliases(tmp_path).set(name, "org/repo")
    for reference in ("", "  ", "SELF"):
        with pytest.raises(ReferenceFormatError, match="stand for"):
            Aliases(tmp_path).set("self", reference)
    assert not Aliases(tmp_path).path.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 2, "aliases": {}}', b'{"version": 1, "aliases": {"a": 1}}', b"\xff\xfe",
     b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_told_of_and_not_touched(tmp_path, content):
    aliases = Aliases(tmp_path)
    aliases.path.write_bytes(content)
    for call in (aliases.all, lambda: aliases.set("a", "org/b"), lambda: aliases.get("a")):
        with pytest.raises(HubError, match="aliases.json"):
            call()
    assert aliases.path.read_bytes() == content


def test_entries_that_are_no_names_are_passed_over(tmp_path):
    Aliases(tmp_path).path.write_text(json.dumps({"version": 1, "aliases": {"../x": "a/b", "Ok": "c/d"}}))
    assert Aliases(tmp_path).all() == {"ok": "c/d"}


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from localllm.hub.catalog import Aliases\n"
        "for n in range(20): Aliases(Path(sys.argv[1])).set(f'{sys.argv[2]}-{n}', 'org/repo')"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"p{n}"]) for n in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(Aliases(tmp_path).all()) == 60
