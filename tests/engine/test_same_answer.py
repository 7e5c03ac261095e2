"""The same greedy answer, wherever its prefix comes from, drafted or not, alone or in company: every pair of ways."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from localllm import Delta, Engine, Request, SamplingParams, SpeculationConfig
from localllm.engine.cache.lookup import DEVICE, RAM

PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
MEMORIES = ["qwen3", "gemma3", "mamba2", "qwen35"]
PREFIXES = ["cold", "device", "ram", "disk", "returned"]
DRAFTS = ["plain", "drafts"]
COMPANY = ["alone", "among others"]
NEIGHBOURS = ["fresh", "after a cancelled one"]
WAYS = list(itertools.product(PREFIXES, DRAFTS, COMPANY, NEIGHBOURS))
# Most of the vocabulary, so that whatever a model with random weights says stands there already, and is drafted from.
PROMPT = tuple(range(60, 380))
LENGTH = 24


def request(*more: int, first: int = PROMPT[0], max_tokens: int = LENGTH) -> Request:
    return Request(prompt=(first, *PROMPT[1:], *more), max_tokens=max_tokens, sampling=PROBED)


def settle(engine: Engine) -> None:
    core = engine._core
    while True:
        with core._wake:
            if core.scheduler.idle and not core.residents.next_to_save() and not core.residents.next_to_store():
                return


def leave_device(engine: Engine, copy: bool) -> None:
    """Evicts all that is on the device, to RAM or for good. The engine's thread waits meanwhile."""
    core = engine._core
    settle(engine)
    with core._wake:
        for entry in core.residents.tree.tier(DEVICE):
            if copy:
                data = core.runner.save(entry.payload)
                core.residents.saved(entry, data, len(data))
            core.residents.drop(entry)
        assert not core.residents.tree.tier(DEVICE) and bool(core.residents.tree.tier(RAM)) == copy


def engine_with(engine_for, model, prefix: str, folder: str, drafts: str) -> Engine:
    """An engine that has the prefix of the request where `prefix` says."""
    options = {"n_ctx": 4096, "parallel": 8}
    if drafts == "drafts":
        options["speculation"] = SpeculationConfig(kind="ngram-simple", n_match=1, n_max=6, throttle=False)
    if prefix == "disk":
        options["cache_dir"] = folder
        first = engine_for(model, **options)
        first.generate(request())
        settle(first)
        first.close()
    if prefix == "returned":
        # Nothing may be kept elsewhere: it is computed again.
        options["cache_ram_bytes"] = 0
    engine = engine_for(model, **options)
    if prefix in ("device", "ram", "returned"):
        engine.generate(request())
    if prefix in ("ram", "returned"):
        leave_device(engine, copy=prefix == "ram")
    return engine


def answer(engine: Engine, together, company: str, neighbour: str) -> tuple[list, int]:
    """The log-probabilities of the answer, and how much of its prompt was not computed."""
    if neighbour != "fresh":
        stream = engine.stream(request(5, max_tokens=200))
        next(stream)
        next(stream)
        stream.close()
    others = [] if company == "alone" else [request(first=first) for first in range(30, 37)]
    seen = together(engine, [*others, request()])[-1]
    given = [entry for event in seen if isinstance(event, Delta) for entry in event.logprobs]
    return given, seen[-1].usage.cached_tokens


@pytest.fixture(scope="module")
def expected(models, trained):
    """The answers of engines that do nothing but answer, by model."""
    answers = {}

    def of(name: str):
        if name not in answers:
            from localllm import ContextConfig

            path = str(trained if name == "trained" else models[name])
            config = ContextConfig(n_ctx=4096, parallel=1, n_threads=1, prefix_cache=False)
            with Engine(path, context=config) as engine:
                answers[name] = engine.generate(request()).logprobs
        return answers[name]

    return of


@pytest.mark.parametrize("ways", WAYS, ids=" - ".join)
@pytest.mark.parametrize("name", MEMORIES)
def test_every_pair_of_ways(engine_for, together, tmp_path, expected, assert_same_greedy, name, ways):
    prefix, drafts, company, neighbour = ways
    engine = engine_with(engine_for, name, prefix, str(tmp_path), drafts)
    given, n_cached = answer(engine, together, company, neighbour)
    assert len(given) == LENGTH
    assert_same_greedy(expected(name), given)
    if neighbour == "fresh":
        warm = prefix in ("device", "ram", "disk")
        assert (n_cached == len(PROMPT) - 1) == warm
    if drafts == "drafts":
        assert engine.stats().drafted_tokens > 0


@pytest.mark.parametrize("ways", WAYS, ids=" - ".join)
def test_a_trained_model_says_the_same_to_the_letter(engine_for, together, tmp_path, expected, trained, ways):
    prefix, drafts, company, neighbour = ways
    engine = engine_with(engine_for, trained, prefix, str(tmp_path), drafts)
    given, _ = answer(engine, together, company, neighbour)
    assert [entry.token for entry in given] == [entry.token for entry in expected("trained")]


PROGRAM = """
import sys
from localllm import ContextConfig, Engine, Request, SamplingParams
path, folder, *ids = sys.argv[1:]
with Engine(path, context=ContextConfig(n_ctx=4096, n_threads=1, cache_dir=folder)) as engine:
    asked = Request(prompt=tuple(map(int, ids)), max_tokens=24, sampling=SamplingParams(temperature=0, ignore_eos=True))
    answer = engine.generate(asked)
    core = engine._core
    while True:
        with core._wake:
            if core.scheduler.idle and not core.residents.next_to_store():
                break
    print(answer.usage.cached_tokens, *answer.tokens)
"""


def test_another_process_goes_on_from_the_files(trained, tmp_path, expected):
    ids = [str(token) for token in PROMPT]
    command = [sys.executable, "-c", PROGRAM, str(trained), str(tmp_path), *ids]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split() for _ in range(2)]
    assert [int(run[0]) for run in runs] == [0, len(ids) - 1]
    wanted = [str(entry.token) for entry in expected("trained")]
    assert runs[0][1:] == runs[1][1:] == wanted
