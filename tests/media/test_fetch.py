"""Fetching addresses that somebody else has named, from servers that mean no good."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib

import httpcore
import pytest

from localllm.errors import MediaError
from localllm.media import connection
from localllm.media.connection import CheckedBackend, RefusedAddressError
from localllm.media.deadline import Deadline
from localllm.media.fetch import MAX_REDIRECTS, fetch, shown
from localllm.media.limits import MediaLimits

HERE = MediaLimits(allow_urls=True, allow_private_addresses=True, max_bytes=1000, fetch_seconds=20)
HURRIED = MediaLimits(allow_urls=True, allow_private_addresses=True, fetch_seconds=0.2)
PUBLIC = MediaLimits(allow_urls=True)
pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def resolve(monkeypatch):
    """`resolve({name: [address, ...]})`: what names lead to; the returned list gets each name that is looked up."""
    real = socket.getaddrinfo

    def use(table):
        asked = []

        def getaddrinfo(host, port, *arguments, **options):
            if host in table:
                asked.append(host)
                return [entry for address in table[host] for entry in real(address, port, type=socket.SOCK_STREAM)]
            return real(host, port, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return use


# ---- what is allowed


def test_nothing_is_fetched_unless_that_is_allowed(serve, answer):
    server = serve({"/": answer(b"picture")})
    with pytest.raises(MediaError, match=r"^part: http://127.0.0.1:\d+/ is not fetched .*allow_urls"):
        fetch(server.url("/"), MediaLimits(allow_private_addresses=True), "part")
    assert server.requests == []


def test_a_body_is_fetched_without_saying_who_asks(serve, answer, monkeypatch):
    server = serve({"/a%20b?c=d": answer(b"picture", set_cookie="a=b")})
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there: a proxy of the environment is not used
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    for _ in range(2):
        assert fetch(server.url("/a%20b?c=d#part"), HERE) == b"picture"
    for request in server.requests:
        assert b"\r\nHost: 127.0.0.1:%d\r\n" % server.port in request
        assert not any(word in request.lower() for word in (b"cookie", b"authorization", b"referer", b"#part"))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_this_machine_is_not_asked_however_it_is_written(serve, answer, host):
    server = serve({"/": answer(b"secret")})
    with pytest.raises(
        MediaError, match=r"^part: .* (is no public address; .*allow_private_addresses|cannot be fetched \(there is no)"
    ):
        fetch(server.url("/", host), PUBLIC, "part")
    assert server.requests == []


@pytest.mark.parametrize(
    "url, said",
    [
        ("ftp://host/a", "is no http:// or https:// address"),
        ("file:///etc/passwd", "is no http:// or https:// address"),
        ("http:///a", "is no http:// or https:// address"),
        ("http://", "is no http:// or https:// address"),
        ("//host/a", "is no http:// or https:// address"),
        ("http://host:0/", "is no http:// or https:// address"),
        ("http://host:65536/", "is no http:// or https:// address"),
        ("http://[::1/", "is no valid address"),
        ("http://user:word@host/", "holds a user or password"),
        ("http://user@host/", "holds a user or password"),
        ("http://@host/", "holds a user or password"),
        ("http://host\\@other/", "holds a blank, a backslash or a control"),
        ("http://ho st/", "holds a blank, a backslash or a control"),
        ("http://host/\r\nX: y", "holds a blank, a backslash or a control"),
        ("http://host/\0", "holds a blank, a backslash or a control"),
    ],
)
def test_odd_addresses_are_refused(url, said):
    with pytest.raises(MediaError, match=f"^part: .*{said}") as caught:
        fetch(url, PUBLIC, "part")
    assert "word" not in str(caught.value).split("holds")[0]


def test_messages_show_nothing_secret_and_not_much():
    assert shown("http://user:word@host/path?key=1#x") == "http://host/path"
    assert shown("http://host?key=1") == "http://host"
    assert shown("http://host/\x1b[31m") == "http://host/?[31m"
    assert len(shown("http://host/" + "a" * 1000)) < 100


# ---- names and what they lead to


def test_a_name_of_a_private_address_is_refused(serve, answer, resolve):
    server = serve({"/": answer(b"secret")})
    resolve({"inside.test": ["127.0.0.1", "10.0.0.1", "169.254.169.254"]})
    with pytest.raises(MediaError, match="leads to 127.0.0.1, which is no public address"):
        fetch(server.url("/", "inside.test"), PUBLIC)
    assert server.requests == []


def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(serve, answer, resolve):
    server = serve({"/": answer(b"picture")})
    asked = resolve({"pictures.test": ["127.0.0.1"]})
    assert fetch(server.url("/", "pictures.test"), HERE) == b"picture"
    assert asked == ["pictures.test"]
    assert b"\r\nHost: pictures.test:%d\r\n" % server.port in server.requests[0]


def test_only_the_public_ones_of_many_addresses_are_tried(resolve, monkeypatch):
    resolve({"mixed.test": ["10.0.0.1", "8.8.8.8", "127.0.0.1", "1.1.1.1", "::1"]})
    tried = []

    def connect(self, host, port, timeout=None, local_address=None, socket_options=None):
        tried.append((host, port))
        raise httpcore.ConnectError("unreachable")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    with pytest.raises(httpcore.ConnectError, match="unreachable"):
        CheckedBackend(Deadline(20), allow_private=False).connect_tcp("mixed.test", 80)
    assert tried == [("8.8.8.8", 80), ("1.1.1.1", 80)]


def test_another_answer_to_a_later_look_up_is_checked_again(resolve):
    table = {"rebinding.test": ["127.0.0.1"]}
    resolve(table)
    backend = CheckedBackend(Deadline(20), allow_private=False)
    for address in ("127.0.0.1", "192.168.0.1"):
        table["rebinding.test"] = [address]
        with pytest.raises(RefusedAddressError, match=address):
            backend.connect_tcp("rebinding.test", 80)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".invalid", "ä" * 60 + ".invalid"])
def test_a_host_that_is_not_there(host, monkeypatch):
    def getaddrinfo(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(MediaError, match=r"^part: http://.* (cannot be fetched \(there is no host|is no valid address)"):
        fetch(f"http://{host}/", PUBLIC, "part")


def test_nobody_listens(serve):
    server = serve({})
    server.close()
    with pytest.raises(MediaError, match="cannot be fetched"):
        fetch(server.url("/"), HERE)
    server.close = lambda: None


# ---- TLS


def test_tls_and_host_name_the_name_that_was_looked_up(serve, answer, resolve):
    server = serve({"/": answer(b"picture")}, tls=True)
    resolve({"pictures.test": ["127.0.0.1"]})
    assert fetch(server.url("/", "pictures.test"), HERE) == b"picture"
    assert server.names == ["pictures.test"]
    assert b"\r\nHost: pictures.test:%d\r\n" % server.port in server.requests[0]


def test_a_certificate_for_another_name_is_refused(serve, answer, resolve):
    server = serve({"/": answer(b"picture")}, tls=True)
    resolve({"other.test": ["127.0.0.1"]})
    with pytest.raises(MediaError, match="cannot be fetched .*certificate"):
        fetch(server.url("/", "other.test"), HERE)
    assert server.requests == []


def test_a_redirect_that_leaves_tls_is_refused(serve, answer, resolve):
    plain = serve({"/": answer(b"picture")})
    server = serve({"/": answer(status="302 Found", location=plain.url("/"))}, tls=True)
    resolve({"pictures.test": ["127.0.0.1"]})
    with pytest.raises(MediaError, match="redirects to .*, without TLS"):
        fetch(server.url("/", "pictures.test"), HERE)
    assert plain.requests == []


# ---- redirects


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_followed_without_reading_what_comes_with_it(serve, answer, status):
    server = serve({"/a/b": answer(b"x" * 5000, status, location="../c"), "/c": answer(b"picture")})
    assert fetch(server.url("/a/b"), HERE) == b"picture"


def test_so_many_redirects_are_followed_and_no_more(serve, answer):
    steps = {f"/{number}": answer(status="302 Found", location=f"/{number + 1}") for number in range(MAX_REDIRECTS + 1)}
    server = serve({**steps, f"/{MAX_REDIRECTS + 1}": answer(b"picture")})
    assert fetch(server.url("/1"), HERE) == b"picture"
    with pytest.raises(MediaError, match=r"redirects more than 5 times"):
        fetch(server.url("/0"), HERE)


def test_a_redirect_to_a_private_address_is_refused(serve, answer, monkeypatch):
    monkeypatch.setattr(connection, "is_public", lambda address: address == "127.0.0.1")
    server = serve({"/next": answer(b"picture")})
    server.answers["/"] = answer(status="302 Found", location=f"http://127.0.0.2:{server.port}/next")
    with pytest.raises(MediaError, match=r"^part: http://127.0.0.2:\d+/next leads to 127.0.0.2, which is no public address"):
        fetch(server.url("/"), PUBLIC, "part")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://host/", "http://user:word@127.0.0.1/", "http://[", "http://a\x01b/"]
)
def test_a_redirect_to_an_odd_address_is_refused(serve, answer, location):
    server = serve({"/": answer(status="302 Found", location=location)})
    with pytest.raises(MediaError, match="^part: "):
        fetch(server.url("/"), HERE, "part")
    assert len(server.requests) == 1


# ---- how much


def test_as_much_as_allowed_is_taken_and_no_more(serve, answer):
    server = serve({"/all": answer(b"x" * 1000), "/more": answer(b"x" * 1001)})
    assert len(fetch(server.url("/all"), HERE)) == 1000
    with pytest.raises(MediaError, match=r"has 1,001 bytes, and at most 1,000 are allowed \(max_bytes\)"):
        fetch(server.url("/more"), HERE)


def test_a_length_that_is_too_small_hides_nothing(serve, answer):
    server = serve({"/": answer(b"x" * 5000, content_length="3")})
    assert fetch(server.url("/"), HERE) == b"xxx"


@pytest.mark.parametrize("length", ["1000", "-1", "1e3", "9" * 30, "3, 4"])
def test_a_length_that_is_wrong_is_an_error(serve, answer, length):
    server = serve({"/": answer(b"x" * 5, content_length=length)})
    with pytest.raises(MediaError, match="^part: "):
        fetch(server.url("/"), HERE, "part")


def without_end(start: bytes, more: bytes, pause: float = 0.0):
    """Writes until nobody reads any more."""

    def write(stream: socket.socket) -> None:
        stream.sendall(start)
        while not threading.Event().wait(pause):
            stream.sendall(more)

    return write


@pytest.mark.parametrize(
    "start, more",
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n"),
    ],
)
def test_a_body_without_end_is_cut_off(serve, start, more):
    server = serve({"/": without_end(start, more)})
    with pytest.raises(MediaError, match=r"has more than 1,000 bytes, .*\(max_bytes\)"):
        fetch(server.url("/"), HERE)


@pytest.mark.parametrize("more", [b"x: y\r\n", b"x" * 4096])
def test_headers_without_end_are_cut_off(serve, more):
    server = serve({"/": without_end(b"HTTP/1.1 200 OK\r\n", more)})
    with pytest.raises(MediaError, match="cannot be fetched"):
        fetch(server.url("/"), HERE)


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + b"HTTP"]
)
def test_what_only_trickles_ends_in_time(serve, start):
    server = serve({"/": without_end(start, b"1", pause=0.01)})
    with pytest.raises(MediaError, match=r"was not there after 0.2 seconds; .*fetch_seconds"):
        fetch(server.url("/"), HURRIED)


def test_redirects_share_the_time(serve, answer):
    def late(stream: socket.socket) -> None:
        threading.Event().wait(0.1)
        stream.sendall(answer(status="302 Found", location="/"))

    server = serve({"/": late})
    with pytest.raises(MediaError, match=r"was not there after 0.2 seconds"):
        fetch(server.url("/"), HURRIED)


def test_a_server_that_says_nothing_ends_in_time(serve):
    server = serve({"/": lambda stream: stream.recv(1)})
    with pytest.raises(MediaError, match=r"was not there after 0.2 seconds"):
        fetch(server.url("/"), HURRIED)


# ---- packed bodies, and what is no body


@pytest.mark.parametrize("coding, pack", [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_packed_body_is_unpacked_up_to_the_limit(serve, answer, coding, pack):
    server = serve(
        {
            "/": answer(pack(b"picture" * 100), content_encoding=coding),
            "/bomb": answer(pack(bytes(500_000)), content_encoding=coding),
            "/cut": answer(pack(b"picture" * 100)[:-12], content_encoding=coding),
            "/wrong": answer(b"picture", content_encoding=coding),
        }
    )
    assert fetch(server.url("/"), HERE) == b"picture" * 100
    for path, said in {
        "/bomb": "has more than 1,000 bytes",
        "/cut": "ends before all of it is there",
        "/wrong": "is not packed as it says",
    }.items():
        with pytest.raises(MediaError, match=f"^part: .*{said}"):
            fetch(server.url(path), HERE, "part")


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x" * 100])
def test_other_packings_are_refused(serve, answer, coding):
    server = serve({"/": answer(b"picture", content_encoding=coding)})
    with pytest.raises(MediaError, match="is sent packed as"):
        fetch(server.url("/"), HERE)


@pytest.mark.parametrize("status", ["404 Not Found", "204 No Content", "206 Partial Content", "401 Who", "500 Oh", "302 Nowhere"])
def test_another_status_is_an_error(serve, answer, status):
    server = serve({"/": answer(status=status)})
    with pytest.raises(MediaError, match=rf"^part: http://127.0.0.1:\d+/ answers with status {status[:3]}; check the address$"):
        fetch(server.url("/"), HERE, "part")


@pytest.mark.parametrize(
    "reply", [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", b"HTTP/9.9 x\r\n\r\n"]
)
def test_an_answer_that_is_none_is_an_error(serve, reply):
    server = serve({"/": reply})
    with pytest.raises(MediaError, match="^part: .*cannot be fetched"):
        fetch(server.url("/"), HERE, "part")
