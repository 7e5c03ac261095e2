"""What config.json of a LiLiCorr checkpoint says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.convert.checkpoint import damaged
from localllm.errors import UnsupportedModelError

ARCHITECTURE = "LiLiCorrDraftModel"
_MAX = 1 << 24  # of any size
_MAX_LAYERS = 512  # of llama.cpp
_MAX_BIAS = 1 << 28  # values, which are computed from small tables; the published head has 115,200
_MAX_F32 = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True)
class LilicorrConfig:
    """Sizes of a draft and its head: numbers of tokens, layers, heads or values. `target_layers`: whose outputs the draft reads,
    from 0."""

    width: int
    n_layers: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    n_context: int
    rms_eps: float
    rope_theta: float
    block: int
    mask_token: int
    target_layers: tuple[int, ...]
    conv_taps: int  # 0: no convolutions
    conv_group: int
    hidden: int
    n_candidates: int
    n_lattice_layers: int
    n_lattice_heads: int
    n_mlp: int
    n_factors: int
    vector_eps: float
    logit_scale: float

    @property
    def n_slots(self) -> int:
        return self.block - 1


def lilicorr_config(values: Mapping[str, Any], path: Path) -> LilicorrConfig:
    """Reads a configuration.

    Args:
        values: the JSON object.
        path: Path, what errors call the file.

    Raises:
        UnsupportedModelError: It is of another model, or has a part that is not known here; the message names the field.
        ModelFileError: A field is missing or out of range; the message names it.
    """
    if ARCHITECTURE not in (values.get("architectures") or ()):
        raise UnsupportedModelError(f"{path}: architectures is {values.get('architectures')!r}; only {ARCHITECTURE} is converted")
    inner = values.get("dflash_config")
    if not isinstance(inner, dict):
        raise damaged(path, "dflash_config is no object")
    _refuse_unknown(values, inner, path)
    outer, draft = _Fields(values, path), _Fields(inner, path, "dflash_config.")
    width, n_heads = outer.count("hidden_size"), outer.count("num_attention_heads")
    hidden = draft.count("lilicorr_hidden_size", low=0) or width
    convolves = inner.get("conv_kernel_size") is not None or inner.get("conv_group_size") is not None
    found = LilicorrConfig(
        width=width,
        n_layers=outer.count("num_hidden_layers", high=_MAX_LAYERS),
        n_ff=outer.count("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=outer.count("num_key_value_heads"),
        head_width=outer.count("head_dim", default=max(1, width // n_heads)),
        n_context=outer.count("max_position_embeddings"),
        rms_eps=outer.number("rms_norm_eps"),
        rope_theta=_rope_theta(values, path),
        block=outer.count("block_size", low=2),
        mask_token=draft.count("mask_token_id", low=0),
        target_layers=draft.counts("target_layer_ids"),
        conv_taps=draft.count("conv_kernel_size") if convolves else 0,
        conv_group=draft.count("conv_group_size") if convolves else 0,
        hidden=hidden,
        n_candidates=draft.count("lilicorr_candidate_topk"),
        n_lattice_layers=draft.count("lilicorr_num_layers", high=_MAX_LAYERS),
        n_lattice_heads=draft.count("lilicorr_num_heads"),
        n_mlp=int(hidden * draft.number("lilicorr_mlp_ratio")),
        n_factors=draft.count("lilicorr_factor_dim"),
        vector_eps=draft.number("lilicorr_vector_eps"),
        logit_scale=draft.number("lilicorr_logit_scale"),
    )
    if found.hidden % found.n_lattice_heads:
        raise damaged(path, f"lilicorr_hidden_size ({hidden}) is no multiple of lilicorr_num_heads ({found.n_lattice_heads})")
    if found.n_lattice_heads * (found.n_slots * found.n_candidates) ** 2 > _MAX_BIAS:
        sizes = f"lilicorr_num_heads ({found.n_lattice_heads}), block_size ({found.block}) and lilicorr_candidate_topk"
        raise damaged(path, f"{sizes} ({found.n_candidates}) are too large together")
    if not found.vector_eps < 0.5:
        raise damaged(path, "lilicorr_vector_eps is not below 0.5")
    if convolves and width % found.conv_group:
        raise damaged(path, f"hidden_size ({width}) is no multiple of conv_group_size ({found.conv_group})")
    return found


def _refuse_unknown(values: Mapping[str, Any], inner: Mapping[str, Any], path: Path) -> None:
    """What a LiLiCorr draft may have in other trainings, and what is not converted here."""
    expected = {
        "hidden_act": (values.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(values.get("attention_bias")), False),
        "rope_scaling": (values.get("rope_scaling") or None, None),
        "dflash_config.projector_type": (inner.get("projector_type", "lilicorr"), "lilicorr"),
        "dflash_config.causal": (bool(inner.get("causal")), False),
        "dflash_config.use_swa": (bool(inner.get("use_swa")), False),
        "dflash_config.attention_sink_bias": (bool(inner.get("attention_sink_bias")), False),
    }
    for name, (given, known) in expected.items():
        if given != known:
            raise UnsupportedModelError(f"{path}: {name} is {given!r}; only {known!r} is converted")


def _rope_theta(values: Mapping[str, Any], path: Path) -> float:
    """At the top, or, as newer versions of transformers write it, among the parameters of RoPE."""
    parameters = values.get("rope_parameters")
    if not isinstance(parameters, dict):
        return _Fields(values, path).number("rope_theta")
    if parameters.get("rope_type", "default") != "default":
        raise UnsupportedModelError(
            f"{path}: rope_parameters.rope_type is {parameters['rope_type']!r}; only 'default' is converted"
        )
    return _Fields(parameters, path, "rope_parameters.").number("rope_theta")


@dataclass(frozen=True)
class _Fields:
    values: Mapping[str, Any]
    path: Path
    prefix: str = ""  # of the names in errors

    def count(self, name: str, *, low: int = 1, high: int = _MAX, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise damaged(self.path, f"{self.prefix}{name} is {value!r}, not a whole number from {low} to {high}")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not value or not all(type(item) is int and 0 <= item <= _MAX for item in value):
            raise damaged(self.path, f"{self.prefix}{name} is {value!r}, not a list of layers")
        return tuple(value)

    def number(self, name: str) -> float:
        value: Any = self.values.get(name)
        if type(value) not in (int, float) or not 0 < value <= _MAX_F32:
            raise damaged(self.path, f"{self.prefix}{name} is {value!r}, not a number above 0 that 32 bits can hold")
        return float(value)
