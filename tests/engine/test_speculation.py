"""Drafts change how many steps an answer takes, never the answer."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from localllm import Delta, Engine, Finished, Lora, Request, SamplingParams, SpeculationConfig
from localllm.errors import InvalidRequestError

KINDS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
# Every kind of memory, and the two ways back for those that have snapshots.
MEMORIES = [
    ("qwen3", 0), ("qwen3moe", 0), ("gemma3", 0), ("mamba2", 0), ("qwen35", 0), ("qwen35", 16), ("lfm2", 0), ("lfm2", 16),
]  # fmt: skip
TEXT = "one two three four five six seven eight nine ten " * 3


def eager(kind: str = "ngram-simple", **options) -> SpeculationConfig:
    """Drafts at every chance, most of them wrong: what has to be taken back is as much as can be."""
    return SpeculationConfig(kind=kind, **{"n_match": 1, "n_max": 8, "throttle": False, **options})


def request(engine: Engine, text: str, max_tokens: int = 40, sampling: SamplingParams = PROBED, **options) -> Request:
    return Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=max_tokens, sampling=sampling, **options)


def forced(engine: Engine, said: str, **options) -> SamplingParams:
    """A grammar makes the text foreseeable whatever the model would say, and a bias the way it is cut into tokens."""
    bias = dict.fromkeys(engine.model.tokenize(said, False, False), 50.0)
    return SamplingParams(temperature=0, grammar=f'root ::= "{said}"', logit_bias=bias, **options)


@pytest.mark.parametrize(("name", "n_snapshots"), MEMORIES)
def test_drafts_that_are_mostly_wrong_do_not_change_the_answer(engine_for, name, n_snapshots, assert_same_greedy):
    plain = engine_for(name)
    drafting = engine_for(name, speculation=eager(n_snapshots=min(8, n_snapshots)))
    asked = request(plain, TEXT)
    answer = drafting.generate(asked)
    assert answer.usage.drafted_tokens > 0
    assert_same_greedy(plain.generate(asked).logprobs, answer.logprobs)


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_drafts_beside_adapters_do_not_change_the_answers(engine_for, name, builder, makers, assert_same_greedy):
    lora = Lora(builder.save(f"{name}-lora", makers.lora(builder.load(name))))
    plain, drafting = engine_for(name), engine_for(name, speculation=eager())
    doubled = dataclasses.replace(lora, scale=2.0)
    asked = [request(plain, TEXT, loras=loras) for loras in ((), (lora,), (doubled,))]
    expected = [plain.generate(each) for each in asked]
    answers = drafting.generate_all(asked * 2)
    assert len({answer.tokens for answer in expected}) == 3
    for before, after in zip(expected * 2, answers, strict=True):
        assert after.usage.drafted_tokens > 0
        assert_same_greedy(before.logprobs, after.logprobs)


@pytest.mark.parametrize(("name", "n_snapshots"), MEMORIES)
def test_drafts_that_are_right_save_steps(engine_for, name, n_snapshots, assert_same_greedy):
    said = "one two three four five six seven eight nine ten " * 3
    plain = engine_for(name)
    drafting = engine_for(name, speculation=eager(n_match=4, n_snapshots=min(8, n_snapshots)))
    asked = request(plain, TEXT, 200, forced(plain, said, n_probs=5))
    expected, answer = plain.generate(asked), drafting.generate(asked)
    assert answer.text == said and expected.finish_reason == answer.finish_reason == "stop"
    assert_same_greedy(expected.logprobs, answer.logprobs)
    assert answer.usage.accepted_tokens >= 16
    assert plain.stats().n_steps - drafting.stats().n_steps == answer.usage.accepted_tokens
    assert drafting.stats().accepted_tokens == answer.usage.accepted_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_drafts_and_is_right_where_the_text_repeats(engine_for, kind):
    said = "the quick brown fox jumps over the lazy dog " * 6
    drafting = engine_for("qwen3", speculation=eager(kind, n_match=6))
    answer = drafting.generate(request(drafting, said * 2, 200, forced(drafting, said)))
    assert answer.text == said
    assert 0 < answer.usage.accepted_tokens <= answer.usage.drafted_tokens


def test_a_chain_asks_the_next_kind_where_one_finds_nothing(engine_for):
    said = "alpha beta gamma delta epsilon zeta " * 3
    alone = engine_for("qwen3", speculation=eager("ngram-simple", n_match=64))
    chained = engine_for("qwen3", speculation=eager("ngram-simple", n_match=64, chain=("ngram-cache",)))
    asked = request(alone, said, 200, forced(alone, said))
    assert alone.generate(asked).usage.drafted_tokens == 0
    assert chained.generate(asked).usage.accepted_tokens > 0


def test_the_shared_table_learns_from_other_requests(engine_for):
    said = "the quick brown fox jumps over the lazy dog, and the lazy dog sleeps on under the old oak tree"
    engine = engine_for("qwen3", speculation=SpeculationConfig(kind="ngram-mod", n_match=4, n_max=8, throttle=False))
    engine.generate(request(engine, said + said, 4, forced(engine, said)))
    asked = request(engine, "Something else: ", 200, forced(engine, said))
    assert engine.generate(asked).usage.accepted_tokens >= 8


def test_random_choices_are_the_same_with_drafts(engine_for):
    """Each token takes one random number, drafted or not."""
    plain, drafting = engine_for("qwen3"), engine_for("qwen3", speculation=eager())
    for seed in range(5):
        sampling = SamplingParams(temperature=1.5, top_k=8, seed=seed, repeat_penalty=1.2, logprobs=True)
        asked = request(plain, TEXT, 48, sampling)
        expected, answer = plain.generate(asked), drafting.generate(asked)
        assert answer.tokens == expected.tokens and answer.usage.drafted_tokens > 0
        assert [entry.token for entry in answer.logprobs] == list(answer.tokens)


def test_log_probabilities_stand_beside_their_tokens(engine_for):
    said = "one two three four five " * 4
    drafting = engine_for("qwen3", speculation=eager(n_match=3))
    asked = request(drafting, said, 100, forced(drafting, said, n_probs=3))
    deltas = [event for event in drafting.stream(asked) if isinstance(event, Delta)]
    assert max(len(delta.tokens) for delta in deltas) > 2, "no draft was accepted"
    for delta in deltas:
        assert [entry.token for entry in delta.logprobs] == list(delta.tokens)
        assert all(len(entry.top) == 3 and entry.logprob <= 0 for entry in delta.logprobs)


@pytest.mark.parametrize("stop", ["four five", " seven", "ten one"])
def test_a_stop_string_within_a_draft_ends_the_answer_there(engine_for, stop):
    said = "one two three four five six seven eight nine ten " * 2
    plain, drafting = engine_for("qwen3"), engine_for("qwen3", speculation=eager(n_match=2))
    asked = request(plain, said * 2, 100, forced(plain, said), stop=(stop,))
    expected, answer = plain.generate(asked), drafting.generate(asked)
    assert answer.text == expected.text == said.split(stop)[0] and answer.tokens == expected.tokens


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 20])
def test_the_limit_of_tokens_holds(engine_for, max_tokens):
    said = "one two three four five " * 4
    drafting = engine_for("qwen3", speculation=eager(n_match=2))
    answer = drafting.generate(request(drafting, said, max_tokens, forced(drafting, said)))
    assert len(answer.tokens) == answer.usage.completion_tokens == max_tokens and answer.finish_reason == "length"


def test_a_full_context_ends_the_answer_at_the_same_place(engine_for):
    plain, drafting = engine_for("qwen3", n_ctx=64), engine_for("qwen3", n_ctx=64, speculation=eager())
    asked = dataclasses.replace(request(plain, TEXT), max_tokens=None)
    expected, answer = plain.generate(asked), drafting.generate(asked)
    assert (answer.tokens, answer.finish_reason) == (expected.tokens, "length")


@pytest.mark.parametrize(("name", "n_snapshots"), MEMORIES)
def test_the_next_turn_goes_on_from_the_cache_after_drafts(engine_for, name, n_snapshots, assert_same_greedy):
    cold = engine_for(name, prefix_cache=False)
    warm = engine_for(name, speculation=eager(n_snapshots=min(8, n_snapshots)))
    first = request(warm, TEXT)
    answer = warm.generate(first)
    second = Request(
        prompt=(*first.prompt, *answer.tokens, *warm.model.tokenize(" and one two", False, True)), max_tokens=24, sampling=PROBED
    )
    again = warm.generate(second)
    assert again.usage.cached_tokens > 0 and again.usage.drafted_tokens > 0
    assert_same_greedy(cold.generate(second).logprobs, again.logprobs)


@pytest.mark.parametrize(("name", "n_snapshots"), MEMORIES)
def test_neighbours_that_come_and_go_change_nothing(engine_for, name, n_snapshots, assert_same_greedy):
    plain = engine_for(name, n_ctx=1024)
    drafting = engine_for(name, n_ctx=1024, speculation=eager(n_snapshots=min(8, n_snapshots)))
    asked = request(plain, TEXT)
    cancelled = [drafting.stream(request(drafting, f"{word} {TEXT}", 200)) for word in ("alpha", "beta", "gamma")]
    for stream in cancelled:
        next(stream)
    seen: list = []
    ended = threading.Event()
    drafting.submit(asked, lambda event: (seen.append(event), ended.set() if isinstance(event, Finished) else None))
    for stream in cancelled:
        next(stream)
        stream.close()
    assert ended.wait(60)
    given = [entry for event in seen if isinstance(event, Delta) for entry in event.logprobs]
    assert_same_greedy(plain.generate(asked).logprobs, given)
    assert drafting.stats().n_running == 0


def test_a_request_may_do_without_drafts(engine_for):
    engine = engine_for("qwen3", speculation=eager())
    assert engine.generate(request(engine, TEXT, speculate=False)).usage.drafted_tokens == 0
    with pytest.raises(InvalidRequestError, match="^speculate"):
        request(engine, TEXT, speculate="no")


def test_more_sequences_than_cells_for_drafts(engine_for, together, assert_same_greedy):
    """Drafts take what room is left, and nobody else's."""
    engine = engine_for("qwen3", n_ctx=256, parallel=4, n_batch=16, n_ubatch=16, speculation=eager())
    plain = engine_for("qwen3", n_ctx=256, parallel=4, n_batch=16, n_ubatch=16)
    asked = [request(engine, f"{word} {TEXT}", 24) for word in ("alpha", "beta", "gamma", "delta", "epsilon")]
    for each, events in zip(asked, together(engine, asked), strict=True):
        given = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
        assert_same_greedy(plain.generate(each).logprobs, given)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "ngram"), ("kind", 3), ("n_max", 0), ("n_max", 2000), ("n_min", 99), ("n_match", 0), ("min_hits", 0),
        ("n_snapshots", 49), ("chain", ("none",)), ("chain", ("ngram-mod",)), ("chain", "ngram-mod"), ("throttle", 1),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(field, value):
    with pytest.raises(InvalidRequestError, match=f"^{field}"):
        SpeculationConfig(**{"kind": "ngram-mod", field: value})


def test_a_chain_without_a_first_kind_is_refused():
    with pytest.raises(InvalidRequestError, match="^chain"):
        SpeculationConfig(chain=("ngram-mod",))
