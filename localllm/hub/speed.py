"""How fast a model will be on a CPU, from its header and what was measured once of the machine: an estimate.

A prompt of n tokens takes, for each of its tokens,

    sum over the matrices of 2 * weights / flops_per_second(type)                  products, in batches of 512
    + sum over the layers of batch_attention_seconds * query values * n / 2        a token looks at those before it
    + sum over the layers of pass_seconds * (2 * width + inner width + heads)      norms, gates, sums
    + sum over the layers of (pass_seconds * state values + layer_seconds / 512)

and once the output matrix, for its last token. A token of the answer that follows it takes

    sum over the matrices of bytes / bytes_per_second(type)                        the output matrix among them
    + sum over the layers of attention_seconds * query values * share(n)           see `longest_share`
    + sum over the layers of (layer_seconds + 8 * state values / bytes_per_second(F32))

Of experts only those count that a token uses. `localllm.machine.rates` measures the constants; see localllm.h for what they are.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass, fields
from typing import Any

from localllm.errors import InvalidRequestError, StateError
from localllm.hub.geometry import MAX_LAYERS, Geometry, Layer, geometry
from localllm.hub.gguf import Header, per_layer
from localllm.hub.gguf_parse import TENSOR_TYPES, TensorInfo
from localllm.hub.options import check_whole
from localllm.hub.plain_json import parsed

BATCH_TOKENS = 512  # llama.cpp's micro-batch, for which rates are measured
_VERSION = 2
_MAX_JSON_CHARACTERS = 1 << 20
_LIMIT = 1e30  # of a rate; what no machine reaches
_BLOCKS = {name: (values, n_bytes) for name, values, n_bytes in TENSOR_TYPES.values()}
_BYTES_PER_VALUE = {name: n_bytes / values for name, (values, n_bytes) in _BLOCKS.items()}
# Tables of which rows are looked up; the first is the output matrix, too, where there is no other.
_EMBEDDING = "token_embd.weight"
_LOOKED_UP = (_EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
_OUTPUTS = ("output.weight", "cls.weight", "cls.output.weight")
_CELL_STEP, _SPLIT_CELLS = 256, 512
_REPACKED_ROWS = 8  # repack.cpp of the pinned source: rows come in groups of up to so many


@dataclass(frozen=True)
class TypeRate:
    """How fast matrices of one tensor type are multiplied.

    Attributes:
        type: str, e.g. "Q4_0".
        repacked: bool, llama.cpp keeps them in another order than the file's.
        flops_per_second: float, with a batch of 512 columns; two for each weight and column.
        bytes_per_second: float, of weights, with one column.
    """

    type: str
    repacked: bool
    flops_per_second: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if self.type not in _BYTES_PER_VALUE:
            raise InvalidRequestError(f"type: {self.type!r} is no tensor type")
        if not isinstance(self.repacked, bool):
            raise InvalidRequestError(f"repacked: {self.repacked!r} is neither true nor false")
        for name in ("flops_per_second", "bytes_per_second"):
            _require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Rates:
    """What was measured of a machine.

    Attributes:
        types: TypeRates, at least one.
        layer_seconds: float, of a layer, for one token, all but its matrices and its look back.
        attention_seconds: float, of one thread, for each value of a token's queries and each cell that it looks back at.
        batch_attention_seconds: float, the same for each token of a batch.
        pass_seconds: float, for each value of a batch that is normalized, scaled and added.
        n_threads: int, threads that it was measured with.
        cpu: str, what the CPU calls itself.
    """

    types: tuple[TypeRate, ...]
    layer_seconds: float
    attention_seconds: float
    batch_attention_seconds: float
    pass_seconds: float
    n_threads: int
    cpu: str = ""

    def __post_init__(self) -> None:
        if not self.types or len(self.by_type) != len(self.types):
            raise InvalidRequestError("types: must be at least one rate, and no more than one for each type")
        for name in ("layer_seconds", "attention_seconds", "batch_attention_seconds", "pass_seconds"):
            _require_positive(name, getattr(self, name))
        check_whole("n_threads", self.n_threads, 1)
        if not isinstance(self.cpu, str):
            raise InvalidRequestError(f"cpu: {self.cpu!r} is no text")

    @functools.cached_property
    def by_type(self) -> dict[str, TypeRate]:
        return {rate.type: rate for rate in self.types}

    @functools.cached_property
    def repacked(self) -> frozenset[str]:
        """The tensor types that llama.cpp repacks on this CPU."""
        return frozenset(rate.type for rate in self.types if rate.repacked)

    def nearest(self, type_name: str) -> TypeRate:
        """The rate of a type, or of the measured type with the most similar number of bytes for each value."""
        if found := self.by_type.get(type_name):
            return found
        size = _BYTES_PER_VALUE.get(type_name, 4.0)
        return min(
            self.types,
            key=lambda rate: (
                round(abs(math.log(_BYTES_PER_VALUE[rate.type] / size)), 2),
                rate.type.startswith("IQ") != type_name.startswith("IQ"),
                rate.type,
            ),
        )

    def to_json(self) -> str:
        """The rates as text, for `from_json`."""
        data = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "types"}
        types = [{field.name: getattr(rate, field.name) for field in fields(rate)} for rate in self.types]
        return json.dumps({"version": _VERSION, **data, "types": types}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Rates:
        """Rates from their text.

        Raises:
            StateError: It is damaged, or of another version.
        """
        try:
            if len(text) > _MAX_JSON_CHARACTERS:
                raise ValueError("too long")
            data = parsed(text)
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']!r}, this program knows {_VERSION}")
            types = tuple(TypeRate(**entry) for entry in data["types"])
            return cls(**{**{key: value for key, value in data.items() if key != "version"}, "types": types})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"these are no rates of a machine ({error}); measure them again") from error


@dataclass(frozen=True)
class Speed:
    """How fast a model is expected to be.

    Attributes:
        prefill_tokens_per_second: float, of the prompt.
        decode_tokens_per_second: float, of the answer.
        n_tokens: int, of the prompt that both hold for.
        assumed: (type, other type) for tensor types that were not measured, and were taken for another one.
    """

    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    n_tokens: int
    assumed: tuple[tuple[str, str], ...] = ()

    def seconds(self, n_prompt: int, n_answer: int) -> float:
        """How long a prompt and its answer take, in tokens of each."""
        return n_prompt / self.prefill_tokens_per_second + n_answer / self.decode_tokens_per_second


def expected(header: Header, rates: Rates, *, n_tokens: int = BATCH_TOKENS) -> Speed:
    """The speed of a model on the CPU, one sequence at a time.

    Args:
        header: Header of the model, with the tensors of all its files.
        rates: Rates.
        n_tokens: int, length of the prompt. Short ones take longer for each token than this says: rates are of whole batches.

    Raises:
        InvalidRequestError: The header has no matrices, or `n_tokens` is not at least 1.
    """
    check_whole("n_tokens", n_tokens, 1)
    work = _Work.of(header, rates)
    if not work.n_matrices:
        raise InvalidRequestError(f"header: {header.path} has no matrices to compute with")
    model, batch = geometry(header), min(n_tokens, BATCH_TOKENS)
    sizes = _Sizes.of(header, len(model.layers))
    prompt, answer = work.batch_seconds + work.output_seconds / n_tokens, work.token_seconds + work.output_seconds
    for at, layer in enumerate(model.layers):
        queries = sizes.query_values(layer, at)
        # llama.cpp's kernel skips whole blocks of cells that are masked.
        cells = _cells(model, layer, n_tokens / 2)
        prompt += rates.batch_attention_seconds * queries * cells + rates.layer_seconds / batch
        prompt += rates.pass_seconds * (sizes.passed_values(at) + layer.state_values)
        answer += rates.attention_seconds * queries * longest_share(_cells(model, layer, n_tokens), rates.n_threads)
        answer += rates.layer_seconds
        answer += 8 * layer.state_values / rates.nearest("F32").bytes_per_second
    return Speed(1 / prompt, 1 / answer, n_tokens, work.assumed)


def expected_other(header: Header, rates: Rates, type_name: str, *, n_tokens: int = BATCH_TOKENS) -> Speed:
    """The speed of another quantization of a model, of which no more is known than the type that most of it is made of.

    Args:
        header: Header of the quantization that is known.
        rates, n_tokens: see `expected`.
        type_name: str, the tensor type of the other one, e.g. "Q4_K".

    Raises:
        InvalidRequestError: `type_name` is no tensor type, or as for `expected`.
    """
    if type_name not in _BLOCKS:
        raise InvalidRequestError(f"type_name: {type_name!r} is no tensor type")
    tensors = tuple(_retyped(tensor, type_name) if _is_matrix(tensor, header) else tensor for tensor in header.tensors)
    return expected(dataclasses.replace(header, tensors=tensors), rates, n_tokens=n_tokens)


def _retyped(tensor: TensorInfo, type_name: str) -> TensorInfo:
    values, n_bytes = _BLOCKS[type_name]
    if tensor.type == "F32" or tensor.shape[0] % values:  # routers and the like stay as they are, and so does what has odd rows
        return tensor
    return dataclasses.replace(tensor, type=type_name, n_bytes=tensor.n_elements // values * n_bytes)


def repacked_share(header: Header, repacked: frozenset[str]) -> float:
    """The share of a model's matrices, by bytes, that the CPU repacks.

    Args:
        header: Header.
        repacked: tensor types, as of `Rates.repacked`.
    """
    used = [tensor for tensor in header.tensors if _is_matrix(tensor, header)]
    n_bytes = sum(tensor.n_bytes for tensor in used)
    return sum(tensor.n_bytes for tensor in used if is_repacked(tensor, repacked)) / n_bytes if n_bytes else 0.0


def is_repacked(tensor: TensorInfo, repacked: frozenset[str]) -> bool:
    """Whether the CPU repacks a matrix: of one of these types, and with a number of rows that goes into groups."""
    return tensor.type in repacked and len(tensor.shape) in (2, 3) and tensor.shape[1] % _REPACKED_ROWS == 0


@dataclass(frozen=True)
class _Work:
    """Seconds for the matrices: of a token in a batch, of one alone, and of the output matrix for one."""

    batch_seconds: float
    token_seconds: float
    output_seconds: float
    n_matrices: int
    assumed: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, header: Header, rates: Rates) -> _Work:
        batch = token = output = 0.0
        used = [tensor for tensor in header.tensors if _is_matrix(tensor, header)]
        has_output = any(tensor.name in _OUTPUTS for tensor in used)
        for tensor in used:
            if tensor.name == _EMBEDDING and has_output:
                continue
            rate = rates.nearest(tensor.type)
            share = _used_share(header, tensor)
            if tensor.name in _OUTPUTS or tensor.name == _EMBEDDING:
                output += tensor.n_bytes / rate.bytes_per_second
                continue
            batch += 2 * share * tensor.n_elements / rate.flops_per_second
            token += share * tensor.n_bytes / rate.bytes_per_second
        taken = {tensor.type: rates.nearest(tensor.type).type for tensor in used}
        assumed = tuple(sorted((name, other) for name, other in taken.items() if name != other))
        return cls(batch, token, output, len(used), assumed)


def _is_matrix(tensor: TensorInfo, header: Header) -> bool:
    if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or tensor.name in _LOOKED_UP[1:]:
        return False
    layer = _layer_of(tensor)
    first_nextn = header.block_count - header.n_layer_nextn
    return not header.n_layer_nextn or first_nextn == 0 or layer is None or layer < first_nextn


def _layer_of(tensor: TensorInfo) -> int | None:
    parts = tensor.name.split(".", 2)
    return int(parts[1]) if parts[0] == "blk" and len(parts) == 3 and parts[1].isdecimal() else None


def _used_share(header: Header, tensor: TensorInfo) -> float:
    """Of a tensor that holds experts side by side, the share that one token uses; 1.0 for all others."""
    if len(tensor.shape) < 3 or "_exps." not in tensor.name:
        return 1.0
    used = per_layer(header, "expert_used_count", 0, min(header.block_count, MAX_LAYERS))
    layer = _layer_of(tensor) or 0
    count = _count(used[layer]) if layer < len(used) else 0
    return min(1.0, count / tensor.shape[2]) if count else 1.0


def _cells(model: Geometry, layer: Layer, n_cells: float) -> float:
    return min(n_cells, model.window_tokens) if layer.is_windowed and model.window_tokens else n_cells


def longest_share(n_cells: float, n_threads: int) -> float:
    """How many cells the busiest thread looks back at for one token.

    Of a cache in whole 256s, from 512 cells on, each thread takes its part, whether or not something stands there (ops.cpp of the
    pinned source: use_split_kv_path); of a smaller one the heads are dealt among the threads.
    """
    padded = _CELL_STEP * math.ceil((n_cells + 1) / _CELL_STEP)
    return n_cells / n_threads if padded < _SPLIT_CELLS else min(n_cells, math.ceil(padded / n_threads))


@dataclass(frozen=True)
class _Sizes:
    """Widths of the layers, as far as they matter beside the matrices themselves."""

    n_embd: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    used_experts: tuple[int, ...]
    rows: dict[tuple[int, str], int]  # of each layer's matrices

    @classmethod
    def of(cls, header: Header, n_layers: int) -> _Sizes:
        def numbers(key: str) -> tuple[int, ...]:
            return tuple(map(_count, per_layer(header, key, 0, n_layers)))

        rows = {}
        for tensor in header.tensors:
            layer = _layer_of(tensor)
            if layer is not None and len(tensor.shape) > 1:
                rows[layer, tensor.name.split(".")[2]] = tensor.shape[1]
        heads, kv_heads = numbers("attention.head_count"), numbers("attention.head_count_kv")
        return cls(header.embedding_length, heads, kv_heads, numbers("expert_used_count"), rows)

    def query_values(self, layer: Layer, at: int) -> float:
        """Values of all heads' queries: each is multiplied with a key, and a value is added for it, in each cell."""
        if not layer.v_width:  # one latent key for all heads, which is their value, too; or no attention
            return float(self.heads[at] * layer.k_width)
        return self.heads[at] * (layer.k_width + layer.v_width) / (2 * (self.kv_heads[at] or self.heads[at] or 1))

    def passed_values(self, at: int) -> int:
        """Values that the small operations go over: twice the width, the feed-forward part, queries and keys."""
        rows = self.rows
        inner = rows.get((at, "ffn_up"), 0) + rows.get((at, "ffn_up_shexp"), 0)
        inner += rows.get((at, "ffn_up_exps"), 0) * self.used_experts[at]
        heads = rows.get((at, "attn_qkv"), 0) or rows.get((at, "attn_q"), 0) + rows.get((at, "attn_k"), 0)
        return 2 * self.n_embd + inner + heads


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _require_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LIMIT:
        raise InvalidRequestError(f"{name}: {value!r} is not a positive number")
