"""Ollama's store, built by the test as Ollama lays it out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import CorruptFileError, ModelNotFoundError
from localllm.hub.ollama import find, names, store_folder
from localllm.hub.resolve import resolve

MEDIA = "application/vnd.ollama.image."


class StoreBuilder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True)

    def layer(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": kind if "/" in kind else MEDIA + kind, "digest": f"sha256:{digest}", "size": len(content)}

    def add(self, name: str, *layers: dict[str, Any] | Any) -> Path:
        path = self.folder / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schemaVersion": 2, "config": self.layer("config", b"{}"), "layers": list(layers)}))
        return path


@pytest.fixture
def store(tmp_path, monkeypatch) -> StoreBuilder:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return StoreBuilder(tmp_path / "ollama")


LIBRARY = "registry.ollama.ai/library"


def test_a_model_with_everything(store, models):
    gguf = models["qwen3"].read_bytes()
    params = {"temperature": 0.6, "stop": ["<|im_end|>"], "num_ctx": 4096, "num_gpu": 99, "top_k": "all", "seed": True}
    store.add(
        f"{LIBRARY}/tiny/1b", store.layer("model", gguf), store.layer("projector", b"P"), store.layer("adapter", b"A"),
        store.layer("template", b"{{ .Prompt }}"), store.layer("system", "Sei höflich.".encode()),
        store.layer("params", json.dumps(params).encode()), store.layer("license", b"MIT"),
    )  # fmt: skip
    found = find("tiny", "1b")
    assert found.model.read_bytes() == gguf and found.model.parent == store.folder / "blobs"
    assert [path.read_bytes() for path in (*found.projectors, *found.adapters)] == [b"P", b"A"]
    assert (found.template, found.system) == ("{{ .Prompt }}", "Sei höflich.")
    assert found.parameters == {"temperature": 0.6, "stop": ("<|im_end|>",), "num_ctx": 4096}
    assert found.ignored == ("parameter num_gpu", "parameter top_k", "parameter seed", MEDIA + "license")
    assert (found.name, found.n_bytes) == ("tiny:1b", len(gguf) + 2)
    assert resolve("ollama:TINY:1B") == found.model


def test_names_of_all_kinds(store):
    for name in (f"{LIBRARY}/tiny/latest", "registry.ollama.ai/me/mine/v1", "hf.co/org/Repo-GGUF/Q4_K_M"):
        store.add(name, store.layer("model", name.encode()))
    assert names() == ("hf.co/org/Repo-GGUF:Q4_K_M", "me/mine:v1", "tiny:latest")
    assert find("tiny").name == "tiny:latest"
    assert find("me/mine", "v1").model.read_bytes() == b"registry.ollama.ai/me/mine/v1"
    assert find("hf.co/org/repo-gguf", "q4_k_m").model.read_bytes().startswith(b"hf.co")
    with pytest.raises(ModelNotFoundError, match=r"did you mean 'tiny:latest'\?.*me/mine:v1") as caught:
        find("tiny", "7b")
    assert caught.value.filename == "ollama:tiny:7b"


@pytest.mark.parametrize("name", ["../tiny", "a/../b", "a/b/c/d", "", ".", "..", "a//b", "/etc", "a\0b", "a b"])
def test_a_name_leads_nowhere_else(store, name):
    store.add(f"{LIBRARY}/tiny/latest", store.layer("model", b"x"))
    with pytest.raises(ModelNotFoundError):
        find(name)
    with pytest.raises(ModelNotFoundError):
        find("tiny", "../latest")


def test_a_damaged_store_is_told_of(store):
    good = store.layer("model", b"content")
    path = store.add(f"{LIBRARY}/tiny/latest", good)
    blob = find("tiny").model

    def message(*layers: Any) -> str:
        store.add(f"{LIBRARY}/tiny/latest", *layers)
        with pytest.raises(CorruptFileError) as caught:
            find("tiny")
        assert caught.value.filename == str(path)
        return str(caught.value)

    assert "instead of 99" in message({**good, "size": 99})
    assert "is not there" in message({**good, "digest": "sha256:" + "0" * 64})
    for digest in ("sha256:../../etc/passwd", "sha256:" + "G" * 64, "md5:abc", None, 7):
        assert "a layer of it" in message({**good, "digest": digest})
    assert "a layer of it" in message("model")
    assert "a layer of it" in message({**good, "size": True})
    assert "no JSON" in message(good, store.layer("params", b"{"))
    assert "no table" in message(good, store.layer("params", b"[1]"))
    assert "longer than" in message(good, store.layer("template", bytes((1 << 22) + 1)))
    assert "no layers" in message(*[good] * 300)
    for content in (b"", b"{", b"[]", b"[" * 100_000, b'{"layers": 1}', b"x" * ((1 << 20) + 1)):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match="pull the model again"):
            find("tiny")
    assert blob.read_bytes() == b"content"


def test_models_that_llama_cpp_cannot_load_as_one(store):
    store.add(f"{LIBRARY}/empty/latest", store.layer("license", b"MIT"))
    store.add(f"{LIBRARY}/two/latest", store.layer("model", b"1"), store.layer("model", b"2"))
    for name, reason in (("empty", "no GGUF file"), ("two", "2 GGUF files")):
        with pytest.raises(ModelNotFoundError, match=reason):
            find(name)


def test_no_store_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "nothing"))
    assert names() == ()
    with pytest.raises(ModelNotFoundError, match="OLLAMA_MODELS"):
        resolve("ollama:tiny")
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ollama" / "models").mkdir(parents=True)
    assert store_folder() == tmp_path / ".ollama" / "models"
