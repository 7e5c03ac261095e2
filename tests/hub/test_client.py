"""What a client asks, what it makes of the answers, and whom it tells its token."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading

import pytest

from localllm.errors import (
    AccessDeniedError,
    CorruptFileError,
    DownloadCancelledError,
    FileNotInRepoError,
    GatedRepoError,
    HubError,
    InvalidRequestError,
    NetworkError,
    OfflineError,
    ReferenceFormatError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from localllm.hub.client import HubClient
from localllm.hub.listing import RepoFile
from localllm.hub.progress import CancelToken
from localllm.hub.retries import Patience

QUICK = Patience(connect_seconds=2, stall_seconds=1, tries=3, first_wait_seconds=0.01, longest_wait_seconds=2)
TOKEN = "hf_" + "s3cret" * 6
KB = 1000


@pytest.fixture
def repo(hub, content):
    data = content(400 * KB)
    hub.add("org/model", {"model.gguf": data, "README.md": b"hello", "sub/x.gguf": b"x"})
    return data


# ---- listings


def test_a_listing_says_what_the_hub_knows(hub, repo, client):
    listing = client.listing("org/model")
    tree = hub.repos["org/model"].commits[listing.commit]
    assert (listing.repo, listing.revision, listing.commit) == ("org/model", "main", hub.repos["org/model"].branches["main"])
    assert set(listing.files) == {
        RepoFile("model.gguf", 400 * KB, tree["model.gguf"].oid, tree["model.gguf"].sha256),
        RepoFile("README.md", 5, tree["README.md"].oid, None),
        RepoFile("sub/x.gguf", 1, tree["sub/x.gguf"].oid, tree["sub/x.gguf"].sha256),
    }


def test_all_pages_are_read(hub, client):
    hub.add("org/model", {f"{number:03}.gguf": bytes([number]) for number in range(25)})
    hub.page_size = 4
    assert [file.path for file in client.listing("org/model").files] == [f"{number:03}.gguf" for number in range(25)]
    assert len([entry for entry in hub.log if "/tree/" in entry.path]) == 7


def test_pages_of_a_mirror_are_asked_from_the_mirror(hub, client):
    hub.add("org/model", {f"{number}.gguf": b"x" for number in range(4)})
    hub.page_size = 3
    link = '<https://huggingface.invalid/api/models/org/model/tree/main?recursive=true&cursor=3>; rel="next"'
    hub.fail(path="*/tree/*", origin="api", headers={"Link": link})
    assert len(client.listing("org/model").files) == 4


def test_pages_without_end_are_an_error(hub, client):
    hub.add("org/model", {"a.gguf": b"x"})
    hub.fail(path="*/tree/*", origin="api", times=None, headers={"Link": '<?cursor=0>; rel="next"'})
    with pytest.raises(NetworkError, match="without end"):
        client.listing("org/model")


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, client):
    first = hub.add("org/model", {"a.gguf": b"1"})
    second = hub.add("org/model", {"a.gguf": b"2"})
    other = hub.add("org/model", {"b.gguf": b"3"}, branch="refs/pr/1")
    hub.repos["org/model"].tags["v1"] = first
    wanted = {"main": second, "v1": first, "refs/pr/1": other, first: first}
    assert {revision: client.commit("org/model", revision) for revision in wanted} == wanted
    assert client.refs("org/model") == {"main": second, "refs/pr/1": other, "v1": first}
    assert client.listing("org/model", "refs/pr/1").files[0].path == "b.gguf"


def test_a_renamed_repository_gets_its_present_name(hub, repo, client):
    hub.rename("org/model", "new-org/new-model")
    listing = client.listing("org/model")
    assert listing.repo == "new-org/new-model"
    file = client.file("org/model", listing.commit, "model.gguf")
    assert client.read_range(file, 10, 5) == repo[10:15]


# ---- files and ranges


def test_a_file_is_described_without_its_content(hub, repo, client):
    commit = client.commit("org/model")
    large, small = client.file("org/model", "main", "model.gguf"), client.file("org/model", commit, "README.md")
    stored = hub.repos["org/model"].commits[commit]
    assert (large.commit, large.n_bytes, large.etag) == (commit, 400 * KB, stored["model.gguf"].sha256)
    assert large.sha256 == large.etag
    assert (small.n_bytes, small.etag, small.sha256) == (5, stored["README.md"].oid, None)
    assert large.location not in repr(large)
    assert hub.gets(method="*") == hub.gets() == []


@pytest.mark.parametrize(
    ("start", "length"), [(0, 10), (100 * KB, 200 * KB), (400 * KB - 3, 100), (400 * KB, 5), (0, 400 * KB), (7, 0)]
)
@pytest.mark.parametrize(
    "fault", [None, {"ignore_range": True, "times": None}, {"cut_after": 50 * KB, "times": None}, {"status": 403}]
)
def test_ranges(hub, repo, client, start, length, fault):
    file = client.file("org/model", "main", "model.gguf")
    if fault:
        hub.fail(path="model.gguf", **fault)
    assert client.read_range(file, start, length) == repo[start : start + length]


def test_ranges_come_straight_from_where_the_file_is(hub, repo, client):
    file = client.file("org/model", "main", "model.gguf")
    hub.forget()
    client.read_range(file, 0, 10)
    client.read_range(file, 10, 10)
    assert [(entry.origin, entry.range) for entry in hub.log] == [("cdn", "bytes=0-9"), ("cdn", "bytes=10-19")]
    hub.expire_links()
    hub.forget()
    assert client.read_range(file, 20, 10) == repo[20:30]
    assert [entry.origin for entry in hub.log] == ["cdn", "api", "cdn"]


def test_an_ignored_range_is_not_read_to_its_end(hub, repo, client):
    file = client.file("org/model", "main", "model.gguf")
    hub.fail(path="model.gguf", ignore_range=True, chunk_bytes=1000, stall_after=20 * KB)
    assert client.read_range(file, 0, 1000) == repo[:1000]


def test_more_than_the_range_is_not_read_to_its_end(hub, repo, client):
    file = client.file("org/model", "main", "model.gguf")
    hub.fail(path="model.gguf", status=206, headers={"Content-Range": "bytes 100-399999/400000"}, body=repo[100:])
    assert client.read_range(file, 100, 10) == repo[100:110]


@pytest.mark.parametrize(
    "headers",
    [
        *({"Content-Range": text} for text in ("", "bytes 5-9/400000", "bytes 0-9/77", "x")),
        *({"Content-Range": f"bytes {'1' * 5000}-{last}/400000"} for last in ("109", "1" * 5000)),
    ],
)
def test_another_range_than_was_asked_for_is_refused(hub, repo, client, headers):
    file = client.file("org/model", "main", "model.gguf")
    hub.fail(path="model.gguf", times=None, headers=headers)
    with pytest.raises((NetworkError, CorruptFileError), match=r"model\.gguf"):
        client.read_range(file, 100, 10)


@pytest.mark.parametrize("digits", ["9" * 19, "1" * 20, "1" * 5000, "-1", "1e3", "٣", ""])
@pytest.mark.parametrize("name", ["X-Linked-Size", "Content-Length"])
def test_a_size_that_no_file_has_is_refused(hub, client, digits, name):
    hub.add("org/model", {"config.json": b"{}", "model.gguf": b"x"})
    file = "model.gguf" if name == "X-Linked-Size" else "config.json"
    hub.fail(path=file, origin="api", methods=("HEAD",), times=None, headers={name: digits})
    with pytest.raises(NetworkError, match=f"{file}.*(does not answer as a Hub does|broke)"):
        client.file("org/model", "main", file)


def test_the_total_of_a_part_may_be_any_nonsense(hub, repo, client):
    file = client.file("org/model", "main", "model.gguf")
    hub.fail(path="model.gguf", headers={"Content-Range": f"bytes 100-109/{'7' * 5000}"})
    assert client.read_range(file, 100, 10) == repo[100:110]


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (400 * KB + 1, 1), (0, -1), (0, 1 << 40)])
def test_ranges_outside_of_a_file_are_refused(hub, repo, client, start, length):
    file = client.file("org/model", "main", "model.gguf")
    with pytest.raises(InvalidRequestError):
        client.read_range(file, start, length)


# ---- refusals


READER, STRANGER = "hf_reader", "hf_stranger"

REFUSALS = [
    # asked of, token, error, what the message says
    (("org/none", "main", "a.gguf"), None, RepositoryNotFoundError, "spelling.*HF_TOKEN"),
    (("org/none", "main", "a.gguf"), READER, RepositoryNotFoundError, "your token may not"),
    (("org/private", "main", "a.gguf"), None, RepositoryNotFoundError, "private.*HF_TOKEN"),
    (("org/private", "main", "a.gguf"), STRANGER, RepositoryNotFoundError, "your token may not"),
    (("org/private", "main", "a.gguf"), "hf_wrong", AccessDeniedError, "does not accept the token"),
    (("org/private", "main", "a.gguf"), READER, None, ""),
    (("org/gated", "main", "a.gguf"), None, GatedRepoError, "accept its terms at http.*/org/gated.*HF_TOKEN"),
    (("org/gated", "main", "a.gguf"), STRANGER, GatedRepoError, "no access.*accept its terms at http.*/org/gated"),
    (("org/gated", "main", "a.gguf"), "hf_wrong", AccessDeniedError, "HF_TOKEN"),
    (("org/gated", "main", "a.gguf"), READER, None, ""),
    (("org/disabled", "main", "a.gguf"), None, AccessDeniedError, "disabled"),
    (("org/open", "v9", "a.gguf"), None, RevisionNotFoundError, "'v9'"),
    (("org/open", "main", "b.gguf"), None, FileNotInRepoError, "'b.gguf'"),
    (("org/open", "main", "a.gguf"), None, None, ""),
]


@pytest.mark.parametrize(("asked", "token", "error", "says"), REFUSALS)
def test_refusals_are_told_apart(hub, asked, token, error, says):
    hub.users.update({READER: "reader", STRANGER: "stranger"})
    for kind in ("open", "private", "gated", "disabled"):
        hub.add(f"org/{kind}", {"a.gguf": b"abc"}, readers={READER}, **({} if kind == "open" else {kind: True}))

    def fetch():
        with HubClient(token=token or False, patience=QUICK) as client:
            return client.read_range(client.file(*asked), 0, 3)

    if error is None:
        assert fetch() == b"abc"
        return
    with pytest.raises(HubError, match=says) as caught:
        fetch()
    assert type(caught.value) is error
    assert "hf_" not in str(caught.value)


BARE = [
    # status, headers, error, what the message says, tries
    (400, {}, HubError, "400", 1),
    (401, {}, RepositoryNotFoundError, "HF_TOKEN", 1),
    (403, {"X-Error-Message": "needs\tscope"}, AccessDeniedError, r"needs scope.*token", 1),
    (404, {}, FileNotInRepoError, "a.gguf", 1),
    (407, {}, NetworkError, "HTTPS_PROXY", 1),
    (408, {}, NetworkError, "408", 3),
    (429, {}, NetworkError, "limits.*later.*HF_TOKEN", 3),
    (429, {"Retry-After": "3600"}, NetworkError, "3600 seconds", 1),
    (429, {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, NetworkError, "56 seconds", 1),
    (500, {}, NetworkError, "500.*later", 3),
    (501, {}, NetworkError, "501", 1),
    (503, {"Retry-After": "0"}, NetworkError, "503", 3),
]


@pytest.mark.parametrize(("status", "headers", "error", "says", "tries"), BARE)
def test_bare_answers_of_mirrors_and_proxies(hub, repo, status, headers, error, says, tries):
    hub.fail(path="a.gguf", origin="api", methods=("HEAD",), times=None, status=status, headers=headers)
    with HubClient(patience=QUICK) as client, pytest.raises(HubError, match=says) as caught:
        client.file("org/model", "main", "a.gguf")
    assert type(caught.value) is error
    assert len(hub.gets("a.gguf", "api", "HEAD")) == tries


@pytest.mark.parametrize(
    "body", [b"<html>log in here</html>", b"[]", b"{}", b'{"id": "org/model", "sha": "main"}', b"[" * 100_000, b"\xff"]
)
def test_answers_that_no_hub_gives(hub, repo, client, body):
    hub.fail(path="*/revision/*", origin="api", body=body)
    with pytest.raises(NetworkError, match="HF_ENDPOINT"):
        client.commit("org/model")


@pytest.mark.parametrize(
    "entry",
    [
        {},
        5,
        {"type": "file", "path": "a", "size": 1, "oid": "../x"},
        *({"type": "file", "path": "a", "size": size, "oid": "0" * 40} for size in (-1, 2**63, float("inf"), "7", True, None)),
    ],
)
def test_listings_that_no_hub_gives(hub, repo, client, entry):
    import json

    hub.fail(path="*/tree/*", origin="api", body=json.dumps([entry]).encode())
    with pytest.raises((NetworkError, ReferenceFormatError)):
        client.listing("org/model")


def test_redirects_without_end(hub, repo, client):
    hub.fail(path="model.gguf", origin="api", methods=("HEAD",), times=None, redirect_loop=True)
    with pytest.raises(NetworkError, match="redirects more than 10 times"):
        client.file("org/model", "main", "model.gguf")
    assert len(hub.log) == 11


@pytest.mark.parametrize("location", ["http://[", "ftp://x/y", "http://x:99999/"])
def test_redirects_to_nowhere(hub, repo, client, location):
    hub.fail(path="model.gguf", origin="api", methods=("HEAD", "GET"), times=None, status=302, headers={"Location": location})
    with pytest.raises(NetworkError, match="no address"):
        client.open("org/model", "main", "model.gguf")


def test_a_dead_endpoint(home):
    with (
        HubClient("http://127.0.0.1:9", patience=QUICK) as client,
        pytest.raises(NetworkError, match=r"127\.0\.0\.1:9.*HF_ENDPOINT"),
    ):
        client.commit("org/model")


SILENT = {
    "before the headers": b"",
    "within the headers": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "within the answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "within a redirect": b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 100\r\n\r\nx",
    "within a refusal": b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nx",
}


@pytest.fixture
def silent(home):
    """A function that starts a server which sends a part of an answer, then nothing; gives its address, and when that is so."""
    with contextlib.ExitStack() as stack:

        def start(data: bytes) -> tuple[str, threading.Event]:
            listening, sent = stack.enter_context(socket.create_server(("127.0.0.1", 0))), threading.Event()

            def serve() -> None:
                connection = stack.enter_context(listening.accept()[0])
                connection.recv(1 << 16)
                connection.sendall(data)
                sent.set()

            threading.Thread(target=serve, daemon=True).start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}", sent

        yield start


def ends_by_cancelling(endpoint: str, waits: threading.Event) -> list[HubError]:
    """What a request to a silent server raises once it is cancelled; [] if it does not end."""
    cancel, found = CancelToken(), []
    patience = Patience(connect_seconds=300, stall_seconds=300, first_wait_seconds=300, longest_wait_seconds=300)

    def ask() -> None:
        with HubClient(endpoint, token=False, patience=patience) as client:
            try:
                client.commit("org/model", cancel=cancel)
            except HubError as error:
                found.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert waits.wait(30)
    cancel.cancel()
    asking.join(10)
    return found


@pytest.mark.parametrize("moment", SILENT)
def test_cancelling_ends_waiting_for_a_server(silent, moment):
    assert [type(error) for error in ends_by_cancelling(*silent(SILENT[moment]))] == [DownloadCancelledError]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue of connections refuses further ones")
def test_cancelling_ends_connecting(home):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as stack:
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        ready = threading.Event()
        ready.set()
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert [type(error) for error in ends_by_cancelling(endpoint, ready)] == [DownloadCancelledError]


def test_what_is_cancelled_at_once_is_not_asked(hub, repo, client):
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(DownloadCancelledError):
        client.commit("org/model", cancel=cancel)
    assert hub.log == []


def test_an_answer_without_end_is_asked_for_once(hub, repo, client, monkeypatch):
    monkeypatch.setattr("localllm.hub.client._MAX_JSON_BYTES", 10)
    with pytest.raises(NetworkError, match="does not answer as a Hub does"):
        client.commit("org/model")
    assert len(hub.log) == 1


def test_names_are_checked_before_anything_is_asked(hub, client):
    for call in (
        lambda: client.listing("../etc"),
        lambda: client.listing("a/b/c"),
        lambda: client.commit("org/model", "a b"),
        lambda: client.file("org/model", "main", "../x"),
    ):
        with pytest.raises(ReferenceFormatError):
            call()
    assert hub.log == []


def test_cancelling_ends_waiting_for_another_try(hub, repo):
    hub.fail(path="*", origin="api", times=None, status=503, headers={"Retry-After": "50"})
    cancel = CancelToken()
    threading.Timer(0.2, cancel.cancel).start()
    with HubClient() as client, pytest.raises(HubError, match="cancelled"):
        client.commit("org/model", cancel=cancel)


# ---- tokens


def test_the_token_goes_to_the_endpoint_only(hub, repo, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    hub.users[TOKEN] = "me"
    hub.fail(path="model.gguf", times=2, status=500)
    with HubClient(patience=QUICK) as client:
        client.listing("org/model")
        client.read_range(client.file("org/model", "main", "model.gguf"), 0, 10)
        with client.open("org/model", "main", "model.gguf") as body:
            assert b"".join(body) == repo
        with pytest.raises(FileNotInRepoError) as caught:
            client.file("org/model", "main", "none")
    assert {entry.authorization for entry in hub.log if entry.origin == "api"} == {f"Bearer {TOKEN}"}
    assert {entry.authorization for entry in hub.log if entry.origin == "cdn"} == {""}
    assert TOKEN not in caplog.text
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "argument", "sent"),
    [
        ({}, None, ""),
        ({"HF_TOKEN": TOKEN}, None, TOKEN),
        ({"HF_TOKEN": TOKEN}, False, ""),
        ({"HF_TOKEN": TOKEN}, TOKEN + "2", TOKEN + "2"),
        ({"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, None, ""),
        ({"HF_TOKEN": "  "}, None, ""),
        ({"file": TOKEN + "\n"}, None, TOKEN),
        ({"file": ""}, None, ""),
        ({"file": TOKEN, "HF_TOKEN": TOKEN + "3"}, None, TOKEN + "3"),
        ({"HF_TOKEN_PATH": TOKEN + "4"}, None, TOKEN + "4"),
    ],
)
def test_where_the_token_comes_from(hub, home, repo, monkeypatch, tmp_path, variables, argument, sent):
    hub.users.update({TOKEN + end: "me" for end in ("", "2", "3", "4")})
    for name, value in variables.items():
        if name == "file":
            home.mkdir()
            (home / "token").write_text(value)
        elif name == "HF_TOKEN_PATH":
            (tmp_path / "mine").write_text(value)
            monkeypatch.setenv(name, str(tmp_path / "mine"))
        else:
            monkeypatch.setenv(name, value)
    with HubClient(token=argument, patience=QUICK) as client:
        client.commit("org/model")
    assert hub.log[0].authorization == (f"Bearer {sent}" if sent else "")


def test_a_token_is_not_sent_in_the_clear(home, monkeypatch, caplog):
    with pytest.raises(AccessDeniedError, match="https"):
        HubClient("http://mirror.invalid", token=TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    client = HubClient("http://mirror.invalid", offline=True)
    assert not client._transport.with_token
    assert "not sent" in caplog.text
    for endpoint in ("https://mirror.invalid", "http://localhost:80", "http://[::1]:5", "http://127.0.0.1:1"):
        assert HubClient(endpoint, offline=True)._transport.with_token


@pytest.mark.parametrize("token", ["two words", "new\nline", "ümlaut", "\x00"])
def test_what_is_no_token_is_refused_unseen(home, token, monkeypatch):
    with pytest.raises(AccessDeniedError) as caught:
        HubClient(token=token)
    assert token not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN_PATH", "/")
    with pytest.raises(AccessDeniedError, match="token file"):
        HubClient()


# ---- environment


@pytest.mark.parametrize(
    "endpoint",
    [
        "huggingface.co",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?y",
        "http://[",
        "http://x:99999",
        "http://a b",
        "http://a\nb",
    ],
)
def test_endpoints_that_are_none(home, endpoint, monkeypatch):
    with pytest.raises(InvalidRequestError, match="endpoint"):
        HubClient(endpoint)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(InvalidRequestError, match="HF_ENDPOINT"):
        HubClient()


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", None])
def test_offline_no_socket_is_made(hub, repo, monkeypatch, variable):
    if variable:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("socket.socket", None)
    monkeypatch.setattr("socket.getaddrinfo", None)
    with HubClient(offline=None if variable else True) as client:
        for call in (
            lambda: client.commit("org/model"),
            lambda: client.listing("org/model"),
            lambda: client.refs("org/model"),
            lambda: client.file("org/model", "main", "model.gguf"),
            lambda: client.open("org/model", "main", "model.gguf"),
        ):
            with pytest.raises(OfflineError, match="offline"):
                call()
