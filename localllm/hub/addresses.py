"""What an address says about who is asked, and by which way."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urljoin, urlsplit


def origin(url: str) -> str:
    """Scheme, host and port of an address (RFC 6454), as one word."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    return f"{parts.scheme}://{parts.hostname}:{port or {'http': 80, 'https': 443}.get(parts.scheme, 0)}"


def joined(base: str, location: str) -> str | None:
    """The web address that a server at `base` refers to; None if it is none."""
    try:
        target = urljoin(base, location)
        parts = urlsplit(target)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return target if sound else None


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


def shown_host(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_of(url: str) -> str:
    """Host and port of the proxy that an address is asked through; "" if there is none."""
    import urllib.request

    parts = urlsplit(url)
    proxies: dict[str, Any] = urllib.request.getproxies()
    chosen = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not chosen or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return str(chosen).rpartition("@")[2].rpartition("/")[2] or str(chosen).rpartition("@")[2]
