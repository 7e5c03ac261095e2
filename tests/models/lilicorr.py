"""Drafts with a LiLiCorr head in all the layouts that they come in, put together from the few files in ``trained/lilicorr``.

A head lies in a file of its own there, beside its draft. ``unified`` puts both into one file as upstream's converter does,
``half`` makes matrices F16, ``checkpoint`` is the same as a folder from the Hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SOURCE = Path(__file__).resolve().parent / "trained" / "lilicorr"
VARIANTS = {"lilicorr": "dflash", "hd": "dflash", "conv": "conv-dflash"}  # head -> draft

#: Tensors of a head outside its layers, by their names in GGUF: the same name in a checkpoint.
SAME_NAME = (
    "token_proj", "pass_hidden_proj", "context_proj", "factor_input_proj", "out_head", "in_head", "anchor_out_head",
    "output_norm", "anchor_norm",
)  # fmt: skip
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
BACKBONE = {
    "fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight",
}  # fmt: skip
LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight", "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    "attn_conv_base": "attention_conv.base_kernel", "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel", "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A GGUF file: keys with their types, as gguf names them, and tensors."""

    keys: dict[str, tuple[list[gguf.GGUFValueType], Any]]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def number(self, key: str) -> Any:
        return self.keys[key][1]

    def changed(self, keys: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> File:
        """With other values, of the same types; None takes a key or tensor away."""
        new_keys, new_tensors = dict(self.keys), dict(self.tensors)
        for key, value in (keys or {}).items():
            types = new_keys.pop(key, ([gguf.GGUFValueType.UINT32], None))[0]
            if value is not None:
                new_keys[key] = (types, value)
        for name, value in (tensors or {}).items():
            new_tensors.pop(name, None)
            if value is not None:
                new_tensors[name] = value
        return replace(self, keys=new_keys, tensors=new_tensors)


def read(path: Path) -> File:
    reader = gguf.GGUFReader(path)
    keys = {name: (value.types, value.contents()) for name, value in reader.fields.items() if not name.startswith("GGUF.")}
    return File(keys, {tensor.name: np.array(tensor.data) for tensor in reader.tensors})


def write(file: File, path: Path) -> Path:
    writer = gguf.GGUFWriter(path, file.number("general.architecture"))
    for key, (types, value) in file.keys.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, types[0], types[1] if len(types) > 1 else None)
    for name, array in file.tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def unified(draft: File, head: File) -> File:
    """Both in one file. The selector that lets convolutions load by themselves is no part of the draft."""
    keys = {key: value for key, value in draft.keys.items() if not key.startswith("dflash.selector_")}
    tensors = {name: array for name, array in draft.tensors.items() if not name.startswith("selector_")}
    keys.update({key: value for key, value in head.keys.items() if key.startswith("lilicorr.")})
    return File(keys, {**tensors, **head.tensors})


def half(file: File) -> File:
    """Matrices in F16; norms, biases, embeddings of places and kernels stay F32."""

    def converted(name: str, array: np.ndarray) -> np.ndarray:
        matrix = array.ndim == 2 and name.endswith(".weight") and "embedding" not in name
        return array.astype(np.float16) if matrix else array

    return replace(file, tensors={name: converted(name, array) for name, array in file.tensors.items()})


# ---- checkpoints ------------------------------------------------------------------------------------------------------------


def names(n_blocks: int, n_layers: int) -> dict[str, str]:
    """Names of a checkpoint's tensors by those of the GGUF file, but for the bias of the attention."""
    found = dict(BACKBONE)
    for layer in range(n_blocks):
        found.update({f"blk.{layer}.{theirs}": f"layers.{layer}.{name}" for theirs, name in LAYER.items()})
    pairs = {f"lilicorr.{name}": name for name in SAME_NAME}
    pairs.update({f"lilicorr.{name}.weight": name for name in ("slot_embedding", "rank_embedding")})
    last = f"blk.{n_blocks + n_layers}"
    pairs.update({f"{last}.ffn_norm": "feature_mlp.0", f"{last}.ffn_up": "feature_mlp.1", f"{last}.ffn_down": "feature_mlp.3"})
    for layer in range(n_layers):
        block, name = f"blk.{n_blocks + layer}", f"layers.{layer}"
        pairs.update({f"{block}.attn_norm": f"{name}.attn_norm", f"{block}.ffn_norm": f"{name}.mlp_norm"})
        pairs.update({f"{block}.attn_output": f"{name}.attn.out_proj", f"{block}.ffn_up": f"{name}.mlp.0"})
        pairs[f"{block}.ffn_down"] = f"{name}.mlp.2"
        for part in ("weight", "bias"):
            found[f"lilicorr.{name}.attn.in_proj.{part}"] = f"lilicorr.{name}.attn.in_proj_{part}"
    for theirs, name in pairs.items():
        if theirs.endswith(".weight"):
            found[theirs] = f"lilicorr.{name}"
        else:
            found.update({f"{theirs}.{part}": f"lilicorr.{name}.{part}" for part in ("weight", "bias")})
    return found


def checkpoint(file: File, folder: Path, *, dtype: str = "F32", seed: int = 1) -> Path:
    """A unified file as config.json and model.safetensors. The bias of the attention is a table there: a random one, which is
    put into ``file`` as well."""
    block, n_candidates = file.number("dflash.block_size"), file.number("lilicorr.candidate_topk")
    n_heads, n_layers = file.number("lilicorr.num_heads"), file.number("lilicorr.num_layers")
    table = names(file.number("dflash.block_count"), n_layers)
    arrays = {table[name]: array for name, array in file.tensors.items() if name in table}
    arrays["lilicorr.slot_embedding"] = arrays["lilicorr.slot_embedding"].reshape(1, 1, block - 1, 1, -1)
    arrays["lilicorr.rank_embedding"] = arrays["lilicorr.rank_embedding"].reshape(1, 1, 1, n_candidates, -1)
    random = np.random.default_rng(seed)
    relative = random.normal(size=(n_heads, 2 * block - 1)).astype(np.float32)
    same = random.normal(size=n_heads).astype(np.float32)
    arrays.update({"lilicorr.relative_slot_bias": relative, "lilicorr.same_slot_bias": same})
    bias = file.tensors["lilicorr.attention_bias.bias"]
    slots = [node // n_candidates for node in range(bias.shape[-1])]
    for query, ours in enumerate(slots):
        for key, other in enumerate(slots):
            bias[:, query, key] = relative[:, ours - other + block - 1] + same * (ours == other)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(file), indent=1))
    stored = {name: np.ascontiguousarray(array, DTYPES[dtype]) for name, array in arrays.items()}
    save_file(stored, folder / "model.safetensors")
    return folder


def config(file: File) -> dict[str, Any]:
    own = {name: file.number(f"lilicorr.{name}") for name in ("candidate_topk", "hidden_size", "num_heads", "num_layers")}
    own.update({name: file.number(f"lilicorr.{name}") for name in ("factor_dim", "vector_eps", "logit_scale")})
    own["mlp_ratio"] = file.number("lilicorr.mlp_hidden_size") / file.number("lilicorr.hidden_size")
    inner = {
        "mask_token_id": file.number("tokenizer.ggml.mask_token_id"),
        "target_layer_ids": [layer - 1 for layer in file.number("dflash.target_layers")],
        "causal": False, "projector_type": "lilicorr", "lilicorr_enabled": True,
        **{f"lilicorr_{name}": value for name, value in own.items()},
    }  # fmt: skip
    if "dflash.conv_kernel_size" in file.keys:
        inner.update({f"conv_{name}": file.number(f"dflash.conv_{name}") for name in ("kernel_size", "group_size")})
    return {
        "architectures": ["LiLiCorrDraftModel"], "model_type": "qwen3", "hidden_act": "silu", "dtype": "float32",
        "hidden_size": file.number("dflash.embedding_length"), "num_hidden_layers": file.number("dflash.block_count"),
        "intermediate_size": file.number("dflash.feed_forward_length"),
        "num_attention_heads": file.number("dflash.attention.head_count"),
        "num_key_value_heads": file.number("dflash.attention.head_count_kv"),
        "head_dim": file.number("dflash.attention.key_length"), "rope_theta": file.number("dflash.rope.freq_base"),
        "rms_norm_eps": file.number("dflash.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.number("dflash.context_length"), "attention_bias": False,
        "vocab_size": len(file.number("tokenizer.ggml.tokens")), "block_size": file.number("dflash.block_size"),
        "dflash_config": inner,
    }  # fmt: skip


def build_all(folder: Path) -> dict[str, Path]:
    """Every file by its name: those that are there, and ``*-unified`` and ``lilicorr-unified-f16``."""
    found = {re.sub(r"-00001-of-\d+$", "", path.stem): path for path in sorted(SOURCE.glob("*.gguf"), reverse=True)}
    for head, draft in VARIANTS.items():
        file = unified(read(found[draft]), read(found[f"{head}-head"]))
        found[f"{head}-unified"] = write(file, folder / f"{head}-unified.gguf")
        if head == "lilicorr":
            found["lilicorr-unified-f16"] = write(half(file), folder / "lilicorr-unified-f16.gguf")
    return found
