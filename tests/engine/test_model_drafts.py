"""Drafts that models make: the answer stays that of the target, whatever else happens to its sequence."""

from __future__ import annotations

import json
import struct
import threading
from dataclasses import replace

import pytest

from localllm import (
    ContextConfig,
    Delta,
    Engine,
    Finished,
    LocalModel,
    Lora,
    ModelConfig,
    Request,
    SamplingParams,
    SpeculationConfig,
)
from localllm.engine.params import model_params
from localllm.errors import InvalidRequestError, ModelError, StateError, UnsupportedModelError
from localllm.native.bindings.localllm import LM_DECODE_FAILED
from localllm.native.handles import Model
from localllm.native.library import load

GREEDY = SamplingParams(temperature=0)
# On the trained hybrid target: kind of draft -> its file beside the target's.
HYBRID = {
    "draft-mtp": "",
    "draft-eagle3": "tiny-trained-qwen35-eagle3.gguf",
    "draft-eagle3 (d2t)": "tiny-trained-qwen35-eagle3-d2t.gguf",
    "draft-dspark": "tiny-trained-qwen35-dspark.gguf",
    "draft-dflash": "tiny-trained-qwen35-dflash.gguf",
}
DENSE = ("draft-dflash", "draft-lilicorr")
# On models with random weights, whose drafts are right only where they are the same model.
SIMPLE = {"qwen3": "qwen3", "qwen3moe": "qwen3", "gemma3": "gemma3", "lfm2": "qwen3", "mamba2": "qwen3", "qwen35": "qwen3"}
ALL = [*HYBRID, *(f"dense {kind}" for kind in DENSE)]


@pytest.fixture(scope="module")
def folder(trained):
    return trained.parent


@pytest.fixture
def speculation(folder, lilicorr_files):
    """`speculation("draft-eagle3", n_max=3)`: eager, so that as much as can be is taken back."""

    def speculation(name: str, **options) -> SpeculationConfig:
        kind = name.removeprefix("dense ").split()[0]
        if name.startswith("dense"):
            file = lilicorr_files["dflash" if kind == "draft-dflash" else "lilicorr-unified"]
        else:
            file = folder / HYBRID[name] if HYBRID[name] else ""
        return SpeculationConfig(kind=kind, draft=file, **{"n_max": 4, "throttle": False, **options})

    return speculation


@pytest.fixture
def target(trained, lilicorr_files):
    return lambda name: lilicorr_files["target"] if name.startswith("dense") else trained


@pytest.fixture(scope="module")
def texts(folder):
    return json.loads((folder / "heldout.json").read_text())[:8]


def asked(engine: Engine, text: str, max_tokens: int = 32, sampling: SamplingParams = GREEDY, **options) -> Request:
    return Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=max_tokens, sampling=sampling, **options)


def answers(engine: Engine, requests) -> list[tuple[int, ...]]:
    return [engine.generate(request).tokens for request in requests]


@pytest.mark.parametrize("name", ALL)
def test_the_text_is_the_targets_and_as_many_drafts_are_right_whoever_else_is_there(engine_for, speculation, target, texts, name):
    plain = engine_for(target(name), n_ctx=2048)
    expected = answers(plain, [asked(plain, text) for text in texts])
    right = []
    for parallel in (1, 4, 8):
        engine = engine_for(target(name), n_ctx=2048, parallel=parallel, speculation=speculation(name))
        requests = [asked(engine, text) for text in texts]
        found = [one.tokens for start in range(0, 8, parallel) for one in engine.generate_all(requests[start : start + parallel])]
        assert found == expected
        stats = engine.stats().speculation
        assert stats.n_tokens == sum(len(tokens) for tokens in expected) - len(texts)
        assert stats.tokens_per_pass > 1.5
        right.append((stats.drafted, stats.accepted))
    assert right[0] == right[1] == right[2]


@pytest.mark.parametrize(("name", "draft"), SIMPLE.items())
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_smaller_model_drafts_for_every_memory(engine_for, models, name, draft, parallel, assert_same_greedy, caplog):
    plain = engine_for(name, parallel=parallel)
    config = SpeculationConfig(kind="draft-simple", draft=models[draft], n_max=4, throttle=False)
    drafting = engine_for(name, parallel=parallel, speculation=config)
    sampling = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
    requests = [asked(plain, f"{word} of the fox " * 5, 24, sampling) for word in ("one", "two", "three", "four")]
    for one, other in zip(plain.generate_all(requests), drafting.generate_all(requests), strict=True):
        assert_same_greedy(one.logprobs, other.logprobs)
    stats = drafting.stats().speculation
    assert stats.drafted_tokens > 50
    assert " lost " not in caplog.text  # also where the target has tokens that the draft lacks
    if name == draft == "qwen3":
        assert stats.acceptance > 0.9


@pytest.mark.parametrize("name", ALL)
def test_drafts_after_a_warm_start_are_those_after_a_cold_one(engine_for, speculation, target, texts, name, tmp_path):
    options = {"n_ctx": 2048, "speculation": speculation(name), "cache_dir": tmp_path}
    cold = engine_for(target(name), **{**options, "cache_dir": ""}, prefix_cache=False)
    requests = [asked(cold, text * 3) for text in texts[:4]]
    expected = [cold.generate(request) for request in requests]
    warm = engine_for(target(name), **options)
    for _ in range(2):
        for request, plain in zip(requests, expected, strict=True):
            found = warm.generate(request)
            assert found.tokens == plain.tokens
    again = [warm.generate(request) for request in requests]
    assert all(one.usage.cached_tokens > 0 for one in again)
    assert _right(again) == pytest.approx(_right(expected), rel=0.05)
    # Some states cannot be cut back: they end before what is asked.
    states = [warm.save_state(replace(request, prompt=request.prompt[:-3])) for request in requests]
    other = engine_for(target(name), n_ctx=2048, speculation=speculation(name))
    for state in states:
        other.load_state(state)
    loaded = [other.generate(request) for request in requests]
    assert [one.tokens for one in loaded] == [one.tokens for one in expected]
    assert all(one.usage.cached_tokens > 0 for one in loaded)
    assert _right(loaded) == pytest.approx(_right(expected), rel=0.05)


def _right(generations) -> int:
    return sum(one.usage.accepted_tokens for one in generations)


@pytest.mark.parametrize("name", ["draft-mtp", "draft-eagle3", "dense draft-lilicorr"])
def test_a_state_goes_through_ram_and_files(engine_for, speculation, target, texts, name, tmp_path, rest):
    options = {"n_ctx": 512, "parallel": 1, "speculation": speculation(name)}
    engine = engine_for(target(name), kept_sequences=1, **options)
    requests = [asked(engine, text * 6) for text in texts[:4]]
    expected = answers(engine, requests)
    for _ in range(2):
        assert answers(engine, requests) == expected
    assert engine.stats().n_restored > 0
    options = {**options, "n_ctx": 4096, "cache_ram_bytes": 0, "cache_dir": tmp_path}
    writing = engine_for(target(name), **options)
    assert answers(writing, requests) == expected
    rest(writing)
    writing.close()
    reading = engine_for(target(name), **options)
    found = [reading.generate(request) for request in requests]
    assert [one.tokens for one in found] == expected
    assert {one.usage.cached_from for one in found} == {"disk"}


def test_files_of_another_draft_or_none_are_left_alone(engine_for, speculation, trained, texts, tmp_path, rest):
    first = engine_for(trained, cache_dir=tmp_path, speculation=speculation("draft-eagle3"))
    request = asked(first, texts[0] * 6)
    expected = first.generate(request).tokens
    state = first.save_state(request)
    rest(first)
    first.close()
    assert list(tmp_path.glob("*.lmstate"))
    for config in ("none", speculation("draft-dflash")):
        other = engine_for(trained, cache_dir=tmp_path, speculation=config)
        found = other.generate(request)
        assert found.tokens == expected and found.usage.cached_tokens == 0
        with pytest.raises(StateError, match="its draft is 'draft-eagle3 "):
            other.load_state(state)


@pytest.mark.parametrize("name", ["draft-mtp", "draft-eagle3", "dense draft-dflash"])
def test_what_is_damaged_at_its_end_is_computed_again(engine_for, speculation, target, texts, name):
    engine = engine_for(target(name), speculation=speculation(name))
    request = asked(engine, texts[0] * 4)
    expected = engine.generate(request).tokens
    runner = engine._core.runner
    entry = engine._core.residents.tree.tier("device")[-1]
    saved = bytes(runner.save(entry.payload))
    for damaged in (
        saved[:8],
        b"\xff" * 20,
        saved[:-20] + struct.pack("<QQi", 2**60, 0, 0),
        saved[: len(saved) // 2] + saved[-20:],
    ):
        slot = engine._core.residents._free[0]
        assert not runner.restore(slot, bytearray(damaged), len(entry))
    assert engine.generate(request).tokens == expected


@pytest.mark.parametrize("name", ALL)
def test_cancelled_and_cut_answers_leave_a_state_to_go_on_from(engine_for, speculation, target, texts, name):
    cold = engine_for(target(name), prefix_cache=False)
    engine = engine_for(target(name), speculation=speculation(name))
    for text in texts[:4]:
        request = asked(engine, text)
        expected = cold.generate(request).tokens
        stream = engine.stream(request)
        for delta, _ in zip(stream, range(2), strict=False):
            assert isinstance(delta, Delta)
        stream.close()
        assert engine.generate(asked(engine, text, max_tokens=5)).tokens == expected[:5]
        assert engine.generate(request).tokens == expected


@pytest.mark.parametrize("name", ALL)
def test_a_failed_decode_in_the_middle_of_a_verification(engine_for, speculation, target, texts, name):
    engine = engine_for(target(name), speculation=speculation(name))
    requests = [asked(engine, text) for text in texts[:3]]
    expected = answers(engine, requests)
    runner = engine._core.runner
    run, failing = runner.native.lm_run, [3]

    def fails(*arguments):
        failing[0] -= 1
        if failing[0] == 0:
            return LM_DECODE_FAILED
        return run(*arguments)

    runner.native.lm_run = fails
    try:
        outcomes = []
        for request in requests:
            try:
                outcomes.append(engine.generate(request).tokens)
            except Exception as error:
                outcomes.append(type(error).__name__)
    finally:
        runner.native.lm_run = run
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 1
    assert answers(engine, requests) == expected
    assert engine.stats().speculation.accepted_tokens > 0


@pytest.mark.parametrize("name", ALL)
def test_a_draft_that_loses_its_place_costs_only_drafts(engine_for, speculation, target, texts, name, caplog):
    engine = engine_for(target(name), prefix_cache=False, speculation=speculation(name))
    requests = [asked(engine, text) for text in texts[:3]]
    expected = answers(engine, requests)
    follower = engine._core.runner.twin.follower
    follow, propose, left = follower.follow, follower.propose, {"follow": 3, "propose": 4}

    def fails(kind, function):
        def call(*arguments):
            left[kind] -= 1
            if left[kind] == 0:
                raise ModelError("out of order")
            return function(*arguments)

        return call

    follower.follow, follower.propose = fails("follow", follow), fails("propose", propose)
    assert answers(engine, requests) == expected
    assert "out of order" in caplog.text
    del follower.follow, follower.propose
    before = engine.stats().speculation.accepted_tokens
    assert answers(engine, requests) == expected
    assert engine.stats().speculation.accepted_tokens > before


@pytest.mark.parametrize("name", ALL)
def test_together_with_everything_that_steers_sampling(engine_for, speculation, target, texts, name):
    plain, drafting = engine_for(target(name)), engine_for(target(name), speculation=speculation(name))
    banned = drafting.generate(asked(drafting, texts[0])).tokens[2]
    samplings = [
        SamplingParams(temperature=0, logit_bias={banned: -100.0}),
        SamplingParams(temperature=0, grammar='root ::= [a-z ]+ "." '),
        SamplingParams(temperature=0, repeat_penalty=1.3, penalty_last_n=32),
        SamplingParams(temperature=0, logprobs=True, n_probs=3),
        SamplingParams(temperature=0.8, seed=5),
    ]
    for sampling in samplings:
        requests = [asked(plain, text, sampling=sampling) for text in texts[:2]]
        for one, other in zip(plain.generate_all(requests), drafting.generate_all(requests), strict=True):
            assert one.tokens == other.tokens and one.text == other.text
            assert [entry.token for entry in one.logprobs] == [entry.token for entry in other.logprobs]
            for entry, twin in zip(one.logprobs, other.logprobs, strict=True):
                assert entry.logprob == pytest.approx(twin.logprob, abs=1e-2)
                assert [top.token for top in entry.top][:1] == [top.token for top in twin.top][:1]
    stopped = asked(plain, texts[0], stop=(plain.generate(asked(plain, texts[0])).text[6:9],))
    one, other = plain.generate(stopped), drafting.generate(stopped)
    assert (one.text, one.finish_reason) == (other.text, other.finish_reason)


@pytest.mark.parametrize("name", ["draft-mtp", "draft-eagle3", "draft-dflash"])
def test_adapters_are_the_targets(engine_for, speculation, trained, texts, name, tmp_path, makers, builder):
    adapter = _lora(trained, tmp_path)
    plain, drafting = engine_for(trained), engine_for(trained, speculation=speculation(name))
    bare, steered = asked(plain, texts[0]), asked(plain, texts[0], loras=(Lora(adapter, 4.0),))
    expected = plain.generate_all([bare, steered])
    assert expected[0].tokens != expected[1].tokens
    for _ in range(2):
        assert [one.tokens for one in drafting.generate_all([bare, steered])] == [one.tokens for one in expected]


def _lora(path, folder):
    """A LoRA adapter for the output of the attention of each layer that has one, with random weights."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(folder / "lora.gguf", "qwen35")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    random = np.random.default_rng(1)
    for tensor in reader.tensors:
        if tensor.name.endswith("ffn_down.weight") and ".4." not in tensor.name:
            n_in, n_out = (int(n) for n in tensor.shape)
            writer.add_tensor(f"{tensor.name}.lora_a", random.normal(0, 0.3, (4, n_in)).astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", random.normal(0, 0.3, (n_out, 4)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "lora.gguf"


@pytest.mark.parametrize("name", ["dense draft-dflash", "dense draft-lilicorr"])
def test_a_full_context_moves_up_for_both(engine_for, speculation, target, texts, name):
    plain = engine_for(target(name), n_ctx=256, prefix_cache=False)
    drafting = engine_for(target(name), n_ctx=256, prefix_cache=False, speculation=speculation(name))
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    request = asked(plain, texts[0], 400, sampling, context_shift=8)
    one, other = plain.generate(request), drafting.generate(request)
    assert one.tokens[:200] == other.tokens[:200] and len(other.tokens) == 400
    assert other.usage.accepted_tokens > 50


def test_ngrams_go_first_and_the_model_fills_in(engine_for, folder, trained, texts):
    draft = folder / HYBRID["draft-eagle3"]
    chain = SpeculationConfig(kind="ngram-map-k", chain=("draft-eagle3",), draft=draft, n_max=4, n_match=2, throttle=False)
    plain, engine = engine_for(trained), engine_for(trained, speculation=chain)
    requests = [asked(plain, text) for text in texts]
    expected = answers(plain, requests)
    for _ in range(2):
        assert answers(engine, requests) == expected
    asks = engine._core._speculator._sources
    assert [type(source).__name__ for source in asks] == ["NgramSource", "ModelSource"]
    alone = engine_for(trained, speculation=SpeculationConfig(kind="ngram-map-k", n_max=4, n_match=2, throttle=False))
    answers(alone, requests)
    assert engine.stats().drafted_tokens > alone.stats().drafted_tokens


def test_auto_takes_what_is_there(engine_for, folder, trained, models, lilicorr_files):
    def kind(model, **options):
        engine = engine_for(model, speculation=SpeculationConfig(kind="auto", **options))
        return engine.config.speculation.kind

    assert kind(trained) == "draft-mtp"
    assert kind(models["qwen3"]) == "ngram-map-k"
    assert kind(models["qwen35-no-mtp"]) == "ngram-map-k"
    assert kind(models["qwen3"], draft=models["qwen3"]) == "draft-simple"
    for name, file in HYBRID.items():
        if file:
            assert kind(trained, draft=folder / file) == name.split()[0]
    files = lilicorr_files
    assert kind(files["target"], draft=files["lilicorr-unified"]) == "draft-lilicorr"
    assert kind(files["target"], draft=files["dflash"], head=files["lilicorr-head"]) == "draft-lilicorr"


def test_what_does_not_go_together_is_an_error_that_says_so(folder, trained, models, tmp_path, lilicorr_files):
    def opening(model, says, error=InvalidRequestError, **options):
        with pytest.raises(error, match=says):
            Engine(str(model), context=ContextConfig(n_ctx=256, speculation=SpeculationConfig(**options)))

    eagle = folder / HYBRID["draft-eagle3"]
    opening(trained, "is no 'draft-dflash' but a 'draft-eagle3'", kind="draft-dflash", draft=eagle)
    opening(models["qwen3"], "no draft-eagle3 for", UnsupportedModelError, kind="draft-eagle3", draft=eagle)
    opening(models["qwen3"], "has no heads", UnsupportedModelError, kind="draft-mtp")
    opening(
        models["qwen3"],
        "token [0-9]+ is '.*', the draft's '",
        UnsupportedModelError,
        kind="draft-simple",
        draft=lilicorr_files["target"],
    )
    opening(models["qwen3"], "cannot be cut", UnsupportedModelError, kind="draft-simple", draft=models["mamba2"])
    opening(trained, "missing.gguf", ModelError, kind="auto", draft=tmp_path / "missing.gguf")
    with pytest.raises(InvalidRequestError, match="^draft: missing"):
        SpeculationConfig(kind="draft-eagle3")
    with pytest.raises(InvalidRequestError, match="^chain: a second"):
        SpeculationConfig(kind="draft-mtp", chain=("draft-eagle3",), draft=eagle)
    with pytest.raises(InvalidRequestError, match="^draft: .* of no use to 'ngram-mod'"):
        SpeculationConfig(kind="ngram-mod", draft=eagle)
    with pytest.raises(InvalidRequestError, match="^head: "):
        SpeculationConfig(kind="draft-dflash", draft=eagle, head=eagle)
    with pytest.raises(InvalidRequestError, match="^p_min: "):
        SpeculationConfig(kind="draft-mtp", p_min=1.5)


def test_weights_that_were_loaded_without_heads_are_told_of(trained):
    native = load()
    bare = Model(str(trained), model_params(native, ModelConfig()))
    with pytest.raises(UnsupportedModelError, match=r"without its heads.*mtp=True"):
        Engine(bare, context=ContextConfig(n_ctx=256, speculation="draft-mtp"))
    heads = Model(str(trained), model_params(native, ModelConfig(mtp=True)))
    with Engine(heads, context=ContextConfig(n_ctx=256, n_threads=1, speculation="draft-mtp")) as engine:
        assert engine.generate(asked(engine, "Hello")).usage.drafted_tokens > 0


def test_p_min_and_n_min_shorten_and_drop(engine_for, speculation, trained, texts):
    sums = {}
    for key, options in {"all": {}, "sure": {"p_min": 0.9}, "long": {"n_min": 3, "p_min": 0.9}}.items():
        engine = engine_for(trained, speculation=speculation("draft-dspark", **options))
        answers(engine, [asked(engine, text) for text in texts])
        stats = engine.stats().speculation
        sums[key] = (stats.drafted_tokens, stats.acceptance)
        assert key != "long" or stats.drafted[0] == stats.drafted[1] == stats.drafted[2]
    assert sums["all"][0] > sums["sure"][0] >= sums["long"][0]
    assert sums["sure"][1] > sums["all"][1]


def test_nothing_is_exported_when_a_request_ends(engine_for, speculation, trained, texts):
    engine = engine_for(trained, speculation=speculation("draft-mtp"), kept_sequences=4)
    answers(engine, [asked(engine, text) for text in texts[:4]])
    stats = engine.stats()
    assert (stats.n_saved, stats.saved_bytes) == (0, 0)
    assert stats.speculation.accepted_tokens > 0


def test_statistics_of_a_request_add_up_to_those_of_the_engine(engine_for, speculation, trained, texts):
    engine = engine_for(trained, speculation=speculation("draft-eagle3"))
    found = engine.generate_all([asked(engine, text) for text in texts[:4]])
    stats, parts = engine.stats().speculation, [one.speculation for one in found]
    assert stats.n_passes == sum(part.n_passes for part in parts)
    assert stats.n_tokens == sum(part.n_tokens for part in parts)
    for at in range(4):
        assert stats.drafted[at] == sum(part.drafted[at] for part in parts if at < len(part.drafted))
        assert stats.accepted[at] == sum(part.accepted[at] for part in parts if at < len(part.accepted))
    for part, one in zip(parts, found, strict=True):
        assert (part.drafted_tokens, part.accepted_tokens) == (one.usage.drafted_tokens, one.usage.accepted_tokens)
        assert min(part.draft_seconds, part.verify_seconds) > 0
        assert list(part.accepted) == sorted(part.accepted, reverse=True)
    assert engine.generate(asked(engine, texts[0], speculate=False)).speculation is None


def test_a_prompt_in_parts_beside_streams_that_draft(engine_for, speculation, trained, texts):
    plain = engine_for(trained, n_ctx=2048)
    engine = engine_for(trained, n_ctx=2048, n_batch=64, n_ubatch=32, speculation=speculation("draft-eagle3"))
    requests = [asked(plain, texts[0], 48), asked(plain, "".join(texts) * 2, 16), asked(plain, texts[1], 48)]
    expected = answers(plain, requests)
    results: dict[int, tuple[int, ...]] = {}

    def ask(at: int) -> None:
        results[at] = engine.generate(requests[at]).tokens

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [results[at] for at in range(3)] == expected


def test_streams_end_with_their_statistics(engine_for, speculation, trained, texts):
    engine = engine_for(trained, speculation=speculation("draft-mtp"))
    *deltas, last = engine.stream(asked(engine, texts[0]))
    assert isinstance(last, Finished) and last.speculation is not None
    assert any(len(delta.tokens) > 1 for delta in deltas)
    assert last.speculation.tokens_per_pass > 1


def test_a_local_model_finds_what_drafts_for_it(folder, trained, models, lilicorr_files):
    eagle = folder / HYBRID["draft-eagle3"]
    for model, options, kind in (
        (trained, {"kind": "auto"}, "draft-mtp"),
        (trained, {"kind": "auto", "draft": eagle}, "draft-eagle3"),
        (models["qwen3"], {"kind": "auto"}, "ngram-map-k"),
        (lilicorr_files["target"], {"kind": "auto", "draft": lilicorr_files["dflash"]}, "draft-dflash"),
        (
            lilicorr_files["target"],
            {"kind": "auto", "draft": lilicorr_files["dflash"], "head": lilicorr_files["lilicorr-head"]},
            "draft-lilicorr",
        ),
    ):
        with LocalModel(model, n_ctx=512, n_threads=1, speculation=SpeculationConfig(**options)) as local:
            answer = local.complete("19 - 16 = 3", max_tokens=16, temperature=0)
            assert answer.speculation is not None
            assert local.engine.config.speculation.kind == kind
    with LocalModel(trained, n_ctx=512, n_threads=1, speculation="draft-mtp") as local:
        chat = local.chat([{"role": "user", "content": "Start with 3 and 16."}], max_tokens=16)
        assert chat.speculation is not None and chat.speculation.n_passes > 0


def test_a_wrong_draft_is_refused_before_weights_are_loaded(trained, lilicorr_files):
    for options, says in (
        ({"kind": "draft-eagle3", "draft": lilicorr_files["dflash"]}, "is no 'draft-eagle3' but a 'draft-dflash'"),
        ({"kind": "draft-lilicorr", "draft": lilicorr_files["dflash"]}, "head=..."),
    ):
        local = LocalModel(trained, n_ctx=512, speculation=SpeculationConfig(**options))
        with pytest.raises(InvalidRequestError, match=says):
            local.complete("19 - 16 = 3")
        assert not local.loaded


def test_a_draft_for_another_model_of_the_same_sizes_is_told_of_once(engine_for, trained, lilicorr_files, texts, caplog):
    config = SpeculationConfig(kind="draft-dflash", draft=lilicorr_files["dflash"], throttle=False)
    engine = engine_for(trained, speculation=config)
    for _ in range(2):
        answers(engine, [asked(engine, text) for text in texts])
    (told,) = [one.getMessage() for one in caplog.records if one.name == "localllm.engine"]
    assert "drafted tokens were right; was " in told and "dflash" in told
