"""Pictures and sound in the engine: their place in the cache, and that they are computed as llama.cpp's own helper does."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import Engine, Request, SamplingParams, SpeculationConfig
from localllm.engine.request import Finished
from localllm.errors import ContextOverflowError, InvalidRequestError, NativeError
from localllm.media.content import Audio, Image
from localllm.media.encoder import Encoder, ProjectorConfig
from localllm.native.bindings import mtmd as mtmd_h
from localllm.native.handles import Context, Model, default_context_params, default_model_params
from localllm.native.library import load
from localllm.native.projector import TextPart

PAIRS = ("gemma3", "gemma4", "qwen25vl", "qwen35", "qwen3vl")


def picture(seed: int, width: int = 96, height: int = 64) -> Image:
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def sound(seed: int, n_samples: int = 8000) -> Audio:
    return Audio(np.random.default_rng(seed).normal(0, 0.1, n_samples).astype(np.float32), 16000)


def text(words: str) -> TextPart:
    return TextPart(words, special=True)


@pytest.fixture
def seeing(models: dict[str, Path], engine_for: Any) -> Iterator[Callable[..., tuple[Engine, Encoder]]]:
    """A function that opens an engine over a tiny model, and an encoder for it."""
    opened: list[Encoder] = []

    def open_both(name: str, config: ProjectorConfig | None = None, **context: Any) -> tuple[Engine, Encoder]:
        engine = engine_for(name, **context)
        encoder = Encoder(engine.model, str(models[f"{name}-mmproj"]), config or ProjectorConfig(), 1)
        opened.append(encoder)
        return engine, encoder

    yield open_both
    for encoder in opened:
        encoder.close()


def request(encoder: Encoder, *parts: Any, n: int = 8, **options: Any) -> Request:
    prompt = encoder.split(parts, add_special=True)
    sampling = SamplingParams(temperature=0, logprobs=True, n_probs=options.pop("n_probs", 3))
    return Request(prompt=prompt.ids, media=prompt.runs, sampling=sampling, max_tokens=n, **options)


def reference(model_path: Path, projector_path: Path, words: list[str], pictures: list[Any]) -> np.ndarray:
    """Logits after words and pictures in turn, by mtmd_helper_eval_chunks."""
    native = load()
    model = Model(str(model_path), default_model_params(native))
    params = default_context_params(native)
    params.n_ctx, params.n_threads, params.n_threads_batch, params.n_seq_max = 512, 1, 1, 1
    context = Context(model, params)
    options = native.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.warmup, options.print_timings = False, 1, False, False
    options.media_marker = b"<__media__>"
    eyes = native.mtmd_init_from_file(str(projector_path).encode(), model.pointer, options)
    bitmaps = []
    for one in pictures:
        if isinstance(one, Image):
            data = one.pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
            bitmaps.append(native.mtmd_bitmap_init(one.width, one.height, data))
        else:
            data = one.samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmaps.append(native.mtmd_bitmap_init_from_audio(len(one.samples), data))
    chunks = native.mtmd_input_chunks_init()
    prompt = "<__media__>".join(words).encode()
    told = mtmd_h.mtmd_input_text(text=prompt, text_len=len(prompt), add_special=True, parse_special=True)
    array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert native.mtmd_tokenize(eyes, chunks, ctypes.byref(told), array, len(bitmaps)) == 0
    past = ctypes.c_int32()
    assert native.mtmd_helper_eval_chunks(eyes, context.pointer, chunks, 0, 0, 512, True, ctypes.byref(past)) == 0
    n_vocab = native.llama_vocab_n_tokens(model.vocab)
    logits = np.ctypeslib.as_array(native.llama_get_logits_ith(context.pointer, -1), (n_vocab,)).copy()
    native.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        native.mtmd_bitmap_free(bitmap)
    native.mtmd_free(eyes)
    context.close()
    model.close()
    return logits


def first_logprobs(engine: Engine, asked: Request) -> dict[int, float]:
    answer = engine.generate(asked)
    return {top.token: top.logprob for top in answer.logprobs[0].top}


@pytest.mark.parametrize("name", PAIRS)
def test_logits_are_those_of_llama_cpps_helper(models, seeing, name):
    engine, encoder = seeing(name, prefix_cache=False)  # a checkpoint splits the prompt, and kernels round by batch
    media = [picture(1), picture(2, 64, 128)]
    words = ["Look at this:", " and at this:", " What is it?"]
    logits = reference(models[name], models[f"{name}-mmproj"], words, media)
    expected = logits - np.logaddexp.reduce(logits.astype(np.float64))
    asked = request(encoder, text(words[0]), media[0], text(words[1]), media[1], text(words[2]), n=1, n_probs=100)
    found = first_logprobs(engine, asked)
    assert len(found) == 100
    assert max(abs(expected[token] - logprob) for token, logprob in found.items()) < 1e-4


def test_sound_is_computed_as_well(models, seeing):
    engine, encoder = seeing("gemma4", prefix_cache=False)
    words, media = ["Listen:", " and look:", " What is it?"], [sound(1), picture(3)]
    logits = reference(models["gemma4"], models["gemma4-mmproj"], words, media)
    expected = logits - np.logaddexp.reduce(logits.astype(np.float64))
    asked = request(encoder, text(words[0]), media[0], text(words[1]), media[1], text(words[2]), n=1, n_probs=100)
    found = first_logprobs(engine, asked)
    assert max(abs(expected[token] - logprob) for token, logprob in found.items()) < 1e-4


@pytest.mark.parametrize("name", PAIRS)
def test_three_turns_encode_each_picture_once(seeing, assert_same_greedy, name):
    """A picture in turn 1 and another in turn 2: nothing is encoded twice, and what is computed again is a few tokens."""
    engine, encoder = seeing(name, n_ctx=1024)
    cold, blind = seeing(name, ProjectorConfig(media_ram_bytes=0), n_ctx=1024, prefix_cache=False)
    parts: list[Any] = [
        text("This is a picture:"),
        picture(1),
        text(" What is to be seen in it, and what is not? Say it at length."),
    ]
    used = []
    for turn, more in enumerate(([], [text("And this one?"), picture(2), text(" Compare the two.")], [text("Which was first?")])):
        parts = [*parts, *more]
        answer = engine.generate(request(encoder, *parts))
        assert_same_greedy(cold.generate(request(blind, *parts)).logprobs, answer.logprobs)
        used.append(answer.usage)
        if turn:  # all that was asked before, but for the space between two checkpoints
            assert answer.usage.cached_tokens >= used[turn - 1].prompt_tokens - 33
    assert [(usage.media_encoded, usage.media_cached) for usage in used] == [(1, 0), (1, 1), (0, 2)]
    assert encoder.n_passes == 2
    stats = engine.stats()
    assert (stats.media_encoded, stats.media_cached, stats.media_tokens) == (2, 3, sum(usage.media_tokens for usage in used))
    assert cold.stats().media_encoded == 5


@pytest.mark.parametrize("name", PAIRS)
def test_warm_restored_and_reloaded_answers_are_those_of_a_cold_run(seeing, assert_same_greedy, tmp_path, rest, name):
    cold, blind = seeing(name, ProjectorConfig(media_ram_bytes=0), prefix_cache=False)
    parts = [text("A picture, and some words before it that make it long enough to be kept: "), picture(5), text(" What?")]
    more = [*parts, text(" More words, and another picture: "), picture(6, 64, 64), text(" And now?")]
    first, second = cold.generate(request(blind, *parts)), cold.generate(request(blind, *more))
    folder = {"cache_dir": str(tmp_path / "states")}
    engine, encoder = seeing(name, **folder)
    assert_same_greedy(first.logprobs, engine.generate(request(encoder, *parts)).logprobs)
    again = engine.generate(request(encoder, *parts))
    assert_same_greedy(first.logprobs, again.logprobs)
    assert again.usage.cached_tokens > 0 and again.usage.media_encoded == 0
    longer = engine.generate(request(encoder, *more))
    assert_same_greedy(second.logprobs, longer.logprobs)
    rest(engine)
    # Everything else leaves the context; what comes back does so from RAM.
    for seed in range(4):
        engine.generate(request(encoder, *[text(f"{seed} other words " * 20)], n=2))
        rest(engine)
    from_copy = engine.generate(request(encoder, *more))
    assert_same_greedy(second.logprobs, from_copy.logprobs)
    assert from_copy.usage.media_encoded == 0
    engine.close()
    reopened, other = seeing(name, **folder)
    from_disk = reopened.generate(request(other, *more))
    assert_same_greedy(second.logprobs, from_disk.logprobs)
    assert from_disk.usage.cached_tokens > 0 and from_disk.usage.cached_from == "disk"
    assert from_disk.usage.media_encoded == 0 and from_disk.usage.media_cached == 2


@pytest.mark.parametrize("name", PAIRS)
def test_two_hundred_interleavings_never_mix_pictures(seeing, together, assert_same_greedy, name):
    """Four sequences at once, of 6 pictures in all orders: each answer is that of its own pictures alone."""
    engine, encoder = seeing(name, n_ctx=2048)
    cold, blind = seeing(name, n_ctx=512, prefix_cache=False)
    pictures = [picture(seed, *((96, 64), (64, 64), (64, 96))[seed % 3]) for seed in range(6)]
    rng = np.random.default_rng(7)
    alone: dict[tuple[int, int], Any] = {}

    def parts(pair: tuple[int, int]) -> list[Any]:
        return [text("First:"), pictures[pair[0]], text(" then:"), pictures[pair[1]], text(" Which?")]

    for _ in range(40):
        pairs = [tuple(int(at) for at in rng.integers(0, 6, 2)) for _ in range(4)]
        for pair in pairs:
            if pair not in alone:
                alone[pair] = cold.generate(request(blind, *parts(pair), n=4)).logprobs
        events = together(engine, [request(encoder, *parts(pair), n=4) for pair in pairs])
        for pair, told in zip(pairs, events, strict=True):
            found = [probs for event in told[:-1] for probs in event.logprobs]
            assert_same_greedy(alone[pair], found)
    assert encoder.n_passes <= engine.stats().media_encoded == 6


@pytest.mark.parametrize("name", PAIRS)
def test_a_prompt_may_end_with_a_picture(seeing, assert_same_greedy, name):
    engine, encoder = seeing(name)
    whole = request(encoder, text("What is this?"), picture(1))
    asked = replace(whole, prompt=whole.prompt[: whole.media[0].end])  # without what the model wants behind a picture
    first = engine.generate(asked)
    again = engine.generate(asked)
    assert_same_greedy(first.logprobs, again.logprobs)
    assert again.usage.cached_tokens < asked.media[0].end


@pytest.mark.parametrize("name", PAIRS)
def test_a_request_cancelled_between_two_pictures_leaves_what_is_whole(seeing, assert_same_greedy, rest, name):
    engine, encoder = seeing(name, n_batch=64, n_ubatch=64) if name != "gemma4" else seeing(name)
    parts = [text("Words enough to be of use for a while: " * 3), picture(1), text(" and"), picture(2), text(" What?")]
    expected = engine.generate(request(encoder, *parts))
    asked = request(encoder, *parts)
    for n_seen in range(3):
        fresh, eyes = seeing(name)
        counted = _Counting(eyes)
        handle: list[int] = []

        def stop(made: int, fresh: Engine = fresh, handle: list[int] = handle, n_seen: int = n_seen) -> None:
            if made == n_seen:
                fresh.cancel(handle[0])

        counted.on_rows = stop
        watched = Request(
            prompt=asked.prompt, media=tuple(counted.own(run) for run in asked.media), sampling=asked.sampling, max_tokens=8
        )
        done: list[Any] = []
        handle.append(fresh.submit(watched, done.append))
        rest(fresh)
        assert_same_greedy(expected.logprobs, fresh.generate(request(eyes, *parts)).logprobs)


class _Counting:
    """A source that tells how many runs it was asked for, before it gives each."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.n = 0
        self.on_rows: Callable[[int], None] = lambda made: None

    def own(self, run: Any) -> Any:
        return replace(run, source=self)

    def rows(self, run: Any, soon: Any) -> Any:
        self.n += 1
        self.on_rows(self.n)
        return self._encoder.rows(replace(run, source=self._encoder), ())


def test_a_picture_that_cannot_be_encoded_ends_its_own_request(seeing, together):
    engine, encoder = seeing("qwen3vl")
    counted = _Counting(encoder)

    def fail(made: int) -> None:
        raise NativeError("the encoder has no memory left")

    counted.on_rows = fail
    good = request(encoder, text("Look:"), picture(1), text(" What?"))
    bad = Request(prompt=good.prompt, media=tuple(counted.own(run) for run in good.media), max_tokens=4)
    other = request(encoder, text("No picture here, just words."))
    events = together(engine, [bad, other])
    assert str(events[0][-1].error) == "the encoder has no memory left"
    assert events[1][-1].usage.completion_tokens == 8
    assert engine.generate(good).usage.media_encoded == 1


def test_streams_go_on_while_pictures_are_looked_at(seeing, together):
    """Between two batches of a picture's rows, and between two pictures, everybody's answer moves on by a token."""
    engine, encoder = seeing("qwen3vl", n_ctx=2048, n_batch=128, n_ubatch=32)
    order: list[str] = []
    stream = request(encoder, text("Tell a long story."), n=40)
    looking = request(encoder, *[part for seed in range(4) for part in (text("Look:"), picture(seed, 256, 192))], text("Well?"))
    counted = _Counting(encoder)
    counted.on_rows = lambda made: order.append("picture")
    watched = Request(prompt=looking.prompt, media=tuple(counted.own(run) for run in looking.media), max_tokens=2)
    ended = [threading.Event(), threading.Event()]
    begun = threading.Event()

    def streamed(event: Any) -> None:
        order.append("token")
        begun.set()
        if isinstance(event, Finished):
            ended[0].set()

    engine.submit(stream, streamed)
    assert begun.wait(30)
    engine.submit(watched, lambda event: isinstance(event, Finished) and ended[1].set())
    assert all(event.wait(60) for event in ended)
    pictures = [at for at, what in enumerate(order) if what == "picture"]
    assert len(pictures) == 4
    if "token" in order[pictures[-1] :]:
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(pictures))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: {"prompt": (1, 2, 3)}, "media: must stand in the prompt"),
        (lambda run: {"media": ()}, "prompt: token -"),
        (lambda run: {"media": (replace(run, start=run.start + 1),)}, "media: must stand in the prompt"),
        (lambda run: {"media": [run]}, "media: must be a tuple"),
        (lambda run: {"context_shift": 4}, "context_shift: not with pictures"),
    ],
)
def test_requests_whose_media_are_not_in_their_prompt_are_refused(seeing, change, why):
    engine, encoder = seeing("qwen3vl")
    asked = request(encoder, text("Look:"), picture(1), text(" What?"))
    with pytest.raises(InvalidRequestError, match=f"^{why}"):
        engine.generate(replace(asked, **change(asked.media[0])))


def test_rows_that_see_one_another_have_to_fit_a_micro_batch(seeing):
    engine, encoder = seeing("gemma4", n_batch=64, n_ubatch=64)
    asked = request(encoder, text("Look:"), picture(1), text(" What?"))
    with pytest.raises(ContextOverflowError, match="^media 0: 77 tokens that see one another, n_ubatch is 64; raise it"):
        engine.generate(asked)


SPECULATIONS = [
    ("qwen3vl", SpeculationConfig(kind="ngram-simple", n_match=1)),
    ("qwen25vl", SpeculationConfig(kind="ngram-simple", n_match=1)),
    ("qwen3vl", SpeculationConfig(kind="draft-simple", draft="qwen3", n_max=3)),
    ("qwen25vl", SpeculationConfig(kind="draft-simple", draft="qwen3", n_max=3)),
    ("qwen35", SpeculationConfig(kind="draft-mtp", n_max=3)),
    ("gemma3", SpeculationConfig(kind="ngram-simple", n_match=1)),
]


@pytest.mark.parametrize(("name", "speculation"), SPECULATIONS)
def test_speculation_with_pictures_changes_nothing(models, seeing, together, assert_same_greedy, name, speculation):
    if speculation.draft:
        speculation = replace(speculation, draft=str(models[speculation.draft]))
    plain, blind = seeing(name, prefix_cache=False)
    engine, encoder = seeing(name, speculation=speculation)
    for seeds in ((1, 2), (1, 3)):
        parts = [
            text("one two three one two three"),
            picture(seeds[0]),
            text(" one two"),
            picture(seeds[1]),
            text(" three one two"),
        ]
        expected = plain.generate(request(blind, *parts, n=24))
        for events in together(engine, [request(encoder, *parts, n=24) for _ in range(2)]):
            found = [probs for event in events[:-1] for probs in event.logprobs]
            assert_same_greedy(expected.logprobs, found)
        assert all(token >= 0 for token in expected.tokens)
    assert engine.stats().drafted_tokens > 0


def test_a_saved_state_brings_its_pictures_along(seeing, assert_same_greedy):
    engine, encoder = seeing("qwen3vl")
    parts = [text("A picture that is kept for later: "), picture(4), text(" It has been seen.")]
    expected = engine.generate(request(encoder, *parts, text(" What?")))
    state = engine.save_state(request(encoder, *parts))
    other, eyes = seeing("qwen3vl")
    other.load_state(state)
    found = other.generate(request(eyes, *parts, text(" What?")))
    assert_same_greedy(expected.logprobs, found.logprobs)
    assert found.usage.cached_tokens == len(encoder.split(parts, add_special=True).ids) and found.usage.media_encoded == 0
