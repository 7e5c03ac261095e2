"""Records of what is here: written, read, found by references, and never believed more than they deserve."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from localllm.errors import CorruptFileError, HubError
from localllm.hub.garbage import gc
from localllm.hub.layout import RepoCache
from localllm.hub.listing import RepoFile
from localllm.hub.manifest import KeptFile, Manifest
from localllm.hub.reference import parse_reference
from localllm.hub.removal import remove
from localllm.hub.store import Store

COMMIT, OTHER = "a1" * 20, "b2" * 20
SUM = "ab" * 32


def record(path: str = "m-Q4_K_M.gguf", **changes) -> Manifest:
    files = (KeptFile("model", RepoFile(path, 4, "c" * 40, SUM)),)
    made = Manifest("org/m", "main", COMMIT, "Q4_K_M", files, Path("/cache"), 1000.0, asked="org/m:Q4_K_M")
    return dataclasses.replace(made, **changes)


def put(manifest: Manifest, data: bytes = b"GGUF") -> Manifest:
    """Puts files of four bytes where a record says that they are."""
    for kept in manifest.files:
        pointer = manifest.place.pointer(manifest.commit, kept.file.path)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.write_bytes(data)
    return manifest


@pytest.fixture
def store(home) -> Store:
    return Store()


@pytest.fixture
def cache(home) -> Path:
    return home / "hub"


def test_a_record_is_read_as_it_was_written(store):
    made = record(pinned=True, endpoint="http://hub.example", template_sha256="cd" * 32)
    store.add(made)
    assert store.manifests() == [made] and Manifest.from_bytes(made.to_bytes()) == made
    assert [path.name for path in store.folder.glob("*.json")] == [f"{made.key}.json"]


@pytest.mark.parametrize(
    ("changes", "reference"),
    [
        ({}, "org/m:Q4_K_M"),
        ({"revision": "v1"}, "org/m@v1:Q4_K_M"),
        ({"tag": ""}, "org/m/m-Q4_K_M.gguf"),
        ({"endpoint": "http://hub.example:80/x"}, "http://hub.example:80/x/org/m/tree/main:Q4_K_M"),
    ],
)
def test_the_reference_of_a_record_means_it(store, cache, changes, reference):
    made = put(record(cache=cache, **changes))
    store.add(made)
    assert made.reference == reference
    assert store.find_manifest(parse_reference(made.reference)) == made


HOSTILE = {
    "no JSON": b"{",
    "a list": b"[]",
    "nothing": b"",
    "nested": b"[" * 100_000,
    "of another version": record().to_bytes().replace(b'"version": 1', b'"version": 2'),
    "without files": json.dumps({**json.loads(record().to_bytes()), "files": []}).encode(),
    "too large": b" " * (5 << 20),
}


def changed(**fields) -> bytes:
    return json.dumps({**json.loads(record().to_bytes()), **fields}).encode()


HOSTILE |= {
    f"{name}={value!r:.20}": changed(**{name: value})
    for name, value in [
        ("repo", "../x"), ("repo", 5), ("commit", "main"), ("revision", "../../x"), ("pinned", 1), ("pulled_at", "soon"),
        ("cache", None), ("tag", None), ("unknown", 1), ("cache", "/a\0b"), ("cache", "\ud800"), ("endpoint", "\ud800"),
        ("endpoint", "x y"), ("endpoint", "http://a b"), ("endpoint", "http://a\nb"), ("endpoint", "http://a/"), ("tag", "Q4\n"),
        ("asked", "\ud800"), ("template_sha256", "x"), ("pulled_at", float("nan")), ("pulled_at", -1), ("pulled_at", True),
        ("pulled_at", "5"), ("pulled_at", 1e300), ("files", {"a": 1}), ("files", None), ("files", [None]), ("files", ["ab"]),
    ]
}  # fmt: skip
HOSTILE |= {
    f"pulled_at={text[:9]}": changed(pulled_at=7).replace(b'"pulled_at": 7', f'"pulled_at": {text}'.encode())
    for text in ("1" * 400, "1e400", "9" * 5000)
}
HOSTILE |= {
    f"file {name}={value!r}": changed(
        files=[{"role": "model", "file": {"path": "m.gguf", "n_bytes": 1, "oid": "c" * 40, "sha256": None} | {name: value}}]
    )
    for name, value in [
        ("path", "../../etc/passwd"),
        ("path", "/etc/passwd"),
        ("n_bytes", -1),
        ("n_bytes", True),
        ("oid", "x/../y"),
        ("sha256", ".."),
    ]
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_record_is_told_and_harms_no_other(store, what, caplog):
    store.add(record())
    path = store.folder / "bad.json"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(CorruptFileError, match=r"bad\.json"):
        Manifest.read(path)
    with caplog.at_level(logging.WARNING, "localllm.hub"):
        assert store.manifests() == [record()]
    assert "bad.json" in caplog.text and [found for found, _ in store.damaged()] == [path]


def test_a_copy_of_a_record_is_not_another_model(store, cache):
    made = put(record(cache=cache))
    store.add(made)
    copy = store.folder / "copy.json"
    copy.write_bytes(made.to_bytes())
    assert [found.key for found in store.manifests()] == [made.key]
    assert [path for path, why in store.damaged() if f"a copy of the record {made.key}.json" in why] == [copy]
    assert gc(store).removal.models == () and made.missing() == ()
    remove(store, [str(copy)])
    assert not copy.exists() and made.missing() == () and store.damaged() == []


def test_what_is_no_file_is_no_record(store, cache):
    store.add(put(record(cache=cache)))
    os.mkfifo(store.folder / "pipe.json")
    (store.folder / "folder.json").mkdir()
    assert len(store.manifests()) == 1 and [path.name for path, _ in store.damaged()] == ["folder.json", "pipe.json"]


def test_a_record_that_cannot_be_read_is_a_typed_error(store):
    store.folder.mkdir(parents=True)
    path = store.folder / f"{record().key}.json"
    path.symlink_to(path)
    for call in (lambda: store.add(record()), lambda: store.change(record(), lambda now: now)):
        with pytest.raises(HubError, match="LOCALLLM_HOME"):
            call()
    assert store.manifests() == []


def test_files_that_are_not_there_or_of_another_size_are_not_found(store, cache):
    made = record(cache=cache)
    store.add(made)
    reference = parse_reference("org/m:Q4_K_M")
    assert store.find(reference) is None and store.find_manifest(reference, whole=False) == made
    put(made, b"GGUF-LONGER")
    assert store.find(reference) is None
    put(made)
    assert store.find(reference) == made.first("model")


def test_references_find_what_they_mean(store, cache):
    def keep(path: str, tag: str, **changes) -> Manifest:
        made = put(record(path, cache=cache, tag=tag, **changes))
        store.add(made)
        return made

    old = keep("m-Q4_K_M.gguf", "Q4_K_M", pulled_at=1.0)
    new = keep("m-Q4_K_M.gguf", "Q4_K_M", commit=OTHER, pulled_at=2.0)
    small = keep("m-Q2_K.gguf", "Q2_K", asked="org/m", pulled_at=1.5)
    keep("m-Q2_K.gguf", "Q2_K", commit="c3" * 20, pulled_at=1.2)
    pinned = keep("m-Q4_K_M.gguf", "Q4_K_M", revision="v1", commit="d4" * 20, pulled_at=9.0)
    variant = keep("m-UD-Q3_K_XL.gguf", "UD-Q3_K_XL", pulled_at=0.5)
    for text, expected in {
        "org/m:Q4_K_M": new,
        "ORG/M:q4_k_m": new,
        f"org/m@{COMMIT}:Q4_K_M": old,
        f"org/m@{COMMIT[:8]}:Q4_K_M": old,
        "org/m@v1:Q4_K_M": pinned,
        "org/m": small,  # was pulled by this very name
        "org/m/m-Q2_K.gguf": small,
        "org/m:Q3_K_XL": variant,
        "org/m:Q8_0": None,
        "org/m@v2": None,
        "org/n:Q4_K_M": None,
        "http://other.example/org/m:Q4_K_M": None,
    }.items():
        assert store.find_manifest(parse_reference(text)) == expected, text


def test_a_version_that_was_pulled_by_another_name_counts_as_the_newest(store, cache):
    old = put(record(cache=cache, asked="org/m"))
    new = put(record(cache=cache, commit=OTHER, pulled_at=2000.0, asked="org/m:Q4_K_M"))
    for one in (old, new):
        store.add(one)
    assert store.find_manifest(parse_reference("org/m")) == new


def test_a_newer_version_that_is_not_whole_hides_no_older_one(store, cache):
    old, new = put(record(cache=cache)), record(cache=cache, commit=OTHER, pulled_at=2000.0)
    for one in (old, new):
        store.add(one)
    assert store.find_manifest(parse_reference("org/m:Q4_K_M")) == old


def test_a_cache_that_was_moved_is_found(store, cache, home, monkeypatch):
    made = put(record(cache=cache))
    store.add(made)
    cache.rename(home / "moved")
    reference = parse_reference("org/m:Q4_K_M")
    assert store.find(reference) is None
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "moved"))
    assert store.find(reference) == RepoCache(home / "moved", "org/m").pointer(COMMIT, "m-Q4_K_M.gguf")


def test_pins_stay_and_changes_are_made_to_what_is_there_now(store):
    made = record()
    store.add(made)
    store.change(made, lambda now: dataclasses.replace(now, pinned=True))
    store.add(made)  # pulled again
    assert store.manifests()[0].pinned
    store.forget(made)
    assert store.manifests() == [] and list(store.folder.glob("*.json")) == []
    with pytest.raises(HubError, match="removed meanwhile"):
        store.change(made, lambda now: now)


def test_use_is_noted(store, cache):
    made = put(record(cache=cache, pulled_at=5.0))
    assert store.last_used(made) == 5.0
    store.add(made)
    used = store.last_used(made)
    (store.folder / f"{made.key}.used").unlink()
    assert used > 5.0 and store.last_used(made) == 5.0
    store.find(parse_reference("org/m:Q4_K_M"))
    assert store.last_used(made) > 5.0


def test_many_threads_change_records(store):
    made = record(asked="")
    store.add(made)

    def work() -> None:
        for _ in range(10):
            store.change(made, lambda now: dataclasses.replace(now, asked=now.asked + "x"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.manifests()[0].asked == "x" * 40


def test_no_store_is_an_empty_one(store, tmp_path):
    assert store.manifests() == [] and store.damaged() == [] and store.find(parse_reference("org/m")) is None
    (tmp_path / "file").write_text("x")
    blocked = Store(tmp_path / "file" / "models")
    assert blocked.manifests() == []
    with pytest.raises(HubError, match="LOCALLLM_HOME"):
        blocked.add(record())


# ---- what other programs brought


@pytest.fixture
def foreign(hub, home, gguf_files, tmp_path):
    """A repository with a model, a set and an adapter, and a function that lets the Hub's client fetch from it."""
    from huggingface_hub import hf_hub_download

    model = gguf_files.model(tmp_path / "m-Q8_0.gguf")[0]
    shards = gguf_files.model(tmp_path / "s-Q4_0.gguf", "Q4_0", n_files=2)
    adapter = gguf_files.adapter(tmp_path / "m-lora-Q6_K.gguf")
    hub.add("org/m", {path.name: path for path in (model, *shards, adapter)} | {"README.md": b"x"})
    return lambda name, **options: hf_hub_download("org/m", name, endpoint=hub.endpoint, cache_dir=home / "hub", **options)


def test_models_of_other_programs_are_found_if_they_are_whole(hub, store, foreign):
    def found(text: str) -> Path | None:
        return store.find(parse_reference(text))

    foreign("m-lora-Q6_K.gguf")
    assert found("org/m") is None, "an adapter is no model"
    path = foreign("m-Q8_0.gguf")
    assert str(found("org/m:Q8_0")) == path == str(found("ORG/m"))
    foreign("s-Q4_0-00001-of-00002.gguf")
    assert found("org/m:Q4_0") is None, "half of a set"
    foreign("s-Q4_0-00002-of-00002.gguf")
    assert found("org/m:Q4_0").name == "s-Q4_0-00001-of-00002.gguf"
    hub.add("org/m", {"README.md": b"y"})
    foreign("README.md")
    assert str(found("org/m:Q8_0")) == path, "although main has moved on"


def test_a_foreign_file_that_is_cut_off_is_passed_over(store, foreign, caplog):
    path = Path(foreign("m-Q8_0.gguf"))
    data = path.read_bytes()
    path.resolve().write_bytes(data[: len(data) // 2])
    assert store.find(parse_reference("org/m:Q8_0")) is None and "passed over" in caplog.text


def test_without_symlinks(store, foreign, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    path = foreign("m-Q8_0.gguf")
    assert str(store.find(parse_reference("org/m:Q8_0"))) == path
