"""Adapters per request: each answer is that of a model with the adapter in its weights, and states are never mixed up."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import ControlVector, Delta, Engine, Finished, Lora, Request, SamplingParams
from localllm.engine.steering import UNSTEERED, Steering, adapters, steering_of
from localllm.errors import ClosedError, InvalidRequestError, ModelFileError, ModelNotFoundError

PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
TEXT = "the quick brown fox jumps over the lazy dog " * 8
# Dense, experts, sliding window, hybrid, recurrent, short convolutions.
MODELS = ["qwen3", "qwen3moe", "gemma3", "qwen35", "mamba2", "lfm2"]
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attention": "off"}


def request(engine: Engine, text: str = TEXT, max_tokens: int = 12, **options: Any) -> Request:
    return Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=max_tokens, sampling=PROBED, **options)


@pytest.fixture(scope="session")
def made(builder, makers) -> Any:
    """A function that writes a recipe and gives its path."""
    return lambda name, recipe: builder.save(name, recipe)


@pytest.fixture(scope="session")
def lora_for(builder, makers) -> Any:
    """A function that gives the path of a LoRA adapter for a tiny model; another seed, another adapter."""
    return lambda name, seed=1: builder.save(f"{name}-lora", makers.lora(builder.load(name), seed=seed))


@pytest.fixture(scope="session")
def control_for(builder, makers) -> Any:
    """A function that gives the path of a control vector for a tiny model."""
    return lambda name, seed=1: builder.save(f"{name}-control", makers.control(builder.load(name), seed=seed))


def assert_equal(one: Sequence, other: Sequence, tolerance: float = 2e-3) -> None:
    """Greedy answers of single-precision models, token by token, with the probabilities of all candidates."""
    for mine, theirs in zip(one, other, strict=True):
        assert mine.token == theirs.token
        assert abs(mine.logprob - theirs.logprob) < tolerance
        places = {top.token: top.logprob for top in theirs.top}
        assert all(abs(top.logprob - places.get(top.token, top.logprob)) < tolerance for top in mine.top)


# ---- what an adapter computes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [1.0, 0.5, -0.75])
def test_a_lora_does_what_its_product_in_the_weights_does(engine_for, builder, makers, made, name, scale):
    recipe = builder.load(name)
    adapter = makers.lora(recipe, rank=2, alpha=3.0)
    steered = engine_for(made(f"{name}-f32", makers.with_values(recipe)), **EXACT)
    merged = engine_for(made(f"{name}-merged", makers.merge(recipe, (adapter, scale))), **EXACT)
    path = made(f"{name}-lora", adapter)
    wanted = merged.generate(request(merged))
    answer = steered.generate(request(steered, loras=(Lora(path, scale),)))
    assert_equal(wanted.logprobs, answer.logprobs)
    assert steered.generate(request(steered)).tokens != answer.tokens, "an adapter without effect proves nothing"


@pytest.mark.parametrize(
    "targets", [("token_embd.weight",), ("output.weight",), ("blk.*.ffn_[gdu]*.weight", "blk.*.attn_*put.weight")]
)
def test_a_lora_of_other_weights_does_it_too(engine_for, builder, makers, made, targets):
    recipe = builder.load("qwen3")
    adapter = makers.lora(recipe, targets, rank=3, alpha=5.0)
    steered = engine_for(made("qwen3-f32", makers.with_values(recipe)), **EXACT)
    merged = engine_for(made("qwen3-merged", makers.merge(recipe, (adapter, 1.0))), **EXACT)
    answer = steered.generate(request(steered, loras=(Lora(made("qwen3-lora", adapter)),)))
    assert_equal(merged.generate(request(merged)).logprobs, answer.logprobs)


def test_several_loras_act_together_in_any_order(engine_for, builder, makers, made):
    recipe = builder.load("qwen3")
    one, other = makers.lora(recipe, seed=1), makers.lora(recipe, rank=4, alpha=2.0, seed=2)
    steered = engine_for(made("qwen3-f32", makers.with_values(recipe)), **EXACT)
    merged = engine_for(made("qwen3-merged", makers.merge(recipe, (one, 0.5), (other, 1.5))), **EXACT)
    pair = Lora(made("qwen3-lora", one), 0.5), Lora(made("qwen3-lora", other), 1.5)
    wanted = merged.generate(request(merged)).logprobs
    first, again = (steered.generate(request(steered, loras=loras)) for loras in (pair, pair[::-1]))
    assert_equal(wanted, first.logprobs)
    assert first.tokens == again.tokens and again.usage.cached_tokens == len(request(steered).prompt) - 1


def test_an_adapter_without_alpha_takes_its_scale_as_it_is(engine_for, builder, makers, made):
    recipe = builder.load("qwen3")
    adapter = makers.lora(recipe, rank=2, alpha=2.0)
    bare = {**adapter, "metadata": {key: value for key, value in adapter["metadata"].items() if "alpha" not in key}}
    steered = engine_for(made("qwen3-f32", makers.with_values(recipe)), **EXACT)
    merged = engine_for(made("qwen3-merged", makers.merge(recipe, (adapter, 0.7))), **EXACT)
    answer = steered.generate(request(steered, loras=(Lora(made("qwen3-lora", bare), 0.7),)))
    assert_equal(merged.generate(request(merged)).logprobs, answer.logprobs)


def identity_model(builder, makers) -> Any:
    """qwen3 whose layers add nothing: what comes in at the bottom is what the output sees."""
    recipe = builder.load("qwen3")
    weights = makers.values(recipe)
    for name in weights:
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            weights[name] = np.zeros_like(weights[name])
    return makers.with_values(recipe, weights), weights


def test_a_control_vector_is_added_to_the_hidden_state(engine_for, builder, makers, made):
    """Held against numpy: through layers that add nothing, the output is that of the last token's embedding plus directions."""
    recipe, weights = identity_model(builder, makers)
    vector = makers.control(builder.load("qwen3"))
    directions = makers.values(vector)
    engine = engine_for(made("qwen3-identity", recipe), **EXACT)
    path = made("qwen3-control", vector)
    for controls, shift in (
        ((ControlVector(path),), sum(directions.values())),
        ((ControlVector(path, -0.5),), -0.5 * sum(directions.values())),
        ((ControlVector(path, 2, layer_first=2),), 2 * (directions["direction.2"] + directions["direction.3"])),
        ((ControlVector(path, layer_last=1),), directions["direction.1"]),
        (
            (ControlVector(path, 3, 1, 1), ControlVector(path, 0.25, 3, 3)),
            3 * directions["direction.1"] + 0.25 * directions["direction.3"],
        ),
    ):
        asked = request(engine, "one two three", 1, control_vectors=controls)
        hidden = weights["token_embd.weight"][asked.prompt[-1]] + shift
        normed = hidden / np.sqrt(np.mean(hidden**2) + 1e-6) * weights["output_norm.weight"]
        logits = weights["output.weight"] @ normed
        wanted = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        (answer,) = engine.generate(asked).logprobs
        assert answer.token == int(wanted.argmax())
        for top in answer.top:
            assert abs(top.logprob - wanted[top.token]) < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_control_vectors_add_up_and_opposite_ones_cancel(engine_for, control_for, name, assert_same_greedy):
    engine = engine_for(name)
    one, other = control_for(name, 1), control_for(name, 2)
    plain = engine.generate(request(engine))
    pushed = engine.generate(request(engine, control_vectors=(ControlVector(one, 0.5),)))
    assert pushed.tokens != plain.tokens
    twice = engine.generate(request(engine, control_vectors=(ControlVector(one, 0.25), ControlVector(one, 0.25))))
    assert twice.tokens == pushed.tokens and twice.usage.cached_tokens > 0
    last = engine.model.n_layer - 1
    parts = tuple(ControlVector(one, 0.5, layer, layer) for layer in range(1, last + 1))
    assert_same_greedy(pushed.logprobs, engine.generate(request(engine, control_vectors=parts)).logprobs)
    both = engine.generate(request(engine, control_vectors=(ControlVector(one, 0.5), ControlVector(other, 0.5))))
    assert both.tokens not in (pushed.tokens, plain.tokens)
    opposite = (ControlVector(one, 0.5), ControlVector(one, -0.5, layer_last=1), ControlVector(one, -0.5, layer_first=2))
    assert_same_greedy(plain.logprobs, engine.generate(request(engine, control_vectors=opposite)).logprobs)


def test_a_scale_of_zero_is_no_adapter_at_all(engine_for, lora_for, control_for):
    engine = engine_for("qwen3")
    plain = engine.generate(request(engine))
    nothing = request(engine, loras=(Lora(lora_for("qwen3"), 0),), control_vectors=(ControlVector(control_for("qwen3"), 0.0),))
    answer = engine.generate(nothing)
    assert answer.tokens == plain.tokens and answer.usage.cached_tokens == len(nothing.prompt) - 1
    assert engine.stats().n_adapters == 0


# ---- states of different adapters


def ways(lora_for, control_for, name: str) -> list[dict[str, Any]]:
    lora, other, control = Lora(lora_for(name)), Lora(lora_for(name, 2), 0.5), ControlVector(control_for(name), 0.5)
    return [{}, {"loras": (lora,)}, {"loras": (lora, other)}, {"control_vectors": (control,)}, {"loras": (Lora(lora.path, 0.5),)}]


@pytest.mark.parametrize("name", MODELS)
def test_one_prompt_with_different_adapters_in_turn(engine_for, lora_for, control_for, name, assert_same_greedy):
    engine = engine_for(name, n_ctx=2048)
    asked = [request(engine, **way) for way in ways(lora_for, control_for, name)]
    fresh = []
    for each in asked:
        cold = engine_for(name, prefix_cache=False)
        fresh.append(cold.generate(each))
        cold.close()
    first = [engine.generate(each) for each in asked]
    second = [engine.generate(each) for each in reversed(asked)][::-1]
    for wanted, one, two in zip(fresh, first, second, strict=True):
        assert one.usage.cached_tokens == 0 and two.usage.cached_tokens == len(asked[0].prompt) - 1
        assert one.tokens == wanted.tokens
        assert_same_greedy(wanted.logprobs, two.logprobs)
    assert len({answer.tokens for answer in fresh}) == len(fresh), "ways that give the same answer prove nothing"


@pytest.mark.parametrize("name", MODELS)
def test_one_prompt_with_different_adapters_at_once(engine_for, lora_for, control_for, together, name, assert_same_greedy):
    engine = engine_for(name, n_ctx=4096, parallel=5, n_batch=64, n_ubatch=32)
    asked = [request(engine, **way) for way in ways(lora_for, control_for, name)] * 2
    cold = engine_for(name, prefix_cache=False)
    given = together(engine, asked)
    cached = []
    for each, events in zip(asked, given, strict=True):
        logprobs = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
        assert_same_greedy(cold.generate(each).logprobs, logprobs)
        assert isinstance(events[-1], Finished)
        cached.append(events[-1].usage.cached_tokens)
    n_first = len(asked) // 2
    assert cached[:n_first] == [0] * n_first
    # The second of each kind waits for the first, and for no other; small windows (gemma3) have to let go of some meanwhile.
    assert sum(n == 0 for n in cached[n_first:]) <= engine.stats().n_evicted < len(ways(lora_for, control_for, name))


def test_a_conversation_keeps_its_adapters_states(engine_for, lora_for, assert_same_greedy):
    engine, cold = engine_for("qwen3", n_ctx=2048), engine_for("qwen3", prefix_cache=False)
    lora = (Lora(lora_for("qwen3")),)
    talks = {way: request(engine, loras=way) for way in ((), lora)}
    for turn in range(3):
        for way, asked in talks.items():
            answer = engine.generate(asked)
            assert_same_greedy(cold.generate(asked).logprobs, answer.logprobs)
            assert (answer.usage.cached_tokens > 0) == (turn > 0)
            more = engine.model.tokenize(f" {turn} and", False, True)
            talks[way] = Request(prompt=(*asked.prompt, *answer.tokens, *more), max_tokens=12, sampling=PROBED, loras=way)


def settle(engine: Engine) -> None:
    """Waits until the engine has nothing left to copy."""
    core = engine._core
    while True:
        with core._wake:
            if core.scheduler.idle and not core.residents.next_to_save() and not core.residents.next_to_store():
                return


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35"])
def test_copies_in_ram_keep_their_adapters(engine_for, lora_for, name, assert_same_greedy):
    engine = engine_for(name, n_ctx=512, parallel=1, kept_sequences=3)
    cold = engine_for(name, n_ctx=512, parallel=1, prefix_cache=False)
    asked = [request(engine, loras=loras) for loras in ((), (Lora(lora_for(name)),), (Lora(lora_for(name, 2)),))]
    for each in asked:
        engine.generate(each)
        settle(engine)
    for n in range(4):
        engine.generate(request(engine, f"{n} " * 100, 2))
        settle(engine)
    before = engine.stats().n_restored
    for each in asked:
        answer = engine.generate(each)
        settle(engine)
        assert answer.usage.cached_tokens >= len(each.prompt) - 1
        assert_same_greedy(cold.generate(each).logprobs, answer.logprobs)
    assert engine.stats().n_restored > before


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_files_of_states_keep_their_adapters(engine_for, lora_for, tmp_path, name, assert_same_greedy):
    cold = engine_for(name, prefix_cache=False)
    lora = Path(lora_for(name))
    asked = request(cold, loras=(Lora(lora),))
    first = engine_for(name, cache_dir=str(tmp_path / "cache"))
    first.generate(asked)
    settle(first)
    first.close()
    second = engine_for(name, cache_dir=str(tmp_path / "cache"))
    assert second.generate(request(second)).usage.cached_tokens == 0
    assert second.generate(request(second, loras=(Lora(lora_for(name, 2)),))).usage.cached_tokens == 0
    copy = shutil.copy(lora, tmp_path / "renamed.gguf")
    answer = second.generate(request(second, loras=(Lora(copy),)))
    assert answer.usage.cached_tokens == len(asked.prompt) - 1, "what counts is what is in the file, not its name"
    assert_same_greedy(cold.generate(asked).logprobs, answer.logprobs)


SMALL = {"n_ctx": 512, "parallel": 1, "kept_sequences": 3}


def leave_running(engine: Engine, left: Request) -> Any:
    """Another request's answer that goes on."""
    stream = engine.stream(Request(prompt=left.prompt, max_tokens=150, sampling=PROBED, loras=left.loras))
    next(stream)
    return stream


def leave_in_ram(engine: Engine, left: Request) -> None:
    engine.generate(left)
    for n in range(6):
        settle(engine)
        engine.generate(request(engine, f"{n} " * 100, 2))
    settle(engine)


@pytest.mark.parametrize("tier", ["device", "running", "ram", "disk", "saved"])
@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_no_tier_gives_a_prefix_to_other_adapters(engine_for, lora_for, tmp_path, name, tier, assert_same_greedy):
    """Each way in turn leaves the prompt there; none of the others may go on from it, and the same way does."""
    one, two = lora_for(name), lora_for(name, 2)
    ways = [(), (Lora(one),), (Lora(one, 0.5),), (Lora(two),), (Lora(one), Lora(two))]
    cold = engine_for(name, prefix_cache=False)
    wanted = [cold.generate(request(cold, loras=way)) for way in ways]
    asked = [request(cold, loras=way) for way in ways]
    for at in range(len(ways)):
        options = {"cache_dir": tmp_path / str(at)} if tier == "disk" else SMALL if tier == "ram" else {"n_ctx": 2048}
        engine = engine_for(name, **options)
        stream = None
        if tier == "running":
            stream = leave_running(engine, asked[at])
        elif tier == "ram":
            leave_in_ram(engine, asked[at])
        else:
            engine.generate(asked[at])
            settle(engine)
        if tier == "disk":
            engine.close()
            engine = engine_for(name, **options)
        if tier == "saved":
            data, engine = engine.save_state(asked[at]), engine_for(name, **options)
            engine.load_state(data, asked[at])
        if tier != "running" or name == "qwen3":  # a state that cannot be cut cannot be shared while it goes on
            onward = dataclasses.replace(asked[at], prompt=(*asked[at].prompt, 5, 6, 7))
            own = engine.generate(onward)
            assert own.usage.cached_tokens >= len(asked[at].prompt) - 1
            assert own.usage.cached_from == ("device" if tier == "saved" else tier)
            assert_same_greedy(cold.generate(onward).logprobs, own.logprobs)
        other = (at + 1) % len(ways)
        answer = engine.generate(asked[other])
        assert answer.usage.cached_tokens == 0
        assert_same_greedy(wanted[other].logprobs, answer.logprobs)
        if stream is not None:
            stream.close()
        engine.close()


def test_the_same_adapter_under_two_names_is_one(engine_for, lora_for, tmp_path):
    engine = engine_for("qwen3")
    copy = shutil.copy(lora_for("qwen3"), tmp_path / "copy.gguf")
    engine.generate(request(engine, loras=(Lora(lora_for("qwen3")),)))
    again = engine.generate(request(engine, loras=(Lora(copy),)))
    assert again.usage.cached_tokens > 0 and engine.stats().n_adapters == 1


def test_another_adapter_under_the_same_name_is_another(engine_for, lora_for, tmp_path):
    engine, cold = engine_for("qwen3"), engine_for("qwen3", prefix_cache=False)
    path = tmp_path / "adapter.gguf"
    for seed in (1, 2):
        shutil.copy(lora_for("qwen3", seed), tmp_path / "new.gguf").replace(path)
        answer = engine.generate(request(engine, loras=(Lora(path),)))
        assert answer.usage.cached_tokens == 0
        assert answer.tokens == cold.generate(request(cold, loras=(Lora(lora_for("qwen3", seed)),))).tokens
    assert engine.stats().n_adapters == 2


def test_adapters_survive_a_new_context(engine_for, lora_for):
    """After a failed decode the engine makes a new context, which has no adapters on it."""
    engine = engine_for("qwen3")
    asked = request(engine, loras=(Lora(lora_for("qwen3")),))
    wanted = engine.generate(asked).tokens
    done = threading.Event()

    def lose() -> None:
        engine._core.scheduler.requeue_all()
        engine._core.runner.reset()
        done.set()

    engine._core._on_thread(lose)
    assert done.is_set() and engine.generate(asked).tokens == wanted
    plain = engine.generate(request(engine)).tokens
    engine._core._on_thread(lose)
    assert engine.generate(request(engine)).tokens == plain != wanted


# ---- loading


def test_an_adapter_is_loaded_once_whoever_asks(engine_for, lora_for, control_for, together):
    engine = engine_for("qwen3", parallel=8, n_ctx=1024)
    loads = []
    load = engine._core.adapters._load
    engine._core.adapters._load = lambda *arguments: (loads.append(arguments), load(*arguments))
    ways = {"loras": (Lora(lora_for("qwen3")),), "control_vectors": (ControlVector(control_for("qwen3")),)}
    threads = [threading.Thread(target=engine.generate, args=(request(engine, **ways),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    n_loads = len(loads)
    assert engine.stats().n_adapters == 2 and n_loads >= 1
    engine.generate(request(engine, **ways))
    assert len(loads) == n_loads


def test_files_are_read_off_the_loop_and_off_the_engines_thread(engine_for, lora_for, control_for, monkeypatch):
    from localllm.engine import adapters as module

    engine = engine_for("qwen3")
    readers = []
    read = module._fingerprint
    monkeypatch.setattr(module, "_fingerprint", lambda path: (readers.append(threading.get_ident()), read(path))[1])
    asked = request(engine, loras=(Lora(lora_for("qwen3")),), control_vectors=(ControlVector(control_for("qwen3")),))

    async def ask() -> Any:
        return threading.get_ident(), await engine.agenerate(asked)

    loop_thread, answer = asyncio.run(ask())
    assert answer.tokens and len(readers) == 2 and not {loop_thread, engine._thread.ident} & set(readers)


def test_streams_go_on_while_an_adapter_is_loaded(engine_for, lora_for, together):
    engine = engine_for("qwen3", n_ctx=1024)
    seen: list[Delta] = []
    for event in engine.stream(request(engine, max_tokens=300)):
        seen.append(event)
        if len(seen) == 10:
            steered = engine.generate(request(engine, loras=(Lora(lora_for("qwen3")),)))
    assert len(steered.tokens) == 12 and seen[-1].usage.completion_tokens == 300


def test_a_running_answer_gets_its_turn_between_two_loads(engine_for):
    engine = engine_for("qwen3", n_ctx=1024)
    core, steps, done = engine._core, [], []
    stream = engine.stream(request(engine, max_tokens=400))
    next(stream)
    for _ in range(5):
        with core._wake:
            done += [core._errands.add(lambda: steps.append(core._totals.n_steps)) for _ in range(3)]
    for each in done:
        each.result(60)
    stream.close()
    assert steps == sorted(set(steps)), "two were run in one go"


def test_a_sink_may_ask_with_a_new_adapter(engine_for, lora_for):
    """The engine's own thread waits for nobody when it loads one."""
    engine = engine_for("qwen3")
    ended = threading.Event()
    answers: list[Any] = []

    def onward(event: Any) -> None:
        answers.append(event)
        if not isinstance(event, Delta):
            ended.set()

    def sink(event: Any) -> None:
        if isinstance(event, Finished):
            engine.submit(request(engine, loras=(Lora(lora_for("qwen3")),)), onward)

    engine.submit(request(engine), sink)
    assert ended.wait(60) and isinstance(answers[-1], Finished)


def test_a_closed_engine_loads_nothing(engine_for, lora_for):
    engine = engine_for("qwen3")
    asked = request(engine, loras=(Lora(lora_for("qwen3")),))
    engine.close()
    with pytest.raises(ClosedError):
        engine.generate(asked)


def test_loads_that_wait_when_the_engine_closes_are_told(engine_for):
    engine = engine_for("qwen3")
    core = engine._core
    started, go_on, outcome = threading.Event(), threading.Event(), []

    def hold() -> None:
        started.set()
        go_on.wait(30)

    def ask() -> None:
        try:
            core._on_thread(lambda: None)
        except ClosedError as error:
            outcome.append(error)

    holder = threading.Thread(target=core._on_thread, args=(hold,))
    holder.start()
    started.wait(30)
    asker = threading.Thread(target=ask)
    asker.start()
    while not core._errands:
        pass
    core.worker.stop()
    go_on.set()
    asker.join(30)
    holder.join(30)
    assert not asker.is_alive() and not holder.is_alive() and len(outcome) == 1


@pytest.mark.parametrize("kind", ["loras", "control_vectors"])
def test_a_file_that_is_not_there_is_an_error_before_anything_runs(engine_for, tmp_path, kind):
    engine = engine_for("qwen3")
    make = Lora if kind == "loras" else ControlVector
    for path, error, reason in (
        (tmp_path / "nothing.gguf", ModelNotFoundError, "no such file"),
        (tmp_path, ModelFileError, "not a regular file"),
    ):
        with pytest.raises(error, match=reason) as caught:
            engine.stream(request(engine, **{kind: (make(path),)}))
        assert str(path) in str(caught.value) and kind in str(caught.value)
    assert engine.stats().n_requests == 0 and engine.stats().n_adapters == 0


# ---- data


def test_steering_is_known_by_content_scale_and_layers_in_any_order():
    one, other = b"1" * 32, b"2" * 32
    assert steering_of([], []) == UNSTEERED and UNSTEERED.key == b""
    assert steering_of([(one, 0.0), (other, 1e-60)], [(one, 0.0, 1, 3)]) == UNSTEERED
    assert steering_of([(one, 1.0), (other, 2.0)], []) == steering_of([(other, 2.0), (one, 1.0)], [])
    assert steering_of([(one, 0.5), (one, 0.5)], []) == steering_of([(one, 1.0)], [])
    assert steering_of([(one, 0.5), (one, -0.5)], []) == UNSTEERED
    different: list[Steering] = [
        UNSTEERED,
        steering_of([(one, 1.0)], []),
        steering_of([(one, 2.0)], []),
        steering_of([(other, 1.0)], []),
        steering_of([(one, 1.0), (other, 1.0)], []),
        steering_of([], [(one, 1.0, 1, 3)]),
        steering_of([], [(one, 1.0, 1, 2)]),
        steering_of([], [(one, 1.0, 2, 3)]),
        steering_of([(one, 1.0)], [(one, 1.0, 1, 3)]),
    ]
    for left, right in itertools.combinations(different, 2):
        assert left.key != right.key


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lora(3), "^loras: the path"),
        (lambda: Lora(""), "^loras: '' is no path"),
        (lambda: Lora("a\0b"), "^loras: .* is no path"),
        (lambda: Lora("a", "1"), "^loras: the scale must be a number"),
        (lambda: Lora("a", True), "^loras: the scale must be a number"),
        (lambda: Lora("a", float("nan")), "^loras: the scale: nan"),
        (lambda: Lora("a", float("inf")), "^loras: the scale: inf"),
        (lambda: Lora("a", 1e31), "^loras: the scale: 1e"),
        (lambda: Lora("a", 10**5000), r"^loras: the scale: 2\*\*"),
        (lambda: ControlVector("a", layer_first=0), "^control_vectors: layer_first"),
        (lambda: ControlVector("a", layer_last=1.5), "^control_vectors: layer_last"),
        (lambda: ControlVector("a", layer_first=3, layer_last=2), "^control_vectors: layer_first 3 is behind"),
        (lambda: Request(prompt=(1,), loras=["a"]), "^loras: must be a tuple of Lora"),
        (lambda: Request(prompt=(1,), control_vectors=(Lora("a"),)), "^control_vectors: must be a tuple of ControlVector"),
        (lambda: adapters("loras", "a.gguf", Lora), "^loras: must be a list"),
        (lambda: adapters("loras", ("a.gguf", 0.5), Lora), "^loras: one pair still goes into a list"),
        (lambda: adapters("loras", [5], Lora), "^loras: 5 is no path"),
        (lambda: adapters("loras", [("a", 1, 2)], Lora), "^loras: .* is no path, no"),
    ],
)
def test_wrong_adapters_are_errors_with_the_options_name(make, message):
    with pytest.raises(InvalidRequestError, match=message):
        make()


def test_layers_that_the_model_does_not_have_are_an_error(engine_for, control_for):
    engine = engine_for("qwen3")
    for wrong in ({"layer_first": 4}, {"layer_last": 4}):
        with pytest.raises(InvalidRequestError, match="^control_vectors: .* is beyond 3"):
            engine.generate(request(engine, control_vectors=(ControlVector(control_for("qwen3"), **wrong),)))


def test_an_option_may_be_paths_pairs_or_adapters(tmp_path):
    given = adapters("loras", ["a", tmp_path, ("b", 0.5), ["c", 2], Lora("d", 3)], Lora)
    assert given == (Lora("a"), Lora(str(tmp_path)), Lora("b", 0.5), Lora("c", 2.0), Lora("d", 3.0))
    assert adapters("loras", None, Lora) == () == adapters("loras", [], Lora)
