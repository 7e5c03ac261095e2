from __future__ import annotations

import pytest

from localllm.engine import threads

HYPERTHREADED = "\n\n".join(f"processor\t: {cpu}\nphysical id\t: {cpu // 4}\ncore id\t\t: {cpu % 4 // 2}\n" for cpu in range(8))


@pytest.mark.parametrize(("text", "cores"), [(HYPERTHREADED, 4), ("", 0), ("processor : 0\n", 0)])
def test_hyper_threads_do_not_count(text, cores):
    assert threads._physical_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000", 0), ("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("", 0), ("x y", 0)],
)
def test_a_container_quota_is_obeyed(text, cpus):
    assert threads._quota(text) == cpus


def test_there_is_always_a_thread():
    assert threads.default_threads() >= 1
