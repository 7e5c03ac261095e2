"""Files with random weights at the sizes of the published LiLiCorr draft for Qwen3-8B: a target, and a draft with its head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from localllm.hub.gguf_parse import TENSOR_TYPES

BLOCKS = {name: (values, size) for name, values, size in TENSOR_TYPES.values()}
PART_BYTES = 8 << 20
NORMS = ("norm.weight", "norm")


@dataclass(frozen=True)
class Sizes:
    """Of Qwen3-8B and the draft published for it; the target has fewer layers, as only its embeddings matter here."""

    n_vocab: int = 151_936
    mask: int = 151_669
    width: int = 4096
    n_heads: int = 32
    n_kv_heads: int = 8
    head_width: int = 128
    n_ff: int = 12_288
    n_target_layers: int = 2
    taps: tuple[int, ...] = (1, 1, 1, 1, 1)  # layers of the target whose inputs the draft reads: five, be it the same
    n_draft_layers: int = 5
    block: int = 16
    n_candidates: int = 8
    hidden: int = 1024
    n_lattice_layers: int = 2
    n_lattice_heads: int = 8
    n_mlp: int = 2048
    n_factors: int = 1024
    eps: float = 1e-6


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written, its shape in GGUF's order (fastest first); `data` gives its bytes when they are wanted."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: Callable[[], np.ndarray]


def write_gguf(path: Path, architecture: str, keys: Mapping[str, Any], tensors: Sequence[NewTensor]) -> None:
    """Writes a file; whole numbers have 32 bits there, fractions, too."""
    writer = GGUFWriter(path, architecture)
    for key, value in keys.items():
        adds: dict[type, Callable[[str, Any], None]] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
            list: writer.add_array,
        }  # fmt: skip
        adds[type(value)](key, value)
    for tensor in tensors:
        values, size = BLOCKS[tensor.type]
        n_bytes = int(np.prod(tensor.shape)) // values * size
        kind = GGMLQuantizationType[tensor.type]
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), n_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data())
    writer.close()


def random_tensor(name: str, shape: tuple[int, ...], kind: str) -> NewTensor:
    """Weights of the size that they have after training; norms and what is added are F32."""
    plain = len(shape) == 1 or "embedding" in name or "attention_bias" in name
    if name.endswith(NORMS):
        return NewTensor(name, shape, "F32", lambda: np.ones(shape, np.float32).view(np.uint8))
    return NewTensor(name, shape, "F32" if plain else kind, lambda: _random("F32" if plain else kind, shape))


def _random(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(len(shape))
    values, size = BLOCKS[kind]
    n_bytes = int(np.prod(shape)) // values * size
    scale = shape[0] ** -0.5
    n = min(n_bytes, PART_BYTES) // size
    if kind == "Q8_0":
        blocks = np.empty((n, 34), np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(scale / 73).tobytes(), np.uint8)  # 73: of evenly spread bytes
        blocks[:, 2:] = random.integers(0, 256, (n, 32), np.uint8)
        part = blocks.reshape(-1)
    else:
        part = (random.normal(size=n) * scale).astype({"F16": np.float16, "F32": np.float32}[kind]).view(np.uint8)
    return np.resize(part, n_bytes)


def tokenizer(sizes: Sizes) -> dict[str, Any]:
    prefix = "tokenizer.ggml."
    return {
        f"{prefix}model": "gpt2",
        f"{prefix}pre": "qwen2",
        f"{prefix}tokens": [f"t{token}" for token in range(sizes.n_vocab)],
        f"{prefix}token_type": [1] * sizes.n_vocab,
        f"{prefix}merges": ["t 1"],
        f"{prefix}eos_token_id": 0,
        f"{prefix}add_bos_token": False,
    }


def trunk_keys(sizes: Sizes, architecture: str, n_layers: int) -> dict[str, Any]:
    counts = {
        "context_length": 40_960, "embedding_length": sizes.width, "block_count": n_layers, "feed_forward_length": sizes.n_ff,
        "attention.head_count": sizes.n_heads, "attention.head_count_kv": sizes.n_kv_heads,
        "attention.key_length": sizes.head_width, "attention.value_length": sizes.head_width,
    }  # fmt: skip
    return {
        **{f"{architecture}.{key}": value for key, value in counts.items()},
        f"{architecture}.attention.layer_norm_rms_epsilon": sizes.eps,
        f"{architecture}.rope.freq_base": 1e6,
        **tokenizer(sizes),
    }


def trunk_shapes(sizes: Sizes, n_layers: int) -> dict[str, tuple[int, ...]]:
    width, n_q, n_kv = sizes.width, sizes.n_heads * sizes.head_width, sizes.n_kv_heads * sizes.head_width
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,), "attn_q": (width, n_q), "attn_k": (width, n_kv), "attn_v": (width, n_kv),
        "attn_output": (n_q, width), "attn_q_norm": (sizes.head_width,), "attn_k_norm": (sizes.head_width,),
        "ffn_norm": (width,), "ffn_gate": (width, sizes.n_ff), "ffn_up": (width, sizes.n_ff), "ffn_down": (sizes.n_ff, width),
    }  # fmt: skip
    return {f"blk.{at}.{name}.weight": shape for at in range(n_layers) for name, shape in layer.items()}


def write_target(path: Path, sizes: Sizes, kind: str) -> None:
    shapes = {"token_embd.weight": (sizes.width, sizes.n_vocab), "output_norm.weight": (sizes.width,)}
    shapes |= trunk_shapes(sizes, sizes.n_target_layers)
    keys = trunk_keys(sizes, "qwen3", sizes.n_target_layers)
    write_gguf(path, "qwen3", keys, [random_tensor(name, shape, kind) for name, shape in shapes.items()])


def head_keys(sizes: Sizes) -> dict[str, Any]:
    counts = {
        "hidden_size": sizes.hidden, "candidate_topk": sizes.n_candidates, "num_heads": sizes.n_lattice_heads,
        "num_layers": sizes.n_lattice_layers, "factor_dim": sizes.n_factors, "mlp_hidden_size": sizes.n_mlp,
    }  # fmt: skip
    numbers = {"vector_eps": 1e-4, "logit_scale": 8.0}
    found = {f"lilicorr.{name}": value for name, value in counts.items()}
    return found | {f"lilicorr.{name}": value for name, value in numbers.items()}


def head_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    n, width, n_factors = sizes.hidden, sizes.width, sizes.n_factors
    n_nodes = (sizes.block - 1) * sizes.n_candidates
    last = f"blk.{sizes.n_draft_layers + sizes.n_lattice_layers}"
    linear = {"lilicorr.token_proj": (width, n), "lilicorr.pass_hidden_proj": (width, n), "lilicorr.context_proj": (width, n)}
    linear |= {f"{last}.ffn_up": (5, n), f"{last}.ffn_down": (n, n), "lilicorr.factor_input_proj": (3 * n, n)}
    linear |= {f"lilicorr.{name}": (n, n_factors) for name in ("out_head", "in_head", "anchor_out_head")}
    shapes: dict[str, tuple[int, ...]] = {f"{last}.ffn_norm.weight": (5,), f"{last}.ffn_norm.bias": (5,)}
    shapes |= {"lilicorr.slot_embedding.weight": (n, sizes.block - 1), "lilicorr.rank_embedding.weight": (n, sizes.n_candidates)}
    shapes |= {"lilicorr.attention_bias.bias": (n_nodes, n_nodes, sizes.n_lattice_heads)}
    shapes |= {"lilicorr.output_norm.weight": (n,), "lilicorr.anchor_norm.weight": (n,)}
    for layer in range(sizes.n_lattice_layers):
        block = f"blk.{sizes.n_draft_layers + layer}"
        linear |= {f"lilicorr.layers.{layer}.attn.in_proj": (n, 3 * n), f"{block}.attn_output": (n, n)}
        linear |= {f"{block}.ffn_up": (n, sizes.n_mlp), f"{block}.ffn_down": (sizes.n_mlp, n)}
        shapes |= {f"{block}.attn_norm.weight": (n,), f"{block}.ffn_norm.weight": (n,)}
    for name, (n_in, n_out) in linear.items():
        shapes |= {f"{name}.weight": (n_in, n_out), f"{name}.bias": (n_out,)}
    return shapes


def write_draft(path: Path, sizes: Sizes, kind: str, head_kind: str) -> None:
    """Both in one file, as upstream's converter writes them."""
    shapes = {"fc.weight": (len(sizes.taps) * sizes.width, sizes.width)}
    shapes |= {"enc.output_norm.weight": (sizes.width,), "output_norm.weight": (sizes.width,)}
    shapes |= trunk_shapes(sizes, sizes.n_draft_layers)
    keys = trunk_keys(sizes, "dflash", sizes.n_draft_layers) | head_keys(sizes)
    keys |= {"dflash.block_size": sizes.block, "dflash.target_layers": list(sizes.taps)}
    keys |= {"dflash.attention.causal": False, "tokenizer.ggml.mask_token_id": sizes.mask}
    tensors = [random_tensor(name, shape, kind) for name, shape in shapes.items()]
    for name, shape in head_shapes(sizes).items():
        # Rows of five values are no blocks.
        tensors.append(random_tensor(name, shape, head_kind if shape[0] % BLOCKS[head_kind][0] == 0 else "F32"))
    write_gguf(path, "dflash", keys, tensors)
