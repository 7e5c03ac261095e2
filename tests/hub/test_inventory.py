"""What `list` and `du` tell: every model of this machine with its state, and what it takes on the disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from localllm.errors import InvalidRequestError, ModelNotFoundError
from localllm.hub.catalog import Aliases
from localllm.hub.checking import verify
from localllm.hub.entry import Entry
from localllm.hub.garbage import gc
from localllm.hub.inventory import entries_of, entry_of, models_here, pin
from localllm.hub.layout import RepoCache
from localllm.hub.removal import remove
from localllm.hub.usage import usage


def shown(store) -> list[tuple[str, str]]:
    """(reference, state) of all entries but the embedded ones."""
    return [(one.reference, one.state) for one in models_here(store) if one.state != "embedded"]


def one(store, reference) -> Entry:
    return next(one for one in models_here(store) if one.reference == reference)


@pytest.fixture
def repo(hub, gguf) -> dict[str, bytes]:
    files = {
        "model-Q4_0.gguf": gguf("four"),
        "model-Q8_0.gguf": gguf("eight", n_values=8192),
        "mmproj-model-F16.gguf": gguf("eyes", "projector"),
    }
    hub.add("org/model", files)
    return files


def test_a_pulled_model_is_complete_with_all_that_is_known_of_it(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    Aliases().set("mine", "org/model:Q4_0")
    found = one(store, "org/model:Q4_0")
    n_bytes = len(repo["model-Q4_0.gguf"]) + len(repo["mmproj-model-F16.gguf"])
    assert found == Entry(
        "org/model:Q4_0", "complete", manifest.first("model"), n_bytes, n_bytes, "Q4_0", "org/model", "main", manifest.commit,
        manifest.pulled_at, store.last_used(manifest), False, ("mine",), ("mmproj-model-F16.gguf",), manifest=manifest,
    )  # fmt: skip
    told = json.loads(json.dumps(found.to_json()))
    assert (told["path"], told["aliases"], "manifest" in told) == (str(manifest.first("model")), ["mine"], False)
    assert shown(store) == [("org/model:Q4_0", "complete")]


def test_what_two_models_share_is_counted_once_on_the_disk(repo, pulled, store):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    found = usage(store)
    assert found.disk_bytes == found.repositories[0].disk_bytes == sum(map(len, repo.values()))
    assert (found.shared_bytes, found.partial_bytes, found.unreferenced_bytes, found.corrupt_bytes) == (0, 0, 0, 0)
    assert sum(entry.disk_bytes for entry in models_here(store) if entry.repo) == found.disk_bytes + len(
        repo["mmproj-model-F16.gguf"]
    )


@pytest.mark.parametrize("links", ["symlinks", "no symlinks"])
def test_an_older_commit_is_superseded_and_shares_its_content(hub, repo, pulled, store, monkeypatch, links):
    if links == "no symlinks":
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    assert shown(store) == [("org/model:Q4_0", "complete"), (f"org/model@{first.commit[:12]}:Q4_0", "superseded")]
    n_bytes = len(repo["model-Q4_0.gguf"]) + len(repo["mmproj-model-F16.gguf"])
    assert (usage(store).disk_bytes, usage(store).shared_bytes) == (n_bytes, n_bytes)


def test_a_newer_commit_that_is_not_whole_supersedes_nothing(hub, repo, pulled, store, gguf):
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "model-Q4_0.gguf": gguf("newer")})
    second = pulled("org/model:Q4_0")
    second.first("model").unlink()
    assert shown(store) == [("org/model:Q4_0", "broken"), (f"org/model@{first.commit[:12]}:Q4_0", "complete")]
    assert entry_of(store, "org/model:Q4_0").commit == first.commit
    assert second.commit != first.commit


def test_a_model_of_a_pinned_commit_is_never_superseded(hub, repo, pulled, store):
    first = pulled("org/model:Q4_0")
    pulled(f"org/model@{first.commit}:Q4_0")
    assert [state for _, state in shown(store)] == ["complete", "complete"]
    assert len({reference for reference, _ in shown(store)}) == 2


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_file_that_is_gone_or_short_makes_it_broken(repo, pulled, store, damage):
    path = pulled("org/model:Q4_0").first("projector")
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, 10)
    found = one(store, "org/model:Q4_0")
    assert (found.state, found.problem) == (
        "broken",
        "1 of its 2 files are missing or of a wrong size: mmproj-model-F16.gguf; localllm repair org/model:Q4_0 mends it.",
    )


def test_a_file_that_begins_as_something_else_makes_it_broken(repo, pulled, store):
    path = pulled("org/model:Q4_0").first("model")
    path.resolve().write_bytes(b"garbage".ljust(path.stat().st_size, b"x"))
    found = one(store, "org/model:Q4_0")
    problem = "model-Q4_0.gguf is damaged: it does not begin as a GGUF file; localllm repair org/model:Q4_0 mends it."
    assert (found.state, found.problem) == ("broken", problem)


def test_a_damaged_record_is_told_and_its_files_are_those_of_others(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    path = store.folder / f"{manifest.key}.json"
    path.write_text("{")
    assert shown(store) == [(str(path), "broken"), ("org/model:Q4_0", "foreign")]
    assert "no record of a model" in one(store, str(path)).problem


def test_what_another_program_brought(hub, repo, client, store, home):
    """Without a record: the Hub's client does the same with its files."""
    from huggingface_hub import hf_hub_download

    path = hf_hub_download("org/model", "model-Q8_0.gguf", cache_dir=home / "hub", endpoint=hub.endpoint)
    hf_hub_download("org/model", "mmproj-model-F16.gguf", cache_dir=home / "hub", endpoint=hub.endpoint)
    found = one(store, "org/model:Q8_0")
    assert (found.state, str(found.path), found.quantization) == ("foreign", path, "Q8_0")
    assert (found.companions, found.n_bytes) == (("mmproj-model-F16.gguf",), len(repo["model-Q8_0.gguf"]))
    os.truncate(path, 100)
    assert one(store, "org/model:Q8_0").state == "broken"


def test_half_a_set_of_shards_is_partial(hub, gguf, client, store):
    from localllm.hub.download import download_all

    shards = {f"big-Q4_0-{n + 1:05d}-of-00003.gguf": gguf("big", shard=(n, 3)) for n in range(3)}
    hub.add("org/big", shards)
    listing = client.listing("org/big")
    download_all(client, listing, listing.files[:2])
    assert shown(store) == [("org/big:Q4_0", "partial")]
    assert one(store, "org/big:Q4_0").problem == ("1 of its 3 files are missing; localllm repair org/big:Q4_0 fetches the rest.")
    download_all(client, listing, listing.files)
    assert shown(store) == [("org/big:Q4_0", "foreign")]


def test_an_interrupted_download_is_partial_until_it_is_continued(hub, repo, pulled, store, home):
    blobs = RepoCache.of("org/model").blobs
    blobs.mkdir(parents=True)
    (blobs / ("ab" * 32 + ".incomplete")).write_bytes(b"x" * 1000)
    (blobs / ("cd" * 32 + ".12345678.incomplete")).write_bytes(b"y" * 10)  # as the Hub's client names it
    (blobs / ("ef" * 32 + ".downloadInProgress")).write_bytes(b"z" * 5)  # llama.cpp
    assert shown(store) == [("org/model:partial", "partial")]
    assert one(store, "org/model:partial").disk_bytes == usage(store).partial_bytes == 1015
    assert entry_of(store, "org/model").state == "partial"
    pulled("org/model:Q4_0")
    assert ("org/model:Q4_0", "complete") in shown(store)


def test_the_partial_file_of_a_broken_model_is_not_another_model(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    file = manifest.files[0].file
    manifest.place.blob(file.sha256).rename(manifest.place.partial(file.sha256))
    assert shown(store) == [("org/model:Q4_0", "broken")]


def test_models_of_packages_ollama_and_files_with_names(store, tmp_path, gguf, smollm2):
    found = one(store, "smollm2")
    assert (found.state, found.path, found.n_bytes) == ("embedded", smollm2, smollm2.stat().st_size)
    (tmp_path / "own/optimized/x").mkdir(parents=True)
    (tmp_path / "own/optimized/x/fast-Q4_0.gguf").write_bytes(gguf())
    (tmp_path / "mine.gguf").write_bytes(gguf())
    Aliases().set("named", str(tmp_path / "mine.gguf"))
    Aliases().set("tiny", "smollm2")
    Aliases().set("lost", "org/nowhere:Q4_0")
    Aliases().set("gone", str(tmp_path / "gone.gguf"))
    locals_ = [(one.path.name, one.quantization, one.aliases) for one in models_here(store) if one.state == "local"]
    assert locals_ == [("fast-Q4_0.gguf", "Q4_0", ()), ("mine.gguf", "", ("named",))]
    assert one(store, "smollm2").aliases == ("tiny",)
    assert entry_of(store, "named").path == tmp_path / "mine.gguf"
    assert usage(store).optimized_bytes == len(gguf())


def test_models_in_ollamas_store(store, tmp_path, gguf):
    import hashlib

    data = gguf()
    digest = hashlib.sha256(data).hexdigest()
    blobs = tmp_path / "ollama/blobs"
    tags = tmp_path / "ollama/manifests/registry.ollama.ai/library/tiny"
    blobs.mkdir(parents=True)
    tags.mkdir(parents=True)
    (blobs / f"sha256-{digest}").write_bytes(data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(data)}
    (tags / "latest").write_text(json.dumps({"layers": [layer]}))
    (tags / "bad").write_text("{}")
    assert shown(store) == [("ollama:tiny:bad", "broken"), ("ollama:tiny:latest", "ollama")]
    assert entry_of(store, "ollama:tiny").disk_bytes == len(data)


def test_every_reference_that_is_listed_means_its_own_model(hub, repo, pulled, store, gguf):
    """Also where tags alone do not tell models apart."""
    hub.add("org/two", {"a-Q4_0.gguf": gguf("a"), "b-Q4_0.gguf": gguf("b")})
    pulled("org/two/a-Q4_0.gguf")
    pulled("org/two/b-Q4_0.gguf")
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    entries = models_here(store)
    assert len({entry.reference for entry in entries}) == len(entries)
    for entry in entries:
        assert entry in entries_of(store, entry.reference)
    older = next(entry for entry in entries if entry.commit == first.commit)
    assert entries_of(store, older.reference) == [older]
    with pytest.raises(InvalidRequestError, match="means 2 models"):
        entry_of(store, "org/two")
    with pytest.raises(ModelNotFoundError, match="not on this machine"):
        entry_of(store, "org/two:Q8_0")


def test_pins_are_kept_in_the_record(repo, pulled, store, home):
    pulled("org/model:Q4_0")
    assert pin(store, "org/model:Q4_0").pinned
    pulled("org/model:Q4_0")  # once more: stays so
    assert one(store, "org/model:Q4_0").pinned
    assert not pin(store, "org/model", False).pinned
    (store.folder / f"{one(store, 'org/model:Q4_0').manifest.key}.json").unlink()
    with pytest.raises(InvalidRequestError, match="has no record"):
        pin(store, "org/model:Q4_0")


def test_a_draft_of_a_pulled_model_is_no_model_of_its_own(hub, gguf, pulled, store):
    hub.add("org/model", {"model-Q4_0.gguf": gguf("m"), "small-Q8_0.gguf": gguf("s")})
    manifest = pulled("org/model:Q4_0")
    small = pulled("org/model:Q8_0")
    store.forget(small)
    assert ("org/model:Q8_0", "foreign") in shown(store)
    kept = dataclasses.replace(small.files[0], role="draft")
    store.add(dataclasses.replace(manifest, files=(*manifest.files, kept)))
    assert shown(store) == [("org/model:Q4_0", "complete")]
    assert one(store, "org/model:Q4_0").companions == ("small-Q8_0.gguf",)


def test_a_cache_with_other_things_in_it(repo, pulled, store, home):
    pulled("org/model:Q4_0")
    cache = home / "hub"
    for name in ("datasets--org--data/blobs", "models--bad name--x", "models--", "models--a--b/snapshots/nothex"):
        (cache / name).mkdir(parents=True)
    (cache / "models--a--b/snapshots" / ("0" * 40)).mkdir()
    (cache / "models--a--b/snapshots" / ("0" * 40) / "x:y.gguf").write_bytes(b"GGUF")
    (cache / "models--a--b/snapshots" / ("0" * 40) / "dangling.gguf").symlink_to("../../blobs/nothing")
    (cache / "version.txt").write_text("1")
    assert shown(store) == [("org/model:Q4_0", "complete")]
    assert usage(store).disk_bytes == sum(len(repo[name]) for name in ("model-Q4_0.gguf", "mmproj-model-F16.gguf")) + 4


def test_nothing_is_there(store, home):
    assert shown(store) == []
    assert usage(store).disk_bytes == 0
    shutil.rmtree(home, ignore_errors=True)
    home.write_text("a file")
    assert shown(store) == []


# ---- while other programs remove things


def ollama_model(folder, *layers: tuple[str, bytes]) -> list[Path]:
    """Puts "tiny:1b" into a store of Ollama; the files of its layers."""
    listed, files = [], []
    for kind, data in layers:
        digest = hashlib.sha256(data).hexdigest()
        files.append(folder / "blobs" / f"sha256-{digest}")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(data)
        media = f"application/vnd.ollama.image.{kind}"
        listed.append({"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)})
    path = folder / "manifests/registry.ollama.ai/library/tiny/1b"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"layers": listed}))
    return files


def test_all_of_a_model_of_ollama_is_checked(store, gguf, tmp_path):
    eyes = ("projector", gguf("eyes", "projector"))
    files = ollama_model(tmp_path / "ollama", ("model", gguf()), eyes, ("adapter", gguf("lora")))
    assert [(one.path, one.state) for one in verify(store, ["ollama:tiny:1b"])[0].files] == [
        (path.name, "sound") for path in files
    ]
    files[1].write_bytes(bytes(len(eyes[1])))
    assert [one.state for one in verify(store, ["ollama:tiny:1b"])[0].files] == ["sound", "content", "sound"]


def make_foreign(root, gguf) -> None:
    for digit in "ab":
        path = RepoCache.of("org/other", root / "home/hub").pointer(digit * 40, "m-Q4_0.gguf")
        path.parent.mkdir(parents=True)
        path.write_bytes(gguf())


def make_optimized(root, gguf) -> None:
    (root / "own/optimized").mkdir(parents=True)
    (root / "own/optimized/m-Q4_0.gguf").write_bytes(gguf())


def make_ollama(root, gguf) -> None:
    ollama_model(root / "ollama", ("model", gguf()))


@pytest.mark.parametrize(
    "look", [models_here, usage, verify, lambda store: gc(store, dry_run=True)], ids=["list", "du", "verify", "gc"]
)
@pytest.mark.parametrize(
    ("make", "folder"),
    [
        (make_foreign, f"home/hub/models--org--other/snapshots/{'a' * 40}"), (make_foreign, "home/hub/models--org--other"),
        (make_optimized, "own/optimized"), (make_ollama, "ollama/blobs"), (make_ollama, "ollama/manifests"),
    ],
)  # fmt: skip
def test_a_model_may_go_at_any_moment_of_a_look(store, gguf, tmp_path, monkeypatch, make, folder, look):
    """Before the first question about it, before the second, and so on until it is not asked for any more."""
    root, victim, stat, left = tmp_path, tmp_path / folder, os.stat, [0]

    def asked(path: object, *args: object, **options: object) -> os.stat_result:
        if left[0] and str(path).startswith(str(victim)):
            left[0] -= 1
            if not left[0]:
                shutil.rmtree(victim)
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", asked)
    for number in range(1, 200):
        make(root, gguf)
        left[0] = number
        look(store)
        was_asked, left[0] = not left[0], 0
        for made in ("home", "own", "ollama"):
            shutil.rmtree(root / made, ignore_errors=True)
        if not was_asked:
            return
    pytest.fail("there is no end to the questions")


def test_the_name_of_a_removed_file_goes_with_it_and_that_of_a_repository_stays(hub, repo, pulled, store, tmp_path, gguf):
    pulled("org/model:Q4_0")
    path = tmp_path / "own/optimized/fast-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(gguf())
    for name, target in (("fast", str(path)), ("mine", "org/model:Q4_0")):
        Aliases().set(name, target)
    remove(store, ["fast", "mine"])
    assert Aliases().all() == {"mine": "org/model:Q4_0"} and not path.exists()
