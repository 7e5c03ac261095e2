"""HTTP as a Hub needs it: the token for one origin only, redirects by hand, retries, and bodies that can be cut short.

Proxies come from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY). Certificates are checked against the system's
store and certifi's, or against SSL_CERT_FILE, SSL_CERT_DIR or REQUESTS_CA_BUNDLE alone where one of them is set.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from localllm import __version__
from localllm.errors import AccessDeniedError, CorruptFileError, HubError, NetworkError, OfflineError
from localllm.hub.answers import Question, refusal
from localllm.hub.progress import CancelToken
from localllm.hub.retries import RETRIED_STATUS, Patience, asked_wait_seconds

logger = logging.getLogger("localllm.hub")

_MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LINK_REFUSED = frozenset({400, 401, 403, 404, 410})
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Headers = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True)
class Validator:
    """A strong ETag (RFC 9110, 8.8.3) and the origin that gave it: what If-Range may be asked with, and where."""

    origin: str
    etag: str


class _Broken(Exception):
    """A request that got no answer; another try may."""

    def __init__(self, error: NetworkError, connecting: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.connecting = connecting


class Body:
    """The content of a file as it arrives, from `start` on.

    Attributes:
        start: int, position of the first byte in the file: less than what was asked for if the server ignores ranges.
        total_bytes: int or None, size of the whole file, if the server says it.
        validator: Validator or None, to ask for more of the same file with.
    """

    def __init__(self, response: httpx.Response, question: Question, cancel: CancelToken | None) -> None:
        self._response = response
        self._question = question
        self._cancel = cancel or CancelToken()
        self.start, self.total_bytes = _extent(response, question)
        etag = response.headers.get("etag", "")
        self.validator = Validator(origin(str(response.url)), etag) if etag.startswith('"') else None

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
        with self._cancel.calling(self._abort):
            try:
                yield from self._response.iter_bytes() if coded else self._response.iter_raw()
            except (httpx.TransportError, httpx.DecodingError) as error:
                self._cancel.check()
                raise NetworkError(f"{self._question}: the connection broke ({_said(error)})") from None

    def _abort(self) -> None:
        """Wakes a thread that waits for bytes."""
        stream = self._response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)


def _extent(response: httpx.Response, question: Question) -> tuple[int, int | None]:
    if response.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
        if found is None:
            response.close()
            raise NetworkError(f"{question}: the server answers with a part of the file, but does not say which")
        return int(found[1]), None if found[3] == "*" else int(found[3])
    length = response.headers.get("content-length", "")
    coded = response.headers.get("content-encoding", "identity") != "identity"
    return 0, int(length) if length.isascii() and length.isdigit() and not coded else None


class Transport:
    """Sends requests for one Hub.

    Args:
        endpoint: str, address of the Hub.
        token: str or None; sent to the endpoint's origin only.
        offline: bool, every request is an OfflineError.
        patience: Patience.

    Raises:
        AccessDeniedError: A token for an endpoint without TLS that is not this machine.
    """

    def __init__(self, endpoint: str, token: str | None, offline: bool, patience: Patience) -> None:
        if token is not None and not is_private(endpoint):
            raise AccessDeniedError(f"{endpoint} would get the token without TLS: use https, or no token (token=False)")
        self.endpoint = endpoint
        self.offline = offline
        self.patience = patience
        self._token = token
        self._origin = origin(endpoint)
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None

    @property
    def with_token(self) -> bool:
        return self._token is not None

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None

    def open(
        self,
        method: str,
        url: str,
        question: Question,
        headers: Headers = lambda url: {},
        cancel: CancelToken | None = None,
        stay: bool = False,
        fallback: str | None = None,
    ) -> httpx.Response:
        """Sends until an answer comes that is final. The caller closes it.

        Args:
            method, url: of the request.
            question: for the messages of errors.
            headers: what to send to the given address, beside the token.
            cancel: ends waiting.
            stay: a redirect to another origin is returned, not followed.
            fallback: where to ask if `url` lies elsewhere and is refused, as signed addresses are that have expired.

        Returns:
            httpx.Response, 2xx, 416, or 3xx with `stay`; its body is not read yet.

        Raises:
            HubError: One of its kinds; see `answers.refusal`. NetworkError after `patience.tries` failures.
            OfflineError: No network allowed.
        """
        failures = 0
        while True:
            connecting, asked = False, None
            try:
                response = self._follow(method, url, question, headers, cancel, stay)
            except _Broken as broken:
                error: HubError = broken.error
                connecting = broken.connecting
            else:
                if response.status_code < 400 or response.status_code == 416:
                    return response
                asked = asked_wait_seconds(response.headers)
                error, final = self._judge(response, question)
                response.close()
                if final:
                    raise error
            failures += 1
            if fallback is not None and origin(url) != self._origin:
                url = fallback
                continue
            tries = min(self.patience.tries, 3) if connecting else self.patience.tries
            if failures >= tries or (asked or 0.0) > self.patience.longest_wait_seconds:
                raise error
            seconds = self.patience.wait_seconds(failures) if asked is None else asked
            logger.info("%s; trying again in %.1f s", error, seconds)
            wait(seconds, cancel)

    def open_body(
        self,
        url: str,
        question: Question,
        start: int = 0,
        stop: int | None = None,
        validator: Validator | None = None,
        cancel: CancelToken | None = None,
        fallback: str | None = None,
    ) -> Body:
        """The bytes of a file from `start` on, up to `stop` or its end.

        A server that cannot give a range is taken at what it gives: see `Body.start`.

        Raises:
            HubError: See `open`.
            CorruptFileError: The server gives another part than the one that was asked for.
        """

        def headers(address: str) -> dict[str, str]:
            chosen = {"Accept-Encoding": "identity"}
            if start or stop is not None:
                chosen["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
                if start and validator is not None and validator.origin == origin(address):
                    chosen["If-Range"] = validator.etag
            return chosen

        response = self.open("GET", url, question, headers, cancel, fallback=fallback)
        if response.status_code == 416:
            response.close()
            if not start:
                raise CorruptFileError(f"{question}: the server has nothing of it, although it should not be empty")
            return self.open_body(url, question, 0, None, None, cancel, fallback)
        body = Body(response, question, cancel)
        if body.start not in (0, start):
            body.close()
            raise CorruptFileError(f"{question}: byte {start:,} was asked for, and the server answers with byte {body.start:,}")
        return body

    # ---- inside

    def _follow(
        self, method: str, url: str, question: Question, headers: Headers, cancel: CancelToken | None, stay: bool
    ) -> httpx.Response:
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._send(method, url, question, headers(url), cancel)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not location:
                return response
            target = urljoin(url, location)
            if stay and origin(target) != self._origin:
                return response
            response.close()
            if urlsplit(target).scheme not in ("http", "https") or (urlsplit(url).scheme == "https" and not is_private(target)):
                raise NetworkError(f"{question}: {_host(url)} redirects to {_host(target)} without TLS; that is not followed")
            url = target
        raise NetworkError(f"{question}: {_host(url)} redirects more than {_MAX_REDIRECTS} times; HF_ENDPOINT may be wrong")

    def _send(
        self, method: str, url: str, question: Question, headers: Mapping[str, str], cancel: CancelToken | None
    ) -> httpx.Response:
        if self.offline:
            raise OfflineError(
                f"{question}: not there, and offline mode is on (HF_HUB_OFFLINE, or an option); switch it off to fetch it"
            )
        if cancel is not None:
            cancel.check()
        try:
            request = self._client().build_request(method, url, headers=headers)
            if self._token is not None and origin(url) == self._origin:
                request.headers["Authorization"] = f"Bearer {self._token}"
            return self._client().send(request, stream=True)
        except httpx.InvalidURL as error:
            raise NetworkError(f"{question}: {_host(url)} is no valid address ({error})") from None
        except httpx.TransportError as error:
            raise _broken(error, url, question) from None

    def _judge(self, response: httpx.Response, question: Question) -> tuple[HubError, bool]:
        """What an answer of 4xx or 5xx means, and whether another try is useless."""
        status, url = response.status_code, str(response.url)
        if origin(url) != self._origin and status in _LINK_REFUSED:
            return NetworkError(
                f"{question}: {_host(url)} refuses the address that the Hub gave ({status}); try again later"
            ), False
        return refusal(status, response.headers, question), status not in RETRIED_STATUS

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None:
                patience = self.patience
                seconds = httpx.Timeout(patience.stall_seconds, connect=patience.connect_seconds, pool=None)
                try:
                    self._http = httpx.Client(
                        headers={"User-Agent": f"localllm/{__version__}"},
                        timeout=seconds,
                        limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
                        verify=_certificates(*(os.environ.get(name, "") for name in _CA_VARIABLES)),
                    )
                except (ValueError, ImportError, httpx.InvalidURL) as error:
                    raise NetworkError(
                        f"the proxy that the environment names cannot be used ({error}); correct HTTPS_PROXY"
                    ) from None
            return self._http


def wait(seconds: float, cancel: CancelToken | None) -> None:
    if cancel is None:
        time.sleep(seconds)
    else:
        cancel.sleep(seconds)


def origin(url: str) -> str:
    """Scheme, host and port of an address (RFC 6454), as one word."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    return f"{parts.scheme}://{parts.hostname}:{port or {'http': 80, 'https': 443}.get(parts.scheme, 0)}"


def is_private(url: str) -> bool:
    """Whether nobody between here and there can listen: TLS, or this very machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@functools.lru_cache(maxsize=4)
def _certificates(bundle: str, file: str, folder: str) -> ssl.SSLContext:
    """Whom to trust; the arguments are REQUESTS_CA_BUNDLE, and what OpenSSL itself reads: SSL_CERT_FILE and SSL_CERT_DIR."""
    context = ssl.create_default_context()
    if bundle:
        try:
            if Path(bundle).is_dir():
                context.load_verify_locations(capath=bundle)
            else:
                context.load_verify_locations(cafile=bundle)
        except OSError as error:
            raise NetworkError(f"REQUESTS_CA_BUNDLE={bundle} cannot be read ({error.strerror}); correct it") from None
    elif not (file or folder):
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context


def _broken(error: httpx.TransportError, url: str, question: Question) -> Exception:
    """A NetworkError if no further try can help, else what says that one may."""
    said, host = _said(error), _host(url)
    if isinstance(error, httpx.UnsupportedProtocol):
        return NetworkError(f"{question}: {host} is no address of a web server")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return NetworkError(f"{question}: the certificate of {host} is not trusted ({said}); SSL_CERT_FILE may name your own CA")
    proxy = _proxy(url)
    if isinstance(error, httpx.ProxyError) and " 407 " in f" {said} ":
        return NetworkError(f"{question}: the proxy {proxy} wants a user and password: put them into HTTPS_PROXY or HTTP_PROXY")
    connecting = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError))
    if connecting and proxy:
        text = f"{host} cannot be reached through the proxy {proxy} ({said}); correct HTTPS_PROXY or HTTP_PROXY, or set NO_PROXY"
    elif connecting:
        text = f"{host} cannot be reached ({said}); check the network and HF_ENDPOINT"
    elif isinstance(error, httpx.TimeoutException):
        text = f"{host} does not answer in time; try again later"
    else:
        text = f"the connection to {host} broke ({said}); try again later"
    return _Broken(NetworkError(f"{question}: {text}"), connecting)


def _proxy(url: str) -> str:
    """Host and port of the proxy that an address is asked through; "" if there is none."""
    parts = urlsplit(url)
    proxies: dict[str, Any] = urllib.request.getproxies()
    chosen = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not chosen or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return str(chosen).rpartition("@")[2].rpartition("/")[2] or str(chosen).rpartition("@")[2]


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
