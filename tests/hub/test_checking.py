"""Damage of every kind is found, told by its kind, and mended by fetching what is damaged and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.errors import DownloadCancelledError, FileNotInRepoError, InvalidRequestError, NetworkError, OfflineError
from localllm.hub.checking import arepair, averify, repair, verify
from localllm.hub.client import HubClient
from localllm.hub.download import download_all
from localllm.hub.layout import RepoCache
from localllm.hub.progress import CancelToken
from localllm.hub.retries import Patience

SHARDS = [f"big-Q4_0-{n + 1:05d}-of-00003.gguf" for n in range(3)]


@pytest.fixture(params=["symlinks", "hard links"])
def links(request, monkeypatch) -> str:
    if request.param != "symlinks":
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    return request.param


@pytest.fixture
def repo(hub, gguf) -> dict[str, bytes]:
    files = {name: gguf("big", shard=(n, 3)) for n, name in enumerate(SHARDS)}
    files["mmproj-big-F16.gguf"] = gguf("eyes", "projector")
    hub.add("org/big", files)
    return files


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.resolve().write_bytes(data)


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "size":
        os.truncate(path, 1000)
    else:
        flip(path, {"content": -1, "header": 0}[how])


def states(checked) -> dict[str, str]:
    return {file.path: file.state for file in checked.files}


def test_what_is_sound(repo, pulled, store, links):
    pulled("org/big:Q4_0")
    (checked,) = verify(store)
    assert checked.is_sound and set(states(checked).values()) == {"sound"} and len(checked.files) == 4
    (checked,) = verify(store, ["org/big"], deep=False)
    assert set(states(checked).values()) == {"not hashed"}
    assert repair(store) == ()


@pytest.mark.parametrize("how", ["missing", "size", "content", "header"])
def test_one_damaged_shard_is_found_and_alone_fetched_again(hub, repo, pulled, store, client, links, how):
    manifest = pulled("org/big:Q4_0")
    hub.add("org/big", {"README.md": b"moved on"})
    path = manifest.place.pointer(manifest.commit, SHARDS[1])
    damage(path, how)
    (checked,) = verify(store)
    # A header that is damaged has another checksum, too.
    expected = "content" if how == "header" else how
    assert {path: state for path, state in states(checked).items() if state != "sound"} == {SHARDS[1]: expected}
    assert (checked.is_damaged, checked.is_missing) == (how != "missing", how == "missing")
    (quick,) = verify(store, deep=False)
    assert states(quick)[SHARDS[1]] == {"content": "not hashed"}.get(how, how)
    hub.forget()
    (done,) = repair(store, client=client)
    assert (done.files, done.problem) == ((SHARDS[1],), "")
    fetched = [entry.file for entry in hub.gets()]
    # Where only a link was missing, the content is still there.
    assert fetched == ([] if how == "missing" else [SHARDS[1]])
    assert path.read_bytes() == repo[SHARDS[1]]
    assert verify(store)[0].is_sound
    assert manifest.place.read_ref("main") == manifest.commit


def test_a_missing_blob_is_fetched_again(hub, repo, pulled, store, client):
    manifest = pulled("org/big:Q4_0")
    manifest.place.blob(manifest.files[2].file.sha256).unlink()
    hub.forget()
    assert verify(store)[0].is_missing
    assert repair(store, client=client)[0].files == (SHARDS[2],)
    assert [entry.file for entry in hub.gets()] == [SHARDS[2]]


def test_a_damaged_file_stays_until_a_good_one_is_there(hub, repo, pulled, store, links):
    manifest = pulled("org/big:Q4_0")
    path = manifest.place.pointer(manifest.commit, SHARDS[0])
    flip(path, -1)
    damaged = path.read_bytes()
    hub.fail(path="*", origin="*", times=None, status=503)
    with HubClient(patience=Patience(tries=1)) as client, pytest.raises(NetworkError):
        repair(store, client=client)
    assert path.read_bytes() == damaged
    with HubClient(offline=True) as client, pytest.raises((OfflineError, OSError)):
        repair(store, client=client)
    assert path.read_bytes() == damaged


def test_an_older_commit_is_mended_by_its_own_commit_and_moves_no_branch(hub, repo, pulled, store, client, gguf, links):
    first = pulled("org/big:Q4_0")
    hub.add("org/big", {**repo, SHARDS[0]: gguf("big", shard=(0, 3), n_values=8192)})
    second = pulled("org/big:Q4_0")
    flip(first.place.pointer(first.commit, SHARDS[0]), -1)
    (done,) = repair(store, client=client)
    assert (done.entry.commit, done.files) == (first.commit, (SHARDS[0],))
    assert first.place.pointer(first.commit, SHARDS[0]).read_bytes() == repo[SHARDS[0]]
    assert first.place.read_ref("main") == second.commit


def test_what_two_commits_share_is_mended_for_both(hub, repo, pulled, store, client, links):
    first = pulled("org/big:Q4_0")
    hub.add("org/big", {**repo, "README.md": b"new"})
    second = pulled("org/big:Q4_0")
    flip(second.place.pointer(second.commit, SHARDS[0]), -1)
    assert [checked.is_sound for checked in verify(store)] == [False, False]
    hub.forget()
    repair(store, client=client)
    assert [checked.is_sound for checked in verify(store)] == [True, True]
    assert [entry.file for entry in hub.gets()] == [SHARDS[0]]
    assert first.commit != second.commit


def test_a_shared_content_is_hashed_once(repo, pulled, store, hub):
    pulled("org/big:Q4_0")
    hub.add("org/big", {**repo, "README.md": b"new"})
    pulled("org/big:Q4_0")
    told = []
    verify(store, progress=told.append)
    assert sorted(event.file for event in told if event.phase == "finished") == sorted(repo)
    assert {event.phase for event in told} == {"checking", "finished"}


def test_shards_of_different_sets_are_told(hub, repo, pulled, store, gguf):
    """Each is what the repository had, but they do not belong together."""
    hub.add("org/mixed", {name: gguf("mixed", shard=(n, 3)) for n, name in enumerate(SHARDS)})
    manifest = pulled("org/mixed:Q4_0")
    wrong = gguf("mixed", shard=(1, 3))  # twice the second
    file = dataclasses.replace(manifest.files[2].file, sha256=hashlib.sha256(wrong).hexdigest(), n_bytes=len(wrong))
    manifest.place.pointer(manifest.commit, SHARDS[2]).unlink()
    manifest.place.blob(file.sha256).write_bytes(wrong)
    manifest.place.publish(file.sha256, manifest.commit, SHARDS[2])
    kept = (*manifest.files[:2], dataclasses.replace(manifest.files[2], file=file))
    store.forget(manifest)
    store.add(dataclasses.replace(manifest, files=kept))
    (checked,) = verify(store, ["org/mixed"])
    assert checked.is_damaged and states(checked)[SHARDS[0]] == "header"


# ---- files of other programs


@pytest.fixture
def theirs(hub, repo, store, home, links) -> Path:
    """org/big as the Hub's client caches it; the first shard."""
    program = "from huggingface_hub import snapshot_download; print(snapshot_download('org/big'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()) / SHARDS[0]


def test_files_of_others_are_checked_against_the_names_of_their_blobs(theirs, hub, store, client, links):
    (checked,) = verify(store)
    hashed = theirs.is_symlink()
    assert set(states(checked).values()) == {"sound" if hashed else "unknown"}
    assert not hashed or links == "symlinks"
    flip(theirs, -1)
    (checked,) = verify(store, ["org/big"])
    if not hashed:  # without a link to a blob nothing tells what it should be
        assert checked.is_sound
        return
    assert states(checked)[SHARDS[0]] == "content"
    assert repair(store, client=client) == ()  # not named
    hub.forget()
    assert repair(store, ["org/big"], client=client)[0].files == (SHARDS[0],)
    assert [entry.file for entry in hub.gets()] == [SHARDS[0]]
    assert verify(store)[0].is_sound


def test_hard_links_to_blobs_tell_their_checksum(store, home, gguf):
    place = RepoCache.of("org/model")
    data = gguf()
    place.prepare("1" * 40, "m-Q4_0.gguf", hashlib.sha256(data).hexdigest())
    blob = place.blob(hashlib.sha256(data).hexdigest())
    blob.write_bytes(data)
    place.pointer("1" * 40, "m-Q4_0.gguf").hardlink_to(blob)
    assert states(verify(store)[0]) == {"m-Q4_0.gguf": "sound"}
    flip(blob, -1)
    assert states(verify(store)[0]) == {"m-Q4_0.gguf": "content"}


def test_what_is_from_no_repository(store, client, smollm2, tmp_path, gguf):
    assert [checked.files[0].state for checked in verify(store, ["smollm2"])] == ["unknown"]
    path = tmp_path / "own/optimized/fast.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert verify(store) == ()
    (checked,) = verify(store, [str(path)])
    assert checked.files[0].state == "header"
    with pytest.raises(InvalidRequestError, match="from no repository"):
        repair(store, [str(path)], client=client)


def test_a_damaged_record_is_told_and_cannot_be_mended(repo, pulled, store, client):
    manifest = pulled("org/big:Q4_0")
    (store.folder / f"{manifest.key}.json").write_text("{")
    damaged, foreign = verify(store)
    assert damaged.is_damaged and damaged.entry.manifest is None and foreign.is_sound
    (done,) = repair(store, client=client)
    assert done.files == () and "pull the model again" in done.problem


def test_half_a_model_is_nothing_to_verify(repo, store, client):
    listing = client.listing("org/big")
    download_all(client, listing, [file for file in listing.files if file.path == SHARDS[0]])
    assert verify(store) == ()
    with pytest.raises(InvalidRequestError, match="localllm repair org/big:Q4_0 completes it"):
        verify(store, ["org/big:Q4_0"])


def test_a_commit_that_the_repository_no_longer_has(hub, repo, pulled, store, client):
    manifest = pulled("org/big:Q4_0")
    damage(manifest.first("model"), "size")
    hub.add("org/big", {"README.md": b"all gone"})
    del hub.repos["org/big"].commits[manifest.commit][SHARDS[0]]
    with pytest.raises(FileNotInRepoError):
        repair(store, client=client)
    assert manifest.first("model").stat().st_size == 1000


def test_a_token_goes_to_the_usual_endpoint_only(hub, repo, pulled, store, monkeypatch):
    manifest = pulled("org/big:Q4_0")
    store.forget(manifest)
    store.add(dataclasses.replace(manifest, endpoint=hub.endpoint.replace("127.0.0.1", "localhost")))
    damage(manifest.first("model"), "size")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.users["hf_secret"] = "me"
    hub.forget()
    repair(store)
    assert hub.gets(SHARDS[0]) and all(not entry.authorization for entry in hub.log)


# ---- cancelling, and beside an event loop


def test_a_check_can_be_cancelled(repo, pulled, store):
    pulled("org/big:Q4_0")
    cancel = CancelToken()
    with pytest.raises(DownloadCancelledError):
        verify(store, progress=lambda event: cancel.cancel(), cancel=cancel)


async def test_beside_an_event_loop(hub, repo, pulled, store, client):
    manifest = await asyncio.to_thread(pulled, "org/big:Q4_0")
    assert (await averify(store))[0].is_sound
    damage(manifest.first("model"), "content")
    assert (await arepair(store, client=client))[0].files == (SHARDS[0],)
    damage(manifest.first("model"), "content")
    hub.fail(path=SHARDS[0], times=None, stall_after=100)
    task = asyncio.create_task(arepair(store, client=client))
    hub.forget()
    await asyncio.to_thread(hub.wait_for, lambda: hub.gets(SHARDS[0]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not manifest.missing()  # the damaged one is still there


# ---- what interrupted downloads left


def cut(hub, client, store, *names) -> RepoCache:
    """The cache after a download of some files that was broken off in each of them."""
    listing = client.listing("org/big")
    for name in names:
        hub.fail(path=name, cut_after=9000)
        hub.fail(path=name, status=404, times=None)
        with pytest.raises(NetworkError):
            download_all(client, listing, [file for file in listing.files if file.path == name], cache=store.cache)
        hub.faults.clear()
    return RepoCache.of("org/big", store.cache)


def test_a_partial_download_is_completed_with_a_record(hub, repo, client, store):
    place = cut(hub, client, store, SHARDS[1], "mmproj-big-F16.gguf")
    assert [file.name for file in place.blobs.iterdir() if "incomplete" in file.name]
    with pytest.raises(InvalidRequestError, match="localllm repair org/big:partial completes it"):
        verify(store, ["org/big"])
    assert repair(store, client=client) == ()  # only what is named
    hub.log.clear()
    (done,) = repair(store, ["org/big"], client=client)
    assert (set(done.files), done.problem) == (set(repo), "")
    assert any(one.range.startswith("bytes=9000-") for one in hub.gets(SHARDS[1]))
    (manifest,) = store.manifests()
    assert manifest.reference == "org/big:Q4_0" and manifest.paths("projector") == ("mmproj-big-F16.gguf",)
    assert repair(store, ["org/big"], client=client) == () and not list(place.blobs.glob("*.incomplete*"))


def test_half_a_set_of_another_program_is_completed_and_nothing_else(hub, repo, client, store):
    listing = client.listing("org/big")
    download_all(client, listing, [file for file in listing.files if file.path == SHARDS[2]], cache=store.cache)
    hub.add("org/big", {"moved.gguf": repo[SHARDS[0]]})
    (done,) = repair(store, ["org/big:Q4_0"], client=client)
    assert set(done.files) == set(SHARDS) and store.manifests() == []
    assert [one.is_sound for one in verify(store, ["org/big:Q4_0"])] == [True]
    assert RepoCache.of("org/big", store.cache).read_ref("main") == listing.commit


def test_what_the_repository_has_no_more_cannot_be_completed(hub, repo, client, store, gguf):
    cut(hub, client, store, "mmproj-big-F16.gguf")
    hub.add("org/big", {"other-Q8_0.gguf": gguf("other")})
    (done,) = repair(store, ["org/big"], client=client)
    assert done.files == () and "localllm gc" in done.problem
