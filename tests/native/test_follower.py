"""Drafts by trained models: the text stays that of the target, and as much of a draft is right as upstream's server accepts."""

from __future__ import annotations

import ctypes
import json

import pytest

from localllm.engine.batch import Batch
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.errors import ClosedError, InvalidRequestError, LocalLLMError
from localllm.native.bindings import llama as llama_h
from localllm.native.follower import DraftRequest, Follower
from localllm.native.handles import Context, Model
from localllm.native.library import load

N_TOKENS = 64
# kind, file, n_max: accepted of drafted and tokens for each pass of the target, as llama-server of the pinned source has them on
# the held-out prompts (of "draft-mtp" on prompts.json).
UPSTREAM = {
    ("draft-eagle3", "eagle3", 5): 0.704,
    ("draft-eagle3", "eagle3", 3): 0.906,
    ("draft-eagle3", "eagle3-d2t", 5): 0.785,
    ("draft-eagle3", "eagle3-d2t", 3): 0.885,
    ("draft-dspark", "dspark", 5): 0.766,
    ("draft-dspark", "dspark", 3): 0.861,
    ("draft-dflash", "dflash", 5): 0.538,
    ("draft-dflash", "dflash", 3): 0.663,
    ("draft-mtp", "", 1): 0.993,
    ("draft-mtp", "", 3): 0.627,
    ("draft-mtp", "", 5): 0.410,
}


class Pair:
    """A target and its draft, decoding several sequences greedily and together."""

    def __init__(self, folder, kind: str, name: str, n_max: int, n_sequences: int) -> None:
        native = load()
        params = model_params(native, ModelConfig())
        params.load_mtp = kind == "draft-mtp"
        self.model = Model(str(folder / "tiny-trained-qwen35.gguf"), params)
        drafts = self.model
        if name:
            path = str(folder / f"tiny-trained-qwen35-{name}.gguf")
            drafts = Model(path, model_params(native, ModelConfig()), any_kind=True)
        config = ContextConfig(n_ctx=512 * n_sequences, n_threads=1)
        own = context_params(native, config, 0)
        own.n_seq_max, own.n_rs_seq = n_sequences, n_max
        self.target = Context(self.model, own)
        other = context_params(native, config, 0)
        other.n_seq_max, other.n_rs_seq, other.ctx_other = n_sequences + 1, 0, self.target.pointer
        other.ctx_type = llama_h.LLAMA_CONTEXT_TYPE_MTP if kind == "draft-mtp" else llama_h.LLAMA_CONTEXT_TYPE_DEFAULT
        self.draft = Context(drafts, other)
        self.follower = Follower(self.target, self.draft, {"kind": kind, "n_max": n_max}, n_sequences)
        self.native, self.batch, self.n_sequences = native, Batch(2048, output=True), n_sequences
        self.n_drafted = self.n_accepted = self.n_passes = 0

    def best(self, at: int) -> int:
        n_vocab = self.native.llama_vocab_n_tokens(self.model.vocab)
        logits = self.native.llama_get_logits_ith(self.target.pointer, at)[:n_vocab]
        return max(range(n_vocab), key=logits.__getitem__)

    def decode(self, parts: dict[int, tuple[list[int], int]]) -> dict[int, int]:
        """Decodes tokens of slots, each from its position on; where each begins in the batch."""
        at, begins = 0, {}
        for slot, (tokens, position) in parts.items():
            begins[slot] = at
            at = self.batch.put(at, tokens, position, slot)
        self.batch.n_tokens = at
        self.batch.outputs[0:at] = bytes([1] * at)
        self.native.check(self.native.lm_decode(self.target.pointer, self.batch.reference))
        self.follower.follow(self.batch.reference)
        return begins

    def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        for context in (self.target, self.draft):
            self.native.llama_memory_clear(context.memory, True)
        texts = {slot: list(prompt) for slot, prompt in enumerate(prompts)}
        begins = self.decode({slot: (text, 0) for slot, text in texts.items()})
        for slot, text in texts.items():
            text.append(self.best(begins[slot] + len(text) - 1))
        running = set(texts)
        while running:
            self.step({slot: texts[slot] for slot in sorted(running)}, prompts)
            running = {slot for slot in running if not self.ended(texts[slot], prompts[slot])}
        return [texts[slot][len(prompt) :][:N_TOKENS] for slot, prompt in enumerate(prompts)]

    def ended(self, text: list[int], prompt: list[int]) -> bool:
        answer = text[len(prompt) :]
        return len(answer) >= N_TOKENS or any(self.native.llama_vocab_is_eog(self.model.vocab, token) for token in answer)

    def step(self, texts: dict[int, list[int]], prompts: list[list[int]]) -> None:
        requests = [DraftRequest(slot, len(text) - 1, text[-1], 1024) for slot, text in texts.items()]
        drafts = dict(zip(texts, self.follower.propose(requests), strict=True))
        for slot, text in texts.items():
            drafts[slot] = drafts[slot][: N_TOKENS - (len(text) - len(prompts[slot])) - 1]
        begins = self.decode({slot: ([text[-1], *drafts[slot]], len(text) - 1) for slot, text in texts.items()})
        for slot, text in texts.items():
            draft = drafts[slot]
            chosen = [self.best(begins[slot])]
            while len(chosen) <= len(draft) and chosen[-1] == draft[len(chosen) - 1]:
                chosen.append(self.best(begins[slot] + len(chosen)))
            self.follower.accept(slot, len(chosen) - 1)
            self.n_drafted += len(draft)
            self.n_accepted += len(chosen) - 1
            self.n_passes += 1
            text += chosen
            for context in (self.target, self.draft):
                assert self.native.llama_memory_seq_rm(context.memory, slot, len(text) - 1, -1)

    def close(self) -> None:
        self.follower.close()
        for context in (self.draft, self.target):
            context.close()


@pytest.fixture(scope="module")
def folder(trained):
    return trained.parent


@pytest.fixture(scope="module")
def prompts(folder):
    """Token ids of the held-out prompts, and of those that drafts were trained beside."""
    native = load()
    model = Model(str(folder / "tiny-trained-qwen35.gguf"), model_params(native, ModelConfig(vocab_only=True)))
    return {
        name: [model.tokenize(text, True, True) for text in json.loads((folder / f"{name}.json").read_text())]
        for name in ("heldout", "prompts")
    }


@pytest.fixture(scope="module")
def plain(folder, prompts):
    """The target's own greedy answers."""
    native = load()
    model = Model(str(folder / "tiny-trained-qwen35.gguf"), model_params(native, ModelConfig()))
    context = Context(model, context_params(native, ContextConfig(n_ctx=512, n_threads=1), 0))
    answers, prefill, decode = {}, ctypes.c_double(), ctypes.c_double()
    for name, several in prompts.items():
        answers[name] = []
        for prompt in several:
            tokens, answer = (ctypes.c_int32 * len(prompt))(*prompt), (ctypes.c_int32 * N_TOKENS)()
            arguments = (context.pointer, tokens, len(prompt), N_TOKENS, answer, ctypes.byref(prefill), ctypes.byref(decode))
            native.check(native.lm_bench_loop(*arguments))
            answers[name].append(list(answer))
    return answers


@pytest.mark.parametrize(("kind", "name", "n_max"), UPSTREAM)
@pytest.mark.parametrize("n_sequences", [1, 4])
def test_the_text_is_the_targets_and_as_much_is_right_as_upstream_accepts(folder, prompts, plain, kind, name, n_max, n_sequences):
    asked = "prompts" if kind == "draft-mtp" else "heldout"
    pair = Pair(folder, kind, name, n_max, n_sequences)
    answers = []
    for at in range(0, len(prompts[asked]), n_sequences):
        answers += pair.answers(prompts[asked][at : at + n_sequences])
    pair.close()
    for answer, expected in zip(answers, plain[asked], strict=True):
        assert answer == expected[: len(answer)] and answer
    acceptance = pair.n_accepted / pair.n_drafted
    assert 0.98 * UPSTREAM[kind, name, n_max] <= acceptance <= 1.06 * UPSTREAM[kind, name, n_max]
    assert pair.n_accepted / pair.n_passes > 0.9 * n_max * acceptance


@pytest.mark.parametrize("name", ["eagle3", "dspark", "dflash"])
def test_a_draft_for_another_model_is_an_error(folder, models, name):
    native = load()
    target_model = Model(str(models["gemma3"]), model_params(native, ModelConfig()))
    path = str(folder / f"tiny-trained-qwen35-{name}.gguf")
    draft_model = Model(path, model_params(native, ModelConfig()), any_kind=True)
    target = Context(target_model, context_params(native, ContextConfig(n_ctx=256, n_threads=1), 0))
    params = context_params(native, ContextConfig(n_ctx=256, n_threads=1), 0)
    params.ctx_other, params.n_seq_max = target.pointer, 2
    kind = {"eagle3": "draft-eagle3"}.get(name, f"draft-{name}")
    batch = Batch(64, output=True)
    batch.n_tokens = batch.put(0, [1, 2, 3], 0, 0)
    with pytest.raises(LocalLLMError):
        follower = Follower(target, Context(draft_model, params), {"kind": kind, "n_max": 3}, 1)
        native.check(native.lm_decode(target.pointer, batch.reference))
        follower.follow(batch.reference)


def test_blocks_are_as_long_as_was_learned(folder):
    for kind, name, n_max in (("draft-dflash", "dflash", 7), ("draft-dspark", "dspark", 8), ("draft-eagle3", "eagle3", 20)):
        pair = Pair(folder, kind, name, 20, 1)
        assert pair.follower.n_max == n_max
        pair.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "ngram-simple"}, "^kind: "),
        ({"kind": "draft-what"}, "^kind: "),
        ({"n_max": 3}, "^kind: missing"),
        ({"kind": "draft-dflash", "n_max": 0}, "^n_max: "),
        ({"kind": "draft-dflash", "p_min": 2}, "^p_min: "),
        ({"kind": "draft-dflash", "more": 1}, "^more: "),
    ],
)
def test_wrong_options_are_named(folder, options, says):
    pair = Pair(folder, "draft-dflash", "dflash", 3, 1)
    with pytest.raises(InvalidRequestError, match=says):
        Follower(pair.target, pair.draft, options, 1)
    with pytest.raises(InvalidRequestError, match="^n_slots: "):
        Follower(pair.target, pair.draft, {"kind": "draft-dflash"}, 2)
    pair.close()


def test_wrong_calls_are_refused_and_change_nothing(folder, prompts, plain):
    pair = Pair(folder, "draft-dflash", "dflash", 3, 1)
    for request in (DraftRequest(1, 0, 1, 1), DraftRequest(0, -1, 1, 1), DraftRequest(0, 0, -1, 1), DraftRequest(0, 0, 1, 0)):
        with pytest.raises(InvalidRequestError):
            pair.follower.propose([request])
    for slot, n_accepted in ((-1, 0), (1, 0), (0, -1), (0, 5000)):
        with pytest.raises(InvalidRequestError):
            pair.follower.accept(slot, n_accepted)
    (answer,) = pair.answers(prompts["heldout"][:1])
    assert answer == plain["heldout"][0][: len(answer)]
    pair.close()
    with pytest.raises(ClosedError):
        pair.follower.accept(0, 0)
