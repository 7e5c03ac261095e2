"""Headers whose values make no sense: what is told of such a model may be wrong, but nothing hangs, and errors are typed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import sys

import pytest

from localllm.cli.info import describe
from localllm.errors import LocalLLMError
from localllm.hub.companions import draft_problem, projector_problem
from localllm.hub.gguf import Header, read_header
from localllm.hub.memory import Companions, ContextOptions, estimate
from localllm.hub.sets import role_of
from localllm.hub.speed import Rates, TypeRate, expected, expected_other

RATES = Rates(tuple(TypeRate(name, False, 1e9, 1e9) for name in ("F32", "F16", "Q4_0")), 1e-6, 1e-9, 1e-9, 1e-9, n_threads=2)
VALUES = [
    0, 1, -1, 7, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), True, False, "", "x" * 100, 0.0, -1.5, math.inf, math.nan, (), (1, 2, 3),
    (0,) * 2000, ("a", "b"), (True,) * 3, (-1,) * 10, (math.nan,) * 4,
]  # fmt: skip
NAMES = [
    "blk.99999999.x.weight",
    "blk.-1.y.weight",
    "blk..z.weight",
    "token_embd.weight",
    "output.weight",
    "blk.0.ffn_up_exps.weight",
]
SHAPES = [(1,), (1, 1, 1, 1), (2**20, 2**20)]


def changed(header: Header, rng: random.Random) -> Header:
    metadata, tensors = dict(header.metadata), list(header.tensors)
    keys = [key for key in metadata if key != "tokenizer.ggml.tokens"]
    for key in rng.sample(keys, k=min(len(keys), rng.randint(1, 4))):
        metadata[key] = rng.choice(VALUES)
        if rng.random() < 0.2:
            del metadata[key]
    if tensors and rng.random() < 0.4:
        at = rng.randrange(len(tensors))
        tensors[at] = dataclasses.replace(tensors[at], name=rng.choice(NAMES), shape=rng.choice(SHAPES))
        del tensors[rng.randint(at + 1, len(tensors)) :]
    return dataclasses.replace(header, metadata=metadata, tensors=tuple(tensors))


def told(header: Header, other: Header) -> None:
    """Everything that is told of a header, and of what goes with it."""
    for options in (ContextOptions(), ContextOptions(n_ctx=0)):
        with contextlib.suppress(LocalLLMError):
            found = estimate(header, options)
            parts = (found.weights_bytes, found.kv_bytes, found.state_bytes, found.total_bytes)
            assert all(isinstance(part, int) and part >= 0 for part in parts), parts
    for companions in (Companions(projector=header), Companions(draft=header)):
        with contextlib.suppress(LocalLLMError):
            assert estimate(other, companions=companions).total_bytes > 0
    for tell in (lambda: expected(header, RATES), lambda: expected_other(header, RATES, "Q4_0")):
        with contextlib.suppress(LocalLLMError):
            speed = tell()
            rates = (speed.prefill_tokens_per_second, speed.decode_tokens_per_second)
            assert all(0 < rate < math.inf for rate in rates), rates
    for text in (lambda: describe(header), lambda: role_of(header)):
        with contextlib.suppress(LocalLLMError):
            assert text()
    for problem in (lambda: projector_problem(other, header), lambda: draft_problem(other, header)):
        with contextlib.suppress(LocalLLMError):
            assert isinstance(problem(), str)


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_is_a_typed_error_or_a_number(models, seed):
    rng = random.Random(seed)
    headers = [read_header(path) for path in models.values()]
    for _ in range(250):
        told(changed(rng.choice(headers), rng), headers[0])


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "qwen35", "gemma3", "mamba2", "lfm2"])
def test_layers_without_number(models, name):
    """As many as a file may claim: to count them would take years."""
    header = read_header(models[name])
    key = f"{header.architecture}.block_count"
    told(dataclasses.replace(header, metadata={**header.metadata, key: sys.maxsize}), header)
