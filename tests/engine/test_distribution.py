"""Sampled text with drafts has the distribution of text without.

LOCALLLM_TEST_SAMPLES=20000 takes ten times as many samples as usual, and four minutes.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from localllm import ContextConfig, Engine, Request, SamplingParams, SpeculationConfig

N_SAMPLES, N_TOKENS, N_AT_ONCE = int(os.environ.get("LOCALLLM_TEST_SAMPLES", "2000")), 3, 250
# Four tokens at each place: at most 64 continuations, all of them seen often enough to be compared.
SAMPLING = {"temperature": 1.5, "top_k": 4, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
# Upper 0.1 % point of the chi-square distribution with k degrees of freedom, by Wilson and Hilferty (1931): k times this cubed.
Z = 3.0902


def sampled(engine: Engine, prompt: tuple[int, ...], seed: int) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for start in range(0, N_SAMPLES, N_AT_ONCE):
        requests = [
            Request(prompt=prompt, max_tokens=N_TOKENS, sampling=SamplingParams(seed=seed + start + at, **SAMPLING))
            for at in range(N_AT_ONCE)
        ]
        found.update(one.tokens for one in engine.generate_all(requests))
    return found


def critical(k: int) -> float:
    return k * (1 - 2 / (9 * k) + Z * (2 / (9 * k)) ** 0.5) ** 3


def differ(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> tuple[float, int]:
    """The chi-square statistic of two samples of equal size, and its degrees of freedom; what is rare is taken together."""
    common = [key for key in one | other if one[key] + other[key] >= 10]
    cells = [(one[key], other[key]) for key in common]
    rare = [key for key in one | other if one[key] + other[key] < 10]
    if rare:
        cells.append((sum(one[key] for key in rare), sum(other[key] for key in rare)))
    return sum((a - b) ** 2 / (a + b) for a, b in cells), len(cells) - 1


@pytest.fixture(scope="module")
def files(trained, lilicorr_files, models):
    folder = trained.parent
    return {
        "draft-mtp": (trained, ""),
        "draft-eagle3": (trained, folder / "tiny-trained-qwen35-eagle3.gguf"),
        "draft-dspark": (trained, folder / "tiny-trained-qwen35-dspark.gguf"),
        "draft-dflash": (trained, folder / "tiny-trained-qwen35-dflash.gguf"),
        "draft-lilicorr": (lilicorr_files["target"], lilicorr_files["lilicorr-unified"]),
        "draft-simple": (models["qwen3"], models["qwen3"]),
        "ngram-simple": (trained, ""),
    }


def prompt_of(engine: Engine) -> tuple[int, ...]:
    return tuple(
        engine.model.tokenize(
            "<|im_start|>user\nStart with 3 and 16.<|im_end|>\n<|im_start|>assistant\n19 - 16 = 3\n2", True, True
        )
    )


@pytest.fixture(scope="module")
def plain(files):
    """Samples without drafts, by target."""
    known: dict[str, Counter[tuple[int, ...]]] = {}

    def plain(path) -> Counter[tuple[int, ...]]:
        if str(path) not in known:
            with Engine(str(path), context=options()) as engine:
                known[str(path)] = sampled(engine, prompt_of(engine), 1)
        return known[str(path)]

    return plain


def options(speculation: SpeculationConfig | str = "none"):
    return ContextConfig(n_ctx=2048, parallel=32, n_threads=1, kept_sequences=4, speculation=speculation)


@pytest.mark.parametrize(
    "kind", ["draft-mtp", "draft-eagle3", "draft-dspark", "draft-dflash", "draft-lilicorr", "draft-simple", "ngram-simple"]
)
def test_drafts_do_not_change_what_is_likely(files, plain, kind):
    path, draft = files[kind]
    config = SpeculationConfig(kind=kind, draft=draft, n_max=2, n_match=1, throttle=False)
    with Engine(str(path), context=options(config)) as engine:
        with_drafts = sampled(engine, prompt_of(engine), 1_000_001)
        assert engine.stats().accepted_tokens > N_SAMPLES / 50
    statistic, k = differ(plain(path), with_drafts)
    assert k > 5 and statistic < critical(k)


def test_the_test_sees_a_difference(files, plain):
    """The likeliest text and another one change places."""
    path, _ = files["draft-mtp"]
    skewed = Counter(plain(path))
    one, _, other = (key for key, _ in skewed.most_common(3))
    skewed[one], skewed[other] = skewed[other], skewed[one]
    statistic, k = differ(plain(path), skewed)
    assert statistic > critical(k)
