"""Adapters for tiny models: recipes of LoRA adapters and control vectors, and of models that have them merged in.

A recipe goes to ``build.save``. Merging is done here with numpy, from the definition of a LoRA: W + scale * alpha / rank * B @ A.
"""

from __future__ import annotations

import fnmatch
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import build

sys.path.pop(0)

Recipe = build.Recipe

#: What adapters usually change: attention and the feed-forward network, and what recurrent layers have in their place.
TARGETS = (
    "blk.*.attn_q.weight",
    "blk.*.attn_qkv.weight",
    "blk.*.attn_v.weight",
    "blk.*.ffn_down*.weight",
    "blk.*.ssm_out.weight",
)


def shape(base: Recipe) -> tuple[str, int]:
    """Architecture and number of layers, without those that only predict ahead."""
    metadata = base["metadata"]
    architecture = metadata["general.architecture"][1]
    n_ahead = metadata.get(f"{architecture}.nextn_predict_layers", [None, 0])[1]
    return architecture, metadata[f"{architecture}.block_count"][1] - n_ahead


def lora(
    base: Recipe, targets: Sequence[str] = TARGETS, *, rank: int = 2, alpha: float = 4.0, deviation: float = 0.2, seed: int = 1
) -> Recipe:
    """The recipe of an adapter for the tensors of ``base`` that match ``targets``, patterns of :mod:`fnmatch`.

    Layers that only predict ahead are left alone: the engine does not load them.
    """
    _, n_layers = shape(base)
    tensors = {}
    for name, (_, dims, _) in base["tensors"].items():
        if name.startswith("blk.") and int(name.split(".")[1]) >= n_layers:
            continue
        if any(fnmatch.fnmatchcase(name, target) for target in targets):
            a, b = [dims[0], rank, *dims[2:]], [rank, dims[1], *dims[2:]]
            if name == "token_embd.weight":
                a, b = [rank, dims[1]], [rank, dims[0]]
            for part, part_shape in (("lora_a", a), ("lora_b", b)):
                tensors[f"{name}.{part}"] = ["f32", part_shape, {"normal": [0.0, deviation]}]
    assert tensors, f"nothing matches {targets}"
    metadata = {
        "general.architecture": base["metadata"]["general.architecture"],
        "general.type": ["string", "adapter"],
        "adapter.type": ["string", "lora"],
        "adapter.lora.alpha": ["float32", alpha],
    }
    return {"seed": seed, "metadata": metadata, "tensors": tensors}


def control(base: Recipe, layers: Sequence[int] = (), *, deviation: float = 1.0, seed: int = 1) -> Recipe:
    """The recipe of a control vector with a direction for each of ``layers``; for all but the first by default."""
    architecture, n_layers = shape(base)
    layers = layers or range(1, n_layers)
    n_embd = base["metadata"][f"{architecture}.embedding_length"][1]
    metadata = {
        "general.architecture": ["string", "controlvector"],
        "controlvector.model_hint": ["string", architecture],
        "controlvector.layer_count": ["int32", len(layers)],
    }
    tensors = {f"direction.{layer}": ["f32", [n_embd], {"normal": [0.0, deviation]}] for layer in layers}
    return {"seed": seed, "metadata": metadata, "tensors": tensors}


def values(recipe: Recipe) -> dict[str, np.ndarray]:
    """The weights of a recipe by name, in double precision; numpy's order of dimensions."""
    return {
        name: build.weights(rule, shape, (recipe["seed"], zlib.crc32(name.encode())))
        for name, (_, shape, rule) in recipe["tensors"].items()
    }


def with_values(recipe: Recipe, changed: Mapping[str, np.ndarray] | None = None) -> Recipe:
    """``recipe`` in single precision, some of its weights replaced."""
    tensors: dict[str, Any] = {}
    for name, (_, shape, rule) in recipe["tensors"].items():
        given = (changed or {}).get(name)
        tensors[name] = ["f32", shape, rule if given is None else {"values": given.astype("f4").tolist()}]
    return {**recipe, "tensors": tensors}


def merge(base: Recipe, *adapters: tuple[Recipe, float]) -> Recipe:
    """``base`` in single precision with (LoRA, scale) pairs merged into its weights."""
    weights = values(base)
    for adapter, scale in adapters:
        parts = {name: part.astype("f4").astype("f8") for name, part in values(adapter).items()}
        alpha = adapter["metadata"]["adapter.lora.alpha"][1]
        for name in {part.rsplit(".", 1)[0] for part in parts}:
            a, b = parts[f"{name}.lora_a"], parts[f"{name}.lora_b"]
            delta = a @ b.T if name == "token_embd.weight" else b @ a
            weights[name] = weights[name] + scale * alpha / b.shape[-1] * delta
    return with_values(base, weights)
