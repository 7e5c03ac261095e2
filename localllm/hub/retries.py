"""When a request is worth another try, and how long to wait before it. Pure: no clock, no network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from localllm.hub.options import MOST_SECONDS, check_number, check_whole

RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})

# draft-ietf-httpapi-ratelimit-headers: `"name";r=<requests left>;t=<seconds until there are more>`
_RATE_LIMIT = re.compile(r";\s*(r|t)\s*=\s*(\d{1,9})")


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, and how often to try.

    Attributes:
        connect_seconds: float, more than 0, to reach a server or proxy.
        stall_seconds: float, more than 0, for the next byte; a connection that brings nothing for so long counts as broken.
        tries: int, at least 1; for a body, those in a row that bring nothing new.
        first_wait_seconds: float, before the second try; it doubles with each further one.
        longest_wait_seconds: float, that a server may ask for; if it asks for more, the request fails and says so.

    Raises:
        InvalidRequestError: One of them out of its range, or more than 1e6 seconds.
    """

    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    tries: int = 6
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "stall_seconds"):
            check_number(name, getattr(self, name), most=MOST_SECONDS)
        for name in ("first_wait_seconds", "longest_wait_seconds"):
            check_number(name, getattr(self, name), most=MOST_SECONDS, zero=True)
        check_whole("tries", self.tries, 1)

    def wait_seconds(self, failures: int) -> float:
        """The wait after so many failures in a row, if the server does not say how long."""
        return min(self.first_wait_seconds * 2.0 ** max(0, min(failures, 30) - 1), self.longest_wait_seconds)


def asked_wait_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """How long a server asks to be left alone: Retry-After (RFC 9110, 10.2.3), else RateLimit with nothing left; else None.

    Args:
        headers: of the answer; looked up by their lower-case names.
        now: for a Retry-After that is a date; by default the present time.
    """
    after = headers.get("retry-after", "").strip()
    if after.isascii() and after.isdigit():
        return float(after[:9])
    if after:
        try:
            date = parsedate_to_datetime(after)
        except (TypeError, ValueError, OverflowError):
            return None
        date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
        return max(0.0, (date - (now or datetime.now(timezone.utc))).total_seconds())
    found = dict(_RATE_LIMIT.findall(headers.get("ratelimit", "")))
    if found.get("r") == "0" and "t" in found:
        return float(found["t"]) + 1.0  # rounded down by the server
    return None
