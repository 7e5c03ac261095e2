"""Models with a table of learned positions (GPT-2, StarCoder): no sequence goes beyond its end, however many cells there are."""

from __future__ import annotations

import ctypes

import pytest

from localllm import Delta, LocalModel, Request, SamplingParams, SpeculationConfig
from localllm.errors import ContextOverflowError, InvalidRequestError
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h

N_POSITIONS = 128
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def prompt(n: int, seed: int = 1) -> tuple[int, ...]:
    return tuple((7 * at * seed + seed) % 370 + 1 for at in range(n))


def request(n: int, **options) -> Request:
    return Request(prompt=prompt(n), **{"sampling": GREEDY, **options})


@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_answer_ends_with_the_positions_and_not_with_the_cells(engine_for, n_threads):
    engine = engine_for("gpt2", n_ctx=1024, n_threads=n_threads)
    assert (engine.n_ctx, engine.limit) == (1024, N_POSITIONS)
    answer = engine.generate(request(20))
    # The last token is chosen, and would be computed at a position that there is none of.
    assert (len(answer.tokens), answer.finish_reason) == (N_POSITIONS - 20 + 1, "length")
    assert len(engine.generate(request(N_POSITIONS)).tokens) == 1


def test_sequences_together_use_all_the_cells(engine_for, together):
    engine = engine_for("gpt2", n_ctx=1024, parallel=6)
    requests = [Request(prompt=prompt(100, seed), sampling=GREEDY) for seed in range(1, 7)]
    alone = [engine_for("gpt2", n_ctx=N_POSITIONS, parallel=1).generate(each).tokens for each in requests]
    answers = together(engine, requests)
    assert [tuple(t for event in events if isinstance(event, Delta) for t in event.tokens) for events in answers] == alone
    assert {len(tokens) for tokens in alone} == {N_POSITIONS - 100 + 1}


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k"])
def test_drafts_stay_within_the_positions(engine_for, kind):
    repeating = Request(prompt=(5,) * 100, sampling=SamplingParams(temperature=0, ignore_eos=True, logit_bias=((5, 50.0),)))
    drafting = engine_for(
        "gpt2", n_ctx=1024, n_threads=2, speculation=SpeculationConfig(kind=kind, n_match=1, n_max=32, throttle=False)
    )
    answer = drafting.generate(repeating)
    assert answer.tokens == engine_for("gpt2", n_ctx=N_POSITIONS).generate(repeating).tokens
    assert len(answer.tokens) == N_POSITIONS - 100 + 1 and drafting.stats().accepted_tokens > 0


def test_a_longer_prompt_is_an_error_that_names_both_numbers(engine_for, models):
    engine = engine_for("gpt2", n_ctx=1024)
    with pytest.raises(ContextOverflowError, match="129 tokens, the model has learned 128 positions") as caught:
        engine.generate(request(N_POSITIONS + 1))
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (129, 128)
    with pytest.raises(ContextOverflowError, match="129 tokens, the context holds 64; shorten it or raise n_ctx"):
        engine_for("gpt2", n_ctx=64).generate(request(N_POSITIONS + 1))
    with pytest.raises(ContextOverflowError, match=r"^texts\[0\]: .* the limit is 128"):
        LocalModel(models["gpt2"], n_ctx=1024, n_threads=1).embed("word " * 200)


def test_nothing_can_be_dropped_from_the_middle(engine_for):
    with pytest.raises(InvalidRequestError, match="^context_shift: the memory of this model cannot drop tokens"):
        engine_for("gpt2", n_ctx=64).generate(request(10, context_shift=4))


# ---- natively


def batch(position: int | None, n: int = 1) -> llama_h.llama_batch:
    slot = ctypes.pointer(llama_h.llama_seq_id(0))
    made = llama_h.llama_batch(
        n_tokens=n,
        token=(llama_h.llama_token * n)(*[5] * n),
        pos=None if position is None else (llama_h.llama_pos * n)(*range(position, position + n)),
        n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
        seq_id=(ctypes.POINTER(llama_h.llama_seq_id) * n)(*[slot] * n),
        logits=(ctypes.c_int8 * n)(*[1] * n),
    )
    made._keep = slot
    return made


@pytest.mark.parametrize(
    ("position", "n", "message"),
    [
        (128, 1, "position 128 of a model with 128"),
        (-1, 1, "position -1 of a model with 128"),
        (2**31 - 1, 1, "of a model with 128"),
        (120, 9, "position 128 of a model with 128"),
        (None, 1, "needs positions"),
    ],
)
def test_batches_beyond_the_table_are_refused(engine_for, position, n, message):
    engine = engine_for("gpt2", n_ctx=1024, n_threads=2)
    native, context = engine.model.native, engine._core.runner.context.pointer
    wrong = batch(position, n)
    for call in (native.lm_decode, lambda *arguments: native.lm_run(*arguments, None, 0)):
        assert call(context, ctypes.byref(wrong)) == localllm_h.LM_INVALID_ARGUMENT
        assert message in native.lm_last_error().decode()
    assert native.lm_decode(context, ctypes.byref(batch(0, 128))) == localllm_h.LM_OK
    assert native.lm_decode(context, ctypes.byref(batch(128))) == localllm_h.LM_INVALID_ARGUMENT


def test_the_bare_loop_ends_before_the_table_does(engine_for):
    engine = engine_for("gpt2", n_ctx=1024, n_threads=2)
    native, context = engine.model.native, engine._core.runner.context.pointer
    seconds = ctypes.c_double(), ctypes.c_double()

    def loop(n: int, n_generate: int) -> int:
        tokens, out = (llama_h.llama_token * n)(*prompt(n)), (llama_h.llama_token * n_generate)()
        return native.lm_bench_loop(context, tokens, n, n_generate, out, *map(ctypes.byref, seconds))

    assert loop(100, 28) == localllm_h.LM_OK
    assert loop(100, 29) == localllm_h.LM_INVALID_ARGUMENT
