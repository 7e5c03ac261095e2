"""A cache whose values are BF16 makes quantised models exact: what is computed of a token does not depend on what is beside it.

llama.cpp's attention to a cache in F16 has three kernels, which add up in different orders: for one row, for several, for 64 and
more. With values in BF16 it has one. Products with Q4_0, Q4_1 and Q8_0 add up in the same order for any number of rows on x86-64.
"""

from __future__ import annotations

import os
import platform

import numpy as np
import pytest

from localllm import ContextConfig, ModelConfig, Request, SamplingParams, SpeculationConfig
from localllm.engine.batch import Batch
from localllm.engine.params import context_params, model_params
from localllm.native.handles import Context, Model
from localllm.native.library import load

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="kernels of other CPUs take rows in pairs")

TYPES = ("Q4_0", "Q4_1", "Q8_0")
# Recurrent layers, and routers of experts in F32, have kernels of their own for several rows.
TINY = ("qwen3", "gemma3")
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
# AMX has kernels of its own for one row, if weights are packed for it.
PACKED = "AMX_INT8 = 1" not in load().json_call("lm_build_info")["system_info"]
CASES = [("Q4_0", False), *((type_name, PACKED) for type_name in TYPES)]
# More cells than attention to F16 leaves to one thread (256), then fewer and more rows than its tiles have (64).
N_PREFIX, ROWS = 300, (2, 5, 66)
N_CTX = 1024


@pytest.fixture(scope="module")
def quantised(models, smollm2, tmp_path_factory):
    """`quantised("qwen3", "Q4_0")`: the file of a model in another type; "smollm2" is the embedded one."""
    folder, native = tmp_path_factory.mktemp("quantised"), load()

    def quantised(name, type_name):
        path = folder / f"{name}-{type_name}.gguf"
        if not path.exists():
            source = smollm2 if name == "smollm2" else models[name]
            native.check(native.lm_quantize(os.fsencode(source), os.fsencode(path), type_name.encode(), 1, b"{}", None))
        return path

    yield quantised
    for path in folder.iterdir():
        path.unlink()  # pytest keeps the folders of three runs


class Rows:
    """A context that decodes tokens of one sequence and gives the logits of each."""

    def __init__(self, path, packed: bool) -> None:
        self.native = load()
        self.model = Model(str(path), model_params(self.native, ModelConfig(use_extra_buffers=packed)))
        config = ContextConfig(n_ctx=N_CTX, parallel=1, n_threads=2, type_v="bf16", swa_full=True)
        self.context = Context(self.model, context_params(self.native, config, 0))
        self.n_vocab = self.native.llama_vocab_n_tokens(self.model.vocab)

    def decode(self, tokens, position: int):
        batch = Batch(len(tokens), output=True)
        batch.n_tokens = batch.put(0, tokens, position, 0)
        self.native.check(self.native.lm_decode(self.context.pointer, batch.reference))
        get = self.native.llama_get_logits_ith
        return np.stack(
            [np.ctypeslib.as_array(get(self.context.pointer, at), (self.n_vocab,)).copy() for at in range(len(tokens))]
        )

    def cut(self, position: int) -> None:
        assert self.native.llama_memory_seq_rm(self.context.memory, 0, position, -1)


@pytest.mark.parametrize(("type_name", "packed"), CASES)
@pytest.mark.parametrize("name", [*TINY, "smollm2"])
def test_logits_of_a_token_are_the_same_alone_and_among_others(quantised, name, type_name, packed):
    rows = Rows(quantised(name, type_name), packed)
    tokens = [int(token) for token in np.random.default_rng(0).integers(3, min(rows.n_vocab, 2000), N_PREFIX + max(ROWS))]
    rows.decode(tokens[:N_PREFIX], 0)
    single = np.concatenate([rows.decode(tokens[at : at + 1], at) for at in range(N_PREFIX, len(tokens))])
    for n in ROWS:
        rows.cut(N_PREFIX)
        assert np.array_equal(rows.decode(tokens[N_PREFIX : N_PREFIX + n], N_PREFIX), single[:n]), n
    rows.cut(0)
    for at in range(0, N_PREFIX, 30):
        rows.decode(tokens[at : at + 30], at)
    assert np.array_equal(rows.decode(tokens[N_PREFIX:], N_PREFIX), single), "a prompt in pieces"
    rows.context.close()
    rows.model.close()


LINES = "\n".join(f"key_{at % 7} = value {at * 37 % 11} of {at % 5}" for at in range(20))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0"])
def test_every_kind_of_ngrams_gives_the_text_and_the_probabilities_of_plain_decoding(engine_for, quantised, type_name):
    path = quantised("smollm2", type_name)
    options = {"n_ctx": N_CTX, "parallel": 1, "n_threads": 2, "prefix_cache": False, "type_v": "bf16"}
    sampling = SamplingParams(temperature=0, ignore_eos=True, n_probs=3)
    plain = engine_for(path, **options)
    prompt = tuple(plain.model.tokenize(f"{LINES}\n\nThe same once more:\n\n{LINES[:60]}", True, True))
    assert 256 < len(prompt) < 400
    request = Request(prompt=prompt, max_tokens=32, sampling=sampling)
    expected = plain.generate(request)
    for kind in NGRAMS:
        speculation = SpeculationConfig(kind=kind, n_match=3, throttle=False)
        engine = engine_for(path, **options, speculation=speculation)
        answer = engine.generate(request)
        assert answer.logprobs == expected.logprobs, kind
        assert engine.stats().drafted_tokens > 0, kind
        engine.close()
    assert engine_for(path, **options, n_batch=32, n_ubatch=32).generate(request).logprobs == expected.logprobs
