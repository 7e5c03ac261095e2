"""The engine over tiny models: the same answer in every way it can be asked for, and nothing left over."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from dataclasses import replace

import pytest

from localllm import ContextConfig, Delta, Engine, Finished, Request, SamplingParams
from localllm.engine.request import Failed
from localllm.errors import (
    ClosedError,
    ContextOverflowError,
    GrammarError,
    InvalidRequestError,
    ModelLoadError,
    NativeError,
    QueueFullError,
    RequestTimeoutError,
    UnsupportedModelError,
)

GREEDY = SamplingParams(temperature=0)
PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
GENERATORS = ["qwen3", "qwen3moe", "gemma3", "gemma4", "qwen35", "mamba2", "lfm2"]


def ask(engine: Engine, text: str, max_tokens: int = 16, **options) -> Request:
    sampling = options.pop("sampling", GREEDY)
    tokens = tuple(engine.model.tokenize(text, True, True))
    return Request(prompt=tokens, max_tokens=max_tokens, sampling=sampling, **options)


def probabilities_of(events: list) -> list:
    return [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]


def tokens_of(events: list) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.tokens]


@pytest.mark.parametrize("name", GENERATORS)
def test_one_or_many_sequences_give_the_same_greedy_tokens(engine_for, name, together, assert_same_greedy):
    engine = engine_for(name)
    prompts = [f"{text} {'the quick brown fox ' * n}" for n, text in enumerate(["one", "two", "What is", "def add", "jumps"])]
    requests = [ask(engine, prompt, 24, sampling=PROBED) for prompt in prompts]
    alone = [engine.generate(request) for request in requests]
    for answer, events in zip(alone, together(engine, requests), strict=True):
        assert_same_greedy(answer.logprobs, probabilities_of(events))
    assert all(len(answer.tokens) == 24 for answer in alone)
    assert len({answer.tokens for answer in alone}) > 2, "a model that ignores its prompt tests nothing"


def test_one_or_many_sequences_give_exactly_the_same_text_on_a_trained_model(engine_for, trained, together):
    engine = engine_for(trained, n_ctx=1024)
    requests = [ask(engine, prompt, 48) for prompt in ("The ", "A small ", "one two three ", "It was ")]
    alone = [engine.generate(request) for request in requests]
    together = together(engine, requests)
    assert [tokens_of(events) for events in together] == [list(answer.tokens) for answer in alone]


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35", "mamba2"])
@pytest.mark.parametrize("n_ubatch", [7, 64])
def test_a_prompt_in_many_batches_gives_the_same_answer(engine_for, name, n_ubatch, assert_same_greedy):
    text = "the lazy dog jumps over " * 12
    whole, cut = engine_for(name, parallel=1), engine_for(name, parallel=1, n_batch=20, n_ubatch=n_ubatch)
    answers = [engine.generate(ask(engine, text, sampling=PROBED)) for engine in (whole, cut)]
    assert_same_greedy(answers[0].logprobs, answers[1].logprobs)


def test_sync_async_streamed_and_whole_answers_agree(qwen3):
    request = ask(qwen3, "one two three")
    whole = qwen3.generate(request)
    streamed = list(qwen3.stream(request))

    async def both():
        one = await qwen3.agenerate(request)
        many = [event async for event in qwen3.astream(request)]
        return one, many

    one, many = asyncio.run(both())
    assert one.text == whole.text == "".join(event.text for event in streamed[:-1]) == "".join(event.text for event in many[:-1])
    assert one.tokens == whole.tokens
    assert isinstance(streamed[-1], Finished) and streamed[-1].usage.completion_tokens == len(whole.tokens)
    assert whole.usage.prompt_tokens == len(request.prompt)


def test_coroutines_share_batches_and_the_loop_goes_on(qwen3):
    async def many():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        clock = asyncio.create_task(tick())
        answers = await asyncio.gather(*(qwen3.agenerate(ask(qwen3, f"number {n}", 32)) for n in range(8)))
        clock.cancel()
        return answers, ticks

    answers, ticks = asyncio.run(many())
    assert [answer.tokens for answer in answers] == [qwen3.generate(ask(qwen3, f"number {n}", 32)).tokens for n in range(8)]
    assert ticks > 32


def test_threads_may_share_an_engine(qwen3):
    wanted = {n: qwen3.generate(ask(qwen3, f"thread {n}")).tokens for n in range(6)}
    got = {}

    def work(n):
        for _ in range(3):
            got[n] = qwen3.generate(ask(qwen3, f"thread {n}")).tokens

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == wanted


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(qwen3, max_tokens):
    answer = qwen3.generate(ask(qwen3, "one two", max_tokens, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    assert (len(answer.tokens), answer.finish_reason) == (max_tokens, "length")


def test_without_a_limit_the_context_is_the_limit(engine_for):
    engine = engine_for("qwen3", n_ctx=256, parallel=1)
    request = ask(engine, "one two", None, sampling=SamplingParams(temperature=0, ignore_eos=True))
    answer = engine.generate(request)
    assert len(request.prompt) + len(answer.tokens) == 257, "the last token is chosen from a full context"
    assert answer.finish_reason == "length"


def test_a_prompt_that_fills_the_context_still_gets_a_token_and_a_longer_one_is_refused(engine_for):
    engine = engine_for("qwen3", n_ctx=256, parallel=2)
    full = Request(prompt=(5,) * 256, sampling=SamplingParams(temperature=0, ignore_eos=True))
    assert len(engine.generate(full).tokens) == 1
    with pytest.raises(ContextOverflowError) as caught:
        engine.submit(Request(prompt=(5,) * 257), print)
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (257, 256)


def test_more_work_than_cells_is_done_in_turn_with_the_same_answers(engine_for, together, assert_same_greedy):
    engine = engine_for("qwen3", n_ctx=256, parallel=4)
    requests = [ask(engine, f"{n} the quick brown fox", 100, sampling=PROBED) for n in range(6)]
    together = together(engine, requests)
    for request, events in zip(requests, together, strict=True):
        assert_same_greedy(engine.generate(request).logprobs, probabilities_of(events))


def test_an_evicted_answer_goes_on_as_if_nothing_had_happened(engine_for, trained, monkeypatch, together):
    evictions = []
    engine = engine_for(trained, n_ctx=256, parallel=3)
    requeue = engine._core.scheduler.requeue
    monkeypatch.setattr(engine._core.scheduler, "requeue", lambda sequence: (evictions.append(sequence.id), requeue(sequence)))
    # Penalties remember the answer so far: a sampler that began anew after the eviction would choose otherwise.
    sampling = SamplingParams(temperature=0, ignore_eos=True, repeat_penalty=1.1, frequency_penalty=0.1)
    requests = [ask(engine, text, 110, sampling=sampling) for text in ("The ", "It was ", "one two ")]
    events = together(engine, requests)
    assert evictions
    alone = [engine.generate(request) for request in requests]
    assert [tokens_of(entry) for entry in events] == [list(answer.tokens) for answer in alone]
    assert ["".join(e.text for e in entry if isinstance(e, Delta)) for entry in events] == [answer.text for answer in alone]


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35", "mamba2"])
def test_an_evicted_answer_is_not_computed_again(engine_for, together, name, assert_same_greedy):
    """Two that outgrow the cells: one gives its cells back, and takes its state from RAM when the other has ended."""
    totals = {}
    for ram in (0, 2**28):
        engine = engine_for(name, n_ctx=320, parallel=2, cache_ram_bytes=ram)
        requests = [ask(engine, f"{word} the quick brown fox jumps " * 3, 150, sampling=PROBED) for word in ("one", "two")]
        events = together(engine, requests)
        stats = engine.stats()
        totals[ram] = stats.computed_tokens
        assert stats.n_restored == (1 if ram else 0)
        alone = engine_for(name, n_ctx=320, prefix_cache=False)
        for request, seen in zip(requests, events, strict=True):
            assert_same_greedy(alone.generate(request).logprobs, probabilities_of(seen))
    needed = sum(len(request.prompt) for request in requests) + 2 * 149
    assert totals[2**28] == needed < totals[0] - 100


def test_the_same_seed_gives_the_same_answer_whatever_else_is_in_the_batch(qwen3, together):
    request = ask(qwen3, "one two", 24, sampling=SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=42))
    alone = qwen3.generate(request)
    others = [ask(qwen3, f"other {n}", 24, sampling=SamplingParams(temperature=1, seed=n)) for n in range(3)]
    assert tokens_of(together(qwen3, [*others, request])[3]) == list(alone.tokens)
    assert alone.seed == 42


def test_a_random_seed_is_reported_and_repeats_the_answer(qwen3):
    sampling = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    first = qwen3.generate(ask(qwen3, "one", 24, sampling=SamplingParams(**sampling)))
    again = qwen3.generate(ask(qwen3, "one", 24, sampling=SamplingParams(**sampling, seed=first.seed)))
    other = qwen3.generate(ask(qwen3, "one", 24, sampling=SamplingParams(**sampling)))
    assert again.tokens == first.tokens != other.tokens


# ---- cancel


def test_closing_a_stream_stops_the_work(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=512)
    stream = engine.stream(ask(engine, "one two", None, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    next(stream)
    stream.close()
    assert engine.generate(ask(engine, "three")).tokens
    assert engine._core.scheduler.idle and not engine._core._sequences


def test_a_stream_that_is_dropped_unread_or_half_read_stops_the_work(engine_for, together):
    engine = engine_for("qwen3", parallel=1, n_ctx=4096)
    endless = ask(engine, "one two", None, sampling=SamplingParams(temperature=0, ignore_eos=True))
    for n_read in (0, 1, 0, 1):
        stream = engine.stream(endless)
        for _ in range(n_read):
            next(stream)
        del stream
        gc.collect()
    assert engine.generate(ask(engine, "three")).tokens
    assert engine.stats().computed_tokens < 4 * 1000 and not engine._core._sequences


def test_an_engine_may_be_closed_and_asked_from_a_sink(engine_for):
    engine, ended, asked = engine_for("qwen3", parallel=1), threading.Event(), []

    def again(event):
        if isinstance(event, Finished):
            asked.append(event)
            if len(asked) < 4:
                engine.submit(ask(engine, "one", 2), again)
            else:
                engine.close()
                ended.set()

    engine.submit(ask(engine, "one", 2), again)
    assert ended.wait(30) and engine.closed
    engine._thread.join(30)
    assert not engine._thread.is_alive()


def test_tasks_that_time_out_and_loops_that_end_leave_no_work(engine_for):
    engine = engine_for("qwen3", parallel=2, n_ctx=2048)
    endless = ask(engine, "one", None, sampling=SamplingParams(temperature=0, ignore_eos=True))

    async def impatient():
        for _ in range(10):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.agenerate(endless), 0.005)

    async def abandoned():
        stream = engine.astream(endless)
        await stream.__anext__()
        return stream

    asyncio.run(impatient())
    kept = asyncio.run(abandoned())
    assert engine.generate(ask(engine, "two")).tokens and kept is not None
    with engine._core._wake:
        assert engine._core._wake.wait_for(lambda: not engine._core._sequences, 10)


def test_cancel_ends_with_a_cancelled_event_in_every_state(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048, n_batch=32, n_ubatch=32)
    events: dict[str, list] = {"prefill": [], "waiting": []}
    ended = {name: threading.Event() for name in events}

    def sink(name):
        def put(event):
            events[name].append(event)
            if isinstance(event, (Finished, Failed)):
                ended[name].set()

        return put

    long = engine.submit(Request(prompt=(5,) * 2000, sampling=GREEDY), sink("prefill"))
    queued = engine.submit(Request(prompt=(6,) * 10, sampling=GREEDY), sink("waiting"))
    engine.cancel(queued)
    engine.cancel(long)
    for event in ended.values():
        assert event.wait(30)
    for name in events:
        assert [type(event) for event in events[name]] == [Finished], name
        assert events[name][0].reason == "cancelled"
    assert engine.generate(ask(engine, "one")).tokens == engine.generate(ask(engine, "one")).tokens


def test_cancel_in_the_middle_of_a_prefill_leaves_a_sound_cache(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=4096, n_batch=2048, n_ubatch=16)
    wanted = engine.generate(ask(engine, "the quick")).tokens
    for _ in range(5):
        events: list = []
        ended = threading.Event()
        request_id = engine.submit(
            Request(prompt=(7,) * 4000), lambda e, events=events, ended=ended: (events.append(e), ended.set())
        )
        while not engine._core.worker._in_batch and not ended.is_set():
            pass
        engine.cancel(request_id)
        assert ended.wait(30) and events[0].reason == "cancelled"
        assert engine.generate(ask(engine, "the quick")).tokens == wanted


def test_a_cancelled_task_stops_the_native_work(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048)

    async def main():
        request = ask(engine, "one", None, sampling=SamplingParams(temperature=0, ignore_eos=True))
        task = asyncio.create_task(engine.agenerate(request))
        while not engine._core.worker._in_batch:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await engine.agenerate(ask(engine, "two"))

    assert asyncio.run(main()).tokens
    assert not engine._core._sequences


def test_unknown_and_ended_ids_are_ignored(qwen3):
    qwen3.cancel(10**9)
    qwen3.cancel(-1)
    assert qwen3.generate(ask(qwen3, "one")).tokens


def test_a_full_queue_is_a_typed_error(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048, max_queue=2)
    endless = ask(engine, "one", None, sampling=SamplingParams(temperature=0, ignore_eos=True))
    stream = engine.stream(endless)
    next(stream)
    waiting = [engine.submit(ask(engine, "two"), lambda event: None) for _ in range(2)]
    with pytest.raises(QueueFullError, match="max_queue=2"):
        engine.submit(ask(engine, "three"), print)
    for request_id in waiting:
        engine.cancel(request_id)
    stream.close()


def test_priority_starts_first(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048)
    stream = engine.stream(ask(engine, "one", None, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    next(stream)
    order, ended = [], threading.Event()

    def sink(name):
        def put(event):
            if isinstance(event, Finished):
                order.append(name)
                if len(order) == 3:
                    ended.set()

        return put

    for name, priority in (("late", 0), ("urgent", 9), ("later", 0)):
        engine.submit(ask(engine, name, priority=priority), sink(name))
    stream.close()
    assert ended.wait(30) and order == ["urgent", "late", "later"]


def test_a_request_ends_when_its_time_is_up(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048)
    endless = ask(engine, "one", None, context_shift=0, sampling=SamplingParams(temperature=0, ignore_eos=True))
    stream = engine.stream(endless)
    next(stream)
    with pytest.raises(RequestTimeoutError, match=r"0.1 seconds; it had not begun"):
        engine.generate(ask(engine, "two", timeout=0.1))
    stream.close()
    with pytest.raises(RequestTimeoutError, match=r"0.2 seconds; \d+ tokens of the answer"):
        engine.generate(replace(endless, timeout=0.2))
    with pytest.raises(RequestTimeoutError):
        asyncio.run(engine.agenerate(replace(endless, timeout=0.05)))
    assert engine.generate(ask(engine, "two", timeout=60)).tokens
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert not engine.activity.busy and not [timer for timer in timers if timer.interval < 60]


# ---- sampling


def test_a_banned_token_never_comes_and_a_favoured_one_always(qwen3):
    free = qwen3.generate(ask(qwen3, "one", 12, sampling=SamplingParams(temperature=0, ignore_eos=True))).tokens
    banned = SamplingParams(temperature=0, ignore_eos=True, logit_bias=dict.fromkeys(set(free), -math.inf))
    assert not set(free) & set(qwen3.generate(ask(qwen3, "one", 12, sampling=banned)).tokens)
    forced = SamplingParams(temperature=0.8, logit_bias={33: 1000.0}, seed=1)
    assert set(qwen3.generate(ask(qwen3, "one", 5, sampling=forced)).tokens) == {33}


def test_logit_bias_counts_once(qwen3):
    """llama-cpp-python adds it twice: a bias just under what lifts a token to the top must not lift it."""
    probe = qwen3.generate(ask(qwen3, "one", 1, sampling=SamplingParams(temperature=0, n_probs=2)))
    (first, second) = probe.logprobs[0].top
    gap = first.logprob - second.logprob
    below = SamplingParams(temperature=0, logit_bias={second.token: gap * 0.9})
    above = SamplingParams(temperature=0, logit_bias={second.token: gap * 1.1})
    assert qwen3.generate(ask(qwen3, "one", 1, sampling=below)).tokens == (first.token,)
    assert qwen3.generate(ask(qwen3, "one", 1, sampling=above)).tokens == (second.token,)


def test_suppressed_tokens_of_the_vocabulary_always_hold(builder, qwen3, engine_for):
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    free = qwen3.generate(ask(qwen3, "one", 12, sampling=greedy)).tokens
    path = builder.build("qwen3", overrides={"tokenizer.ggml.suppress_tokens": ("[int32]", sorted(set(free)))})
    engine = engine_for(path)
    for sampling in (greedy, SamplingParams(temperature=1.0, seed=3), SamplingParams(temperature=0, grammar="root ::= [a-z ]+")):
        assert not set(free) & set(engine.generate(ask(engine, "one", 12, sampling=sampling)).tokens)


def test_ignore_eos_never_chooses_an_end_and_without_it_an_end_ends(qwen3):
    native, model = qwen3.model.native, qwen3.model
    ends = [t for t in range(native.llama_vocab_n_tokens(model.vocab)) if native.llama_vocab_is_eog(model.vocab, t)]
    eager = {"temperature": 0.0, "logit_bias": {ends[0]: 1000.0}}
    ended = qwen3.generate(ask(qwen3, "one", 8, sampling=SamplingParams(**eager)))
    assert (ended.tokens, ended.finish_reason, ended.text) == ((ends[0],), "stop", "")
    ignoring = qwen3.generate(ask(qwen3, "one", 8, sampling=SamplingParams(**eager, ignore_eos=True)))
    assert not set(ends) & set(ignoring.tokens) and ignoring.finish_reason == "length"


ENDLESS = [{"ignore_eos": True}, {"bias": True}, {"ignore_eos": True, "temperature": 0.0}, {"ignore_eos": True, "mirostat": 2}]


@pytest.mark.parametrize("options", [*ENDLESS, {"ignore_eos": True, "samplers": ("typical_p", "xtc", "adaptive_p")}])
@pytest.mark.parametrize("grammar", ['root ::= "yes" | "no"', 'root ::= "a" | "ab" | "abc"', "root ::= [0-9]{3}"])
def test_an_answer_ends_where_its_grammar_does_even_if_ends_are_banned(qwen3, grammar, options):
    native, model = qwen3.model.native, qwen3.model
    ends = [t for t in range(native.llama_vocab_n_tokens(model.vocab)) if native.llama_vocab_is_eog(model.vocab, t)]
    options = {"temperature": 1.5, "n_probs": 3, **options}
    if options.pop("bias", False):
        options["logit_bias"] = dict.fromkeys(ends, -math.inf)
    for sampled in (False, True):
        sampling = SamplingParams(grammar=grammar, seed=3, sampled_probs=sampled, **options)
        answer = qwen3.generate(ask(qwen3, "one", 20, sampling=sampling))
        assert answer.finish_reason == "stop" and (answer.text in ("yes", "no", "abc") or answer.text.isdigit())
        assert set(answer.tokens) & set(ends) == {answer.tokens[-1]}, "an end, and only where nothing else is permitted"
        assert all(entry.logprob <= 0 for entry in answer.logprobs)


def test_a_grammar_that_bans_leave_nothing_for_is_an_error_and_harms_nobody(qwen3):
    tokens = range(qwen3.model.native.llama_vocab_n_tokens(qwen3.model.vocab))
    banned = {token: -math.inf for token in tokens if b"y" in qwen3.model.piece(token)}
    for ignore in (False, True):
        sampling = SamplingParams(grammar='root ::= "no" "y"', logit_bias=banned, ignore_eos=ignore)
        with pytest.raises(GrammarError, match="^grammar: no token is left"):
            qwen3.generate(ask(qwen3, "one", 20, sampling=sampling))
    assert qwen3.generate(ask(qwen3, "one")).tokens


def test_penalties_see_the_prompt(qwen3):
    plain = qwen3.generate(ask(qwen3, "one two three", 1))
    word = plain.tokens[0]
    prompt = (*qwen3.model.tokenize("one two three", True, True),)
    with_word = Request(prompt=(word, word, word, *prompt), max_tokens=1, sampling=GREEDY)
    base = qwen3.generate(with_word).tokens[0]
    strong = SamplingParams(temperature=0, presence_penalty=1e4)
    penalised = qwen3.generate(Request(prompt=(base, *with_word.prompt), max_tokens=1, sampling=strong)).tokens[0]
    assert penalised != base and penalised not in with_word.prompt
    forgetful = SamplingParams(temperature=0, presence_penalty=1e4, penalty_last_n=0)
    unpenalised = qwen3.generate(Request(prompt=with_word.prompt, max_tokens=1, sampling=forgetful)).tokens[0]
    assert unpenalised == base


def test_every_sampler_changes_something_or_nothing_as_documented(qwen3):
    base = {"temperature": 1.2, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    reference = qwen3.generate(ask(qwen3, "one", 32, sampling=SamplingParams(**base))).tokens
    changes = [
        {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}, {"typical_p": 0.3}, {"top_n_sigma": 0.5}, {"dynatemp_range": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01}, {"repeat_penalty": 1.8}, {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0}, {"mirostat": 1}, {"mirostat": 2}, {"temperature": 0.1}, {"seed": 6},
        {"samplers": ("min_p", "adaptive_p"), "adaptive_target": 0.3}, {"samplers": ("top_k", "top_p", "infill"), "top_k": 20},
    ]  # fmt: skip
    for change in changes:
        other = qwen3.generate(ask(qwen3, "one", 32, sampling=SamplingParams(**{**base, **change}))).tokens
        assert other != reference, change


def test_dry_forbids_what_would_go_on_repeating_the_prompt(qwen3):
    """The prompt repeats 11 12 13 14; a bias wants 11 next, and only DRY, seeing the prompt, can object."""
    prompt = tuple([11, 12, 13, 14] * 12)
    wanted = {"temperature": 0.0, "logit_bias": {11: 20.0}}
    dry = {**wanted, "dry_multiplier": 50.0, "dry_penalty_last_n": -1}
    plain, dried = (
        qwen3.generate(Request(prompt=prompt, max_tokens=1, sampling=SamplingParams(**options))).tokens
        for options in (wanted, dry)
    )
    assert plain == (11,) != dried


def test_greedy_equals_the_full_chain_at_temperature_zero(qwen3):
    """The short cut for plain greedy choice must choose what llama.cpp's chain chooses."""
    short = qwen3.generate(ask(qwen3, "the lazy dog", 48, sampling=SamplingParams(temperature=0, ignore_eos=False)))
    # A bias of nothing switches the short cut off.
    chain = qwen3.generate(ask(qwen3, "the lazy dog", 48, sampling=SamplingParams(temperature=0, logit_bias={0: 0.0})))
    assert short.tokens == chain.tokens


def test_grammar_holds_and_a_wrong_one_fails_its_request_alone(qwen3):
    grammar = 'root ::= "yes" | "no"'
    for seed in range(5):
        answer = qwen3.generate(ask(qwen3, "one", 20, sampling=SamplingParams(temperature=2.0, seed=seed, grammar=grammar)))
        assert answer.text in ("yes", "no") and answer.finish_reason == "stop"
    with pytest.raises(GrammarError):
        qwen3.generate(ask(qwen3, "one", sampling=SamplingParams(grammar="root ::= (")))
    assert qwen3.generate(ask(qwen3, "one")).tokens


def test_log_probabilities_are_the_models_own_and_aligned(qwen3):
    request = ask(qwen3, "one two", 8, sampling=SamplingParams(temperature=0, n_probs=5, ignore_eos=True))
    answer = qwen3.generate(request)
    assert [entry.token for entry in answer.logprobs] == list(answer.tokens)
    for entry in answer.logprobs:
        assert len(entry.top) == 5 and entry.top[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top[0].logprob) and entry.logprob < 0
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
        assert sum(math.exp(top.logprob) for top in entry.top) < 1
    # The same numbers one token at a time: nothing is off by one position.
    again = qwen3.generate(Request(prompt=(*request.prompt, *answer.tokens[:3]), max_tokens=1, sampling=request.sampling))
    assert again.logprobs[0].token == answer.tokens[3]
    assert again.logprobs[0].logprob == pytest.approx(answer.logprobs[3].logprob, abs=1e-3)


def test_all_log_probabilities_sum_to_one(qwen3):
    sampling = SamplingParams(temperature=1.0, top_k=3, top_p=1, min_p=0, n_probs=100, sampled_probs=True, seed=1)
    for entry in qwen3.generate(ask(qwen3, "one", 4, sampling=sampling)).logprobs:
        assert len(entry.top) == 3
        assert sum(math.exp(top.logprob) for top in entry.top) == pytest.approx(1, abs=1e-4)


def test_logprobs_alone_need_no_candidates(qwen3):
    answer = qwen3.generate(ask(qwen3, "one", 4, sampling=SamplingParams(temperature=0, logprobs=True)))
    assert len(answer.logprobs) == 4 and all(entry.top == () and entry.logprob < 0 for entry in answer.logprobs)


# ---- stop rules


def test_stop_strings_and_stop_tokens_end_an_answer(qwen3):
    long = qwen3.generate(ask(qwen3, "one two three", 40, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    middle = long.text[len(long.text) // 2 :][:3]
    stopped = qwen3.generate(
        ask(qwen3, "one two three", 40, sampling=SamplingParams(temperature=0, ignore_eos=True), stop=(middle,))
    )
    assert stopped.finish_reason == "stop" and stopped.text == long.text[: long.text.find(middle)]
    token = long.tokens[5]
    first = long.tokens.index(token)
    by_token = qwen3.generate(
        ask(qwen3, "one two three", 40, sampling=SamplingParams(temperature=0, ignore_eos=True), stop_tokens=(token,))
    )
    assert by_token.tokens == long.tokens[: first + 1] and by_token.finish_reason == "stop"


# ---- life


def test_errors_of_a_request_come_before_it_is_queued(qwen3):
    for prompt in ((10**6,), (-1,), (5, -7)):
        with pytest.raises(InvalidRequestError, match="^prompt:"):
            qwen3.submit(Request(prompt=prompt), print)


@pytest.mark.parametrize("name", ["prompt", "stop_tokens", "visible_tokens"])
@pytest.mark.parametrize("token", [-1, 2**31, 10**12, 10**400])
def test_tokens_that_are_not_there_are_refused_by_the_options_name(qwen3, name, token):
    with pytest.raises(InvalidRequestError, match=f"^{name}: token .* is not in the vocabulary"):
        qwen3.generate(Request(**{"prompt": (1,), "max_tokens": 1, name: (5, token)}))


def test_a_bias_for_a_token_that_is_not_there_fails_that_request(qwen3):
    with pytest.raises(InvalidRequestError, match="^logit_bias:"):
        qwen3.generate(ask(qwen3, "one", sampling=SamplingParams(logit_bias={10**6: 1.0})))
    assert qwen3.generate(ask(qwen3, "one")).tokens


def test_closing_ends_requests_under_way_with_an_error(engine_for):
    engine = engine_for("qwen3", parallel=1, n_ctx=2048)
    stream = engine.stream(ask(engine, "one", None, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    next(stream)
    engine.close()
    with pytest.raises(ClosedError):
        list(stream)
    with pytest.raises(ClosedError):
        engine.submit(Request(prompt=(1,)), print)
    engine.close()


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_sink_that_fails_ends_only_its_own_request(qwen3, caplog, kind):
    seen, ended = [], threading.Event()

    def broken(event):
        seen.append(event)
        if not isinstance(event, Delta):
            ended.set()
        raise kind("mine")

    other = qwen3.stream(ask(qwen3, "three", 40, sampling=PROBED))
    next(other)
    qwen3.submit(ask(qwen3, "one", None, sampling=PROBED), broken)
    assert ended.wait(30) and [type(event) for event in seen] == [Delta, Finished] and seen[1].reason == "cancelled"
    assert isinstance(list(other)[-1], Finished) and qwen3.generate(ask(qwen3, "two")).tokens
    assert "mine" in caplog.text and not qwen3.closed


@pytest.mark.parametrize("kind", [ZeroDivisionError, MemoryError, SystemExit])
def test_a_thread_that_ends_leaves_nobody_waiting(engine_for, monkeypatch, kind):
    """Whoever waits is told, whatever ended it: an answer under way, one that is queued, and work between two steps."""
    engine, begun, go_on = engine_for("qwen3", parallel=1), threading.Event(), threading.Event()
    state = engine.save_state(ask(engine, "one two three"))

    def fail():
        raise kind("mine")

    def sink(event):
        begun.set()
        assert go_on.wait(30)
        monkeypatch.setattr(engine._core.scheduler, "plan", fail)

    engine.submit(ask(engine, "one", sampling=PROBED), sink)
    streams = [engine.stream(ask(engine, text)) for text in ("two", "three")]
    assert begun.wait(30)
    errands = [engine._core._errands.add(lambda: None) for _ in range(2)]  # one is done before each step
    go_on.set()
    for stream in streams:
        with pytest.raises(ClosedError, match="mine") as caught:
            list(stream)
        assert isinstance(caught.value.__cause__, kind)
    assert isinstance(errands[1].exception(30), ClosedError) and engine.closed
    asked = ask(engine, "two")
    for later in (lambda: engine.generate(asked), lambda: engine.load_state(state), lambda: engine.save_state(asked)):
        with pytest.raises(ClosedError, match="mine"):
            later()


def test_what_ends_threads_ends_the_errand_that_raised_it(engine_for):
    engine = engine_for("qwen3")

    def leave():
        raise SystemExit

    with pytest.raises(SystemExit):
        engine._core._on_thread(leave)
    assert engine.generate(ask(engine, "one")).tokens


@pytest.mark.parametrize("used", ["never", "stream", "astream", "cancelled"])
def test_an_engine_nobody_holds_is_collected(models, together, used):
    engine = Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256, n_threads=1))
    thread, dead = engine._thread, weakref.ref(engine)
    if used == "stream":
        engine.generate(ask(engine, "one"))
    elif used == "astream":
        asyncio.run(engine.agenerate(ask(engine, "one")))
    elif used == "cancelled":
        next(engine.stream(ask(engine, "one")))
    del engine
    gc.collect()
    thread.join(30)
    assert dead() is None and not thread.is_alive()


def test_what_a_sink_refers_to_is_let_go_at_the_end(models, rest):
    class Heard(list):
        """What can be referred to weakly."""

    with Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256, n_threads=1)) as engine:
        heard = Heard()
        engine.submit(ask(engine, "one"), heard.append)
        dead = weakref.ref(heard)
        rest(engine)
        assert isinstance(heard[-1], Finished)
        del heard
        assert dead() is None


@pytest.mark.parametrize("name", ["bert", "bert-reranker"])
def test_models_without_text_are_refused_by_name(models, name):
    with pytest.raises(UnsupportedModelError, match="bert"):
        Engine(str(models[name]))


def test_a_context_that_cannot_be_made_is_a_typed_error(models):
    with pytest.raises(ModelLoadError):
        Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256, type_k="q8_0"))  # heads of 16 values, blocks of 32
    with Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256)) as engine:
        assert engine.generate(ask(engine, "one")).tokens


def test_output_that_is_no_number_is_an_error(builder, engine_for):
    engine = engine_for(builder.hostile(groups=("odd",))["weights-nan"], n_ctx=256)
    for sampling in (GREEDY, SamplingParams(), SamplingParams(temperature=0, n_probs=3)):
        with pytest.raises(NativeError, match="not a number"):
            engine.generate(ask(engine, "one two", sampling=sampling))


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "gemma3", "qwen35", "mamba2", "smollm2"])
def test_what_the_others_in_a_batch_say_changes_not_one_bit(engine_for, together, smollm2, name):
    """How many they are decides how kernels round; what they are must decide nothing."""
    engine = engine_for(smollm2 if name == "smollm2" else name, prefix_cache=False)
    sampling = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
    asked = Request(prompt=tuple(range(100, 130)), max_tokens=24, sampling=sampling)
    answers = []
    for first in (140, 150, 160):
        others = [Request(prompt=tuple(range(first + at, first + at + 25)), max_tokens=24, sampling=sampling) for at in range(3)]
        answers.append(probabilities_of(together(engine, [*others, asked])[-1]))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", ["qwen3", "qwen35", "smollm2"])
def test_one_sequence_without_a_cache_is_repeatable_to_the_bit(engine_for, smollm2, name):
    engine = engine_for(smollm2 if name == "smollm2" else name, prefix_cache=False, parallel=1)
    asked = Request(prompt=tuple(range(100, 130)), max_tokens=24, sampling=PROBED)
    first = engine.generate(asked)
    engine.generate(Request(prompt=tuple(range(150, 250)), max_tokens=30, sampling=PROBED))
    assert engine.generate(asked).logprobs == first.logprobs


def test_answers_to_many_requests_come_in_their_order(qwen3):
    requests = [ask(qwen3, word, 6, sampling=PROBED) for word in ("one", "two", "three", "four", "five", "six")]
    alone = [qwen3.generate(request).tokens for request in requests]
    assert [answer.tokens for answer in qwen3.generate_all(requests)] == alone
    assert [answer.tokens for answer in asyncio.run(qwen3.agenerate_all(requests))] == alone
    assert qwen3.generate_all([]) == asyncio.run(qwen3.agenerate_all([])) == []


@pytest.mark.parametrize("way", ["generate_all", "agenerate_all"])
def test_one_wrong_request_among_many_is_raised_and_ends_the_others(engine_for, way):
    engine = engine_for("qwen3", n_ctx=128)
    wrong = ask(engine, "one", sampling=SamplingParams(grammar="root ::= nothing"))
    long = Request(prompt=(5,) * 200)
    for bad, error in ((wrong, GrammarError), (long, ContextOverflowError)):
        requests = [ask(engine, "one two", 100, sampling=PROBED), bad, ask(engine, "three", 100, sampling=PROBED)]
        with pytest.raises(error):
            engine.generate_all(requests) if way == "generate_all" else asyncio.run(engine.agenerate_all(requests))
    assert len(engine.generate(ask(engine, "four", 4, sampling=PROBED)).tokens) == 4
    stats = engine.stats()
    assert stats.n_running == stats.n_waiting == 0


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_a_number_of_answers_that_is_none_is_refused(n):
    with pytest.raises(InvalidRequestError, match="^n:"):
        Request(prompt=(1,)).repeated(n)


def test_seeds_follow_one_another_and_wrap():
    seeds = [each.sampling.seed for each in Request(prompt=(1,), sampling=SamplingParams(seed=2**32 - 3)).repeated(3)]
    assert seeds == [2**32 - 3, 2**32 - 2, 0]
    assert {each.sampling.seed for each in Request(prompt=(1,)).repeated(3)} == {None}
