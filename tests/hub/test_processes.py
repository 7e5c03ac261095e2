"""Downloads by real processes: killed, interrupted, at once, with huggingface_hub beside them, through a proxy, on full disks."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from localllm.errors import DiskSpaceError, HubError, NetworkError
from localllm.hub.client import HubClient
from localllm.hub.download import download, download_all
from localllm.hub.layout import RepoCache
from localllm.hub.listing import Listing
from localllm.hub.retries import Patience

MIB = 1 << 20
SIZE = 12 * MIB
QUICK = Patience(connect_seconds=2, stall_seconds=2, tries=3, first_wait_seconds=0.01)

# Downloads the largest file of org/model, says when 4 MiB of it are there, and prints a line of JSON: where it is, or what went
# wrong.
OURS = """
import json, sys
from localllm.errors import HubError
from localllm.hub.client import HubClient
from localllm.hub.download import download
from localllm.hub.retries import Patience
with HubClient(patience=Patience(tries=3, first_wait_seconds=0.05)) as client:
    try:
        listing = client.listing("org/model")
        file = max(listing.files, key=lambda file: file.n_bytes)
        told = []
        def tell(progress):
            if progress.done_bytes >= 4 << 20 and not told:
                told.append(print("4 MiB", flush=True))
        path = download(client, listing.repo, listing.commit, file, progress=tell)
        print(json.dumps({"path": str(path)}))
    except HubError as error:
        values = {"error": type(error).__name__, "text": str(error), "free": getattr(error, "free_bytes", None)}
        print(json.dumps({**values, "needed": getattr(error, "needed_bytes", None)}))
"""
THEIRS = """
import json, os
os.environ["HF_HUB_DISABLE_XET"] = "1"
from huggingface_hub import hf_hub_download
print(json.dumps({"path": hf_hub_download("org/model", "model.gguf")}))
"""


def start(program: str = OURS, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def answer(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def data(hub, content) -> bytes:
    hub.add("org/model", {"model.gguf": content(SIZE), "README.md": b"hello"})
    return content(SIZE)


@pytest.fixture
def blobs(home) -> Path:
    return home / "hub/models--org--model/blobs"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def interrupted(hub, blobs, data, how: signal.Signals) -> int:
    """Starts a download, sends a signal in the middle of it, and says how much was there then."""
    hub.fail(path="model.gguf", delay_seconds=0.02)
    partial = blobs / f"{sha(data)}.incomplete"
    with start() as process:
        assert process.stdout.readline() == "4 MiB\n"
        process.send_signal(how)
        process.communicate(timeout=10)
        assert process.returncode != 0
    return partial.stat().st_size


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_another_process_goes_on_where_one_ended(hub, data, blobs, how):
    have = interrupted(hub, blobs, data, how)
    assert 4 * MIB <= have < SIZE
    with start() as process:
        assert Path(answer(process)["path"]).read_bytes() == data
    assert [entry.range for entry in hub.gets("model.gguf")] == ["", f"bytes={have}-"]
    assert [path.name for path in blobs.iterdir()] == [sha(data)]


def test_a_link_that_is_always_cut_at_9_mib(hub, content, blobs):
    large = content(40 * MIB)
    hub.add("org/model", {"model.gguf": large})
    hub.fail(path="model.gguf", times=None, cut_after=9 * MIB)
    with start() as process:
        assert Path(answer(process)["path"]).read_bytes() == large
    assert [entry.range for entry in hub.gets("model.gguf")] == ["", *(f"bytes={9 * MIB * n}-" for n in range(1, 5))]


@pytest.mark.parametrize("first", [OURS, THEIRS], ids=["ours first", "the Hub's client first"])
def test_processes_at_once_fetch_once(hub, data, blobs, first):
    hub.fail(path="model.gguf", times=None, delay_seconds=0.03)
    processes = [start(first)]
    try:
        hub.wait_for(lambda: hub.gets("model.gguf"))
        processes += [start(program) for program in (OURS, THEIRS, OURS)]
        paths = {answer(process)["path"] for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == data
    assert len(hub.gets("model.gguf")) == 1
    assert [path.name for path in blobs.iterdir()] == [sha(data)]


# ---- the Hub's own client and ours, one after the other

SEEN = """
import json
from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache
info = scan_cache_dir()
repo = next(iter(info.repos))
print(json.dumps({
    "warnings": [str(warning) for warning in info.warnings],
    "repo": repo.repo_id, "bytes": repo.size_on_disk, "files": repo.nb_files,
    "refs": {ref: revision.commit_hash for ref, revision in repo.refs.items()},
    "incomplete": len(info.incomplete_files),
    "cached": try_to_load_from_cache("org/model", "model.gguf"),
    "offline": hf_hub_download("org/model", "model.gguf"),
}))
"""


@pytest.fixture(params=["symlinks", "no symlinks"])
def links(request, monkeypatch) -> bool:
    if request.param == "no symlinks":
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    return request.param == "symlinks"


def test_what_we_cached_is_found_by_the_hubs_client(hub, data, home, links, monkeypatch):
    with HubClient() as client:
        listing = client.listing("org/model")
        model, readme = sorted(listing.files, key=lambda file: -file.n_bytes)
        path, _ = download_all(client, listing, [model, readme])
    assert path.is_symlink() == links
    hub.forget()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with start(SEEN) as process:
        found = answer(process)
    assert found == {
        "warnings": [],
        "repo": "org/model",
        "bytes": SIZE + 5,
        "files": 2,
        "refs": {"main": listing.commit},
        "incomplete": 0,
        "cached": str(path),
        "offline": str(path),
    }
    assert hub.log == []


def test_what_the_hubs_client_cached_is_taken(hub, data, home, links):
    with start(THEIRS) as process:
        theirs = Path(answer(process)["path"])
    hub.forget()
    with HubClient() as client:
        listing = client.listing("org/model")
        model = max(listing.files, key=lambda file: file.n_bytes)
        assert download(client, "org/model", listing.commit, model) == theirs
    assert hub.gets("model.gguf", "api") == hub.gets("model.gguf") == []
    assert RepoCache.of("org/model").read_ref("main") == listing.commit


def test_contents_that_the_hubs_client_shares_between_repositories_are_taken(hub, data, home, blobs):
    """huggingface_hub 2 keeps them as <cache>/blobs/xx/<hash>, and a link to that in each repository."""
    shared = home / "hub/blobs/ab" / ("ab" + "0" * 62)
    shared.parent.mkdir(parents=True)
    shared.write_bytes(data)
    shared.chmod(0o444)
    blobs.mkdir(parents=True)
    (blobs / sha(data)).symlink_to(os.path.relpath(shared, blobs))
    with HubClient() as client:
        listing = client.listing("org/model")
        model = max(listing.files, key=lambda file: file.n_bytes)
        path = download(client, "org/model", listing.commit, model)
        assert path.resolve() == shared
        assert hub.gets("model.gguf") == []
        shared.chmod(0o644)
        shared.write_bytes(data[:-1] + b"?")  # damaged: only this repository's link gives way to a sound copy
        assert download(client, "org/model", listing.commit, model).read_bytes() == data
    assert shared.read_bytes() != data
    assert path.resolve() == blobs / sha(data)


def test_two_commits_and_a_moved_main_without_symlinks(hub, data, home, blobs, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    with HubClient() as client:
        paths = []
        for readme in (b"hello", b"new"):
            hub.add("org/model", {"model.gguf": data, "README.md": readme})
            listing = client.listing("org/model")
            paths += [path for path in download_all(client, listing, listing.files) if path.name == "model.gguf"]
    assert len(hub.gets("model.gguf")) == 1
    assert [path.read_bytes() == data for path in paths] == [True, True]
    assert RepoCache.of("org/model").read_ref("main") == listing.commit


def test_moved_main_leaves_the_older_commit_usable_offline(hub, data, home):
    with HubClient() as client:
        older = client.listing("org/model")
        model = max(older.files, key=lambda file: file.n_bytes)
        path = download_all(client, older, [model])[0]
        hub.add("org/model", {"model.gguf": b"another", "README.md": b"new"})
        newer = client.listing("org/model")
        download_all(client, newer, [file for file in newer.files if file.path == "README.md"])
    with HubClient(offline=True) as client:
        assert download(client, "org/model", older.commit, model) == path


# ---- disks


def test_more_than_the_disk_has_is_not_begun(hub, data, blobs):
    files = hub.repos["org/model"].commits[HubClient().listing("org/model").commit]
    files["model.gguf"] = dataclasses.replace(files["model.gguf"], n_bytes=1 << 60)
    hub.forget()
    with start() as process:
        found = answer(process)
    assert (found["error"], found["needed"]) == ("DiskSpaceError", 1 << 60)
    assert 0 < found["free"] < 1 << 60 and not hub.gets()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_told_with_its_numbers(hub, data, blobs, monkeypatch, code):
    """The system's own `write` takes what has room, and then refuses."""
    write, room = os.write, [5 * MIB + 1000]

    def limited(handle: int, piece: memoryview) -> int:
        if len(piece) and not room[0]:
            raise OSError(code, os.strerror(code))
        n_bytes = write(handle, piece[: room[0]])
        room[0] -= n_bytes
        return n_bytes

    with HubClient() as client:
        listing = client.listing("org/model")
        model = max(listing.files, key=lambda file: file.n_bytes)
        with monkeypatch.context() as patch, pytest.raises(DiskSpaceError, match=os.strerror(code)) as caught:
            patch.setattr(os, "write", limited)
            download(client, "org/model", listing.commit, model)
        have = (blobs / f"{sha(data)}.incomplete").stat().st_size
        assert have == 5 * MIB + 1000 and caught.value.needed_bytes == SIZE - have
        assert download(client, "org/model", listing.commit, model).read_bytes() == data
    assert hub.gets("model.gguf")[-1].range == f"bytes={have}-"


def test_a_limit_on_the_size_of_files_is_told(hub, data, blobs):
    import resource

    limit = 4 * MIB

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with start(preexec_fn=small) as process:
        found = answer(process)
    assert (found["error"], found["needed"]) == ("DiskSpaceError", SIZE - limit)
    assert "File too large" in found["text"]
    with start() as process:
        assert Path(answer(process)["path"]).read_bytes() == data
    assert hub.gets("model.gguf")[-1].range == f"bytes={limit}-"


@pytest.fixture
def listing(home, hub, data) -> Listing:
    """Of a repository of which the cache has the model, but not README.md."""
    with HubClient() as client:
        listing = client.listing("org/model")
        download_all(client, listing, [max(listing.files, key=lambda file: file.n_bytes)])
    return listing


def test_a_read_only_cache_is_used_as_it_is(hub, data, home, listing, frozen):
    model, readme = sorted(listing.files, key=lambda file: -file.n_bytes)

    def use() -> None:
        with HubClient(offline=True) as client:
            assert download(client, "org/model", listing.commit, model).read_bytes() == data
        with HubClient() as client:
            assert download_all(client, listing, [model])[0].read_bytes() == data
            with pytest.raises(HubError, match=r"cannot be used.*HF_HUB_CACHE"):
                download(client, "org/model", listing.commit, readme)

    frozen(home / "hub", use)


# ---- proxies


class Proxy(BaseHTTPRequestHandler):
    """A forward proxy for http addresses that notes what it is asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("http://hub.invalid"):
            target = self.path.replace("http://hub.invalid", self.server.endpoint)
            kept = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "proxy-connection")}
            with build_opener(ProxyHandler({})).open(Request(target, headers=kept, method=self.command)) as answer:
                body = answer.read()
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)
        else:
            self.send_error(502)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(hub) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Proxy,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.endpoint = hub.endpoint
        server.asked = handler.asked
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_a_proxy_of_the_environment_is_used(hub, data, proxy, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("NO_PROXY", "elsewhere.invalid")
    with HubClient("http://hub.invalid", patience=QUICK) as client:
        assert client.commit("org/model") == hub.repos["org/model"].branches["main"]
    assert proxy.asked == ["http://hub.invalid/api/models/org/model/revision/main"]


def test_no_proxy_wins(hub, data, proxy, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HubClient(patience=QUICK) as client:
        client.commit("org/model")
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("http://me:s3cret@127.0.0.1:9", r"proxy 127\.0\.0\.1:9 .*NO_PROXY"),
        ("gopher://x", "proxy.*cannot be used"),
        ("http://x:port", "proxy.*cannot be used"),
    ],
)
def test_a_proxy_that_is_none(hub, data, monkeypatch, value, says):
    monkeypatch.setenv("HTTP_PROXY", value)
    monkeypatch.setenv("NO_PROXY", "")
    with HubClient(patience=QUICK) as client, pytest.raises(NetworkError, match=says) as caught:
        client.commit("org/model")
    assert "s3cret" not in str(caught.value)


def test_a_broken_certificate_store_is_named(hub, data, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such/file")
    with HubClient(patience=QUICK) as client, pytest.raises(NetworkError, match="REQUESTS_CA_BUNDLE"):
        client.commit("org/model")
