"""The content of a file on its way, or the part of it that a server chose to give."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from localllm.errors import NetworkError
from localllm.hub.addresses import origin
from localllm.hub.answers import Question
from localllm.hub.listing import is_strong_etag, size_in
from localllm.hub.progress import CancelToken

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True)
class Validator:
    """A strong ETag (RFC 9110, 8.8.3) and the origin that gave it: what If-Range may be asked with, and where."""

    origin: str
    etag: str


class Body:
    """The content of a file as it arrives, from `start` on.

    Attributes:
        start: int, position of the first byte in the file: less than what was asked for if the server ignores ranges.
        total_bytes: int or None, size of the whole file, if the server says it.
        stop: int or None, position after the last byte that this answer is to bring, if the server says it.
        validator: Validator or None, to ask for more of the same file with.
    """

    def __init__(self, response: httpx.Response, question: Question, cancel: CancelToken | None) -> None:
        self._response = response
        self._question = question
        self._cancel = cancel or CancelToken()
        self.start, self.stop, self.total_bytes = _extent(response, question)
        etag = response.headers.get("etag", "")
        self.validator = Validator(origin(str(response.url)), etag) if is_strong_etag(etag) else None

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()

    def __iter__(self) -> Iterator[bytes]:
        """The bytes in pieces of any size.

        Raises:
            NetworkError: The connection broke, or brought nothing for too long.
            DownloadCancelledError: Cancelled meanwhile.
        """
        coded = self._response.headers.get("content-encoding", "identity") != "identity"
        with ended_by(self._cancel, self._response):
            try:
                yield from self._response.iter_bytes() if coded else self._response.iter_raw()
            except (httpx.TransportError, httpx.DecodingError) as error:
                self._cancel.check()
                raise NetworkError(f"{self._question}: the connection broke ({words_of(error)})") from None


@contextlib.contextmanager
def ended_by(cancel: CancelToken | None, response: httpx.Response) -> Iterator[None]:
    """While the block runs, a cancellation wakes the thread that waits for bytes of an answer: its connection is broken then."""

    def abort() -> None:
        stream = response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    with cancel.calling(abort) if cancel is not None else contextlib.nullcontext():
        yield


def _extent(response: httpx.Response, question: Question) -> tuple[int, int | None, int | None]:
    if response.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
        start, last = (size_in(found[1]), size_in(found[2])) if found is not None else (None, None)
        if found is None or start is None or last is None:
            response.close()
            raise NetworkError(f"{question}: the server answers with a part of the file, but does not say which")
        return start, last + 1, size_in(found[3])
    coded = response.headers.get("content-encoding", "identity") != "identity"
    n_bytes = None if coded else size_in(response.headers.get("content-length", ""))
    return 0, n_bytes, n_bytes


def words_of(error: Exception) -> str:
    return str(error) or type(error).__name__
