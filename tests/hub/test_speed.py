"""The expected speed of a model, from invented rates."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import InvalidRequestError, LocalLLMError, StateError
from localllm.hub.gguf import Header, read_header
from localllm.hub.gguf_parse import TENSOR_TYPES, TensorInfo
from localllm.hub.speed import Rates, TypeRate, expected, longest_share, repacked_share

TINY = 1e-20  # of what does not matter in a test
BLOCKS = {name: (values, n_bytes) for name, values, n_bytes in TENSOR_TYPES.values()}


def rates(*types: TypeRate, layer=TINY, attention=TINY, batch_attention=TINY, a_pass=TINY) -> Rates:
    return Rates(types or (TypeRate("Q4_0", True, 100.0, 10.0),), layer, attention, batch_attention, a_pass, n_threads=2)


def tensor(name: str, *shape: int, kind: str = "Q4_0") -> TensorInfo:
    n = 1
    for size in shape:
        n *= size
    values, n_bytes = BLOCKS[kind]
    return TensorInfo(name, shape, kind, n // values * n_bytes, 0)


def model(*tensors: TensorInfo, **keys) -> Header:
    usual = {"block_count": 1, "embedding_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1}
    own = {f"llama.{key.replace('__', '.')}": value for key, value in {**usual, **keys}.items()}
    return Header("m.gguf", 3, {"general.architecture": "llama", **own}, tensors, 0, 0)


MATRIX = tensor("blk.0.ffn_up.weight", 64, 128)  # 8,192 weights, 4,608 bytes
TABLE = tensor("token_embd.weight", 64, 320)  # 20,480 weights, 11,520 bytes


def test_matrices_alone_take_their_products_and_their_bytes():
    speed = expected(model(MATRIX), rates())
    assert speed.prefill_tokens_per_second == pytest.approx(100 / (2 * 8192))
    assert speed.decode_tokens_per_second == pytest.approx(10 / 4608)


@pytest.mark.parametrize("output", [tensor("output.weight", 64, 320), None], ids=["its own", "tied"])
def test_the_output_matrix_is_for_the_last_token_of_a_prompt_and_for_each_of_the_answer(output):
    header = model(MATRIX, TABLE, *([output] if output else []))
    speed = expected(header, rates(), n_tokens=256)
    assert 1 / speed.prefill_tokens_per_second == pytest.approx(2 * 8192 / 100 + 11520 / 10 / 256)
    assert 1 / speed.decode_tokens_per_second == pytest.approx((4608 + 11520) / 10)


@pytest.mark.parametrize(
    "other",
    [
        tensor("per_layer_token_embd.weight", 64, 320),
        tensor("position_embd.weight", 64, 320),
        tensor("blk.0.attn_norm.weight", 64, kind="F32"),
        tensor("blk.0.ffn_up.bias", 128, kind="F32"),
    ],
    ids=lambda one: one.name,
)
def test_what_is_only_looked_up_or_small_costs_nothing(other):
    assert expected(model(MATRIX, other), rates()) == expected(model(MATRIX), rates())


def test_of_experts_those_count_that_a_token_uses():
    experts = tensor("blk.0.ffn_down_exps.weight", 64, 128, 8)
    sparse = expected(model(experts, expert_count=8, expert_used_count=2), rates())
    dense = expected(model(dataclasses.replace(experts, name="blk.0.ffn_down.weight")), rates())
    assert sparse.prefill_tokens_per_second == pytest.approx(4 * dense.prefill_tokens_per_second)
    assert sparse.decode_tokens_per_second == pytest.approx(4 * dense.decode_tokens_per_second)


def test_layers_that_predict_further_tokens_do_not_count():
    more = tensor("blk.1.ffn_up.weight", 64, 128)
    with_head = expected(model(MATRIX, more, block_count=2, nextn_predict_layers=1), rates())
    assert with_head == expected(model(MATRIX), rates())


def test_attention_grows_with_the_prompt_and_other_costs_do_not():
    header = model(MATRIX)  # 2 heads of 32
    measured = rates(attention=1.0, batch_attention=0.5)
    for n_tokens, cells, share in ((100, 50, 50), (512, 256, 384), (1024, 512, 640)):
        speed = expected(header, measured, n_tokens=n_tokens)
        assert 1 / speed.prefill_tokens_per_second == pytest.approx(2 * 8192 / 100 + 0.5 * 64 * cells)
        assert 1 / speed.decode_tokens_per_second == pytest.approx(460.8 + 64 * share)


@pytest.mark.parametrize(
    ("n_cells", "n_threads", "share"),
    [
        *(
            (100, 1, 100),
            (100, 4, 25),
            (255, 2, 127.5),
            (256, 2, 256),
            (511, 2, 256),
            (512, 2, 384),
            (600, 2, 384),
            (767, 2, 384),
        ),
        *((512, 1, 512), (4096, 8, 544), (0, 2, 0)),
    ],
)
def test_the_busiest_thread_has_its_part_of_the_whole_cache(n_cells, n_threads, share):
    assert longest_share(n_cells, n_threads) == share


def test_a_layer_has_its_fixed_cost_once_for_a_batch_and_its_passes_for_each_token():
    speed = expected(model(MATRIX), rates(layer=51.2, a_pass=2.0), n_tokens=512)
    assert 1 / speed.decode_tokens_per_second == pytest.approx(460.8 + 51.2)
    assert 1 / speed.prefill_tokens_per_second == pytest.approx(163.84 + 0.1 + 2.0 * (2 * 64 + 128))


def test_types_that_were_not_measured_are_taken_for_the_nearest_and_named():
    measured = rates(TypeRate("Q8_0", False, 1.0, 1.0), TypeRate("Q4_0", True, 100.0, 10.0), TypeRate("IQ4_XS", False, 3.0, 3.0))
    q41 = expected(model(tensor("blk.0.ffn_up.weight", 64, 128, kind="Q4_1")), measured)
    assert q41.assumed == (("Q4_1", "Q4_0"),)
    assert q41.prefill_tokens_per_second == pytest.approx(100 / (2 * 8192))
    assert expected(model(MATRIX), measured).assumed == ()
    assert measured.nearest("F32").type == "Q8_0" and measured.nearest("IQ4_NL").type in ("IQ4_XS", "Q4_0")


@pytest.mark.parametrize("n_tokens", [0, -1, True, 1.5, "many"])
def test_a_wrong_length_is_refused(n_tokens):
    with pytest.raises(InvalidRequestError, match="^n_tokens: "):
        expected(model(MATRIX), rates(), n_tokens=n_tokens)


def test_a_header_without_matrices_is_refused(models):
    with pytest.raises(InvalidRequestError, match="no matrices"):
        expected(read_header(models["qwen3-vocab-only"]), rates())


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "qwen35", "gemma3", "gemma4", "gpt2", "lfm2", "mamba2", "bert"])
def test_every_kind_of_model_has_a_speed(models, name):
    speed = expected(read_header(models[name]), rates(layer=1e-6, attention=1e-9, batch_attention=1e-10, a_pass=1e-9))
    assert 0 < speed.decode_tokens_per_second < speed.prefill_tokens_per_second * 1e6
    assert speed.seconds(512, 128) == pytest.approx(512 / speed.prefill_tokens_per_second + 128 / speed.decode_tokens_per_second)


def test_the_share_that_is_repacked_counts_bytes_of_matrices():
    odd = tensor("blk.0.attn_k.weight", 64, 12)  # rows that make no group of eight
    other = tensor("blk.0.attn_q.weight", 64, 128, kind="Q8_0")
    header = model(MATRIX, odd, other)
    whole = MATRIX.n_bytes + odd.n_bytes + other.n_bytes
    assert repacked_share(header, frozenset({"Q4_0"})) == pytest.approx(MATRIX.n_bytes / whole)
    assert repacked_share(header, frozenset()) == repacked_share(model(), frozenset({"Q4_0"})) == 0


WHOLE = rates(TypeRate("Q4_0", True, 1e11, 1e10), TypeRate("F32", False, 5e10, 2e10), layer=1e-5)


def test_rates_survive_as_text():
    assert Rates.from_json(WHOLE.to_json()) == WHOLE
    assert WHOLE.repacked == {"Q4_0"}


def damaged(**changes) -> str:
    return json.dumps({**json.loads(WHOLE.to_json()), **changes})


RATE = {"type": "Q4_0", "repacked": True, "flops_per_second": 1.0, "bytes_per_second": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "3", "[" * 100_000, '{"version": 1}', " " * (1 << 21)),
        damaged(version=1),
        damaged(more=1),
        damaged(types=[]),
        damaged(types=[RATE, RATE]),
        damaged(types=[{**RATE, "type": "Q9_9"}]),
        damaged(types=[{**RATE, "repacked": 1}]),
        damaged(types=[{**RATE, "flops_per_second": 0}]),
        damaged(types=[{**RATE, "bytes_per_second": "fast"}]),
        damaged(types=[{**RATE, "type": ["Q4_0"]}]),
        *(damaged(layer_seconds=value) for value in (0, -1, None, True, float("nan"), float("inf"), 10**400)),
        *(damaged(n_threads=value) for value in (0, 1.5, True, None)),
        damaged(cpu=None),
    ],
    ids=str.__hash__,
)
def test_damaged_rates_are_refused(text):
    with pytest.raises(StateError, match="measure them again"):
        Rates.from_json(text)


@given(st.text(max_size=200) | st.builds(lambda at, to: WHOLE.to_json()[:at] + to, st.integers(0, 400), st.text(max_size=5)))
def test_no_text_is_more_than_an_error(text):
    try:
        Rates.from_json(text)
    except LocalLLMError as error:
        assert isinstance(error, StateError)
