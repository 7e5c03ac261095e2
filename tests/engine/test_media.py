"""Pictures and sound in the engine: their place in the cache, and that they are computed as llama.cpp's own helper does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import Engine, Request, SamplingParams
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
    engine, encoder = seeing(name)
    media = [picture(1), picture(2, 64, 128)]
    words = ["Look at this:", " and at this:", " What is it?"]
    logits = reference(models[name], models[f"{name}-mmproj"], words, media)
    expected = logits - np.logaddexp.reduce(logits.astype(np.float64))
    asked = request(encoder, text(words[0]), media[0], text(words[1]), media[1], text(words[2]), n=1, n_probs=100)
    found = first_logprobs(engine, asked)
    assert len(found) == 100
    assert max(abs(expected[token] - logprob) for token, logprob in found.items()) < 1e-4
