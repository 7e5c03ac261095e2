"""States that a caller saves and loads."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm import Engine, LocalModel, Request, SamplingParams
from localllm.engine.cache.saved import pack, unpack
from localllm.errors import InvalidRequestError, StateError

PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
NAMES = ["qwen3", "gemma3", "mamba2", "qwen35"]
TEXT = "the quick brown fox jumps over the lazy dog " * 6


def request(engine: Engine, text: str = TEXT, **options) -> Request:
    return Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=12, sampling=PROBED, **options)


@pytest.mark.parametrize("name", NAMES)
def test_another_engine_goes_on_from_a_saved_state(engine_for, name, assert_same_greedy):
    first, second = engine_for(name), engine_for(name)
    cold = engine_for(name, prefix_cache=False)
    asked = request(first)
    data = first.save_state(asked)
    assert second.load_state(data) == asked.prompt
    onward = Request(prompt=(*asked.prompt, 5, 6, 7), max_tokens=12, sampling=PROBED)
    answer = second.generate(onward)
    assert answer.usage.cached_tokens == len(asked.prompt)
    assert_same_greedy(cold.generate(onward).logprobs, answer.logprobs)


@pytest.mark.parametrize("name", NAMES)
def test_saving_computes_nothing_twice_and_holds_nothing_else(engine_for, name):
    engine = engine_for(name)
    asked = request(engine)
    cold = engine.save_state(asked)
    assert engine.stats().computed_tokens == len(asked.prompt)
    answer = engine.generate(asked)
    assert len(answer.tokens) == 12
    warm = engine.save_state(asked)
    assert engine.stats().computed_tokens < 2 * len(asked.prompt), "only the last token again, or what has no checkpoint"
    # The answer that stands in the same slot is not part of it.
    assert abs(len(warm) - len(cold)) < len(cold) * 0.02


def test_a_state_is_taken_while_others_stream(engine_for, assert_same_greedy):
    engine, cold = engine_for("qwen3", n_ctx=2048), engine_for("qwen3", n_ctx=2048, prefix_cache=False)
    streams = [engine.stream(Request(prompt=(9, at), max_tokens=200, sampling=PROBED)) for at in range(3)]
    for stream in streams:
        next(stream)
    asked = request(engine)
    data = engine.save_state(asked)
    given = [[entry for event in stream if hasattr(event, "logprobs") for entry in event.logprobs] for stream in streams]
    assert engine_for("qwen3").load_state(data) == asked.prompt
    for at, logprobs in enumerate(given):
        expected = cold.generate(Request(prompt=(9, at), max_tokens=200, sampling=PROBED)).logprobs
        assert_same_greedy(expected[1:], logprobs)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"type_k": "f32", "type_v": "f32"}, "type_k"),
        ({"flash_attention": "off"}, "flash_attention"),
        ({"rope_freq_base": 5000.0}, "rope_freq_base"),
    ],
)
def test_another_context_is_named(engine_for, options, name):
    engine = engine_for("qwen3")
    data = engine.save_state(request(engine))
    other = engine_for("qwen3", **options)
    with pytest.raises(StateError, match=f"its {name} is"):
        other.load_state(data)
    assert other.stats().n_resident == 0


def test_replaced_metadata_belongs_to_a_state(models):
    """What the file says was replaced, so it computes something else, although the file is the same."""
    plain = LocalModel(models["qwen3"], n_ctx=512, n_threads=1)
    other = LocalModel(models["qwen3"], n_ctx=512, n_threads=1, metadata_overrides={"qwen3.rope.freq_base": 5000.0})
    data = plain.save_state(TEXT)
    with pytest.raises(StateError, match="its metadata_overrides is ''"):
        other.load_state(data)
    assert (
        plain.complete(TEXT, sampling=PROBED, max_tokens=2).logprobs
        != other.complete(TEXT, sampling=PROBED, max_tokens=2).logprobs
    )


def test_a_context_whose_length_changes_the_positions_belongs_to_a_state(engine_for, builder):
    recipe = builder.load("qwen3")
    recipe = {**recipe, "metadata": {**recipe["metadata"], "qwen3.rope.scaling.original_context_length": ["uint32", 256]}}
    path = builder.save("qwen3-long-rope", recipe)
    short, also, long = (engine_for(path, n_ctx=n) for n in (128, 256, 512))
    data = short.save_state(request(short))
    assert also.load_state(data)
    with pytest.raises(StateError, match="its n_ctx is 'up to 256', here it is 'more than 256'"):
        long.load_state(data)


def test_another_model_is_named(engine_for):
    engine = engine_for("qwen3")
    with pytest.raises(StateError, match="its model is"):
        engine_for("qwen3moe").load_state(engine.save_state(request(engine)))


def test_adapters_belong_to_a_state(engine_for, builder, makers):
    from localllm import Lora

    engine = engine_for("qwen3")
    lora = Lora(str(builder.save("saved-lora", makers.lora(builder.load("qwen3")))))
    asked = request(engine, loras=(lora,))
    data = engine.save_state(asked)
    with pytest.raises(StateError, match="its adapters is"):
        engine.load_state(data)
    other = engine_for("qwen3")
    other.load_state(data, asked)
    assert other.generate(request(engine, TEXT + " and", loras=(lora,))).usage.cached_tokens >= len(asked.prompt) - 2
    assert other.generate(request(engine, TEXT + " and")).usage.cached_tokens == 0


def test_damaged_bytes_are_refused_and_change_nothing(engine_for):
    engine = engine_for("qwen3")
    data = engine.save_state(request(engine))
    other = engine_for("qwen3")
    for at in (0, 5, 9, 20, 50, 70, 200, len(data) // 2, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(StateError):
            other.load_state(bytes(broken))
    for length in (0, 1, 10, 43, 44, 63, 64, 100, len(data) - 1):
        with pytest.raises(StateError):
            other.load_state(data[:length])
    stats = other.stats()
    assert (stats.n_resident, stats.n_cells_used) == (0, 0)
    assert len(other.load_state(data)) > 0


def test_a_sound_envelope_around_nonsense_is_refused(engine_for):
    engine = engine_for("qwen3")
    facts = engine._core.state_facts(engine._core.steering(request(engine)))
    for body in (b"\x00" * 100, bytes(range(256)) * 20, struct.pack("<16I", *[2**32 - 1] * 16)):
        with pytest.raises(StateError, match=r"llama\.cpp refuses"):
            engine.load_state(pack(facts, (5, 6, 7), body, False))
    assert (engine.stats().n_resident, engine.stats().n_cells_used) == (0, 0)
    assert len(engine.generate(request(engine)).tokens) == 12


def test_without_room_it_is_refused(engine_for):
    engine = engine_for("qwen3")
    data = engine.save_state(request(engine))
    with pytest.raises(StateError, match="raise n_ctx"):
        engine_for("qwen3", n_ctx=32).load_state(data)
    off = engine_for("qwen3", prefix_cache=False)
    with pytest.raises(StateError, match="prefix_cache"):
        off.load_state(data)
    with pytest.raises(StateError, match="prefix_cache"):
        off.save_state(request(off))
    busy = engine_for("qwen3", n_ctx=len(request(engine).prompt) + 40, parallel=2)
    # An answer without end, which holds more than 40 cells at any time.
    stream = busy.stream(Request(prompt=(5,) * 60, context_shift=50, sampling=PROBED))
    next(stream)
    with pytest.raises(StateError, match="leave no room"):
        busy.load_state(data)
    assert next(stream).tokens
    stream.close()


def test_a_conversation_goes_on_in_another_model_object(models, tmp_path):
    file = tmp_path / "talk.state"
    messages = [{"role": "system", "content": "the quick brown fox " * 12}, {"role": "user", "content": "one two three"}]
    with LocalModel(models["qwen3"], n_ctx=512, n_threads=1) as model:
        data = model.save_state(messages, file)
        assert file.read_bytes() == data and [path.name for path in tmp_path.iterdir()] == ["talk.state"]
        n_prompt = model.chat(messages, max_tokens=1).usage.prompt_tokens
    with LocalModel(models["qwen3"], n_ctx=512, n_threads=1, parallel=2) as other:
        assert other.load_state(file) == n_prompt == other.load_state(data)
        assert other.chat(messages, max_tokens=2, temperature=0).usage.cached_tokens == n_prompt - 1
        with pytest.raises(FileNotFoundError):
            other.load_state(tmp_path / "none")
        assert other.load_state(other.save_state("one two three")) == len(other.tokenize("one two three", add_special=True))


@pytest.mark.parametrize("state", [None, 5, "a\0b", 1.5, []])
def test_what_is_no_state_is_named(models, state):
    model = LocalModel(models["qwen3"], n_ctx=512, n_threads=1)
    with pytest.raises(InvalidRequestError, match="^state:"):
        model.load_state(state)
    with pytest.raises(InvalidRequestError, match="^path:"):
        model.save_state("one two three", state or b"")
    assert model.load_state(memoryview(model.save_state("one two three"))) > 0


def forged(content: bytes) -> bytes:
    """A state with a right checksum around any content."""
    return struct.pack("<8sI32s", b"LMSAVED\x00", 1, hashlib.blake2b(content, digest_size=32).digest()) + content


FACTS = b'{"a": 1, "exact": false}'
FORGED = {
    "lengths beyond the end": struct.pack("<IQQ", 2**32 - 1, 2**63, 2**64 - 1),
    "more ids than there are": struct.pack("<IQQ", len(FACTS), 1000, 0) + FACTS,
    "less than there is": struct.pack("<IQQ", len(FACTS), 0, 0) + FACTS + b"more",
    "facts that are no UTF-8": struct.pack("<IQQ", 2, 0, 0) + b"\xff\xfe",
    "facts that are no JSON": struct.pack("<IQQ", 2, 0, 0) + b"{]",
    "facts that are no object": struct.pack("<IQQ", 3, 0, 0) + b"[1]",
    "deep facts": struct.pack("<IQQ", 200_000, 0, 0) + b"[" * 200_000,
    "huge number": struct.pack("<IQQ", 10_002, 0, 0) + b"[" + b"9" * 10_000 + b"]",
    "no word of exact": struct.pack("<IQQ", 8, 0, 0) + b'{"a": 1}',
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_states_are_refused(content):
    with pytest.raises(StateError, match="damaged"):
        unpack({"a": 1}, forged(content))


@pytest.mark.parametrize("ids", [(), (-1,), (5, 2**31 - 1)])
def test_ids_that_no_prompt_can_have_are_refused(engine_for, ids):
    engine = engine_for("qwen3")
    facts = engine._core.state_facts(engine._core.steering(request(engine)))
    with pytest.raises(StateError, match="not in the vocabulary"):
        engine.load_state(pack(facts, ids, b"\x00" * 100, False))
    with pytest.raises(StateError, match="llama.cpp refuses"):  # what could stand for a picture, with a state that is none
        engine.load_state(pack(facts, (-7,), b"\x00" * 100, False))
    assert (engine.stats().n_resident, engine.stats().n_cells_used) == (0, 0)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), st.binary(max_size=200), st.booleans())
def test_what_was_packed_is_unpacked(ids, body, exact):
    saved = unpack({"a": 1}, pack({"a": 1}, ids, body, exact))
    assert (saved.ids, bytes(saved.body), saved.exact) == (tuple(ids), body, exact)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_typed_error(data):
    with pytest.raises(StateError):
        unpack({}, data)
    with pytest.raises(StateError):
        unpack({}, b"LMSAVED\x00\x01\x00\x00\x00" + data)
