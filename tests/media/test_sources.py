"""Where the bytes of a medium come from."""

from __future__ import annotations

import base64
import io
import os
import pathlib
import socket

import pytest

from localllm.errors import InvalidRequestError, MediaError
from localllm.media.limits import MediaLimits
from localllm.media.sources import from_base64, is_path, read_bytes

SMALL = MediaLimits(max_bytes=10)
NO_FILES = MediaLimits(allow_files=False)
pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a picture ä%41?.png"
    path.write_bytes(b"picture")
    return path


# ---- what there is


def test_every_kind_of_source_gives_the_same_bytes(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").write_bytes(b"picture")
    stood = io.BytesIO(b"before picture")
    stood.seek(7)
    sources = [
        *(str(file), file, file.as_uri(), file.as_uri().replace("file://", "FILE://localhost"), file.name, "a:b"),
        *(b"picture", bytearray(b"picture"), memoryview(b"picture"), memoryview(b"p-i-c-t-u-r-e")[::2]),
        *(stood, io.BufferedReader(io.BytesIO(b"picture"))),
        *(
            "data:,picture",
            "data:image/png,pi%63ture",
            "DATA:image/png;charset=x;BASE64,cGljdHVyZQ==",
            "data:;base64,cGljdHVyZQ%3D%3d",
        ),
    ]
    for source in sources:
        assert read_bytes(source) == b"picture", source
    with file.open("rb") as opened:
        assert read_bytes(opened) == b"picture"


def test_an_address_is_fetched(serve, answer):
    server = serve({"/": answer(b"picture")})
    limits = MediaLimits(allow_urls=True, allow_private_addresses=True)
    assert read_bytes(server.url("/").replace("http", "HTTP"), limits) == b"picture"
    with pytest.raises(MediaError, match="^part: .*is not fetched unless that is allowed"):
        read_bytes(server.url("/"), name="part")


def test_a_file_that_gives_little_at_a_time_is_read_to_its_end():
    class Trickle(io.RawIOBase):
        def __init__(self):
            self.left = list(b"picture")

        def readable(self):
            return True

        def readinto(self, buffer):
            if not self.left:
                return 0
            buffer[0] = self.left.pop(0)
            return 1

    assert read_bytes(Trickle()) == b"picture"


@pytest.mark.parametrize("source", ["data:,x", "http://host/", "HTTPS://host/", b"x", io.BytesIO(b"x"), 3, None])
def test_what_is_no_path(source):
    assert not is_path(source)


# ---- how much of it


@pytest.mark.parametrize("extra", [0, 1])
def test_each_kind_of_source_is_bounded(tmp_path, extra):
    data = b"x" * (10 + extra)
    path = tmp_path / "file"
    path.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    sources = [path, path.as_uri(), data, bytearray(data), memoryview(data), io.BytesIO(data), f"data:,{data.decode()}"]
    sources += ["data:," + "%78" * len(data), f"data:;base64,{encoded}", f"data:;base64,{encoded.replace('=', '%3D')}"]
    for source in sources:
        if not extra:
            assert read_bytes(source, SMALL) == data
            continue
        with pytest.raises(MediaError, match=r"^part: has .* bytes or more, and at most 10 are allowed \(max_bytes\)$"):
            read_bytes(source, SMALL, "part")


def test_a_file_that_grows_while_it_is_read_is_bounded():
    class Endless:
        def read(self, count):
            return b"x" * min(count, 3)

    with pytest.raises(MediaError, match="max_bytes"):
        read_bytes(Endless(), SMALL)


def test_a_long_data_address_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(base64, "b64decode", None)
    monkeypatch.setattr("localllm.media.sources.unquote_to_bytes", None)
    for uri in ("data:;base64," + "A" * 1000, "data:;base64," + "%41" * 1000, "data:," + "%41" * 1000):
        with pytest.raises(MediaError, match="max_bytes"):
            read_bytes(uri, SMALL)


@pytest.mark.parametrize(
    "source", [b"", bytearray(), memoryview(b""), io.BytesIO(), "data:,", "data:;base64,", "data:image/png;base64,"]
)
def test_nothing_at_all_is_an_error(source):
    with pytest.raises(MediaError, match=r"^part: holds no byte at all; "):
        read_bytes(source, name="part")


# ---- what is refused


@pytest.mark.parametrize(
    "source, said",
    [
        ("there is no such file", "there is no file 'there is no such file', and it is no data:, file:// or http"),
        ("", "is no path"),
        ("a\0b", "is no path"),
        ("iVBORw0KGgo" * 1000, r"'iVBORw0KGgo.*\.\.\.' is no path, .*base64 wants data:"),
        ("ftp://host/a", "is of a kind of address that is not read"),
        ("blob:http://host/a", "is of a kind of address that is not read"),
        ("javascript:alert(1)", "is of a kind of address that is not read"),
        ("file://host/etc/passwd", "names no file of this machine"),
        ("file:relative", "names no file of this machine"),
        ("file:///a?b", "names no file of this machine"),
        ("file:///a#b", "names no file of this machine"),
        ("file:///a%00b", "is no path"),
        ("/", "is no file but a folder"),
        ("/dev/zero", "is no file but a folder, a pipe or a device"),
        ("/" + "a" * 300, "cannot be read"),
        ("data:image/png;base64", "is a data: address without a comma"),
        ("data:,a%2", "holds a % that begins no %XX"),
        ("data:,%zz", "holds a % that begins no %XX"),
        ("data:,ä", "holds characters beyond ASCII"),
        ("data:;base64,cGljdHVyZQ=", "is no base64 text"),
        ("data:;base64,cGljdHVyZQ", "is no base64 text"),
        ("data:;base64,cGlj dHVy", "is no base64 text"),
        ("data:;base64,cGlj\ndHVy", "is no base64 text"),
        ("data:;base64,cGl-dHV_", "is no base64 text"),
        ("data:;base64,cG==dHVy", "is no base64 text"),
        ("data:;base64,====", "is no base64 text"),
        ("data:;base64,äöüß", "is no base64 text"),
        ("data:;base64,%C3%A4ab", "is no base64 text"),
    ],
)
def test_a_text_that_names_nothing_is_an_error_that_says_why(source, said):
    with pytest.raises(MediaError, match=f"^part: .*{said}") as caught:
        read_bytes(source, name="part")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("source", [3, None, 1.5, ["a"], {"url": "a"}, object, io.StringIO("text")])
def test_another_type_is_an_error(source):
    with pytest.raises(InvalidRequestError, match=r"^part: "):
        read_bytes(source, name="part")


def test_files_are_not_read_where_that_is_not_allowed(file):
    for source in (file, str(file), file.as_uri(), "no such file", "/dev/zero", pathlib.Path("x"), "ftp://host/"):
        with pytest.raises(MediaError, match=r"^part: files are not read here \(allow_files\)"):
            read_bytes(source, NO_FILES, "part")
    assert read_bytes("data:,x", NO_FILES) == read_bytes(io.BytesIO(b"x"), NO_FILES) == b"x"


def test_pipes_and_sockets_are_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(MediaError, match="^part: "):
                read_bytes(tmp_path / name, name="part")


def test_a_closed_or_broken_file_is_an_error():
    closed = io.BytesIO(b"x")
    closed.close()

    class Broken:
        def read(self, count):
            raise OSError(5, "Input/output error")

    for source in (closed, Broken()):
        with pytest.raises(MediaError, match="^part: cannot be read"):
            read_bytes(source, name="part")


# ---- base64


def test_base64_is_taken_where_it_is_said_to_be_one():
    for size in range(1, 20):
        data = bytes(range(size))
        assert from_base64(base64.b64encode(data).decode()) == data
    with pytest.raises(MediaError, match="^part: holds no byte at all"):
        from_base64("", "part")
    with pytest.raises(MediaError, match="^part: is no base64"):
        from_base64("data:;base64,cGlj", "part")
    with pytest.raises(MediaError, match="max_bytes"):
        from_base64("A" * 16, "part", SMALL)
    with pytest.raises(InvalidRequestError, match="^part: a bytes is no base64 text"):
        from_base64(b"cGlj", "part")
