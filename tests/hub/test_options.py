"""Options of the model manager: one that could not be meant is an error that names it, at once."""

from __future__ import annotations

import math

import pytest

from localllm.errors import InvalidRequestError
from localllm.hub import environment
from localllm.hub.choose import Machine
from localllm.hub.download import DownloadOptions
from localllm.hub.garbage import gc
from localllm.hub.memory import ContextOptions
from localllm.hub.plan import PlanOptions
from localllm.hub.progress import RateCap
from localllm.hub.retries import Patience

NAN, INF = math.nan, math.inf
BAD = [
    (DownloadOptions, {"parallel": (0, -3, True, 1.5, "4", None), "segment_bytes": (0, -1, 2.0), "margin_bytes": (-1, None)}),
    (DownloadOptions, {"recheck": (1, "no", None), "check_disk": (0, None), "rate_cap": (1000, "1M")}),
    (Patience, {"tries": (0, -1, 1.0, True), "connect_seconds": (0, -1, NAN, INF, "5", None), "stall_seconds": (0, NAN, 1e7)}),
    (Patience, {"first_wait_seconds": (-1, NAN, INF), "longest_wait_seconds": (-0.1, NAN, "1")}),
    (RateCap, {"bytes_per_second": (0, -1, NAN, INF, "1M", None, True)}),
    (PlanOptions, {"projector": (3, None), "draft": ("no", 1, None), "context": (None, 4096), "machine": (8,), "rates": ("",)}),
    (Machine, {"free_bytes": (-1, 1.5, True, "8G"), "gpu_bytes": (-1, None), "on_cpu": (1, None), "repacked": (["Q4_0"],)}),
    (ContextOptions, {"flash_attention": ("auto", None), "swa_full": (1,), "n_ctx": (-1, True)}),
    (environment.offline, {"value": ("no", 0)}),
]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, options in BAD for name, values in options.items() for value in values],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_options_that_cannot_be_meant(kind, name, value):
    with pytest.raises(InvalidRequestError, match="^offline:" if kind is environment.offline else f"^{name}:"):
        kind(**{name: value})


@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": -1},
        {"max_bytes": 1.5},
        {"max_bytes": "5"},
        {"older_than_seconds": NAN},
        {"older_than_seconds": INF},
        {"older_than_seconds": -1},
    ],
)
def test_limits_that_cannot_be_meant(store, limits):
    with pytest.raises(InvalidRequestError, match=f"^{next(iter(limits))}:"):
        gc(store, **limits)


def test_the_ends_of_the_ranges_are_taken(store):
    assert DownloadOptions(margin_bytes=0, parallel=1, segment_bytes=1, rate_cap=RateCap(0.5)).parallel == 1
    assert Patience(tries=1, first_wait_seconds=0, longest_wait_seconds=0).wait_seconds(3) == 0
    assert PlanOptions(projector="mmproj.gguf", draft=False, machine=Machine(0)).projector == "mmproj.gguf"
    assert gc(store, max_bytes=0, older_than_seconds=0).is_enough
