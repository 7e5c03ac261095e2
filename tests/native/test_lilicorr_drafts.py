"""Drafts with a LiLiCorr head: step by step those of an unmodified llama.cpp with a NumPy head; the text stays the target's."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest

from localllm.engine.batch import Batch
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.errors import InvalidRequestError, LocalLLMError, UnsupportedModelError
from localllm.native.follower import DraftRequest, Follower
from localllm.native.handles import Context, Model
from localllm.native.library import load
from localllm.native.lilicorr import Block, LilicorrHead, candidates

N_TOKENS = 64
BLOCK = 8
ACCEPTED_LENGTH = {"lilicorr": 4.967, "dflash": 3.873}  # of path_prompts.json
TIE = 1e-3  # nearer ones may fall otherwise


class Pair:
    """A target and a draft of it, decoding sequences greedily and together, as an engine does."""

    def __init__(self, files, draft, *, head=None, kind="draft-lilicorr", cache="f16", n_sequences=1, target="target", **options):
        native = load()
        self.native, self.n_sequences = native, n_sequences
        self.model = Model(str(files[target]), model_params(native, ModelConfig()))
        drafts = Model(str(files[draft]), model_params(native, ModelConfig()), any_kind=True)
        exact = cache == "f32"
        config = ContextConfig(
            n_ctx=512 * n_sequences, n_threads=1, type_k=cache, type_v=cache, flash_attention="off" if exact else "auto"
        )
        own = context_params(native, config, 0)
        own.n_seq_max, own.n_rs_seq = n_sequences, BLOCK if target == "hybrid" else 0
        self.target = Context(self.model, own)
        other = context_params(native, config, 0)
        other.n_seq_max, other.ctx_other = n_sequences, self.target.pointer
        other.n_outputs_max_per_seq = options.pop("room", BLOCK)
        self.draft = Context(drafts, other)
        if head:
            options["head"] = str(files[head])
        self.follower = Follower(self.target, self.draft, {"kind": kind, "n_max": 20, **options}, n_sequences)
        self.n_vocab = native.llama_vocab_n_tokens(self.model.vocab)
        self.batch = Batch(2048, output=True)

    def best(self, at):
        return int(np.argmax(self.native.llama_get_logits_ith(self.target.pointer, at)[: self.n_vocab]))

    def decode(self, parts):
        """Decodes tokens of slots: slot -> (tokens, first position, whether all give logits, else the last)."""
        at, begins = 0, {}
        for slot, (tokens, position, outputs) in parts.items():
            begins[slot] = at
            end = self.batch.put(at, tokens, position, slot)
            self.batch.outputs[at:end] = bytes([1] * len(tokens) if outputs else [0] * (len(tokens) - 1) + [1])
            at = end
        self.batch.n_tokens = at
        self.native.check(self.native.lm_decode(self.target.pointer, self.batch.reference))
        self.follower.follow(self.batch.reference)
        return begins

    def prefill(self, slot, tokens, begin=0, chunk=50):
        for at in range(begin, len(tokens), chunk):
            part = tokens[at : at + chunk]
            self.decode({slot: (part, at, False)})

    def clear(self):
        for context in (self.target, self.draft):
            self.native.llama_memory_clear(context.memory, True)

    def cut(self, slot, n):
        for context in (self.target, self.draft):
            assert self.native.llama_memory_seq_rm(context.memory, slot, n, -1)

    def draft_of(self, slot, text):
        (draft,) = self.follower.propose([DraftRequest(slot, len(text) - 1, text[-1], 1024)])
        return draft

    def step(self, texts):
        """One draft and its check for each sequence: slot -> (position, draft, how much of it was right)."""
        requests = [DraftRequest(slot, len(text) - 1, text[-1], 1024) for slot, text in texts.items()]
        drafts = dict(zip(texts, self.follower.propose(requests), strict=True))
        begins = self.decode({slot: ([text[-1], *drafts[slot]], len(text) - 1, True) for slot, text in texts.items()})
        steps = {}
        for slot, text in texts.items():
            draft, begin = drafts[slot], begins[slot]
            chosen = [self.best(begin)]
            while len(chosen) <= len(draft) and chosen[-1] == draft[len(chosen) - 1]:
                chosen.append(self.best(begin + len(chosen)))
            steps[slot] = (len(text) - 1, draft, len(chosen) - 1)
            self.follower.accept(slot, len(chosen) - 1)
            text += chosen
            self.cut(slot, len(text) - 1)
        return steps

    def answers(self, prompts):
        """Texts of N_TOKENS, all at once, and the steps that they came in."""
        self.clear()
        texts = {slot: list(prompt) for slot, prompt in enumerate(prompts)}
        steps = {slot: [] for slot in texts}
        for slot, text in texts.items():
            self.prefill(slot, text[:-1])
        running = dict(texts)
        while running:
            for slot, step in self.step(running).items():
                steps[slot].append(step)
            running = {slot: text for slot, text in running.items() if len(text) - len(prompts[slot]) < N_TOKENS}
        return [texts[slot][len(prompt) :][:N_TOKENS] for slot, prompt in enumerate(prompts)], list(steps.values())

    def all_answers(self, prompts):
        texts, steps = [], []
        for at in range(0, len(prompts), self.n_sequences):
            some = self.answers(prompts[at : at + self.n_sequences])
            texts += some[0]
            steps += some[1]
        return texts, steps

    def close(self):
        self.follower.close()
        for context in (self.draft, self.target):
            context.close()


def accepted_length(steps):
    return sum(accepted + 1 for some in steps for _, _, accepted in some) / sum(map(len, steps))


@pytest.fixture(scope="module")
def known(lilicorr_maker):
    return json.loads((lilicorr_maker.SOURCE / "path_prompts.json").read_text())["prompts"]


@pytest.fixture(scope="module")
def prompts(known):
    return [entry["prompt"] for entry in known]


@pytest.fixture(scope="module")
def parity(lilicorr_maker, lilicorr_files):
    return {name: lilicorr_maker.read(lilicorr_files[f"parity_{name}"]).tensors for name in lilicorr_maker.VARIANTS}


@pytest.fixture
def pair(lilicorr_files):
    made = []

    def make(draft="lilicorr-unified", **options):
        made.append(Pair(options.pop("files", lilicorr_files), draft, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# ---- the drafts themselves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_sequences", [1, 4])
@pytest.mark.parametrize("place", ["host", "graph"])
@pytest.mark.parametrize(("draft", "head"), [("lilicorr-unified", None), ("dflash", "lilicorr-head")])
def test_every_step_is_as_recorded(pair, known, prompts, draft, head, place, n_sequences):
    exact = pair(draft, head=head, candidates=place, n_sequences=n_sequences, cache="f32")
    texts, steps = exact.all_answers(prompts)
    for entry, text, some in zip(known, texts, steps, strict=True):
        assert text == entry["continuation"]
        for (position, tokens, accepted), step in zip(some, entry["lilicorr"], strict=False):
            if (position, tokens, accepted) != (step["pos"], step["draft"], step["accepted"]):
                assert step["margin"] < TIE
                break
        else:
            assert len(some) == len(entry["lilicorr"])


@pytest.mark.parametrize("n_sequences", [1, 4])
@pytest.mark.parametrize("draft", ["lilicorr-unified", "lilicorr-unified-f16"])
def test_usual_caches_accept_as_much(pair, known, prompts, draft, n_sequences):
    texts, steps = pair(draft, n_sequences=n_sequences).all_answers(prompts)
    assert texts == [entry["continuation"] for entry in known]
    assert accepted_length(steps) == pytest.approx(ACCEPTED_LENGTH["lilicorr"], rel=0.02)


def test_the_head_is_what_makes_the_difference(pair, known, prompts):
    texts, steps = pair("dflash", kind="draft-dflash").all_answers(prompts)
    assert texts == [entry["continuation"] for entry in known]
    assert accepted_length(steps) == pytest.approx(ACCEPTED_LENGTH["dflash"], rel=0.02)


@pytest.mark.parametrize(("draft", "head"), [("hd-unified", None), ("conv-unified", None), ("conv-dflash", "conv-head")])
def test_poor_drafts_leave_the_text_alone(pair, known, prompts, draft, head):
    texts, _ = pair(draft, head=head, n_sequences=2).all_answers(prompts[:4])
    assert texts == [entry["continuation"] for entry in known[:4]]


BLOCKS = [
    ("lilicorr", "lilicorr-unified", None), ("lilicorr", "dflash", "lilicorr-head"), ("hd", "hd-unified", None),
    ("hd", "dflash", "hd-head"), ("conv", "conv-unified", None), ("conv", "conv-dflash", "conv-head"),
]  # fmt: skip


@pytest.mark.parametrize("place", ["host", "graph"])
@pytest.mark.parametrize(("variant", "draft", "head"), BLOCKS)
def test_blocks_end_to_end(pair, parity, lilicorr_files, variant, draft, head, place):
    data = parity[variant]
    exact = pair(draft, head=head, cache="f32", candidates=place)
    careful = pair(draft, head=head, cache="f32", candidates=place, p_min=0.6)
    alone = LilicorrHead(lilicorr_files[head or draft])
    shape = alone.shape
    for at, prefix in enumerate(data["prefix"]):
        text = prefix[: data["pos"][at] + 1].tolist()
        for each in (exact, careful):
            each.clear()
            each.prefill(0, text[:-1])
        anchor = rows(exact, "llama_get_embeddings_ith", [-1], shape.n_embd)[0]
        assert exact.draft_of(0, text) == data["tokens"][at].tolist()
        assert careful.draft_of(0, text) == data["tokens"][at][: data["kept"][at]].tolist()
        # What the draft has computed for that is still in its context.
        hidden = rows(exact, "llama_get_embeddings_ith", range(1, BLOCK), shape.n_embd)
        if place == "graph":
            continue
        ids, logprobs = candidates(rows(exact, "llama_get_logits_ith", range(1, BLOCK), exact.n_vocab), shape.n_candidates)
        (scores,) = alone.score([Block(logprobs, data["embeddings"][at], hidden, anchor)])
        assert ids.tolist() == data["ids"][at].tolist()
        np.testing.assert_allclose(scores.start, data["start"][at], atol=5e-5)
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=5e-5)


def test_half_weights_end_to_end(pair, parity, lilicorr_files):
    data, alone = parity["lilicorr"], LilicorrHead(lilicorr_files["lilicorr-unified-f16"])
    halved = pair("lilicorr-unified-f16", cache="f32")
    for at, prefix in enumerate(data["prefix"]):
        text = prefix[: data["pos"][at] + 1].tolist()
        halved.clear()
        halved.prefill(0, text[:-1])
        anchor = rows(halved, "llama_get_embeddings_ith", [-1], alone.shape.n_embd)[0]
        assert halved.draft_of(0, text) == data["tokens"][at].tolist()
        hidden = rows(halved, "llama_get_embeddings_ith", range(1, BLOCK), alone.shape.n_embd)
        ids, logprobs = candidates(rows(halved, "llama_get_logits_ith", range(1, BLOCK), halved.n_vocab), 4)
        (scores,) = alone.score([Block(logprobs, data["embeddings"][at], hidden, anchor)])
        assert ids.tolist() == data["ids"][at].tolist()
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=4e-2)


def rows(pair, function, places, width):
    found = getattr(pair.native, function)
    return np.array([found(pair.draft.pointer, place)[:width] for place in places], np.float32)


# ---- what a draft is anchored to ------------------------------------------------------------------------------------------


def cold_draft(pair, text):
    """What a pair that has seen nothing else drafts after a text."""
    fresh = pair("lilicorr-unified", cache="f32")
    fresh.prefill(0, text[:-1])
    return fresh.draft_of(0, text)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_make_no_difference(pair, known, chunk):
    text = known[3]["prompt"] + known[3]["continuation"]
    one = pair(cache="f32")
    one.prefill(0, text[:-1], chunk=chunk)
    assert one.draft_of(0, text) == cold_draft(pair, text)


def test_a_cut_sequence_goes_on_elsewhere(pair, known):
    first, second = (entry["prompt"] + entry["continuation"] for entry in known[:2])
    one = pair(cache="f32")
    one.prefill(0, first[:-1])
    one.draft_of(0, first)
    for n_kept in (40, 17, 0):
        text = first[:n_kept] + second[n_kept:]
        one.cut(0, n_kept)
        one.prefill(0, text[:-1], n_kept)
        assert one.draft_of(0, text) == cold_draft(pair, text)


def test_a_copied_and_a_restored_prefix_are_as_computed(pair, known):
    text = known[5]["prompt"] + known[5]["continuation"]
    several = pair(cache="f32", n_sequences=3)
    several.prefill(0, text[:60])
    native = several.native
    for context in (several.target, several.draft):
        native.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        size = native.llama_state_seq_get_size(context.pointer, 0)
        state = (native.llama_state_seq_get_data.argtypes[1]._type_ * size)()
        assert native.llama_state_seq_get_data(context.pointer, state, size, 0) == size
        assert native.llama_state_seq_set_data(context.pointer, state, size, 2) == size
    expected = cold_draft(pair, text)
    for slot in (1, 2):
        several.prefill(slot, text[:-1], 60)
        assert several.draft_of(slot, text) == expected


def test_without_an_anchor_there_is_no_draft(pair, known):
    text = known[0]["prompt"]
    one = pair(cache="f32", n_sequences=2)
    assert one.draft_of(0, text) == []
    one.prefill(0, text[:-1])
    assert one.draft_of(1, text) == [] and one.draft_of(0, [*text, 5]) == [] and one.draft_of(0, text)
    # A prompt whose last token gave no logits: nothing is drafted after it before it has.
    part = Batch(64, output=False)
    part.n_tokens = part.put(0, text[-1:], len(text) - 1, 0)
    part.outputs[0:1] = bytes(1)
    one.native.check(one.native.lm_decode(one.target.pointer, part.reference))
    one.follower.follow(part.reference)
    assert one.draft_of(0, [*text, 5]) == []


def test_a_sequence_without_an_anchor_does_not_hold_up_another(pair, known):
    text = known[0]["prompt"]
    both = pair(cache="f32", n_sequences=2)
    both.prefill(0, text[:-1])
    expected = both.draft_of(0, text)
    requests = [DraftRequest(1, len(text) - 1, text[-1], 20), DraftRequest(0, len(text) - 1, text[-1], 20)]
    assert both.follower.propose(requests) == [[], expected]


def test_a_cache_without_room_gives_no_draft(pair, known):
    text = (known[0]["prompt"] + known[0]["continuation"]) * 10
    one = pair(cache="f32")
    n = 512 - 3  # a block does not fit any more
    one.prefill(0, text[: n - 1])
    assert one.draft_of(0, text[:n]) == []
    one.cut(0, 60)
    one.prefill(0, text[:79], 60)
    assert one.draft_of(0, text[:80]) == cold_draft(pair, text[:80])


# ---- options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [1, 3, 7, 20])
def test_a_shorter_draft_is_the_beginning_of_the_whole_one(pair, known, n_max):
    whole, short = pair(cache="f32"), pair(cache="f32", n_max=n_max)
    assert short.follower.n_max == min(n_max, BLOCK - 1)
    text = known[2]["prompt"]
    for each in (whole, short):
        each.prefill(0, text[:-1])
    drafted = whole.draft_of(0, text)
    assert len(drafted) == BLOCK - 1 and short.draft_of(0, text) == drafted[:n_max]
    assert whole.follower.propose([DraftRequest(0, len(text) - 1, text[-1], n_max)]) == [drafted[:n_max]]


def test_drafts_that_are_too_short_are_dropped(pair, parity):
    data = parity["lilicorr"]
    careful = pair(cache="f32", p_min=0.6, n_min=4)
    lengths = set()
    for at, prefix in enumerate(data["prefix"]):
        text = prefix[: data["pos"][at] + 1].tolist()
        careful.clear()
        careful.prefill(0, text[:-1])
        kept = int(data["kept"][at])
        assert len(careful.draft_of(0, text)) == (kept if kept >= 4 else 0)
        lengths.add(kept >= 4)
    assert lengths == {True, False}


def test_times_are_told(pair, known):
    one = pair(n_sequences=2)
    assert not any(vars(one.follower.times()).values())
    text = known[0]["prompt"]
    one.prefill(0, text[:-1])
    one.draft_of(0, text)
    times = one.follower.times()
    assert min(vars(times).values()) > 0
    assert (times.n_followed, times.n_proposals) == (len(text) - 1, 1)
    plain = pair("dflash", kind="draft-dflash")
    plain.prefill(0, text[:-1])
    plain.draft_of(0, text)
    times = plain.follower.times()
    assert times.follow_us > 0 and times.draft_us > 0 and times.candidates_us == times.head_us == 0
    assert (times.n_followed, times.n_proposals) == (len(text) - 1, 1)


@pytest.mark.parametrize(
    ("draft", "options", "error", "says"),
    [
        ("lilicorr-unified", {"candidates": "device"}, InvalidRequestError, "^candidates: "),
        ("lilicorr-unified", {"candidates": "graph", "room": 7}, UnsupportedModelError, "n_outputs_max_per_seq of at least 8"),
        ("dflash", {"kind": "draft-dflash", "candidates": "host"}, InvalidRequestError, "^candidates: "),
        ("dflash", {"kind": "draft-dflash", "head": "lilicorr-head"}, InvalidRequestError, "^head: "),
        ("dflash", {}, UnsupportedModelError, "dflash.gguf: this file has no LiLiCorr head"),
        ("dflash", {"head": "target"}, UnsupportedModelError, "this file has no LiLiCorr head"),
        ("lilicorr-unified", {"p_min": 1.5}, InvalidRequestError, "^p_min: "),
    ],
)
def test_wrong_options_are_named(pair, draft, options, error, says):
    with pytest.raises(error, match=says):
        pair(draft, **options)


def test_where_the_graph_cannot_the_host_does(pair, known, prompts):
    texts, _ = pair(candidates="auto", room=1).answers(prompts[:1])
    assert texts == [known[0]["continuation"]]


def test_a_quantized_target_gives_its_embeddings(pair, lilicorr_files, prompts, tmp_path):
    native, path = load(), tmp_path / "target-q8.gguf"
    native.check(native.lm_quantize(str(lilicorr_files["target"]).encode(), str(path).encode(), b"Q8_0", 1, b"{}", None))
    _, steps = pair(files={**lilicorr_files, "target": path}).all_answers(prompts[:8])
    assert accepted_length(steps) > 4.5


def test_a_hybrid_target_with_sections_in_its_positions(pair, lilicorr_files, trained, prompts):
    """The draft is that of this target, of the same sizes; the head was never trained on it. The text is that of the target."""
    files = {**lilicorr_files, "hybrid": trained, "its": trained.with_name("tiny-trained-qwen35-dflash.gguf")}
    both = pair("its", head="lilicorr-head", files=files, target="hybrid", n_sequences=2)
    native, asked = both.native, prompts[:4]
    context = Context(both.model, context_params(native, ContextConfig(n_ctx=512, n_threads=1), 0))
    texts, steps = both.all_answers(asked)
    for prompt, text in zip(asked, texts, strict=True):
        tokens, answer = (ctypes.c_int32 * len(prompt))(*prompt), (ctypes.c_int32 * N_TOKENS)()
        seconds = [ctypes.byref(ctypes.c_double()) for _ in range(2)]
        native.check(native.lm_bench_loop(context.pointer, tokens, len(prompt), N_TOKENS, answer, *seconds))
        assert text == list(answer)
    assert all(len(draft) == BLOCK - 1 for some in steps for _, draft, _ in some) and accepted_length(steps) > 1.1


PROJECTIONS = ("token_proj", "pass_hidden_proj", "context_proj")


def test_heads_drafts_and_targets_that_do_not_go_together(pair, lilicorr_maker, lilicorr_files, tmp_path, models):
    head = lilicorr_maker.read(lilicorr_files["lilicorr-head"])

    def other(name, keys, tensors):
        return lilicorr_maker.write(head.changed(keys, tensors), tmp_path / f"{name}.gguf")

    narrow = {f"lilicorr.{name}.weight": head.tensors[f"lilicorr.{name}.weight"][:, :80] for name in PROJECTIONS}
    short = {
        "lilicorr.slot_embedding.weight": head.tensors["lilicorr.slot_embedding.weight"][:6],
        "lilicorr.attention_bias.bias": head.tensors["lilicorr.attention_bias.bias"][:, :24, :24],
    }
    moved = {name: array for name, array in head.tensors.items() if name.startswith("blk.")}
    fewer = {name.replace(name[4], str(int(name[4]) - 1), 1): array for name, array in moved.items()}
    others = {
        "eps": other("eps", {"dflash.attention.layer_norm_rms_epsilon": 1e-5}, {}),
        "narrow": other("narrow", {"dflash.embedding_length": 80}, narrow),
        "short": other("short", {"dflash.block_size": 7}, short),
        "fewer": other("fewer", {"dflash.block_count": 1}, {**dict.fromkeys(moved), **fewer}),
    }
    files = {**lilicorr_files, **others}
    for name, why in (("eps", "epsilon"), ("narrow", "rows of 80"), ("short", "7 tokens"), ("fewer", "1 layers")):
        with pytest.raises(InvalidRequestError, match=f"^head: .*{name}.gguf is that of another draft: .*{why}"):
            pair("dflash", head=name, files=files)
    with pytest.raises(LocalLLMError):
        pair("lilicorr-unified", files={**files, "target": models["gemma3"]})
    with pytest.raises(InvalidRequestError, match="^draft: its "):
        pair("target", head="lilicorr-head")
    native = load()
    target = Context(
        Model(str(files["target"]), model_params(native, ModelConfig())), context_params(native, ContextConfig(), 64)
    )
    draft = Model(str(files["dflash"]), model_params(native, ModelConfig()), any_kind=True)
    params = context_params(native, ContextConfig(n_ctx=64, n_batch=7), 0)
    params.ctx_other = target.pointer
    options = {"kind": "draft-lilicorr", "head": str(files["lilicorr-head"])}
    with pytest.raises(InvalidRequestError, match="^draft: a block is 8 tokens, its context computes 7"):
        Follower(target, Context(draft, params), options, 1)
    with pytest.raises(InvalidRequestError, match="^draft: its context was not made with the target"):
        Follower(Context(target.model, context_params(native, ContextConfig(n_ctx=64), 0)), Context(draft, params), options, 1)
