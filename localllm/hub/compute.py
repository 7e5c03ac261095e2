"""How much scratch memory llama.cpp's graph takes: an estimate from the widths of the model.

llama.cpp reserves one buffer for the worst micro-batch (llama_context::sched_reserve). ggml places the tensors of the graph in
it, each in the best gap that is free at that time, so its size is that of the moment at which most is alive. Which moment that is
depends on the model: the attention scores without flash attention, the feed-forward part of a wide or sparse model, or, for all
models with a large vocabulary, the logits. Each is added up here by what is alive then in the graphs of src/llama-graph.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localllm.hub.geometry import MAX_LAYERS, Geometry
from localllm.hub.gguf import Header, per_layer

_F32 = 4


@dataclass(frozen=True)
class Batch:
    """The worst micro-batch.

    Attributes:
        n_tokens: int, tokens in it.
        n_sequences: int, sequences that they belong to.
        n_outputs: int, of how many the logits are computed.
        n_cells: int, cells of the cache that each token may look at.
        n_window_cells: int, the same in sliding-window layers; 0: there are none.
        flash_attention: bool.
        casts_k, casts_v: bool, keys or values are kept in 32 bits, of which flash attention makes a copy in 16.
    """

    n_tokens: int
    n_sequences: int
    n_outputs: int
    n_cells: int
    n_window_cells: int
    flash_attention: bool
    casts_k: bool = False
    casts_v: bool = False


def compute_bytes(header: Header, model: Geometry, batch: Batch) -> int:
    """Bytes of llama.cpp's compute buffer.

    Args:
        header: Header of the model, with all its tensors.
        model: Geometry of it.
        batch: Batch.
    """
    widths = _Widths.of(header, model)
    a_value = batch.n_tokens * _F32  # of a tensor with one row for each token
    # ids, positions, which rows are outputs, where keys and values go
    alive = widths.inputs * a_value + _masks(model, batch) + batch.n_tokens * (4 + 16 + 4 + 8 + 8)
    logits = widths.inputs * a_value + (header.embedding_length + widths.vocab) * batch.n_outputs * _F32
    # In a layer: what was added up so far, and its norm (whose gap is often too small for what comes after it).
    layer = alive + 2 * header.embedding_length * a_value
    # The states of all sequences are copied out of the cache.
    states = max((one.state_values for one in model.layers), default=0) * batch.n_sequences * _F32
    stages = [layer + widths.state * a_value + states, layer + widths.feed_forward * a_value]
    if widths.scored_heads:
        stages.append(layer + widths.projections * a_value + _scores(model, batch, widths))
    return max(logits, *stages)


@dataclass(frozen=True)
class _Widths:
    """Values for each token: of the inputs, of what a layer's parts keep alive at most, and of the logits."""

    inputs: int
    projections: int  # queries, keys and values
    scored_heads: int
    state: int
    feed_forward: int
    vocab: int

    @classmethod
    def of(cls, header: Header, model: Geometry) -> _Widths:
        shapes = _widest(header)
        n_embd = header.embedding_length
        heads = max((_int(count) for count in per_layer(header, "attention.head_count", 0, len(model.layers))), default=0)
        fused = shapes.get("attn_qkv", (0, 0))[1]
        separate = shapes.get("attn_q", shapes.get("attn_q_b", (0, heads * max(model.key_widths, default=0))))[1]
        separate += max((layer.k_width + layer.v_width for layer in model.layers), default=0)
        # Embeddings of their own for each layer: looked up, and projected from the usual one.
        per_layer_inputs = 2 * _int(header.get("embedding_length_per_layer_input")) * len(model.layers)
        deepstack = _int(header.get("n_deepstack_layers"))
        # With deepstack both the given embeddings and the padded ones of the tokens stay.
        inputs = n_embd if not deepstack else 2 * n_embd * (1 + deepstack)
        has_logits = model.has_cache or "output.weight" in {tensor.name for tensor in header.tensors}
        return cls(
            inputs=inputs + per_layer_inputs,
            projections=max(fused, separate),
            scored_heads=heads if heads and (separate or fused) else 0,
            state=_state(header, shapes),
            feed_forward=_feed_forward(header, shapes),
            vocab=_vocab(header) if has_logits else 0,
        )


def _widest(header: Header) -> dict[str, tuple[int, int]]:
    """Rows and columns of the widest matrix of each kind ("ffn_down") in any layer."""
    found: dict[str, tuple[int, int]] = {}
    for tensor in header.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk" and len(parts) >= 4 and parts[-1] == "weight" and len(tensor.shape) > 1:
            kind = ".".join(parts[2:-1])
            found[kind] = max(found.get(kind, (0, 0)), (tensor.shape[0], tensor.shape[1]))
    return found


def _vocab(header: Header) -> int:
    """Rows of the output matrix."""
    rows = {tensor.name: tensor.shape[-1] for tensor in header.tensors}
    return rows.get("output.weight", rows.get("token_embd.weight", header.vocab_size))


def _masks(model: Geometry, batch: Batch) -> int:
    value = 2 if batch.flash_attention else _F32
    full = not model.has_cache or any(layer.k_width and not layer.is_windowed for layer in model.layers)
    return (batch.n_cells * full + batch.n_window_cells) * batch.n_tokens * value


def _scores(model: Geometry, batch: Batch, widths: _Widths) -> int:
    """Bytes of attention scores, or of what flash attention copies so that it need not write them down."""
    cells = max(batch.n_cells, batch.n_window_cells)
    if batch.flash_attention:
        copied = (layer.k_width * batch.casts_k + layer.v_width * batch.casts_v for layer in model.layers)
        return cells * max(copied, default=0) * 2
    # Without flash attention V lies transposed, and each of its values is put in its place by an index of 64 bits.
    # Without a cache it is transposed right there.
    places = model.v_width_max * batch.n_tokens * 8 if model.has_cache else 2 * widths.inputs * batch.n_tokens * _F32
    return cells * widths.scored_heads * batch.n_tokens * _F32 + places


def _state(header: Header, shapes: dict[str, tuple[int, int]]) -> int:
    """Of a layer that keeps a state: its projections, the convolution's input and output, and what comes out."""
    conv, inner = shapes.get("ssm_conv1d", (0, 0))[1], _int(header.get("ssm.inner_size"))
    if "ssm_in" in shapes:
        return shapes["ssm_in"][1] + 2 * conv + inner
    return shapes["attn_qkv"][1] + shapes.get("attn_gate", (0, 0))[1] + conv + inner if conv and "attn_qkv" in shapes else 0


def _feed_forward(header: Header, shapes: dict[str, tuple[int, int]]) -> int:
    """Of the widest feed-forward part: two factors and their product, or of an ungated one the inner values alone."""
    wide = shapes.get("ffn_down", (0, 0))[0] * (3 if "ffn_gate" in shapes else 1)
    if "ffn_down_exps" in shapes:
        inner, outer = shapes["ffn_down_exps"]
        used = max(
            (_int(count) for count in per_layer(header, "expert_used_count", 0, min(header.block_count, MAX_LAYERS))), default=0
        )
        wide = max(wide, used * max(3 * inner, inner + outer) + outer)
    return wide


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
