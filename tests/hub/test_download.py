"""Whole files, in whatever way the network and the cache misbehave. What is counted: requests, their ranges, bytes and files."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest

from localllm.errors import (
    CorruptFileError,
    DiskSpaceError,
    DownloadCancelledError,
    NetworkError,
    OfflineError,
    ReferenceFormatError,
)
from localllm.hub.client import HubClient
from localllm.hub.download import DownloadOptions, download, download_all
from localllm.hub.layout import RepoCache
from localllm.hub.listing import RepoFile
from localllm.hub.progress import CancelToken, RateCap
from localllm.hub.retries import Patience

MIB = 1 << 20
SIZE = 5 * MIB + 123


@pytest.fixture
def repo(hub, content):
    """org/model with a large file; returns its content."""
    data = content(SIZE)
    hub.add("org/model", {"model.gguf": data, "sub/config.json": b'{"a": 1}'})
    return data


@pytest.fixture
def pull(client):
    """Downloads one file of org/model."""

    def pull(path="model.gguf", **options):
        listing = client.listing("org/model")
        file = next(file for file in listing.files if file.path == path)
        return download(client, listing.repo, listing.commit, file, **options)

    return pull


def files_of(cache: Path) -> set[str]:
    blobs = cache / "models--org--model/blobs"
    return {path.name for path in blobs.iterdir()} if blobs.is_dir() else set()


def ranges(hub) -> list[str]:
    return [entry.range for entry in hub.gets("model.gguf")]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_arrives_under_its_name_and_its_hash(hub, home, repo, pull):
    path = pull()
    commit = hub.repos["org/model"].branches["main"]
    assert path == home / "hub/models--org--model/snapshots" / commit / "model.gguf"
    assert path.read_bytes() == repo
    assert path.readlink() == Path(f"../../blobs/{sha(repo)}")
    assert files_of(home / "hub") == {sha(repo)}
    assert len(hub.gets("model.gguf")) == 1
    assert path.resolve().stat().st_mode & 0o444 == 0o444


def test_a_small_file_is_checked_by_gits_hash(hub, home, repo, pull):
    path = pull("sub/config.json")
    assert path.read_bytes() == b'{"a": 1}'
    assert path.readlink() == Path(f"../../../blobs/{hashlib.sha1(b'blob 8' + bytes(1) + path.read_bytes()).hexdigest()}")
    hub.add("org/other", {"sub/config.json": b'{"b": 2}'})
    hub.fail(path="sub/config.json", origin="api", times=None, flip_at=2)
    client = HubClient(hub.endpoint)
    listing = client.listing("org/other")
    with pytest.raises(CorruptFileError):
        download(client, "org/other", listing.commit, listing.files[0])


def test_an_empty_file_needs_no_body(hub, home, client):
    hub.add("org/model", {"empty.txt": b"", "empty.gguf": b""})
    listing = client.listing("org/model")
    assert [path.read_bytes() for path in download_all(client, listing, listing.files)] == [b"", b""]
    assert hub.gets(origin="*") == []


def test_what_is_there_is_not_asked_for_again(hub, repo, pull, client):
    first = pull()
    hub.forget()
    assert pull() == first
    assert hub.gets("model.gguf", "api") == hub.gets("model.gguf") == []


def test_another_commit_shares_the_content(hub, home, repo, pull):
    first = pull()
    hub.add("org/model", {"model.gguf": repo, "new.txt": b"x"})
    second = pull()
    assert first != second
    assert first.samefile(second)
    assert len(hub.gets("model.gguf")) == 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param({"cut_after": 3 * MIB}, ["", f"bytes={3 * MIB}-"], id="cut once"),
        pytest.param(
            {"cut_after": 2 * MIB, "times": None}, ["", f"bytes={2 * MIB}-", f"bytes={4 * MIB}-"], id="every connection is cut"
        ),
        pytest.param({"stall_after": 3 * MIB}, ["", f"bytes={3 * MIB}-"], id="stalled"),
        pytest.param({"length_error": -MIB}, ["", f"bytes={SIZE - MIB}-"], id="Content-Length too small"),
        pytest.param({"length_error": MIB}, [""], id="Content-Length too large"),
        pytest.param({"status": 503}, ["", ""], id="503"),
        pytest.param({"status": 403}, ["", ""], id="expired address"),
        pytest.param({"refuse": True, "times": 2}, ["", "", ""], id="no answer"),
        pytest.param({"status": 429, "headers": {"Retry-After": "0"}}, ["", ""], id="429 with Retry-After"),
        pytest.param({"status": 429, "headers": {"RateLimit": '"api";r=0;t=0'}}, ["", ""], id="429 with RateLimit"),
        pytest.param({"flip_at": 4 * MIB}, ["", ""], id="flipped byte"),
    ],
)
def test_faults_that_pass(hub, home, repo, client, fault, expected):
    quick = Patience(connect_seconds=1, stall_seconds=0.3, tries=4, first_wait_seconds=0.01, longest_wait_seconds=2)
    if "length_error" in fault and fault["length_error"] < 0:
        # A server never sends more than it announces.
        fault = {**fault, "cut_after": SIZE + fault["length_error"]}
    hub.fail(path="model.gguf", **fault)
    with HubClient(patience=quick) as client:
        listing = client.listing("org/model")
        path = download(client, "org/model", listing.commit, listing.files[0])
    assert path.read_bytes() == repo
    assert ranges(hub) == expected
    assert files_of(home / "hub") == {sha(repo)}


def test_ranges_are_asked_for_under_the_condition_that_nothing_changed(hub, repo, pull):
    hub.fail(path="model.gguf", cut_after=MIB)
    pull()
    assert [entry.headers.get("if-range") for entry in hub.gets("model.gguf")] == [None, f'"cdn-{sha(repo)[:32]}"']


def test_a_changed_file_comes_from_its_beginning(hub, repo, pull):
    hub.fail(path="model.gguf", cut_after=MIB, headers={"ETag": '"older"'})
    assert pull().read_bytes() == repo
    assert [(entry.range, entry.status) for entry in hub.gets("model.gguf")] == [("", 200), (f"bytes={MIB}-", 200)]


def test_a_server_that_ignores_ranges_is_rewound(hub, repo, pull):
    hub.fail(path="model.gguf", cut_after=2 * MIB)
    hub.fail(path="model.gguf", ignore_range=True)
    events = []
    assert pull(progress=events.append).read_bytes() == repo
    assert ranges(hub) == ["", f"bytes={2 * MIB}-"]
    assert 0 in [event.done_bytes for event in events[1:]]


def test_a_link_that_brings_nothing_new_ends_in_an_error(hub, home, repo, pull):
    hub.fail(path="model.gguf", times=None, cut_after=2 * MIB, ignore_range=True)
    with pytest.raises(NetworkError, match=r"org/model/model\.gguf|org/model@"):
        pull()
    assert len(ranges(hub)) == 5  # one that brought something, and four in a row that did not
    assert (home / f"hub/models--org--model/blobs/{sha(repo)}.incomplete").stat().st_size == 2 * MIB


def test_a_damaged_transfer_is_refused_and_kept_aside(hub, home, repo, pull):
    hub.fail(path="model.gguf", times=None, flip_at=MIB)
    with pytest.raises(CorruptFileError, match=sha(repo)) as caught:
        pull()
    kept = home / f"hub/models--org--model/blobs/{sha(repo)}.corrupt"
    assert str(kept) in str(caught.value)
    assert kept.stat().st_size == SIZE
    assert files_of(home / "hub") == {kept.name}
    assert ranges(hub) == ["", ""]
    hub.faults.clear()
    assert pull().read_bytes() == repo


def test_a_damaged_copy_in_the_cache_is_replaced(hub, home, repo, pull):
    path = pull()
    blob = path.resolve()
    with blob.open("r+b") as file:
        file.seek(MIB)
        file.write(bytes([repo[MIB] ^ 1]))
    assert pull(options=DownloadOptions(recheck=False)).read_bytes() != repo
    assert pull().read_bytes() == repo
    assert files_of(home / "hub") == {sha(repo)}
    assert len(ranges(hub)) == 2


def test_a_copy_of_the_wrong_size_is_replaced_even_unchecked(hub, home, repo, pull):
    blob = pull().resolve()
    with blob.open("ab") as file:
        file.write(b"x")
    assert pull(options=DownloadOptions(recheck=False)).read_bytes() == repo


def test_large_files_are_asked_for_in_segments(hub, repo, pull):
    assert pull(options=DownloadOptions(segment_bytes=2 * MIB)).read_bytes() == repo
    assert ranges(hub) == [f"bytes=0-{2 * MIB - 1}", f"bytes={2 * MIB}-{4 * MIB - 1}", f"bytes={4 * MIB}-"]


# ---- cancelling, offline, room


@pytest.mark.parametrize("fault", [{"delay_seconds": 0.05}, {"stall_after": 2 * MIB}], ids=["flowing", "stalled"])
def test_a_cancelled_download_is_continued(hub, home, repo, fault):
    hub.fail(path="model.gguf", **fault)
    cancel, events = CancelToken(), []

    def told(event):
        if event.phase == "downloading" and not events:
            threading.Timer(0.3, cancel.cancel).start()
        events.append(event)

    with HubClient(patience=Patience(stall_seconds=20)) as client:
        listing = client.listing("org/model")
        with pytest.raises(DownloadCancelledError):
            download(client, "org/model", listing.commit, listing.files[0], progress=told, cancel=cancel)
        assert files_of(home / "hub") == {f"{sha(repo)}.incomplete", f"{sha(repo)}.incomplete.json"}
        have = (home / f"hub/models--org--model/blobs/{sha(repo)}.incomplete").stat().st_size
        assert MIB <= have < SIZE
        assert download(client, "org/model", listing.commit, listing.files[0]).read_bytes() == repo
    assert ranges(hub) == ["", f"bytes={have}-"]
    assert files_of(home / "hub") == {sha(repo)}


def test_a_progress_callback_that_fails_ends_the_download(hub, home, repo, pull):
    def told(event):
        if event.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(progress=told)
    assert pull().read_bytes() == repo


def test_progress_tells_phases_and_never_prints(hub, repo, pull, capfd):
    hub.fail(path="model.gguf", cut_after=MIB)
    events = []
    pull(progress=events.append)
    phases = [event.phase for event in events]
    assert list(dict.fromkeys(phases)) == ["downloading", "retrying", "finished"]
    assert {event.total_bytes for event in events} == {SIZE}
    assert (events[0].done_bytes, events[-1].done_bytes, events[-1].seconds_left) == (0, SIZE, 0.0)
    again = []
    pull(progress=again.append)
    assert list(dict.fromkeys(event.phase for event in again)) == ["checking", "finished"]
    assert capfd.readouterr() == ("", "")


def test_offline_takes_what_is_there_and_makes_no_socket(hub, home, repo, pull, monkeypatch):
    path = pull()
    listing = HubClient().listing("org/model")
    model, config = listing.files
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket", None)
    with HubClient() as client:
        assert download(client, "org/model", listing.commit, model) == path
        with pytest.raises(OfflineError, match="config.json"):
            download(client, "org/model", listing.commit, config)
        path.unlink()  # the blob alone is enough
        assert download(client, "org/model", listing.commit, model).read_bytes() == repo
        blob = path.resolve()
        blob.write_bytes(repo[:-1] + b"?")
        with pytest.raises(CorruptFileError, match="damaged"):
            download(client, "org/model", listing.commit, model)


def test_no_room_is_told_beforehand(hub, home, repo, pull, client):
    with pytest.raises(DiskSpaceError, match="HF_HUB_CACHE") as caught:
        pull(options=DownloadOptions(margin_bytes=1 << 60))
    assert (caught.value.needed_bytes, ranges(hub)) == (SIZE, [])
    listing = client.listing("org/model")
    with pytest.raises(DiskSpaceError) as caught:
        download_all(client, listing, listing.files, options=DownloadOptions(margin_bytes=1 << 60))
    assert caught.value.needed_bytes == SIZE + 8
    assert pull(options=DownloadOptions(margin_bytes=1 << 60, check_disk=False)).read_bytes() == repo


@pytest.mark.parametrize("path", ["../../evil", "/etc/evil", "a/../../../evil", "C:evil", "a\\b", "nul", "a/con.txt", "x\n", ""])
def test_names_that_lead_out_of_the_cache_are_refused(hub, home, client, path):
    file = RepoFile(path, 3, "0" * 40)
    with pytest.raises(ReferenceFormatError):
        download(client, "org/model", "0" * 40, file)
    assert not home.exists()


# ---- partial files of other processes


def partial_of(home: Path, data: bytes, size: int) -> Path:
    blobs = home / "hub/models--org--model/blobs"
    blobs.mkdir(parents=True)
    path = blobs / f"{sha(data)}.incomplete"
    path.write_bytes(data[:size])
    return path


def record_of(path: Path, data: bytes, **changes) -> None:
    import platform

    boot = Path("/proc/sys/kernel/random/boot_id")
    values = {
        "version": 1,
        "checksum": sha(data),
        "n_bytes": len(data),
        "host": platform.node(),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "nonce": "other",
        "origin": "",
        "etag": "",
        "checkpoints": [],
    }
    path.with_name(path.name + ".json").write_text(json.dumps({**values, **changes}))


def test_a_partial_file_without_a_record_is_continued(hub, home, repo, pull):
    partial_of(home, repo, 3 * MIB)
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={3 * MIB}-"]


def test_a_whole_partial_file_needs_no_request(hub, home, repo, pull):
    partial_of(home, repo, SIZE)
    assert pull().read_bytes() == repo
    assert ranges(hub) == []


def test_a_partial_file_that_is_too_long_is_dropped(hub, home, repo, pull):
    partial_of(home, repo + b"more", SIZE + 4)
    assert pull().read_bytes() == repo
    assert ranges(hub) == [""]


def test_what_others_have_finished_leaves_no_partial_file(hub, home, repo, pull):
    path = partial_of(home, repo, MIB)
    record_of(path, repo)
    path.with_name(sha(repo)).write_bytes(repo)
    assert pull().read_bytes() == repo
    assert files_of(home / "hub") == {sha(repo)}
    assert ranges(hub) == []


def test_a_damaged_partial_file_is_fetched_anew(hub, home, repo, pull):
    partial_of(home, repo, 0).write_bytes(bytes(MIB))
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={MIB}-", ""]


def test_damage_behind_a_checkpoint_costs_what_lies_behind_it(hub, home, repo, pull):
    points = [[2 * MIB, sha(repo[: 2 * MIB])], [4 * MIB, sha(repo[: 4 * MIB])]]
    path = partial_of(home, repo, 0)
    path.write_bytes(repo[: 3 * MIB] + bytes(2 * MIB))
    record_of(path, repo, checkpoints=points)
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={2 * MIB}-"]


def test_after_a_power_failure_only_checkpoints_are_believed(hub, home, repo, pull):
    path = partial_of(home, repo, 3 * MIB)
    record_of(path, repo, boot="an earlier one", checkpoints=[[2 * MIB, sha(repo[: 2 * MIB])]])
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={2 * MIB}-"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "checkpoints": 5}', "\x00", "[" * 200_000])
def test_a_damaged_record_is_no_record(hub, home, repo, pull, text):
    path = partial_of(home, repo, MIB)
    path.with_name(path.name + ".json").write_text(text)
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={MIB}-"]


NO_CHECKPOINTS = [[[1e400, "a"]], [[5, 5]], [["5", "a"]], [[-1, "a"]], [[True, "a"]], [5], {"a": 1}, "ab"]
NO_ETAGS = ["no quotes", '"a\n"', '"\ud800"', 'W/"weak"', 5, None]


@pytest.mark.parametrize(
    "changes",
    [{"checkpoints": value} for value in NO_CHECKPOINTS]
    + [{"etag": value, "origin": "http://127.0.0.1:9"} for value in NO_ETAGS]
    + [{"host": 5}, {"origin": None}, {"boot": []}, {"more": 1}],
    ids=str,
)
def test_a_record_with_nonsense_in_it_is_no_record(hub, home, repo, pull, changes):
    path = partial_of(home, repo, MIB)
    record_of(path, repo, **changes)
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={MIB}-"]


def test_a_file_that_another_machine_is_writing_is_left_to_it(hub, home, repo, pull, monkeypatch):
    """Where locks do not reach other machines."""
    monkeypatch.setattr("localllm.hub.partial._WATCH_SECONDS", 0.3)
    path = partial_of(home, repo, MIB)
    record_of(path, repo, host="another machine")
    ended = threading.Event()

    def other():
        with path.open("ab") as file:
            while not ended.wait(0.02):
                file.write(b"x")
                file.flush()

    writer = threading.Thread(target=other)
    writer.start()
    try:
        assert pull().read_bytes() == repo
    finally:
        ended.set()
        writer.join()
    assert ranges(hub) == [""]
    assert path.exists()


def test_a_file_that_another_machine_has_left_is_continued(hub, home, repo, pull, monkeypatch):
    monkeypatch.setattr("localllm.hub.partial._WATCH_SECONDS", 0.05)
    path = partial_of(home, repo, MIB)
    record_of(path, repo, host="another machine")
    assert pull().read_bytes() == repo
    assert ranges(hub) == [f"bytes={MIB}-"]


def test_whoever_lost_the_record_hashes_the_disk(hub, home, repo, pull):
    """Another machine got past the lock, and wrote into the same file."""
    done = []

    def told(event):
        if event.phase == "downloading" and event.done_bytes >= MIB and not done:
            done.append(1)
            path = home / f"hub/models--org--model/blobs/{sha(repo)}.incomplete"
            record_of(path, repo, host="another machine")
            with path.open("r+b") as file:
                file.write(b"damage")

    hub.fail(path="model.gguf", delay_seconds=0.02)
    assert pull(progress=told).read_bytes() == repo
    assert ranges(hub) == ["", ""]


# ---- several files


def test_several_files_set_the_reference_once_all_are_there(hub, home, repo, client):
    listing = client.listing("org/model")
    hub.fail(path="sub/config.json", origin="api", status=404, headers={"X-Error-Code": "EntryNotFound"})
    cache = RepoCache.of("org/model")
    with pytest.raises(Exception, match=r"config\.json"):
        download_all(client, listing, listing.files)
    assert cache.read_ref("main") is None
    paths = download_all(client, listing, listing.files)
    assert [path.read_bytes() for path in paths] == [repo, b'{"a": 1}']
    assert cache.read_ref("main") == listing.commit


def test_names_that_differ_in_case_only_are_refused(hub, home, client):
    hub.add("org/model", {"a.gguf": b"1", "A.gguf": b"2"})
    listing = client.listing("org/model")
    with pytest.raises(ReferenceFormatError, match=r"A\.gguf"):
        download_all(client, listing, listing.files)


def test_connections_are_used_again(hub, home, client, content):
    hub.add("org/model", {f"{number}.gguf": content(5000 + number) for number in range(20)})
    listing = client.listing("org/model")
    for file in listing.files:
        download(client, listing.repo, listing.commit, file)
    assert len({entry.connection for entry in hub.log}) == 2  # one to each origin


def test_equal_files_are_fetched_once(hub, home, client, content):
    hub.add("org/model", {f"{number}.gguf": content(MIB) for number in range(8)})
    listing = client.listing("org/model")
    events = []
    paths = download_all(client, listing, listing.files, progress=events.append)
    assert len({path.resolve() for path in paths}) == 1
    assert len(hub.gets()) == 1
    assert sum(event.phase == "finished" for event in events) == 8


def test_cancelling_ends_all_of_several(hub, home, client, content):
    hub.add("org/model", {f"{number}.gguf": content(MIB + number) for number in range(8)})
    hub.fail(times=None, delay_seconds=0.1, chunk_bytes=1 << 14)
    cancel = CancelToken()
    listing = client.listing("org/model")
    with pytest.raises(DownloadCancelledError):
        download_all(client, listing, listing.files, cancel=cancel, progress=lambda event: cancel.cancel())
    assert len(hub.gets()) <= 4


def test_the_rate_cap_is_one_for_all_that_share_it():
    cap = RateCap(1000)
    assert cap.delay_seconds(500, 10.0) == 0.5
    assert cap.delay_seconds(500, 10.0) == 1.0
    assert cap.delay_seconds(100, 20.0) == pytest.approx(0.1)


def test_a_capped_download_is_whole(hub, home, repo, pull):
    assert pull(options=DownloadOptions(rate_cap=RateCap(50 * MIB))).read_bytes() == repo
