"""HTTP as a Hub needs it: the token for one origin only, redirects by hand, retries, and bodies that can be cut short.

Proxies come from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), and whom to trust from `localllm.certificates`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from urllib.parse import urlsplit

import httpx

from localllm import __version__
from localllm.certificates import trusted
from localllm.errors import AccessDeniedError, CorruptFileError, HubError, NetworkError, OfflineError
from localllm.hub.addresses import is_private, joined, origin, proxy_of, shown_host
from localllm.hub.answers import Question, refusal
from localllm.hub.body import Body, Validator, ended_by, words_of
from localllm.hub.listing import size_in
from localllm.hub.progress import CancelToken
from localllm.hub.retries import RETRIED_STATUS, Patience, asked_wait_seconds

logger = logging.getLogger("localllm.hub")

_MAX_REDIRECTS = 10
_MAX_DISMISSED_BYTES = 1 << 14
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LINK_REFUSED = frozenset({400, 401, 403, 404, 410})

Headers = Callable[[str], Mapping[str, str]]


class _Broken(Exception):
    """A request that got no answer; another try may."""

    def __init__(self, error: NetworkError, connecting: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.connecting = connecting


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
                _dismiss(response, cancel)
                if final:
                    raise error
            failures += 1
            if fallback is not None and origin(url) != self._origin:
                url = fallback
                continue
            tries = min(self.patience.tries, 3) if connecting else self.patience.tries
            if failures >= tries or (asked or 0.0) > self.patience.longest_wait_seconds:
                raise error
            logger.info("%s; trying again", error)
            self.pause(failures, cancel, asked)

    def pause(self, failures: int, cancel: CancelToken | None, asked_seconds: float | None = None) -> None:
        """Waits before the next try, as long as the server asks for or so many failures suggest."""
        seconds = self.patience.wait_seconds(failures) if asked_seconds is None else asked_seconds
        (cancel or CancelToken()).sleep(seconds)

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
            target = joined(url, location)
            if target is None:
                _dismiss(response, cancel)
                raise NetworkError(f"{question}: {shown_host(url)} redirects to what is no address; HF_ENDPOINT may be wrong")
            if stay and origin(target) != self._origin:
                return response
            _dismiss(response, cancel)
            if urlsplit(url).scheme == "https" and not is_private(target):
                raise NetworkError(f"{question}: {shown_host(url)} redirects to {shown_host(target)}, without TLS; refused")
            url = target
        raise NetworkError(f"{question}: {shown_host(url)} redirects more than {_MAX_REDIRECTS} times; HF_ENDPOINT may be wrong")

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
            return _sent(self._client(), request, cancel)
        except httpx.InvalidURL as error:
            raise NetworkError(f"{question}: {shown_host(url)} is no valid address ({error})") from None
        except httpx.TransportError as error:
            raise _broken(error, url, question) from None

    def _judge(self, response: httpx.Response, question: Question) -> tuple[HubError, bool]:
        """What an answer of 4xx or 5xx means, and whether another try is useless."""
        status, url = response.status_code, str(response.url)
        if origin(url) != self._origin and status in _LINK_REFUSED:
            return NetworkError(
                f"{question}: {shown_host(url)} refuses the address that the Hub gave ({status}); try again later"
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
                        verify=trusted(),
                    )
                except (ValueError, ImportError, httpx.InvalidURL) as error:
                    raise NetworkError(
                        f"the proxy that the environment names cannot be used ({error}); correct HTTPS_PROXY"
                    ) from None
            return self._http


def _sent(client: httpx.Client, request: httpx.Request, cancel: CancelToken | None) -> httpx.Response:
    """The answer to a request, its body not read yet.

    Nothing can wake a thread that looks up a name, connects or waits for headers. So one that may be cancelled leaves that to
    another thread, which closes what comes when nobody waits for it any more, and ends by the timeouts at the latest.
    """
    if cancel is None:
        return client.send(request, stream=True)
    answer: Future[httpx.Response] = Future()

    def send() -> None:
        try:
            response = client.send(request, stream=True)
        except Exception as error:
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(error)
            return
        try:
            answer.set_result(response)
        except InvalidStateError:
            response.close()

    def leave() -> None:
        answer.cancel()

    threading.Thread(target=send, name="localllm-request", daemon=True).start()
    with cancel.calling(leave):
        try:
            return answer.result()
        except CancelledError:
            cancel.check()
            raise
        except BaseException:
            leave()
            raise


def _dismiss(response: httpx.Response, cancel: CancelToken | None) -> None:
    """Ends an answer whose body does not matter; a short one is read, because that leaves the connection to the next request."""
    length = size_in(response.headers.get("content-length", ""))
    if length is not None and length <= _MAX_DISMISSED_BYTES:
        with contextlib.suppress(httpx.TransportError, httpx.DecodingError), ended_by(cancel, response):
            response.read()
    response.close()


def _broken(error: httpx.TransportError, url: str, question: Question) -> Exception:
    """A NetworkError if no further try can help, else what says that one may."""
    said, host = words_of(error), shown_host(url)
    if isinstance(error, httpx.UnsupportedProtocol):
        return NetworkError(f"{question}: {host} is no address of a web server")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return NetworkError(f"{question}: the certificate of {host} is not trusted ({said}); SSL_CERT_FILE may name your own CA")
    proxy = proxy_of(url)
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
