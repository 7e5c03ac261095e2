"""Fixtures of the tests of media: a web server that answers what it is told to, and encoded media."""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from PIL import Image as Pillow

Answer = bytes | Callable[[socket.socket], None]


def _answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """An HTTP answer; `content_length="3"` becomes a header, and there is a true length unless one is given."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    told.setdefault("content-length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class WebServer:
    """Answers each path with given bytes, or by a function that writes into the socket until the other side leaves.

    Attributes:
        port: int, on 127.0.0.1.
        requests: list of bytes, heads of the requests that came.
        names: list of str, hosts that clients named when TLS began.
    """

    def __init__(self, answers: dict[str, Answer], context: ssl.SSLContext | None = None) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.names: list[str] = []
        self._context = context
        if context is not None:
            context.sni_callback = lambda connection, name, context: self.names.append(name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{'https' if self._context else 'http'}://{host}:{self.port}{path}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                with connection, self._secured(connection) as stream:
                    self._answer(stream)
            except OSError:  # the client has left, which some tests are about
                continue

    def _secured(self, connection: socket.socket) -> socket.socket:
        return connection if self._context is None else self._context.wrap_socket(connection, server_side=True)

    def _answer(self, stream: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += (data := stream.recv(4096))
            if not data:
                return
        self.requests.append(request)
        reply = self.answers[request.split()[1].decode()]
        if callable(reply):
            reply(stream)
        else:
            stream.sendall(reply)


@pytest.fixture(scope="session")
def answer() -> Callable[..., bytes]:
    """`answer(body, status, **headers)`: an HTTP answer."""
    return _answer


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who vouches for https://pictures.test, made for this run."""
    return trustme.CA()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: trustme.CA) -> Iterator[Callable[..., WebServer]]:
    """`serve({path: answer})`: a WebServer; `tls=True`: one for https://pictures.test."""
    servers: list[WebServer] = []

    def start(answers: dict[str, Answer], tls: bool = False) -> WebServer:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("pictures.test").configure_cert(context)
            authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        servers.append(WebServer(answers, context))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """What the test opened is closed again, and its threads have ended. Ask for it first, so that it looks last."""

    def opened() -> list[str]:
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    before, threads = opened(), threading.active_count()
    yield
    assert opened() == before
    assert threading.active_count() == threads


@pytest.fixture(scope="session")
def pillow_bytes() -> Callable[..., bytes]:
    """`pillow_bytes(image, format, **options)`: a PIL image, or an array that makes one, as a file."""

    def encode(image: Any, kind: str = "PNG", **options: Any) -> bytes:
        data = io.BytesIO()
        (Pillow.fromarray(image) if isinstance(image, np.ndarray) else image).save(data, kind, **options)
        return data.getvalue()

    return encode


@pytest.fixture(scope="session")
def gradient() -> np.ndarray:
    """A picture whose pixels all differ: uint8 [4, 6, 3]."""
    return (np.arange(72, dtype=np.uint8) * 3).reshape(4, 6, 3)
