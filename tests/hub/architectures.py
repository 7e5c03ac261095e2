"""Models of any architecture that have metadata but no weights worth the name, made inside llama.cpp.

As a program: for each architecture named on the command line, prints what llama.cpp says that the cache and the states of some
contexts take, one line of JSON. In a process of its own because metadata that llama.cpp does not expect may end it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import re
import sys
from typing import Any

#: n_ctx, sequences, unified, flash attention of the contexts that are measured.
CONTEXTS = ((8192, 4, True, True), (8192, 4, False, True), (4096, 16, True, False))
N_UBATCH = 64

STATES_BY_LAYER = {
    "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "plamo2",
}  # fmt: skip
LATENT = {"bailingmoe3", "deepseek2", "deepseek32", "glm-dsa", "glm5-next", "hy_v4", "kimi-k3", "kimi-linear", "mistral4"}
WINDOW_BY_LAYER = {"gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}
KDA = {"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"}
N_VOCAB = 128


def metadata(architecture: str, is_sparse: bool) -> dict[str, Any]:
    """Metadata without the architecture's name before the keys; `is_sparse` adds experts."""
    n_layer, n_embd, n_head, n_ff = 12, 256, 2, 384
    if architecture == "gemma3n":  # has 20 layers with a cache, whatever the file says
        n_layer, n_embd, n_head, n_ff = 22, 64, 1, 96
    elif architecture == "deepseek4":
        n_layer, n_embd, n_head, n_ff = 4, 512, 8, 1024
    elif architecture in LATENT:
        n_embd, n_head, n_ff = 128, 1, 192
    elif architecture == "exaone4":  # only the large one of them has windows
        n_layer = 64
    keys = {
        "vocab_size": N_VOCAB, "context_length": 8192, "embedding_length": n_embd, "features_length": n_embd,
        "block_count": n_layer, "leading_dense_block_count": 1, "feed_forward_length": n_ff, "use_parallel_residual": False,
        "logit_scale": 1.0, "residual_scale": 3.5, "time_mix_extra_dim": 64, "time_decay_extra_dim": 128, "swiglu_clamp_exp": 7.0,
        "attention.head_count": n_head, "attention.head_count_kv": n_head, "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5, "attention.group_norm_groups": 8, "attention.q_lora_rank": 512,
        "attention.kv_lora_rank": 512, "attention.relative_buckets_count": 8, "attention.sliding_window": 32,
        "attention.indexer.head_count": n_head if architecture == "minimax-m3" else 64, "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 131072, "attention.indexer.block_size": 4, "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True, "attention.indexer.local_blocks": 1,
        "rope.dimension_sections": [n_embd // n_head // 4] * 4, "attn_res.block_size": 12, "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": n_head,
        "ssm.group_count": 0 if architecture == "plamo2" else 2,
        "ssm.inner_size": 256 if architecture.startswith("qwen3") else 2 * n_embd,
    }  # fmt: skip
    if is_sparse:
        keys |= {
            "expert_feed_forward_length": n_ff, "expert_shared_feed_forward_length": n_ff // 2, "expert_latent_length": n_ff,
            "interleave_moe_layer_step": 2, "expert_count": 2, "expert_used_count": 2, "expert_shared_count": 1,
            "expert_gating_func": 4 if architecture == "deepseek4" else 2, "expert_group_scale": 1.0, "experts_per_group": 1,
        }  # fmt: skip
    return keys | _own_keys(architecture, n_layer, n_embd, n_head, n_ff)


def _own_keys(architecture: str, n_layer: int, n_embd: int, n_head: int, n_ff: int) -> dict[str, Any]:
    """What only this architecture has, or has otherwise."""
    keys: dict[str, Any] = {}
    if architecture in STATES_BY_LAYER:
        heads = [0 if at % 3 == 1 else n_head for at in range(n_layer)]
        keys |= {"attention.head_count_kv": heads, "attention.head_count": n_head if architecture == "glm5-next" else heads}
    if architecture.startswith("nemotron_h"):
        keys["feed_forward_length"] = [n_ff if at % 3 == 2 else 0 for at in range(n_layer)]
    if architecture in LATENT:
        no_rope = architecture == "glm5-next"
        keys |= {
            "attention.key_length": 512 if no_rope else 576,
            "attention.value_length": 512,
            "rope.dimension_count": 0 if no_rope else 64,
        }
        keys |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    if architecture in WINDOW_BY_LAYER:
        keys["attention.sliding_window_pattern"] = [int(at % 3 < 2) for at in range(n_layer)]
    if architecture in KDA:
        keys |= {"kda.head_dim": 128, "kda.safe_gate": True, "kda.gate_lower_bound": -5.0}
    if architecture.startswith(("rwkv", "arwkv")):
        keys["wkv.head_size"] = n_embd // n_head
        keys |= {f"attention.{part}_lora_rank": 8 for part in ("decay", "iclr", "value_residual_mix", "gate")}
    if architecture == "arwkv7":
        keys["token_shift_count"] = 1
    if architecture.startswith("lfm2"):
        keys["shortconv.l_cache"] = 3
    special: dict[str, dict[str, Any]] = {
        "gemma4": {"embedding_length_per_layer_input": 64, "attention.shared_kv_layers": 3, "attention.key_length_swa": 64,
                   "attention.value_length_swa": 64, "rope.freq_base_swa": 1e4},
        "minimax-m3": {"rope.dimension_count": 64},
        "bailingmoe3": {"rope.dimension_sections": [8, 12, 12, 0],
                        "swiglu_clamp_exp": [0.0, 4.0] * 6, "swiglu_clamp_shexp": [0.0, 5.0] * 6},
        "hy_v4": {"attention.indexer.types": [1, 0] * 6, "hyper_connection.count": 4, "hyper_connection.epsilon": 1e-6,
                  "hyper_connection.magnitude": 2.0, "expert_weights_scale": 1.0, "expert_weights_norm": True},
        "glm5-next": {"hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
                      "hyper_connection.low_rank": 8, "attention.compress_ratios": [4] * 12},
        "deepseek4": {"attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 64,
                      "rope.dimension_count": 32,
                      "attention.q_lora_rank": 64, "attention.output_group_count": 8, "attention.output_lora_rank": 32,
                      "attention.compress_ratios": [0, 0, 4, 128], "attention.compress_rope_freq_base": 160000.0,
                      "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
                      "hash_layer_count": 0, "expert_weights_scale": 1.0, "expert_weights_norm": True},
    }  # fmt: skip
    return keys | special.get(architecture, {})


def main() -> None:
    from localllm.native.library import load

    native = load()
    lines: list[str] = []
    logger = logging.getLogger("localllm.native")
    logger.setLevel(logging.DEBUG)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    for name in sys.argv[1:]:
        architecture, _, sparse = name.partition("+")
        print(json.dumps([name, measure(native, architecture, bool(sparse), lines)]), flush=True)


def measure(native: Any, architecture: str, is_sparse: bool, lines: list[str]) -> list[tuple[float, float]]:
    """MiB of cache and states for each of `CONTEXTS`."""
    from localllm.engine.config import ContextConfig, ModelConfig
    from localllm.engine.params import context_params, model_params
    from localllm.native import logs
    from localllm.native.bindings import llama as llama_h

    keys = _container(native, architecture, metadata(architecture, is_sparse))
    no_weights = llama_h.llama_model_set_tensor_data_t(lambda tensor, data: None)
    model = native.llama_model_init_from_user(keys, no_weights, None, model_params(native, ModelConfig()))
    native.gguf_free(keys)
    logs.forward(native)
    assert model, lines[-3:]
    found = []
    for n_ctx, parallel, unified, flash in CONTEXTS:
        options = ContextConfig(n_ctx=n_ctx, parallel=parallel, n_ubatch=N_UBATCH, flash_attention="on" if flash else "off")
        params = context_params(native, options, 0)
        params.kv_unified = unified
        lines.clear()
        context = native.llama_init_from_model(model, params)
        logs.forward(native)
        assert context, lines[-3:]
        found.append((said(lines, "KV"), said(lines, "RS")))
        native.llama_free(context)
    native.llama_model_free(model)
    return found


def said(lines: list[str], buffer: str) -> float:
    """MiB of all buffers of a kind that llama.cpp has reported."""
    return sum(float(size) for line in lines for size in re.findall(rf"{buffer} buffer size = +([\d.]+) MiB", line))


def _container(native: Any, architecture: str, keys: dict[str, Any]) -> Any:
    from localllm.native.bindings import ggml as ggml_h

    container = native.gguf_init_empty()
    tokens = {"tokenizer.ggml.model": "test", "tokenizer.ggml.tokens": [f"tok_{n}" for n in range(N_VOCAB)]}
    scores = {"tokenizer.ggml.scores": [0.0] * N_VOCAB}
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    for name, value in {"general.architecture": architecture, **own, **tokens, **scores}.items():
        key = name.encode()
        if isinstance(value, bool):
            native.gguf_set_val_bool(container, key, value)
        elif isinstance(value, int):
            native.gguf_set_val_u32(container, key, value)
        elif isinstance(value, float):
            native.gguf_set_val_f32(container, key, value)
        elif isinstance(value, str):
            native.gguf_set_val_str(container, key, value.encode())
        elif isinstance(value[0], str):
            texts = (ctypes.c_char_p * len(value))(*(text.encode() for text in value))
            native.gguf_set_arr_str(container, key, texts, len(value))
        else:
            is_float = isinstance(value[0], float)
            numbers = ((ctypes.c_float if is_float else ctypes.c_uint32) * len(value))(*value)
            kind = ggml_h.GGUF_TYPE_FLOAT32 if is_float else ggml_h.GGUF_TYPE_UINT32
            native.gguf_set_arr_data(container, key, kind, numbers, len(value))
    return container


if __name__ == "__main__":
    main()
