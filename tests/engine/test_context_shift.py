"""Answers that outgrow the context, if they are allowed to."""

from __future__ import annotations

import ctypes

import pytest

from localllm import Delta, Engine, Request, SamplingParams, SpeculationConfig
from localllm.errors import ContextOverflowError, InvalidRequestError
from localllm.native.bindings import llama as llama_h
from localllm.native.handles import Context

PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
N_CTX, KEEP, LENGTH = 256, 10, 500


def request(engine: Engine, text: str = "one two three four five six", **options) -> Request:
    prompt = tuple(engine.model.tokenize(text, True, True))
    return Request(prompt=prompt, **{"max_tokens": LENGTH, "sampling": PROBED, "context_shift": KEEP, **options})


def bare(engine: Engine, prompt: tuple[int, ...], length: int) -> list[int]:
    """llama.cpp alone, told to do the same: what is dropped when, and nothing else."""
    native = engine.model.native
    params = engine._core.runner._params
    context = Context(engine.model, params)
    memory, n_vocab = context.memory, native.llama_vocab_n_tokens(engine.model.vocab)
    at, pending, answer = 0, list(prompt), []
    slot = ctypes.pointer(llama_h.llama_seq_id(0))
    while len(answer) < length:
        if at + len(pending) > N_CTX:
            discard = (at - KEEP) // 2
            assert native.llama_memory_seq_rm(memory, 0, KEEP, KEEP + discard)
            native.llama_memory_seq_add(memory, 0, KEEP + discard, -1, -discard)
            at -= discard
        n = len(pending)
        batch = llama_h.llama_batch(
            n_tokens=n,
            token=(llama_h.llama_token * n)(*pending),
            embd=None,
            pos=(llama_h.llama_pos * n)(*range(at, at + n)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(llama_h.llama_seq_id) * n)(*[slot] * n),
            logits=(ctypes.c_int8 * n)(*[0] * (n - 1), 1),
        )
        native.check(native.lm_decode(context.pointer, ctypes.byref(batch)))
        at += n
        logits = native.llama_get_logits_ith(context.pointer, n - 1)[:n_vocab]
        allowed = [token for token in range(n_vocab) if not native.llama_vocab_is_eog(engine.model.vocab, token)]
        pending = [max(allowed, key=lambda token: (logits[token], -token))]
        answer += pending
    context.close()
    return answer


def test_the_answer_is_that_of_llama_cpp_told_to_drop_the_same(engine_for):
    engine = engine_for("qwen3", n_ctx=N_CTX, parallel=1, prefix_cache=False)
    asked = request(engine)
    answer = engine.generate(asked)
    assert (len(answer.tokens), answer.finish_reason) == (LENGTH, "length")
    assert list(answer.tokens) == bare(engine, asked.prompt, LENGTH)
    assert engine.stats().computed_tokens == len(asked.prompt) + LENGTH - 1, "nothing is computed twice"


@pytest.mark.parametrize("name", ["qwen35", "mamba2", "lfm2", "gemma3"])
def test_other_memories_shift_or_say_that_they_cannot(engine_for, name):
    engine = engine_for(name, n_ctx=N_CTX)
    if not engine._core.runner.can_shift:
        with pytest.raises(InvalidRequestError, match="^context_shift: the memory of this model"):
            engine.generate(request(engine))
        return
    answer = engine.generate(request(engine))
    assert len(answer.tokens) == LENGTH
    assert engine.generate(request(engine)).tokens == answer.tokens


def test_there_are_models_of_both_sorts(engine_for):
    able = {name: engine_for(name)._core.runner.can_shift for name in ("qwen3", "qwen35", "mamba2", "lfm2", "gemma3")}
    assert able["qwen3"] and set(able.values()) == {True, False}, able


def test_without_the_option_the_answer_ends(engine_for):
    engine = engine_for("qwen3", n_ctx=N_CTX)
    asked = request(engine, context_shift=None)
    answer = engine.generate(asked)
    assert (len(answer.tokens), answer.finish_reason) == (N_CTX - len(asked.prompt) + 1, "length")


def test_a_shifted_state_is_nobody_elses(engine_for, assert_same_greedy):
    """Its cells remember what was dropped; a prompt of the same tokens must be computed."""
    engine, cold = engine_for("qwen3", n_ctx=N_CTX), engine_for("qwen3", n_ctx=N_CTX, prefix_cache=False)
    asked = request(engine)
    answer = engine.generate(asked)
    everything = [*asked.prompt, *answer.tokens]
    tail = Request(prompt=(*everything[:KEEP], *everything[-100:]), max_tokens=10, sampling=PROBED)
    again = engine.generate(tail)
    assert again.usage.cached_tokens <= len(asked.prompt)
    assert_same_greedy(cold.generate(tail).logprobs, again.logprobs)


def test_a_prefix_that_others_still_use_is_left_to_them(engine_for, together, assert_same_greedy):
    """Two answers to one prompt share its cells, which cannot move for one of them alone."""
    engine = engine_for("qwen3", n_ctx=512, parallel=2)
    text = "the quick brown fox jumps over the lazy dog " * 6
    long, short = request(engine, text, max_tokens=600), request(engine, text, max_tokens=20)
    for _ in range(2):
        events = together(engine, [long, short])
        sizes = [sum(len(event.tokens) for event in seen if isinstance(event, Delta)) for seen in events]
        assert sizes == [600, 20]
    alone = engine_for("qwen3", n_ctx=512, prefix_cache=False)
    given = [entry for event in events[1] if isinstance(event, Delta) for entry in event.logprobs]
    assert_same_greedy(alone.generate(short).logprobs, given)


def test_two_long_answers_to_one_prompt_both_go_on(engine_for, together):
    engine = engine_for("qwen3", n_ctx=200, parallel=2)
    asked = request(engine, "the quick brown fox jumps over the lazy dog " * 4, max_tokens=300)
    for seen in together(engine, [asked, asked]):
        assert sum(len(event.tokens) for event in seen if isinstance(event, Delta)) == 300
    assert engine.stats().n_running == 0


def test_drafts_go_on_after_a_shift(engine_for, assert_same_greedy):
    plain = engine_for("qwen3", n_ctx=N_CTX, prefix_cache=False)
    config = SpeculationConfig(kind="ngram-simple", n_match=1, n_max=6, throttle=False)
    drafting = engine_for("qwen3", n_ctx=N_CTX, prefix_cache=False, speculation=config)
    asked = request(plain)
    answer = drafting.generate(asked)
    assert len(answer.tokens) == LENGTH and answer.usage.drafted_tokens > 100
    assert_same_greedy(plain.generate(asked).logprobs[: N_CTX - 20], answer.logprobs[: N_CTX - 20])


def test_what_cannot_be_kept_is_refused(engine_for):
    engine = engine_for("qwen3", n_ctx=N_CTX)
    for wrong in (-1, 1.5, True, "10"):
        with pytest.raises(InvalidRequestError, match="^context_shift"):
            request(engine, context_shift=wrong)
    with pytest.raises(InvalidRequestError, match="^context_shift: 255 tokens"):
        engine.generate(request(engine, context_shift=N_CTX - 1))
    with pytest.raises(ContextOverflowError):
        engine.generate(Request(prompt=(5,) * (N_CTX + 1), context_shift=KEEP))
