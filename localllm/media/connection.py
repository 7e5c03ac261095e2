"""Connections for fetching what somebody else has named: to checked addresses only, and to an end at a set time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from localllm.media.addresses import is_public
from localllm.media.deadline import Deadline


class RefusedAddressError(Exception):
    """A name leads to no public address."""


class CheckedBackend(httpcore.NetworkBackend):
    """Looks names up itself, and connects to the very address that was checked: what a later look-up says changes nothing.

    What TLS and the Host header name stays the name. A look-up cannot be stopped: it may outlast the deadline by as much as the
    system's resolver waits.

    Args:
        deadline: Deadline.
        allow_private: bool, all addresses will do.
    """

    def __init__(self, deadline: Deadline, allow_private: bool) -> None:
        self._deadline = deadline
        self._allow_private = allow_private
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """See httpcore.

        Raises:
            RefusedAddressError: None of the host's addresses is public.
            OutOfTimeError: The deadline is over.
        """
        error: Exception | None = None
        for address in self._addresses(host, port):
            try:
                stream = self._sockets.connect_tcp(address, port, self._deadline.left(), local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
            else:
                return _TimedStream(stream, self._deadline)
        raise error or httpcore.ConnectError(f"{host} has no address")

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as failure:  # UnicodeError: a label of more than 63 characters
            raise httpcore.ConnectError(f"there is no host {host} ({failure})") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if self._allow_private:
            return addresses
        public = [address for address in addresses if is_public(address)]
        if not public:
            raise RefusedAddressError(addresses[0] if addresses else host)
        return public


class _TimedStream(httpcore.NetworkStream):
    """A stream whose every wait ends at the deadline, however little each of them brings."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, self._deadline.left()), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
