"""Names and shapes of the tensors of a LiLiCorr draft: in a checkpoint of the Hub, and in GGUF.

Shapes are in PyTorch's order. Those of GGUF's names that have no counterpart of their own are made from SPECIAL.
"""

from __future__ import annotations

from localllm.convert.lilicorr_config import LilicorrConfig

Shape = tuple[int, ...]

_HEAD = "lilicorr."
#: Tables from which the bias of the attention is made.
SPECIAL = (f"{_HEAD}relative_slot_bias", f"{_HEAD}same_slot_bias")
_LINEAR = ("pass_hidden_proj", "context_proj", "factor_input_proj", "out_head", "in_head", "anchor_out_head")
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight", "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
}  # fmt: skip
_CONVOLUTIONS = {
    "attn_conv_base": "attention_conv.base_kernel", "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel", "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}  # fmt: skip


def draft_names(config: LilicorrConfig) -> dict[str, str]:
    """Names of the checkpoint's tensors by GGUF's, of the draft without its head."""
    found = {"fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight"}
    layer = _LAYER | (_CONVOLUTIONS if config.conv_taps else {})
    for at in range(config.n_layers):
        found.update({f"blk.{at}.{theirs}": f"layers.{at}.{name}" for theirs, name in layer.items()})
    return found


def draft_shapes(config: LilicorrConfig) -> dict[str, Shape]:
    """Shapes by the checkpoint's names, of the draft without its head."""
    width, n_q, n_kv = config.width, config.n_heads * config.head_width, config.n_kv_heads * config.head_width
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (width,), "self_attn.q_proj.weight": (n_q, width), "self_attn.k_proj.weight": (n_kv, width),
        "self_attn.v_proj.weight": (n_kv, width), "self_attn.o_proj.weight": (width, n_q),
        "self_attn.q_norm.weight": (config.head_width,), "self_attn.k_norm.weight": (config.head_width,),
        "post_attention_layernorm.weight": (width,), "mlp.gate_proj.weight": (config.n_ff, width),
        "mlp.up_proj.weight": (config.n_ff, width), "mlp.down_proj.weight": (width, config.n_ff),
    }  # fmt: skip
    if config.conv_taps:
        for part in ("attention_conv", "mlp_conv"):
            layer[f"{part}.base_kernel"] = (2, config.conv_taps, width)
            layer[f"{part}.kernel_projection.weight"] = (2 * config.conv_taps * (width // config.conv_group), width)
    found: dict[str, Shape] = {"fc.weight": (width, len(config.target_layers) * width)}
    found.update({"hidden_norm.weight": (width,), "norm.weight": (width,)})
    found.update({f"layers.{at}.{name}": shape for at in range(config.n_layers) for name, shape in layer.items()})
    return found


def head_names(config: LilicorrConfig) -> dict[str, str]:
    """Names of the checkpoint's tensors by GGUF's, of the head. Its layers are blocks behind the draft's; the block after them is
    the small network that reads log-probabilities."""
    linear = {f"{_HEAD}{name}": f"{_HEAD}{name}" for name in _linear(config)}
    last = f"blk.{config.n_layers + config.n_lattice_layers}"
    features = {"ffn_norm": "0", "ffn_up": "1", "ffn_down": "3"}
    linear.update({f"{last}.{theirs}": f"{_HEAD}feature_mlp.{at}" for theirs, at in features.items()})
    alone = {f"{_HEAD}{name}.weight": f"{_HEAD}{name}" for name in ("slot_embedding", "rank_embedding")}
    alone.update({f"{_HEAD}{name}.weight": f"{_HEAD}{name}.weight" for name in ("output_norm", "anchor_norm")})
    for at in range(config.n_lattice_layers):
        block, name = f"blk.{config.n_layers + at}", f"{_HEAD}layers.{at}"
        alone.update(
            {f"{block}.attn_norm.weight": f"{name}.attn_norm.weight", f"{block}.ffn_norm.weight": f"{name}.mlp_norm.weight"}
        )
        alone.update({f"{name}.attn.in_proj.{part}": f"{name}.attn.in_proj_{part}" for part in ("weight", "bias")})
        linear.update({f"{block}.attn_output": f"{name}.attn.out_proj", f"{block}.ffn_up": f"{name}.mlp.0"})
        linear[f"{block}.ffn_down"] = f"{name}.mlp.2"
    pairs = {f"{theirs}.{part}": f"{name}.{part}" for theirs, name in linear.items() for part in ("weight", "bias")}
    return pairs | alone


def head_shapes(config: LilicorrConfig) -> dict[str, Shape]:
    """Shapes by the checkpoint's names, of the head."""
    n, width, n_factors = config.hidden, config.width, config.n_factors
    sizes = {
        "token_proj": (n, width), "pass_hidden_proj": (n, width), "context_proj": (n, width), "factor_input_proj": (n, 3 * n),
        "out_head": (n_factors, n), "in_head": (n_factors, n), "anchor_out_head": (n_factors, n),
    }  # fmt: skip
    linear = {name: sizes[name] for name in _linear(config)}
    linear.update({"feature_mlp.1": (n, 5), "feature_mlp.3": (n, n)})
    alone: dict[str, Shape] = {
        "feature_mlp.0.weight": (5,), "feature_mlp.0.bias": (5,), "output_norm.weight": (n,), "anchor_norm.weight": (n,),
        "slot_embedding": (config.n_slots, n), "rank_embedding": (config.n_candidates, n),
        "relative_slot_bias": (config.n_lattice_heads, 2 * config.block - 1), "same_slot_bias": (config.n_lattice_heads,),
    }  # fmt: skip
    for at in range(config.n_lattice_layers):
        name = f"layers.{at}"
        alone.update({f"{name}.attn_norm.weight": (n,), f"{name}.mlp_norm.weight": (n,)})
        alone.update({f"{name}.attn.in_proj_weight": (3 * n, n), f"{name}.attn.in_proj_bias": (3 * n,)})
        linear.update({f"{name}.attn.out_proj": (n, n), f"{name}.mlp.0": (config.n_mlp, n), f"{name}.mlp.2": (n, config.n_mlp)})
    for name, shape in linear.items():
        alone.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})
    return {f"{_HEAD}{name}": shape for name, shape in alone.items()}


def _linear(config: LilicorrConfig) -> tuple[str, ...]:
    """A head as wide as its draft takes token embeddings as they are."""
    return _LINEAR if config.hidden == config.width else ("token_proj", *_LINEAR)
