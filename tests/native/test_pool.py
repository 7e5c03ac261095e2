"""lm_embed, lm_rows_finish and lm_pool_info: what they give, and wrong arguments."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.library import load

OK, INVALID = localllm_h.LM_OK, localllm_h.LM_INVALID_ARGUMENT
WIDTH = 64


@pytest.fixture(scope="module")
def native():
    return load()


def batch(tokens, positions=None, sequences=None, **fields):
    """A llama_batch; what it points to lives as long as it."""
    n = len(tokens)
    ids = (ctypes.c_int32 * n)(*(sequences or [0] * n))
    pointers = (ctypes.POINTER(ctypes.c_int32) * n)(
        *(ctypes.cast(ctypes.addressof(ids) + 4 * at, ctypes.POINTER(ctypes.c_int32)) for at in range(n))
    )
    values = {
        "n_tokens": n,
        "token": (ctypes.c_int32 * n)(*tokens),
        "pos": (ctypes.c_int32 * n)(*(positions or range(n))),
        "n_seq_id": (ctypes.c_int32 * n)(*([1] * n)),
        "seq_id": pointers,
        "logits": (ctypes.c_int8 * n)(*([1] * n)),
    }
    values.update(fields)
    made = llama_h.llama_batch(**values)
    made._keep = (ids, values)
    return made


def piece(n_tokens=1, n_out=WIDTH, **fields):
    values = {"out": (ctypes.c_float * max(1, n_out))(), "n_out": n_out, "n_tokens": n_tokens, "pooling": 1, **fields}
    made = localllm_h.lm_piece(**values)
    made._keep = values
    return made


def embed(embedder, the_batch, *pieces, n_pieces=None):
    array = (localllm_h.lm_piece * max(1, len(pieces)))(*pieces)
    native, context = embedder.model.native, embedder._core.pooler.context.pointer
    status = native.lm_embed(context, ctypes.byref(the_batch), array, len(pieces) if n_pieces is None else n_pieces)
    rows = [entry.out[: entry.n_out] for entry in array[: len(pieces)]] if status == OK else []
    return status, rows, native.lm_last_error().decode(errors="replace")


def test_several_texts_and_poolings_in_one_call(embedder_for):
    embedder = embedder_for("bert")
    the_batch = batch([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [0, 0, 0, 3, 3])
    places = [{"first": 0, "n_tokens": 3}, {"first": 3, "n_tokens": 2}]
    status, (tokens, mean, cls, last, other), _ = embed(
        embedder,
        the_batch,
        piece(**places[0], pooling=0, n_out=3 * WIDTH),
        *(piece(**places[0], pooling=pooling) for pooling in (1, 2, 3)),
        piece(**places[1]),
    )
    assert status == OK
    rows = np.reshape(tokens, (3, WIDTH))
    np.testing.assert_allclose(mean, rows.mean(0), atol=1e-6)
    assert cls == rows[0].tolist() and last == rows[2].tolist() and other != mean


def test_a_mean_goes_on_over_batches(embedder_for):
    embedder = embedder_for("qwen3")
    out = (ctypes.c_float * WIDTH)()
    rows = []
    for first, tokens in ((0, [5, 6, 7]), (3, [8]), (4, [9, 10])):
        the_batch = batch(tokens, list(range(first, first + len(tokens))))
        n_all = first + len(tokens)
        status, (each, _), _ = embed(
            embedder,
            the_batch,
            piece(len(tokens), pooling=0, n_done=first, n_out=n_all * WIDTH),
            piece(len(tokens), n_done=first, out=out),
        )
        assert status == OK
        rows += np.reshape(each, (n_all, WIDTH))[first:].tolist()
    np.testing.assert_allclose(list(out), np.mean(rows, axis=0), atol=1e-6)


FLOATS = (ctypes.c_float * 64)()
WRONG_BATCHES = {
    "empty": {"n_tokens": 0},
    "negative": {"n_tokens": -1},
    "too long": {"n_tokens": 2**31 - 1},
    "no tokens": {"token": None},
    "embeddings": {"embd": FLOATS},
    "no positions": {"pos": None},
    "no sequences": {"seq_id": None},
    "no counts": {"n_seq_id": None},
    "several sequences": {"n_seq_id": (ctypes.c_int32 * 2)(1, 2)},
    "none": {"n_seq_id": (ctypes.c_int32 * 2)(1, 0)},
    "NULL sequence": {"seq_id": (ctypes.POINTER(ctypes.c_int32) * 2)()},
}


@pytest.mark.parametrize("name", ["bert", "qwen3"])
@pytest.mark.parametrize("fault", WRONG_BATCHES)
def test_wrong_batches_are_refused_before_they_reach_llama(embedder_for, name, fault):
    embedder = embedder_for(name)
    status, _, message = embed(embedder, batch([5, 6], **WRONG_BATCHES[fault]), piece(2))
    assert status == INVALID and message.startswith("batch:")
    assert embed(embedder, batch([5, 6]), piece(2))[0] == OK


@pytest.mark.parametrize("name", ["bert", "qwen3"])
@pytest.mark.parametrize("token", [-1, -(2**31), 392, 2**31 - 1])
@pytest.mark.parametrize("sequence", [-1, 64, 2**31 - 1])
def test_what_is_in_no_table_is_refused(embedder_for, name, token, sequence):
    embedder = embedder_for(name)
    assert embed(embedder, batch([5, token]), piece(2))[0] == INVALID
    assert embed(embedder, batch([5, 6], sequences=[0, sequence]), piece(1))[0] == INVALID
    assert embed(embedder, batch([5, 6], [0, -1]), piece(2))[0] == INVALID


def test_positions_end_with_the_table(embedder_for):
    embedder = embedder_for("bert")
    assert embed(embedder, batch([5, 6], [254, 255]), piece(2))[0] == OK
    for position in (256, 257, 2**31 - 1):
        status, _, message = embed(embedder, batch([5, 6], [0, position]), piece(2))
        assert status == INVALID and "of a model with 256" in message


def test_what_needs_one_micro_batch_and_is_longer_is_refused(embedder_for):
    embedder = embedder_for("bert", n_ubatch=32)
    assert embed(embedder, batch([5] * 32), piece(32))[0] == OK
    status, _, message = embed(embedder, batch([5] * 33), piece(33))
    assert status == INVALID and "33 tokens, the context takes 32 in one micro-batch" in message


def test_positions_that_do_not_follow_are_an_error_and_harm_nothing(embedder_for):
    embedder = embedder_for("qwen3")
    status, _, message = embed(embedder, batch([5, 6], [7, 3]), piece(2))
    assert status == INVALID and message.startswith("batch:")
    assert embed(embedder, batch([5, 6]), piece(2))[0] == OK


@pytest.mark.parametrize(
    "fields",
    [
        {"out": None}, {"n_out": 0}, {"n_out": WIDTH - 1}, {"n_tokens": 0}, {"n_tokens": -1}, {"n_tokens": 3},
        {"n_tokens": 2**31 - 1}, {"first": -1}, {"first": 1}, {"first": 2**31 - 1}, {"n_done": -1}, {"pooling": -1},
        {"pooling": 4}, {"pooling": 5}, {"pooling": 0, "n_out": 2 * WIDTH - 1}, {"pooling": 0, "n_done": 2**31 - 1},
    ],
)  # fmt: skip
def test_wrong_pieces_are_refused(embedder_for, fields):
    embedder = embedder_for("bert")
    assert embed(embedder, batch([5, 6]), piece(**{"n_tokens": 2, **fields}))[0] == INVALID


def test_pieces_of_two_sequences_and_wrong_numbers_of_pieces_are_refused(embedder_for):
    embedder = embedder_for("bert")
    assert embed(embedder, batch([5, 6], sequences=[0, 1]), piece(2))[0] == INVALID
    assert embed(embedder, batch([5, 6]), n_pieces=-1)[0] == INVALID
    assert embed(embedder, batch([5, 6]))[0] == OK
    context = embedder._core.pooler.context.pointer
    assert embedder.model.native.lm_embed(context, ctypes.byref(batch([5])), None, 1) == INVALID


def test_contexts_for_something_else_are_refused(embedder_for, engine_for):
    ranker = embedder_for("bert-reranker", rank=True)
    assert embed(ranker, batch([5, 6]), piece(2))[0] == INVALID
    assert embed(ranker, batch([5, 6]), piece(2, pooling=4, n_out=0))[0] == INVALID
    assert embed(ranker, batch([5, 6]), piece(2, pooling=4, n_out=1))[0] == OK
    engine = engine_for("qwen3", parallel=1)
    array = (localllm_h.lm_piece * 1)(piece(2))
    context = engine._core.runner.context.pointer
    assert engine.model.native.lm_embed(context, ctypes.byref(batch([5, 6])), array, 1) == INVALID
    assert "without embeddings" in engine.model.native.lm_last_error().decode()


def test_a_row_that_is_no_number_is_marked_and_the_others_are_not(builder, embedder_for):
    embedder = embedder_for(builder.hostile(groups=("odd",))["weights-nan"], n_ctx=256)
    pieces = (localllm_h.lm_piece * 1)(piece(2))
    native, context = embedder.model.native, embedder._core.pooler.context.pointer
    assert native.lm_embed(context, ctypes.byref(batch([5, 6])), pieces, 1) == OK
    assert pieces[0].status == localllm_h.LM_DECODE_FAILED


# ---- rows


def finish(native, values, n_rows, n_from, n_to, normalize):
    rows = (ctypes.c_float * len(values))(*values)
    return native.lm_rows_finish(rows, n_rows, n_from, n_to, normalize), list(rows)


def test_rows_are_cut_and_made_unit_length(native):
    assert finish(native, [3, 4, 5, 6, 8, 9], 2, 3, 2, True) == (OK, pytest.approx([0.6, 0.8, 0.6, 0.8, 8, 9]))
    assert finish(native, [3, 4, 5, 6, 8, 9], 2, 3, 1, False)[1][:2] == [3, 6]
    assert finish(native, [1, 2, 3], 1, 3, 3, False)[1] == [1, 2, 3]


def test_a_zero_row_stays_zero_and_extremes_keep_their_direction(native):
    assert finish(native, [0.0, -0.0, 1, 0], 2, 2, 2, True)[1] == [0, 0, 1, 0]
    for size in (1e-38, 1e38, 1.4e-45, 3.4e38):
        _, row = finish(native, [size, size], 1, 2, 2, True)
        assert row == pytest.approx([math.sqrt(0.5)] * 2)


def test_wrong_sizes_of_rows_are_refused(native):
    for n_from, n_to in ((2, 0), (2, 3), (0, 0), (-1, -2), (2, -1)):
        assert finish(native, [1, 2], 1, n_from, n_to, True)[0] == INVALID
    assert native.lm_rows_finish(None, 1, 1, 1, True) == INVALID
    assert finish(native, [1, 2], 0, 2, 1, True) == (OK, [1, 2])


# ---- heads


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bert", {"outputs": 1, "width": 0, "labels": [], "softmax": False, "positions": 256}),
        ("bert-reranker", {"outputs": 1, "width": 1, "labels": ["LABEL_0"], "softmax": False, "positions": 256}),
        ("bert-classifier", {"outputs": 3, "width": 3, "labels": ["no", "maybe", "yes"], "softmax": False, "positions": 256}),
        ("qwen3-reranker", {"outputs": 2, "width": 2, "labels": ["yes", "no"], "softmax": True, "positions": 0}),
    ],
)
def test_what_a_head_is(embedder_for, name, wanted):
    embedder = embedder_for(name)
    assert embedder.model.native.json_call("lm_pool_info", embedder.model.pointer) == wanted
