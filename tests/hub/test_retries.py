"""How long servers are waited for."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from localllm.hub.retries import Patience, asked_wait_seconds

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 0 "}, 0),
        ({"retry-after": "Tue, 01 Dec 2026 12:01:30 GMT"}, 90),
        ({"retry-after": "Tue, 01 Dec 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "Tue, 01 Dec 2026 12:01:30"}, 90),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Mon, 01 Jan 99999999999999 00:00:00 GMT"}, None),
        ({"retry-after": f"1 Jan 2020 00:00:00 +{'9' * 30}"}, None),
        ({"retry-after": "9" * 400}, 999_999_999),
        ({"ratelimit": '"api";r=0;t=55'}, 56),
        ({"ratelimit": '"api"; r=0; t=0'}, 1),
        ({"ratelimit": '"api";r=3;t=55'}, None),
        ({"ratelimit": '"api";r=0'}, None),
        ({"ratelimit": "nonsense"}, None),
        ({"retry-after": "2", "ratelimit": '"api";r=0;t=55'}, 2),
    ],
)
def test_what_servers_ask_for(headers, seconds):
    assert asked_wait_seconds(headers, NOW) == seconds


def test_waits_double_up_to_the_longest_one():
    patience = Patience(first_wait_seconds=0.5, longest_wait_seconds=5)
    assert [patience.wait_seconds(failures) for failures in (1, 2, 3, 4, 5, 99)] == [0.5, 1, 2, 4, 5, 5]
