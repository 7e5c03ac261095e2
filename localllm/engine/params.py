"""Configuration to llama.cpp's structures."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from localllm.engine.config import ContextConfig, ModelConfig, SamplingParams
from localllm.engine.threads import default_threads
from localllm.errors import InvalidRequestError
from localllm.native import handles
from localllm.native.bindings import ggml as ggml_h
from localllm.native.bindings import llama as llama_h
from localllm.native.library import Native

_SPLIT_MODES = {
    "none": llama_h.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_h.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_h.LLAMA_SPLIT_MODE_ROW,
    "tensor": llama_h.LLAMA_SPLIT_MODE_TENSOR,
}
_LOAD_MODES = {
    "auto": llama_h.LLAMA_LOAD_MODE_AUTO,
    "none": llama_h.LLAMA_LOAD_MODE_NONE,
    "mmap": llama_h.LLAMA_LOAD_MODE_MMAP,
    "mlock": llama_h.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": llama_h.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "direct_io": llama_h.LLAMA_LOAD_MODE_DIRECT_IO,
}
_FLASH_ATTENTION = {
    "auto": llama_h.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "off": llama_h.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": llama_h.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


def model_params(native: Native, config: ModelConfig) -> llama_h.llama_model_params:
    """llama_model_params for a configuration. The structure keeps what it points to alive (`_keep`).

    Raises:
        InvalidRequestError: `tensor_split` has more shares than this build can use devices, or `n_gpu_layers` is "auto", which is
            nothing that llama.cpp's structure can say.
    """
    params = handles.default_model_params(native)
    if config.n_gpu_layers == "auto":
        raise InvalidRequestError("n_gpu_layers: 'auto' is what a LocalModel chooses by; here it has to be a number or 'all'")
    params.n_gpu_layers = -1 if config.n_gpu_layers == "all" else config.n_gpu_layers
    params.split_mode = _SPLIT_MODES[config.split_mode]
    params.main_gpu = config.main_gpu
    params.load_mode = _LOAD_MODES[config.load_mode]
    params.vocab_only = config.vocab_only
    params.check_tensors = config.check_tensors
    params.use_extra_bufts = config.use_extra_buffers
    params.load_mtp = config.mtp
    kept: list[Any] = []
    if config.tensor_split:
        n_devices = native.llama_max_devices()
        if len(config.tensor_split) > n_devices:
            raise InvalidRequestError(f"tensor_split: {len(config.tensor_split)} shares; this build can use {n_devices} devices")
        shares = (ctypes.c_float * n_devices)(*config.tensor_split)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        kept.append(shares)
    if config.metadata_overrides:
        overrides = _overrides(config)
        params.kv_overrides = ctypes.cast(overrides, ctypes.POINTER(llama_h.llama_model_kv_override))
        kept.append(overrides)
    params._keep = kept
    return params


def _overrides(config: ModelConfig) -> Any:
    # llama.cpp reads up to an entry with an empty key.
    entries = (llama_h.llama_model_kv_override * (len(config.overrides) + 1))()
    for entry, (key, value) in zip(entries, config.overrides, strict=False):
        entry.key = key.encode()
        if isinstance(value, bool):
            entry.tag = llama_h.LLAMA_KV_OVERRIDE_TYPE_BOOL
            entry.val_bool = value
        elif isinstance(value, int):
            entry.tag = llama_h.LLAMA_KV_OVERRIDE_TYPE_INT
            entry.val_i64 = value
        elif isinstance(value, float):
            entry.tag = llama_h.LLAMA_KV_OVERRIDE_TYPE_FLOAT
            entry.val_f64 = value
        else:
            entry.tag = llama_h.LLAMA_KV_OVERRIDE_TYPE_STR
            entry.val_str = value.encode()
    return entries


def cells(config: ContextConfig, n_ctx_train: int) -> int:
    """`n_ctx` in tokens; `n_ctx_train`, the length that the model was trained for, replaces an n_ctx of 0.

    Raises:
        InvalidRequestError: It is "auto", which depends on the memory of the machine.
    """
    if config.n_ctx == "auto":
        raise InvalidRequestError("n_ctx: 'auto' is what a LocalModel chooses by; here it has to be a number of tokens")
    return config.n_ctx or n_ctx_train


def context_params(native: Native, config: ContextConfig, n_ctx_train: int) -> llama_h.llama_context_params:
    """llama_context_params for a configuration; raises as `cells` does, which has the arguments, too."""
    params = handles.default_context_params(native)
    params.n_ctx = cells(config, n_ctx_train)
    params.n_batch = min(config.n_batch, params.n_ctx)
    params.n_ubatch = min(config.n_ubatch, params.n_batch)
    params.n_seq_max = config.parallel
    params.n_threads = config.n_threads or default_threads()
    params.n_threads_batch = config.n_threads_batch or params.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[config.flash_attention]
    params.type_k = getattr(ggml_h, f"GGML_TYPE_{config.type_k.upper()}")
    params.type_v = getattr(ggml_h, f"GGML_TYPE_{config.type_v.upper()}")
    params.offload_kqv = config.offload_kqv
    params.op_offload = config.op_offload
    params.swa_full = config.swa_full
    params.kv_unified = True
    params.rope_freq_base = config.rope_freq_base
    params.rope_freq_scale = config.rope_freq_scale
    params.no_perf = True
    return params


_NATIVE_ONLY = ("n_probs", "logprobs", "sampled_probs")  # fields of lm_row, not of the sampler


def sampler_options(params: SamplingParams, n_ctx: int) -> dict[str, Any]:
    """The fields of lm_sampler_create for SamplingParams; "the whole context" becomes `n_ctx` tokens."""
    options = {name: getattr(params, name) for name in params.__dataclass_fields__ if name not in _NATIVE_ONLY}
    # JSON has no infinity; null bans a token.
    options["logit_bias"] = [[token, None if bias == -math.inf else bias] for token, bias in params.logit_bias]
    for name in ("penalty_last_n", "dry_penalty_last_n"):
        if options[name] == -1:
            options[name] = n_ctx
    if options["seed"] is None:
        del options["seed"]
    return options
