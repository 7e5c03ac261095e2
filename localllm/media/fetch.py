"""Fetching a medium that an address on the web names, without being led into the network behind this machine.

Proxies of the environment are not used: they look names up themselves, and reach what must not be reached from here. Cookies are
neither kept nor sent, and nothing else that would say who asks. Whom to trust comes from `localllm.certificates`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator

import httpcore
import httpx

from localllm.certificates import trusted
from localllm.errors import MediaError
from localllm.media.connection import CheckedBackend, RefusedAddressError
from localllm.media.deadline import Deadline, OutOfTimeError
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Browsers drop or turn some of these, so that what one program has checked may not be what another one asks.
_ODD_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
_SHOWN_CHARACTERS = 80
_PORTS = range(1, 1 << 16)


def fetch(url: str, limits: MediaLimits = DEFAULT_LIMITS, name: str = "url") -> bytes:
    """Fetches what an address names.

    The host's addresses are looked up here, and only public ones are connected to, for each redirect again; at most five are
    followed, none of them from https to http.

    Args:
        url: str, http:// or https://, without user or password.
        limits: MediaLimits: allow_urls, allow_private_addresses, max_bytes (of what is received, and of what it unpacks to) and
            fetch_seconds.
        name: str, of the part of the request, for errors.

    Returns:
        bytes, the body.

    Raises:
        MediaError: It may not or cannot be fetched, or is larger than allowed; the message says which.
        NetworkError: What REQUESTS_CA_BUNDLE names cannot be read.
    """
    if not limits.allow_urls:
        raise MediaError(
            f"{name}: {shown(url)} is not fetched unless that is allowed: set allow_urls, or give the content itself"
        )
    deadline = Deadline(limits.fetch_seconds)
    backend = CheckedBackend(deadline, limits.allow_private_addresses)
    with httpcore.ConnectionPool(ssl_context=trusted(), network_backend=backend) as pool:
        target = _parsed(url, name)
        for _ in range(MAX_REDIRECTS + 1):
            answer = _ask(pool, target, limits, name)
            if isinstance(answer, bytes):
                return answer
            target = _redirected(target, answer, name)
    raise MediaError(f"{name}: {shown(url)} redirects more than {MAX_REDIRECTS} times; give the address where that ends")


def shown(url: str) -> str:
    """The beginning of an address, without what may be secret in it."""
    text = re.split(r"[?#]", url, maxsplit=1)[0]
    authority = _authority(text)
    if "@" in authority:
        text = text.replace(authority, authority.rpartition("@")[2], 1)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


# ---- inside


def _authority(url: str) -> str:
    """What stands between // and the path: user, host and port."""
    return re.split(r"[/?#]", url.partition("//")[2], maxsplit=1)[0]


def _parsed(url: str, name: str) -> httpx.URL:
    if _ODD_CHARACTERS.search(url):
        raise MediaError(f"{name}: {shown(url)} holds a blank, a backslash or a control character; write it as %20, %5C, ...")
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, ValueError) as error:
        raise MediaError(f"{name}: {shown(url)} is no valid address ({error}); correct it") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or (port is not None and port not in _PORTS):
        raise MediaError(f"{name}: {shown(url)} is no http:// or https:// address of a host; give one, or the content itself")
    if parsed.userinfo or "@" in _authority(url):
        raise MediaError(f"{name}: {shown(url)} holds a user or password before an @; leave them out, or fetch it yourself")
    return parsed


def _redirected(base: httpx.URL, location: str, name: str) -> httpx.URL:
    try:
        joined = str(base.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise MediaError(f"{name}: {shown(str(base))} redirects to no valid address ({error}); fetch it yourself") from None
    target = _parsed(joined, f"{name}: redirected")
    if base.scheme == "https" and target.scheme == "http":
        raise MediaError(f"{name}: {shown(str(base))} redirects to {shown(joined)}, without TLS; give an address that does not")
    return target


def _ask(pool: httpcore.ConnectionPool, url: httpx.URL, limits: MediaLimits, name: str) -> bytes | str:
    """The body, or where a redirect leads."""
    who = shown(str(url))
    target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    headers: list[tuple[bytes | str, bytes | str]] = [
        ("Host", url.netloc),
        ("User-Agent", "localllm"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    try:
        with pool.stream("GET", target, headers=headers) as response:
            received = {key.decode("latin-1").lower(): value.decode("latin-1").strip() for key, value in response.headers}
            if response.status in _REDIRECTS and "location" in received:
                return received["location"]
            if response.status != 200:
                raise MediaError(f"{name}: {who} answers with status {response.status}; check the address")
            return _body(response.iter_stream(), received, limits.max_bytes, who, name)
    except RefusedAddressError as error:
        raise MediaError(
            f"{name}: {who} leads to {error}, which is no public address; give a public one, or set allow_private_addresses"
        ) from None
    except (OutOfTimeError, httpcore.TimeoutException):
        raise MediaError(
            f"{name}: {who} was not there after {limits.fetch_seconds:g} seconds; allow more with fetch_seconds"
        ) from None
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise MediaError(f"{name}: {who} cannot be fetched ({error}); check the address and the network") from None


def _body(chunks: Iterable[bytes], headers: dict[str, str], limit: int, who: str, name: str) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > limit:
        raise MediaError(f"{name}: {who} has {int(length):,} bytes, and at most {limit:,} are allowed (max_bytes)")
    coding = headers.get("content-encoding", "identity").lower()
    if coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise MediaError(f"{name}: {who} is sent packed as {coding[:20]!r}; give an address that sends it as it is")
    received = _at_most(chunks, limit, who, name)
    parts = received if coding in ("", "identity") else _at_most(_unpacked(received, limit, who, name), limit, who, name)
    return b"".join(parts)


def _at_most(chunks: Iterable[bytes], limit: int, who: str, name: str) -> Iterator[bytes]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > limit:
            raise MediaError(f"{name}: {who} has more than {limit:,} bytes, which is what is allowed (max_bytes)")
        yield chunk


def _unpacked(chunks: Iterable[bytes], limit: int, who: str, name: str) -> Iterator[bytes]:
    """What gzip or zlib has packed, in pieces that never hold more than the limit and one byte."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in chunks:
            yield unpacker.decompress(chunk, limit + 1)
    except zlib.error as error:
        raise MediaError(f"{name}: {who} is not packed as it says ({error}); fetch it yourself") from None
    if not unpacker.eof:
        raise MediaError(f"{name}: {who} ends before all of it is there; try again")
