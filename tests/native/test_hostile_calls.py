"""Wrong arguments at every function of liblocalllm: an error each time, and the process lives."""

from __future__ import annotations

import ctypes
import json
import random
import re

import pytest

from localllm.errors import ClosedError, InvalidRequestError, LocalLLMError
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Chat, Lora, Model, Parser, Sampler, Text, default_model_params
from localllm.native.library import load

OK, INVALID = localllm_h.LM_OK, localllm_h.LM_INVALID_ARGUMENT
# Those that return a status; lm_init takes NULL for the default folder of backends.
OTHERS = {"lm_abi_version", "lm_abort_if_set", "lm_init", "lm_last_error", "lm_layout_json", "lm_log_pending", "lm_string_free"}
FUNCTIONS = sorted(set(localllm_h.FUNCTIONS) - OTHERS - {"lm_log_set_level"})
HANDLE_FUNCTIONS = [name for name in FUNCTIONS if re.match("lm_(sampler|text|chat|parser|drafter|fit)_(?!create)", name)]


@pytest.fixture(scope="module")
def native():
    return load()


def zero(kind):
    return None if kind in (ctypes.c_char_p, ctypes.c_void_p) or hasattr(kind, "contents") else 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nulls_are_refused(native, name):
    _, kinds = localllm_h.FUNCTIONS[name]
    status = getattr(native, name)(*(zero(kind) for kind in kinds))
    assert status == INVALID, f"{name} gave {status}"
    assert native.lm_last_error()


@pytest.mark.parametrize("name", HANDLE_FUNCTIONS)
def test_pointers_that_are_no_handles_are_refused(native, name):
    _, kinds = localllm_h.FUNCTIONS[name]
    buffer = ctypes.create_string_buffer(4096)
    for wrong in (1, 0xDEADBEEF, ctypes.addressof(buffer), 2**64 - 8):
        arguments = [wrong, *(ctypes.cast(buffer, kind) if hasattr(kind, "contents") else zero(kind) for kind in kinds[1:])]
        assert getattr(native, name)(*arguments) == INVALID


def test_a_handle_of_another_kind_or_a_freed_one_is_refused(native, qwen3):
    text = Text(qwen3.model, {})
    pointer = text.pointer
    assert native.lm_sampler_free(pointer) == INVALID
    assert native.lm_text_free(pointer) == OK
    assert native.lm_text_free(pointer) == INVALID
    text._owned._finalizer.detach()


@pytest.mark.parametrize(
    "options",
    [
        "", "null", "[]", "3", '"x"', "{", '{"temperature": }', "\x00", '{"a": 1}', "[" * 100_000, '{"grammar":' + "[" * 10_000,
        '{"temperature": "hot"}', '{"temperature": -1}', '{"top_k": 1.5}', '{"top_k": 99999999999}',
        '{"seed": -1}', '{"seed": 4294967295}', '{"penalty_last_n": 2147483647}', '{"repeat_penalty": 0}',
        '{"dry_penalty_last_n": -1}', '{"samplers": ["nope"]}', '{"samplers": "top_k"}', '{"samplers": [1]}',
        '{"logit_bias": [[1]]}', '{"logit_bias": [[99999999, 1]]}', '{"logit_bias": [[-1, 1]]}', '{"logit_bias": {"1": 2}}',
        '{"logit_bias": [["a", 1]]}', '{"mirostat": 7}', '{"grammar_kind": "x"}', '{"grammar": 5}',
        '{"grammar_lazy": true, "grammar": "root ::= \\"a\\""}', '{"grammar_triggers": [{}]}',
        '{"grammar_triggers": [{"type": "x", "value": "y"}]}', '{"preserved_tokens": 5}', '{"ignore_eos": 1}',
    ],
)  # fmt: skip
def test_wrong_sampler_options_name_the_field(native, qwen3, options):
    out = localllm_h.lm_sampler_p()
    status = native.lm_sampler_create(qwen3.model.pointer, options.encode(), ctypes.byref(out))
    assert status != OK and out.value is None
    message = native.lm_last_error().decode()
    try:
        fields = list(json.loads(options))
    except (ValueError, TypeError, RecursionError):
        fields = []
    if fields and isinstance(json.loads(options), dict):
        assert any(field in message for field in fields), message


@pytest.mark.parametrize(
    "grammar",
    [
        "root", "root ::= nothing", 'x ::= "a"', 'root ::= "a', "root ::= (", "root ::= " + "(" * 100_000,
        "root ::= root", "root ::= root root", 'root ::= "a"{99999999999}', "root ::= [", "\x7f\x80",
    ],
)  # fmt: skip
def test_wrong_grammars_are_typed_errors(qwen3, grammar):
    with pytest.raises(LocalLLMError):
        Sampler(qwen3.model, {"grammar": grammar})


@pytest.mark.parametrize("text", [b"\xff", b'{"grammar": "\xff"}', b'{"\xc3\x28": 1}', b'{"samplers": ["\xed\xa0\x80"]}'])
def test_invalid_utf8_in_json_is_an_error(native, qwen3, text):
    out = localllm_h.lm_sampler_p()
    assert native.lm_sampler_create(qwen3.model.pointer, text, ctypes.byref(out)) == INVALID


def test_invalid_utf8_in_text_is_an_error_and_python_never_sends_any(native, qwen3):
    data = b"a\xffb\xc3(\xed\xa0\x80\xf4\x90\x80\x80"
    tokens = (ctypes.c_int32 * 64)()
    count = ctypes.c_int32(64)
    assert native.lm_tokenize(qwen3.model.pointer, data, len(data), False, True, tokens, ctypes.byref(count)) == INVALID
    assert qwen3.model.tokenize("a\ud800b", False, True) == qwen3.model.tokenize("a?b", False, True)


def test_token_buffers_that_are_too_small_say_how_much_is_needed(native, qwen3):
    data = b"What is the capital of France? " * 20
    count = ctypes.c_int32(3)
    tokens = (ctypes.c_int32 * 3)()
    call = native.lm_tokenize
    assert call(qwen3.model.pointer, data, len(data), False, True, tokens, ctypes.byref(count)) == INVALID
    assert count.value == len(qwen3.model.tokenize(data.decode(), False, True)) > 3
    count.value = -5
    assert call(qwen3.model.pointer, data, len(data), False, True, tokens, ctypes.byref(count)) == INVALID
    assert call(qwen3.model.pointer, data, 2**40, False, True, tokens, ctypes.byref(ctypes.c_int32(3))) == INVALID


@pytest.mark.parametrize("token", [-1, 10**6, 2**31 - 1, -(2**31)])
def test_tokens_outside_the_vocabulary_are_refused(qwen3, token):
    with pytest.raises(InvalidRequestError):
        qwen3.model.detokenize([1, token], special=True)
    with pytest.raises(InvalidRequestError):
        Text(qwen3.model, {}).push(token)
    with pytest.raises(InvalidRequestError):
        Sampler(qwen3.model, {}).accept([token], generated=True)


def test_wrong_batches_are_refused_before_they_reach_llama(native, qwen3):
    context = qwen3._core.runner.context.pointer
    token = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    embd = (ctypes.c_float * 4)()
    for batch in (
        llama_h.llama_batch(n_tokens=0, token=token),
        llama_h.llama_batch(n_tokens=-1, token=token),
        llama_h.llama_batch(n_tokens=2**31 - 1, token=token),
        llama_h.llama_batch(n_tokens=1),
        llama_h.llama_batch(n_tokens=1, token=token, embd=embd),
        llama_h.llama_batch(n_tokens=1, token=(ctypes.c_int32 * 1)(10**6)),
        llama_h.llama_batch(n_tokens=1, token=(ctypes.c_int32 * 1)(-1)),
    ):
        assert native.lm_decode(context, ctypes.byref(batch)) == INVALID


def test_outputs_that_were_never_computed_are_refused(native, engine_for):
    engine = engine_for("qwen3", parallel=1)
    sampler = Sampler(engine.model, {})
    out = ctypes.c_int32()
    for index in (-1, 0, 7, 2**31 - 1, -(2**31)):
        status = native.lm_sampler_sample(sampler.pointer, engine._core.runner.context.pointer, index, ctypes.byref(out))
        assert status == INVALID


def test_rows_with_wrong_fields_fail_alone(native, engine_for):
    engine = engine_for("qwen3", parallel=2)
    context = engine._core.runner.context.pointer
    batch = llama_h.llama_batch(n_tokens=1, token=(ctypes.c_int32 * 1)(5))
    assert native.lm_decode(context, ctypes.byref(batch)) == OK
    sampler = Sampler(engine.model, {"temperature": 0})
    tokens = (ctypes.c_int32 * 1)()
    good = localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, index=0, max_tokens=1)
    bad = [
        localllm_h.lm_row(),
        localllm_h.lm_row(sampler=0xDEAD, tokens=tokens, max_tokens=1),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, index=3, max_tokens=1),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, max_tokens=0),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, max_tokens=1, n_draft=-1),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, max_tokens=1, n_draft=5),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, max_tokens=1, n_top=5),
        localllm_h.lm_row(sampler=sampler.pointer, tokens=tokens, max_tokens=1, text=0xDEAD),
    ]
    pointer = ctypes.POINTER(localllm_h.lm_row)
    rows = (pointer * (len(bad) + 1))(*map(ctypes.pointer, [*bad, good]))
    assert native.lm_step(context, rows, len(rows)) == OK
    assert all(row.status == INVALID and row.error for row in bad)
    assert (good.status, good.n_tokens, good.max_tokens) == (OK, 1, 0)
    assert native.lm_step(context, rows, -1) == INVALID
    assert native.lm_step(context, (pointer * 2)(), 2) == INVALID
    assert native.lm_run(context, ctypes.byref(llama_h.llama_batch()), rows, len(rows)) == INVALID


@pytest.mark.parametrize(
    "template",
    ["{{", "{% if %}", "{% for x in y %}", "{{ raise_exception('no') }}", "{% endfor %}"],
)
def test_broken_templates_are_typed_errors(template):
    with pytest.raises(LocalLLMError):
        Chat(None, template).apply({"messages": [{"role": "user", "content": "x"}]})


@pytest.mark.parametrize(
    "request_text",
    [
        {}, {"messages": []}, {"messages": 3}, {"messages": [3]}, {"messages": [{}]}, {"messages": [{"role": 5, "content": "x"}]},
        {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": {"a": 1}}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {"nonsense": 1},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "tool_choice": "maybe"},
        {"messages": [{"role": "user", "content": "x"}], "continue_final_message": "maybe"},
        {"messages": [{"role": "user", "content": "x"}], "reasoning_format": "x"},
    ],
)  # fmt: skip
def test_wrong_chat_requests_are_typed_errors(qwen3, request_text):
    with pytest.raises(LocalLLMError):
        Chat(qwen3.model).apply(request_text)


@pytest.mark.parametrize(
    "options", [{"format": 99}, {"format": -1}, {"arena": "not json"}, {"arena": "[[["}, {"x": 1}, {"reasoning_format": "x"}]
)
def test_wrong_parsers_are_typed_errors(options):
    with pytest.raises(LocalLLMError):
        Parser(options)


@pytest.mark.parametrize("schema", ["", "[", '{"type": "nothing"}', '{"$ref": "#/nowhere"}'])
def test_wrong_schemas_are_typed_errors(native, schema):
    with pytest.raises(LocalLLMError):
        native.string_call("lm_schema_to_grammar", schema.encode())


def test_random_bytes_as_options_never_end_the_process(native, qwen3):
    random.seed(7)
    seeds = [b'{"temperature": 0.5, "grammar": "root ::= \\"a\\"", "logit_bias": [[1, 2]]}', b'{"stop": ["x"], "special": true}']
    for _ in range(2000):
        data = bytearray(random.choice(seeds))
        for _ in range(random.randint(1, 6)):
            data[random.randrange(len(data))] = random.randrange(1, 256)
        for create, free, kind in (
            (native.lm_sampler_create, native.lm_sampler_free, localllm_h.lm_sampler_p),
            (native.lm_text_create, native.lm_text_free, localllm_h.lm_text_p),
        ):
            out = kind()
            if create(qwen3.model.pointer, bytes(data), ctypes.byref(out)) == OK:
                assert free(out) == OK


def test_wrong_steering_is_refused_and_leaves_the_context_as_it_is(native, engine_for, builder, makers):
    engine = engine_for("qwen3", parallel=1)
    context, model = engine._core.runner.context.pointer, engine.model
    lora = Lora(model, str(builder.save("sound-lora", makers.lora(builder.load("qwen3")))))
    other = Lora(engine_for("qwen3").model, str(builder.save("sound-lora", makers.lora(builder.load("qwen3")))))
    data = model.control_vector(str(builder.save("sound-control", makers.control(builder.load("qwen3")))))
    values = ctypes.cast(data, ctypes.POINTER(ctypes.c_float))
    nan, control = float("nan"), localllm_h.lm_control

    def steer(pointers, scales, controls):
        return native.lm_steer(
            context,
            (llama_h.llama_adapter_lora_p * len(pointers))(*pointers),
            (ctypes.c_float * len(scales))(*scales),
            len(pointers),
            (control * len(controls))(*controls),
            len(controls),
        )

    for pointers, scales in (([0], [1]), ([0xDEAD], [1]), ([other.pointer], [1]), ([lora.pointer], [nan])):
        assert steer(pointers, scales, []) == INVALID
    for layers in ((0, 3), (1, 4), (3, 2), (-1, -1), (1, 2**31 - 1)):
        assert steer([], [], [control(values, 1.0, *layers)]) == INVALID
    assert steer([lora.pointer], [1], [control(None, 1.0, 1, 3)]) == INVALID
    assert steer([lora.pointer], [1], [control(values, nan, 1, 3)]) == INVALID
    assert native.lm_steer(context, None, None, -1, None, 0) == INVALID
    assert native.lm_steer(context, None, None, 1, None, 0) == INVALID
    assert native.lm_steer(context, None, None, 0, None, 1) == INVALID
    assert steer([lora.pointer], [1], [control(values, 1.0, 1, 3)]) == OK
    assert native.lm_steer(context, None, None, 0, None, 0) == OK
    size = ctypes.c_size_t(3)
    path = str(builder.save("sound-control", makers.control(builder.load("qwen3")))).encode()
    assert native.lm_control_load(model.pointer, path, (ctypes.c_float * 3)(), ctypes.byref(size)) == INVALID


def test_an_adapter_goes_with_its_model(models, builder, makers):
    model = Model(str(models["qwen3"]), default_model_params(load()))
    path = str(builder.save("sound-lora", makers.lora(builder.load("qwen3"))))
    kept, gone = Lora(model, path), Lora(model, path)
    pointer = gone.pointer
    gone.discard()
    with pytest.raises(ClosedError):
        gone.discard()
    for wrong in (pointer, 0xDEAD):
        assert model.native.lm_lora_free(model.pointer, wrong) == INVALID
    assert kept.pointer
    model.close()
    with pytest.raises(ClosedError):
        assert kept.pointer
