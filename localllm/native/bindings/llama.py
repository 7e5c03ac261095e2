# Generated from llama.h
# (llama.cpp 0c1e57098bba43ac29e6e3b677cdceebdd22334f).
# Do not edit; regenerate with: python -m localllm.native.generate

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_int8,
    c_size_t,
    c_uint32,
    c_uint64,
    c_uint8,
    c_void_p,
)
from enum import IntEnum

from localllm.native.bindings.ggml import (
    ggml_abort_callback as ggml_abort_callback,
    ggml_backend_buffer_type_t as ggml_backend_buffer_type_t,
    ggml_backend_dev_t as ggml_backend_dev_t,
    ggml_backend_sched_eval_callback as ggml_backend_sched_eval_callback,
    ggml_cgraph_p as ggml_cgraph_p,
    ggml_context_p as ggml_context_p,
    ggml_log_callback as ggml_log_callback,
    ggml_opt_dataset_t as ggml_opt_dataset_t,
    ggml_opt_epoch_callback as ggml_opt_epoch_callback,
    ggml_opt_get_optimizer_params as ggml_opt_get_optimizer_params,
    ggml_opt_result_t as ggml_opt_result_t,
    ggml_tensor as ggml_tensor,
    ggml_threadpool_t as ggml_threadpool_t,
    gguf_context_p as gguf_context_p,
)

LLAMA_DEFAULT_SEED = 0xFFFFFFFF
LLAMA_TOKEN_NULL = -1
LLAMA_FILE_MAGIC_GGLA = 0x67676C61
LLAMA_FILE_MAGIC_GGSN = 0x6767736E
LLAMA_FILE_MAGIC_GGSQ = 0x67677371
LLAMA_SESSION_MAGIC = 1734833006
LLAMA_SESSION_VERSION = 10
LLAMA_STATE_SEQ_MAGIC = 1734833009
LLAMA_STATE_SEQ_VERSION = 3
LLAMA_STATE_SEQ_FLAGS_NONE = 0
LLAMA_STATE_SEQ_FLAGS_SWA_ONLY = 1
LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY = 1
LLAMA_STATE_SEQ_FLAGS_ON_DEVICE = 2

LLAMA_VOCAB_TYPE_NONE = 0
LLAMA_VOCAB_TYPE_SPM = 1
LLAMA_VOCAB_TYPE_BPE = 2
LLAMA_VOCAB_TYPE_WPM = 3
LLAMA_VOCAB_TYPE_UGM = 4
LLAMA_VOCAB_TYPE_RWKV = 5
LLAMA_VOCAB_TYPE_PLAMO2 = 6
LLAMA_VOCAB_TYPE_TEST = 7


class llama_vocab_type(IntEnum):
    LLAMA_VOCAB_TYPE_NONE = 0
    LLAMA_VOCAB_TYPE_SPM = 1
    LLAMA_VOCAB_TYPE_BPE = 2
    LLAMA_VOCAB_TYPE_WPM = 3
    LLAMA_VOCAB_TYPE_UGM = 4
    LLAMA_VOCAB_TYPE_RWKV = 5
    LLAMA_VOCAB_TYPE_PLAMO2 = 6
    LLAMA_VOCAB_TYPE_TEST = 7


LLAMA_ROPE_TYPE_NONE = -1
LLAMA_ROPE_TYPE_NORM = 0
LLAMA_ROPE_TYPE_NEOX = 2
LLAMA_ROPE_TYPE_MROPE = 8
LLAMA_ROPE_TYPE_IMROPE = 40
LLAMA_ROPE_TYPE_VISION = 24


class llama_rope_type(IntEnum):
    LLAMA_ROPE_TYPE_NONE = -1
    LLAMA_ROPE_TYPE_NORM = 0
    LLAMA_ROPE_TYPE_NEOX = 2
    LLAMA_ROPE_TYPE_MROPE = 8
    LLAMA_ROPE_TYPE_IMROPE = 40
    LLAMA_ROPE_TYPE_VISION = 24


LLAMA_TOKEN_TYPE_UNDEFINED = 0
LLAMA_TOKEN_TYPE_NORMAL = 1
LLAMA_TOKEN_TYPE_UNKNOWN = 2
LLAMA_TOKEN_TYPE_CONTROL = 3
LLAMA_TOKEN_TYPE_USER_DEFINED = 4
LLAMA_TOKEN_TYPE_UNUSED = 5
LLAMA_TOKEN_TYPE_BYTE = 6


class llama_token_type(IntEnum):
    LLAMA_TOKEN_TYPE_UNDEFINED = 0
    LLAMA_TOKEN_TYPE_NORMAL = 1
    LLAMA_TOKEN_TYPE_UNKNOWN = 2
    LLAMA_TOKEN_TYPE_CONTROL = 3
    LLAMA_TOKEN_TYPE_USER_DEFINED = 4
    LLAMA_TOKEN_TYPE_UNUSED = 5
    LLAMA_TOKEN_TYPE_BYTE = 6


LLAMA_TOKEN_ATTR_UNDEFINED = 0
LLAMA_TOKEN_ATTR_UNKNOWN = 1
LLAMA_TOKEN_ATTR_UNUSED = 2
LLAMA_TOKEN_ATTR_NORMAL = 4
LLAMA_TOKEN_ATTR_CONTROL = 8
LLAMA_TOKEN_ATTR_USER_DEFINED = 16
LLAMA_TOKEN_ATTR_BYTE = 32
LLAMA_TOKEN_ATTR_NORMALIZED = 64
LLAMA_TOKEN_ATTR_LSTRIP = 128
LLAMA_TOKEN_ATTR_RSTRIP = 256
LLAMA_TOKEN_ATTR_SINGLE_WORD = 512


class llama_token_attr(IntEnum):
    LLAMA_TOKEN_ATTR_UNDEFINED = 0
    LLAMA_TOKEN_ATTR_UNKNOWN = 1
    LLAMA_TOKEN_ATTR_UNUSED = 2
    LLAMA_TOKEN_ATTR_NORMAL = 4
    LLAMA_TOKEN_ATTR_CONTROL = 8
    LLAMA_TOKEN_ATTR_USER_DEFINED = 16
    LLAMA_TOKEN_ATTR_BYTE = 32
    LLAMA_TOKEN_ATTR_NORMALIZED = 64
    LLAMA_TOKEN_ATTR_LSTRIP = 128
    LLAMA_TOKEN_ATTR_RSTRIP = 256
    LLAMA_TOKEN_ATTR_SINGLE_WORD = 512


LLAMA_FTYPE_ALL_F32 = 0
LLAMA_FTYPE_MOSTLY_F16 = 1
LLAMA_FTYPE_MOSTLY_Q4_0 = 2
LLAMA_FTYPE_MOSTLY_Q4_1 = 3
LLAMA_FTYPE_MOSTLY_Q8_0 = 7
LLAMA_FTYPE_MOSTLY_Q5_0 = 8
LLAMA_FTYPE_MOSTLY_Q5_1 = 9
LLAMA_FTYPE_MOSTLY_Q2_K = 10
LLAMA_FTYPE_MOSTLY_Q3_K_S = 11
LLAMA_FTYPE_MOSTLY_Q3_K_M = 12
LLAMA_FTYPE_MOSTLY_Q3_K_L = 13
LLAMA_FTYPE_MOSTLY_Q4_K_S = 14
LLAMA_FTYPE_MOSTLY_Q4_K_M = 15
LLAMA_FTYPE_MOSTLY_Q5_K_S = 16
LLAMA_FTYPE_MOSTLY_Q5_K_M = 17
LLAMA_FTYPE_MOSTLY_Q6_K = 18
LLAMA_FTYPE_MOSTLY_IQ2_XXS = 19
LLAMA_FTYPE_MOSTLY_IQ2_XS = 20
LLAMA_FTYPE_MOSTLY_Q2_K_S = 21
LLAMA_FTYPE_MOSTLY_IQ3_XS = 22
LLAMA_FTYPE_MOSTLY_IQ3_XXS = 23
LLAMA_FTYPE_MOSTLY_IQ1_S = 24
LLAMA_FTYPE_MOSTLY_IQ4_NL = 25
LLAMA_FTYPE_MOSTLY_IQ3_S = 26
LLAMA_FTYPE_MOSTLY_IQ3_M = 27
LLAMA_FTYPE_MOSTLY_IQ2_S = 28
LLAMA_FTYPE_MOSTLY_IQ2_M = 29
LLAMA_FTYPE_MOSTLY_IQ4_XS = 30
LLAMA_FTYPE_MOSTLY_IQ1_M = 31
LLAMA_FTYPE_MOSTLY_BF16 = 32
LLAMA_FTYPE_MOSTLY_TQ1_0 = 36
LLAMA_FTYPE_MOSTLY_TQ2_0 = 37
LLAMA_FTYPE_MOSTLY_MXFP4_MOE = 38
LLAMA_FTYPE_MOSTLY_NVFP4 = 39
LLAMA_FTYPE_MOSTLY_Q1_0 = 40
LLAMA_FTYPE_MOSTLY_Q2_0 = 41
LLAMA_FTYPE_GUESSED = 1024


class llama_ftype(IntEnum):
    LLAMA_FTYPE_ALL_F32 = 0
    LLAMA_FTYPE_MOSTLY_F16 = 1
    LLAMA_FTYPE_MOSTLY_Q4_0 = 2
    LLAMA_FTYPE_MOSTLY_Q4_1 = 3
    LLAMA_FTYPE_MOSTLY_Q8_0 = 7
    LLAMA_FTYPE_MOSTLY_Q5_0 = 8
    LLAMA_FTYPE_MOSTLY_Q5_1 = 9
    LLAMA_FTYPE_MOSTLY_Q2_K = 10
    LLAMA_FTYPE_MOSTLY_Q3_K_S = 11
    LLAMA_FTYPE_MOSTLY_Q3_K_M = 12
    LLAMA_FTYPE_MOSTLY_Q3_K_L = 13
    LLAMA_FTYPE_MOSTLY_Q4_K_S = 14
    LLAMA_FTYPE_MOSTLY_Q4_K_M = 15
    LLAMA_FTYPE_MOSTLY_Q5_K_S = 16
    LLAMA_FTYPE_MOSTLY_Q5_K_M = 17
    LLAMA_FTYPE_MOSTLY_Q6_K = 18
    LLAMA_FTYPE_MOSTLY_IQ2_XXS = 19
    LLAMA_FTYPE_MOSTLY_IQ2_XS = 20
    LLAMA_FTYPE_MOSTLY_Q2_K_S = 21
    LLAMA_FTYPE_MOSTLY_IQ3_XS = 22
    LLAMA_FTYPE_MOSTLY_IQ3_XXS = 23
    LLAMA_FTYPE_MOSTLY_IQ1_S = 24
    LLAMA_FTYPE_MOSTLY_IQ4_NL = 25
    LLAMA_FTYPE_MOSTLY_IQ3_S = 26
    LLAMA_FTYPE_MOSTLY_IQ3_M = 27
    LLAMA_FTYPE_MOSTLY_IQ2_S = 28
    LLAMA_FTYPE_MOSTLY_IQ2_M = 29
    LLAMA_FTYPE_MOSTLY_IQ4_XS = 30
    LLAMA_FTYPE_MOSTLY_IQ1_M = 31
    LLAMA_FTYPE_MOSTLY_BF16 = 32
    LLAMA_FTYPE_MOSTLY_TQ1_0 = 36
    LLAMA_FTYPE_MOSTLY_TQ2_0 = 37
    LLAMA_FTYPE_MOSTLY_MXFP4_MOE = 38
    LLAMA_FTYPE_MOSTLY_NVFP4 = 39
    LLAMA_FTYPE_MOSTLY_Q1_0 = 40
    LLAMA_FTYPE_MOSTLY_Q2_0 = 41
    LLAMA_FTYPE_GUESSED = 1024


LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED = -1
LLAMA_ROPE_SCALING_TYPE_NONE = 0
LLAMA_ROPE_SCALING_TYPE_LINEAR = 1
LLAMA_ROPE_SCALING_TYPE_YARN = 2
LLAMA_ROPE_SCALING_TYPE_LONGROPE = 3
LLAMA_ROPE_SCALING_TYPE_MAX_VALUE = 3


class llama_rope_scaling_type(IntEnum):
    LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED = -1
    LLAMA_ROPE_SCALING_TYPE_NONE = 0
    LLAMA_ROPE_SCALING_TYPE_LINEAR = 1
    LLAMA_ROPE_SCALING_TYPE_YARN = 2
    LLAMA_ROPE_SCALING_TYPE_LONGROPE = 3
    LLAMA_ROPE_SCALING_TYPE_MAX_VALUE = 3


LLAMA_POOLING_TYPE_UNSPECIFIED = -1
LLAMA_POOLING_TYPE_NONE = 0
LLAMA_POOLING_TYPE_MEAN = 1
LLAMA_POOLING_TYPE_CLS = 2
LLAMA_POOLING_TYPE_LAST = 3
LLAMA_POOLING_TYPE_RANK = 4


class llama_pooling_type(IntEnum):
    LLAMA_POOLING_TYPE_UNSPECIFIED = -1
    LLAMA_POOLING_TYPE_NONE = 0
    LLAMA_POOLING_TYPE_MEAN = 1
    LLAMA_POOLING_TYPE_CLS = 2
    LLAMA_POOLING_TYPE_LAST = 3
    LLAMA_POOLING_TYPE_RANK = 4


LLAMA_ATTENTION_TYPE_UNSPECIFIED = -1
LLAMA_ATTENTION_TYPE_CAUSAL = 0
LLAMA_ATTENTION_TYPE_NON_CAUSAL = 1


class llama_attention_type(IntEnum):
    LLAMA_ATTENTION_TYPE_UNSPECIFIED = -1
    LLAMA_ATTENTION_TYPE_CAUSAL = 0
    LLAMA_ATTENTION_TYPE_NON_CAUSAL = 1


LLAMA_FLASH_ATTN_TYPE_AUTO = -1
LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
LLAMA_FLASH_ATTN_TYPE_ENABLED = 1


class llama_flash_attn_type(IntEnum):
    LLAMA_FLASH_ATTN_TYPE_AUTO = -1
    LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1


LLAMA_SPLIT_MODE_NONE = 0
LLAMA_SPLIT_MODE_LAYER = 1
LLAMA_SPLIT_MODE_ROW = 2
LLAMA_SPLIT_MODE_TENSOR = 3


class llama_split_mode(IntEnum):
    LLAMA_SPLIT_MODE_NONE = 0
    LLAMA_SPLIT_MODE_LAYER = 1
    LLAMA_SPLIT_MODE_ROW = 2
    LLAMA_SPLIT_MODE_TENSOR = 3


LLAMA_LOAD_MODE_AUTO = -1
LLAMA_LOAD_MODE_NONE = 0
LLAMA_LOAD_MODE_MMAP = 1
LLAMA_LOAD_MODE_MLOCK = 2
LLAMA_LOAD_MODE_MMAP_MLOCK = 3
LLAMA_LOAD_MODE_DIRECT_IO = 4


class llama_load_mode(IntEnum):
    LLAMA_LOAD_MODE_AUTO = -1
    LLAMA_LOAD_MODE_NONE = 0
    LLAMA_LOAD_MODE_MMAP = 1
    LLAMA_LOAD_MODE_MLOCK = 2
    LLAMA_LOAD_MODE_MMAP_MLOCK = 3
    LLAMA_LOAD_MODE_DIRECT_IO = 4


LLAMA_LAZY_MODE_OFF = 0
LLAMA_LAZY_MODE_AUTO = 1
LLAMA_LAZY_MODE_ON = 2


class llama_lazy_mode(IntEnum):
    LLAMA_LAZY_MODE_OFF = 0
    LLAMA_LAZY_MODE_AUTO = 1
    LLAMA_LAZY_MODE_ON = 2


LLAMA_CONTEXT_TYPE_DEFAULT = 0
LLAMA_CONTEXT_TYPE_MTP = 1


class llama_context_type(IntEnum):
    LLAMA_CONTEXT_TYPE_DEFAULT = 0
    LLAMA_CONTEXT_TYPE_MTP = 1


LLAMA_KV_OVERRIDE_TYPE_INT = 0
LLAMA_KV_OVERRIDE_TYPE_FLOAT = 1
LLAMA_KV_OVERRIDE_TYPE_BOOL = 2
LLAMA_KV_OVERRIDE_TYPE_STR = 3


class llama_model_kv_override_type(IntEnum):
    LLAMA_KV_OVERRIDE_TYPE_INT = 0
    LLAMA_KV_OVERRIDE_TYPE_FLOAT = 1
    LLAMA_KV_OVERRIDE_TYPE_BOOL = 2
    LLAMA_KV_OVERRIDE_TYPE_STR = 3


LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE = 0
LLAMA_MODEL_META_KEY_SAMPLING_TOP_K = 1
LLAMA_MODEL_META_KEY_SAMPLING_TOP_P = 2
LLAMA_MODEL_META_KEY_SAMPLING_MIN_P = 3
LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY = 4
LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD = 5
LLAMA_MODEL_META_KEY_SAMPLING_TEMP = 6
LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N = 7
LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT = 8
LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT = 9
LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU = 10
LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA = 11


class llama_model_meta_key(IntEnum):
    LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE = 0
    LLAMA_MODEL_META_KEY_SAMPLING_TOP_K = 1
    LLAMA_MODEL_META_KEY_SAMPLING_TOP_P = 2
    LLAMA_MODEL_META_KEY_SAMPLING_MIN_P = 3
    LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY = 4
    LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD = 5
    LLAMA_MODEL_META_KEY_SAMPLING_TEMP = 6
    LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N = 7
    LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT = 8
    LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT = 9
    LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU = 10
    LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA = 11


LLAMA_PROCESS_TYPE_ENCODE = 0
LLAMA_PROCESS_TYPE_DECODE = 1


class llama_process_type(IntEnum):
    LLAMA_PROCESS_TYPE_ENCODE = 0
    LLAMA_PROCESS_TYPE_DECODE = 1


class llama_sampler(Structure):
    __slots__ = ("_keep",)


llama_vocab_p = c_void_p
llama_model_p = c_void_p
llama_context_p = c_void_p
llama_sampler_i_name = CFUNCTYPE(c_char_p, POINTER(llama_sampler))
llama_token = c_int32
llama_sampler_i_accept = CFUNCTYPE(None, POINTER(llama_sampler), llama_token)


class llama_token_data(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("id", llama_token),
        ("logit", c_float),
        ("p", c_float),
    ]


class llama_token_data_array(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("data", POINTER(llama_token_data)),
        ("size", c_size_t),
        ("selected", c_int64),
        ("sorted", c_bool),
    ]


llama_sampler_i_apply = CFUNCTYPE(None, POINTER(llama_sampler), POINTER(llama_token_data_array))
llama_sampler_i_reset = CFUNCTYPE(None, POINTER(llama_sampler))
llama_sampler_i_clone = CFUNCTYPE(POINTER(llama_sampler), POINTER(llama_sampler))
llama_sampler_i_free = CFUNCTYPE(None, POINTER(llama_sampler))
llama_sampler_i_backend_init = CFUNCTYPE(c_bool, POINTER(llama_sampler), ggml_backend_buffer_type_t, c_uint32)

llama_sampler_i_backend_accept = CFUNCTYPE(
    None,
    POINTER(llama_sampler),
    ggml_context_p,
    ggml_cgraph_p,
    POINTER(ggml_tensor),
)


class llama_sampler_data(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("logits", POINTER(ggml_tensor)),
        ("probs", POINTER(ggml_tensor)),
        ("sampled", POINTER(ggml_tensor)),
        ("candidates", POINTER(ggml_tensor)),
    ]


llama_sampler_i_backend_apply = CFUNCTYPE(
    None,
    POINTER(llama_sampler),
    ggml_context_p,
    ggml_cgraph_p,
    POINTER(llama_sampler_data),
)

llama_sampler_i_backend_set_input = CFUNCTYPE(None, POINTER(llama_sampler))
llama_sampler_i_backend_reset = CFUNCTYPE(None, POINTER(llama_sampler))
llama_sampler_i_copy_state = CFUNCTYPE(None, POINTER(llama_sampler), POINTER(llama_sampler))


class llama_sampler_i(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("name", llama_sampler_i_name),
        ("accept", llama_sampler_i_accept),
        ("apply", llama_sampler_i_apply),
        ("reset", llama_sampler_i_reset),
        ("clone", llama_sampler_i_clone),
        ("free", llama_sampler_i_free),
        ("backend_init", llama_sampler_i_backend_init),
        ("backend_accept", llama_sampler_i_backend_accept),
        ("backend_apply", llama_sampler_i_backend_apply),
        ("backend_set_input", llama_sampler_i_backend_set_input),
        ("backend_reset", llama_sampler_i_backend_reset),
        ("copy_state", llama_sampler_i_copy_state),
    ]


llama_sampler_context_t = c_void_p

llama_sampler._fields_ = [
    ("iface", POINTER(llama_sampler_i)),
    ("ctx", llama_sampler_context_t),
]

llama_memory_i_p = c_void_p
llama_memory_t = llama_memory_i_p
llama_pos = c_int32
llama_seq_id = c_int32
llama_progress_callback = CFUNCTYPE(c_bool, c_float, c_void_p)


class llama_batch(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(llama_token)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(llama_pos)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(llama_seq_id))),
        ("logits", POINTER(c_int8)),
    ]


class llama_model_kv_override_anonymous_0(Union):
    __slots__ = ("_keep",)
    _fields_ = [
        ("val_i64", c_int64),
        ("val_f64", c_double),
        ("val_bool", c_bool),
        ("val_str", c_char * 128),
    ]


class llama_model_kv_override(Structure):
    __slots__ = ("_keep",)
    _anonymous_ = ("_anonymous_0",)
    _fields_ = [
        ("tag", c_int),
        ("key", c_char * 128),
        ("_anonymous_0", llama_model_kv_override_anonymous_0),
    ]


class llama_model_tensor_buft_override(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("pattern", c_char_p),
        ("buft", ggml_backend_buffer_type_t),
    ]


class llama_model_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("devices", POINTER(ggml_backend_dev_t)),
        ("tensor_buft_overrides", POINTER(llama_model_tensor_buft_override)),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", POINTER(c_float)),
        ("progress_callback", llama_progress_callback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", POINTER(llama_model_kv_override)),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class llama_sampler_seq_config(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("seq_id", llama_seq_id),
        ("sampler", POINTER(llama_sampler)),
    ]


class llama_context_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", ggml_backend_sched_eval_callback),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("abort_callback", ggml_abort_callback),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", POINTER(llama_sampler_seq_config)),
        ("n_samplers", c_size_t),
        ("ctx_other", llama_context_p),
    ]


class llama_model_tensor_override(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("pattern", c_char_p),
        ("type", c_int),
    ]


class llama_model_imatrix_data(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("name", c_char_p),
        ("data", POINTER(c_float)),
        ("size", c_size_t),
    ]


class llama_model_quantize_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("nthread", c_int32),
        ("ftype", c_int),
        ("output_tensor_type", c_int),
        ("token_embedding_type", c_int),
        ("allow_requantize", c_bool),
        ("quantize_output_tensor", c_bool),
        ("only_copy", c_bool),
        ("pure", c_bool),
        ("keep_split", c_bool),
        ("dry_run", c_bool),
        ("imatrix", POINTER(llama_model_imatrix_data)),
        ("kv_overrides", POINTER(llama_model_kv_override)),
        ("tt_overrides", POINTER(llama_model_tensor_override)),
        ("prune_layers", POINTER(c_int32)),
        ("max_buf_size", c_size_t),
    ]


class llama_logit_bias(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("token", llama_token),
        ("bias", c_float),
    ]


class llama_sampler_chain_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("no_perf", c_bool),
    ]


class llama_chat_message(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("role", c_char_p),
        ("content", c_char_p),
    ]


llama_adapter_lora_p = c_void_p
llama_model_set_tensor_data_t = CFUNCTYPE(None, POINTER(ggml_tensor), c_void_p)
llama_state_seq_flags = c_uint32
llama_batch_ext_p = c_void_p


class llama_embd(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("data", POINTER(c_float)),
        ("n_rows", c_size_t),
        ("n_embd", c_size_t),
    ]


class llama_perf_context_data(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("t_start_ms", c_double),
        ("t_load_ms", c_double),
        ("t_p_eval_ms", c_double),
        ("t_eval_ms", c_double),
        ("n_p_eval", c_int32),
        ("n_eval", c_int32),
        ("n_reused", c_int32),
    ]


class llama_perf_sampler_data(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("t_sample_ms", c_double),
        ("n_sample", c_int32),
    ]


llama_opt_param_filter = CFUNCTYPE(c_bool, POINTER(ggml_tensor), c_void_p)


class llama_opt_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("n_ctx_train", c_uint32),
        ("param_filter", llama_opt_param_filter),
        ("param_filter_ud", c_void_p),
        ("get_opt_pars", ggml_opt_get_optimizer_params),
        ("get_opt_pars_ud", c_void_p),
        ("optimizer_type", c_int),
    ]


STRUCTURES: tuple[type[Structure], ...] = (
    llama_token_data,
    llama_token_data_array,
    llama_sampler_data,
    llama_sampler_i,
    llama_sampler,
    llama_batch,
    llama_model_kv_override,
    llama_model_tensor_buft_override,
    llama_model_params,
    llama_sampler_seq_config,
    llama_context_params,
    llama_model_tensor_override,
    llama_model_imatrix_data,
    llama_model_quantize_params,
    llama_logit_bias,
    llama_sampler_chain_params,
    llama_chat_message,
    llama_embd,
    llama_perf_context_data,
    llama_perf_sampler_data,
    llama_opt_params,
)

LIBRARIES: tuple[str, ...] = ("llama",)
OPTIONAL: tuple[str, ...] = ()

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "llama_ftype_name": (c_char_p, (c_int,)),
    "llama_flash_attn_type_name": (c_char_p, (c_int,)),
    "llama_load_mode_name": (c_char_p, (c_int,)),
    "llama_load_mode_from_str": (c_int, (c_char_p,)),
    "llama_version": (c_char_p, ()),
    "llama_model_default_params": (llama_model_params, ()),
    "llama_context_default_params": (llama_context_params, ()),
    "llama_sampler_chain_default_params": (llama_sampler_chain_params, ()),
    "llama_model_quantize_default_params": (llama_model_quantize_params, ()),
    "llama_backend_init": (None, ()),
    "llama_backend_free": (None, ()),
    "llama_numa_init": (None, (c_int,)),
    "llama_attach_threadpool": (None, (llama_context_p, ggml_threadpool_t, ggml_threadpool_t)),
    "llama_detach_threadpool": (None, (llama_context_p,)),
    "llama_model_init_from_user": (
        llama_model_p,
        (gguf_context_p, llama_model_set_tensor_data_t, c_void_p, llama_model_params),
    ),
    "llama_load_model_from_file": (llama_model_p, (c_char_p, llama_model_params)),
    "llama_model_load_from_file": (llama_model_p, (c_char_p, llama_model_params)),
    "llama_model_load_from_file_ptr": (llama_model_p, (c_void_p, llama_model_params)),
    "llama_model_load_from_splits": (llama_model_p, (POINTER(c_char_p), c_size_t, llama_model_params)),
    "llama_model_save_to_file": (None, (llama_model_p, c_char_p)),
    "llama_free_model": (None, (llama_model_p,)),
    "llama_model_free": (None, (llama_model_p,)),
    "llama_init_from_model": (llama_context_p, (llama_model_p, llama_context_params)),
    "llama_new_context_with_model": (llama_context_p, (llama_model_p, llama_context_params)),
    "llama_free": (None, (llama_context_p,)),
    "llama_time_us": (c_int64, ()),
    "llama_max_devices": (c_size_t, ()),
    "llama_max_parallel_sequences": (c_size_t, ()),
    "llama_max_tensor_buft_overrides": (c_size_t, ()),
    "llama_supports_mmap": (c_bool, ()),
    "llama_supports_mlock": (c_bool, ()),
    "llama_supports_gpu_offload": (c_bool, ()),
    "llama_supports_rpc": (c_bool, ()),
    "llama_n_ctx": (c_uint32, (llama_context_p,)),
    "llama_n_ctx_seq": (c_uint32, (llama_context_p,)),
    "llama_n_batch": (c_uint32, (llama_context_p,)),
    "llama_n_ubatch": (c_uint32, (llama_context_p,)),
    "llama_n_seq_max": (c_uint32, (llama_context_p,)),
    "llama_n_rs_seq": (c_uint32, (llama_context_p,)),
    "llama_n_ctx_train": (c_int32, (llama_model_p,)),
    "llama_n_embd": (c_int32, (llama_model_p,)),
    "llama_n_layer": (c_int32, (llama_model_p,)),
    "llama_n_head": (c_int32, (llama_model_p,)),
    "llama_n_vocab": (c_int32, (llama_vocab_p,)),
    "llama_get_model": (llama_model_p, (llama_context_p,)),
    "llama_get_memory": (llama_memory_t, (llama_context_p,)),
    "llama_pooling_type": (c_int, (llama_context_p,)),
    "llama_model_get_vocab": (llama_vocab_p, (llama_model_p,)),
    "llama_model_rope_type": (c_int, (llama_model_p,)),
    "llama_model_n_ctx_train": (c_int32, (llama_model_p,)),
    "llama_model_n_embd": (c_int32, (llama_model_p,)),
    "llama_model_n_embd_inp": (c_int32, (llama_model_p,)),
    "llama_model_n_embd_out": (c_int32, (llama_model_p,)),
    "llama_model_n_layer": (c_int32, (llama_model_p,)),
    "llama_model_n_layer_nextn": (c_int32, (llama_model_p,)),
    "llama_model_n_head": (c_int32, (llama_model_p,)),
    "llama_model_n_head_kv": (c_int32, (llama_model_p,)),
    "llama_model_n_swa": (c_int32, (llama_model_p,)),
    "llama_model_rope_freq_scale_train": (c_float, (llama_model_p,)),
    "llama_model_n_cls_out": (c_uint32, (llama_model_p,)),
    "llama_model_cls_label": (c_char_p, (llama_model_p, c_uint32)),
    "llama_vocab_type": (c_int, (llama_vocab_p,)),
    "llama_vocab_n_tokens": (c_int32, (llama_vocab_p,)),
    "llama_model_meta_val_str": (c_int32, (llama_model_p, c_char_p, POINTER(c_char), c_size_t)),
    "llama_model_meta_count": (c_int32, (llama_model_p,)),
    "llama_model_meta_key_str": (c_char_p, (c_int,)),
    "llama_model_meta_key_by_index": (c_int32, (llama_model_p, c_int32, POINTER(c_char), c_size_t)),
    "llama_model_meta_val_str_by_index": (c_int32, (llama_model_p, c_int32, POINTER(c_char), c_size_t)),
    "llama_model_desc": (c_int32, (llama_model_p, POINTER(c_char), c_size_t)),
    "llama_model_ftype": (c_int, (llama_model_p,)),
    "llama_model_size": (c_uint64, (llama_model_p,)),
    "llama_model_chat_template": (c_char_p, (llama_model_p, c_char_p)),
    "llama_model_n_params": (c_uint64, (llama_model_p,)),
    "llama_model_has_encoder": (c_bool, (llama_model_p,)),
    "llama_model_has_decoder": (c_bool, (llama_model_p,)),
    "llama_model_decoder_start_token": (llama_token, (llama_model_p,)),
    "llama_model_is_recurrent": (c_bool, (llama_model_p,)),
    "llama_model_is_hybrid": (c_bool, (llama_model_p,)),
    "llama_model_is_diffusion": (c_bool, (llama_model_p,)),
    "llama_model_quantize": (c_uint32, (c_char_p, c_char_p, POINTER(llama_model_quantize_params))),
    "llama_adapter_lora_init": (llama_adapter_lora_p, (llama_model_p, c_char_p)),
    "llama_adapter_lora_init_from_file_ptr": (llama_adapter_lora_p, (llama_model_p, c_void_p)),
    "llama_adapter_meta_val_str": (c_int32, (llama_adapter_lora_p, c_char_p, POINTER(c_char), c_size_t)),
    "llama_adapter_meta_count": (c_int32, (llama_adapter_lora_p,)),
    "llama_adapter_meta_key_by_index": (c_int32, (llama_adapter_lora_p, c_int32, POINTER(c_char), c_size_t)),
    "llama_adapter_meta_val_str_by_index": (c_int32, (llama_adapter_lora_p, c_int32, POINTER(c_char), c_size_t)),
    "llama_adapter_lora_free": (None, (llama_adapter_lora_p,)),
    "llama_adapter_get_alora_n_invocation_tokens": (c_uint64, (llama_adapter_lora_p,)),
    "llama_adapter_get_alora_invocation_tokens": (POINTER(llama_token), (llama_adapter_lora_p,)),
    "llama_set_adapters_lora": (c_int32, (llama_context_p, POINTER(llama_adapter_lora_p), c_size_t, POINTER(c_float))),
    "llama_set_adapter_cvec": (c_int32, (llama_context_p, POINTER(c_float), c_size_t, c_int32, c_int32, c_int32)),
    "llama_memory_clear": (None, (llama_memory_t, c_bool)),
    "llama_memory_seq_rm": (c_bool, (llama_memory_t, llama_seq_id, llama_pos, llama_pos)),
    "llama_memory_seq_cp": (None, (llama_memory_t, llama_seq_id, llama_seq_id, llama_pos, llama_pos)),
    "llama_memory_seq_keep": (None, (llama_memory_t, llama_seq_id)),
    "llama_memory_seq_add": (None, (llama_memory_t, llama_seq_id, llama_pos, llama_pos, llama_pos)),
    "llama_memory_seq_div": (None, (llama_memory_t, llama_seq_id, llama_pos, llama_pos, c_int)),
    "llama_memory_seq_pos_min": (llama_pos, (llama_memory_t, llama_seq_id)),
    "llama_memory_seq_pos_max": (llama_pos, (llama_memory_t, llama_seq_id)),
    "llama_memory_can_shift": (c_bool, (llama_memory_t,)),
    "llama_state_get_size": (c_size_t, (llama_context_p,)),
    "llama_get_state_size": (c_size_t, (llama_context_p,)),
    "llama_state_get_data": (c_size_t, (llama_context_p, POINTER(c_uint8), c_size_t)),
    "llama_copy_state_data": (c_size_t, (llama_context_p, POINTER(c_uint8))),
    "llama_state_set_data": (c_size_t, (llama_context_p, POINTER(c_uint8), c_size_t)),
    "llama_set_state_data": (c_size_t, (llama_context_p, POINTER(c_uint8))),
    "llama_state_load_file": (c_bool, (llama_context_p, c_char_p, POINTER(llama_token), c_size_t, POINTER(c_size_t))),
    "llama_load_session_file": (
        c_bool,
        (llama_context_p, c_char_p, POINTER(llama_token), c_size_t, POINTER(c_size_t)),
    ),
    "llama_state_save_file": (c_bool, (llama_context_p, c_char_p, POINTER(llama_token), c_size_t)),
    "llama_save_session_file": (c_bool, (llama_context_p, c_char_p, POINTER(llama_token), c_size_t)),
    "llama_state_seq_get_size": (c_size_t, (llama_context_p, llama_seq_id)),
    "llama_state_seq_get_data": (c_size_t, (llama_context_p, POINTER(c_uint8), c_size_t, llama_seq_id)),
    "llama_state_seq_set_data": (c_size_t, (llama_context_p, POINTER(c_uint8), c_size_t, llama_seq_id)),
    "llama_state_seq_save_file": (c_size_t, (llama_context_p, c_char_p, llama_seq_id, POINTER(llama_token), c_size_t)),
    "llama_state_seq_load_file": (
        c_size_t,
        (llama_context_p, c_char_p, llama_seq_id, POINTER(llama_token), c_size_t, POINTER(c_size_t)),
    ),
    "llama_state_seq_get_size_ext": (c_size_t, (llama_context_p, llama_seq_id, llama_state_seq_flags)),
    "llama_state_seq_get_data_ext": (
        c_size_t,
        (llama_context_p, POINTER(c_uint8), c_size_t, llama_seq_id, llama_state_seq_flags),
    ),
    "llama_state_seq_set_data_ext": (
        c_size_t,
        (llama_context_p, POINTER(c_uint8), c_size_t, llama_seq_id, llama_state_seq_flags),
    ),
    "llama_batch_get_one": (llama_batch, (POINTER(llama_token), c_int32)),
    "llama_batch_init": (llama_batch, (c_int32, c_int32, c_int32)),
    "llama_batch_free": (None, (llama_batch,)),
    "llama_encode": (c_int32, (llama_context_p, llama_batch)),
    "llama_decode": (c_int32, (llama_context_p, llama_batch)),
    "llama_batch_ext_init": (llama_batch_ext_p, (llama_context_p,)),
    "llama_batch_ext_free": (None, (llama_batch_ext_p,)),
    "llama_batch_ext_clear": (None, (llama_batch_ext_p,)),
    "llama_batch_ext_add": (c_int32, (llama_batch_ext_p, llama_seq_id)),
    "llama_batch_ext_add_token": (c_int32, (llama_batch_ext_p, llama_seq_id, llama_token)),
    "llama_batch_ext_add_embd": (c_int32, (llama_batch_ext_p, llama_seq_id, llama_embd)),
    "llama_batch_ext_add_seq": (c_bool, (llama_batch_ext_p, c_int32, llama_seq_id)),
    "llama_batch_ext_set_embd_token": (c_bool, (llama_batch_ext_p, c_int32, llama_embd)),
    "llama_batch_ext_set_embd_state": (c_bool, (llama_batch_ext_p, c_int32, llama_embd)),
    "llama_batch_ext_set_output_embd": (c_bool, (llama_batch_ext_p, c_int32, c_bool)),
    "llama_batch_ext_set_output_logits": (c_bool, (llama_batch_ext_p, c_int32, c_bool)),
    "llama_batch_ext_set_pos": (c_bool, (llama_batch_ext_p, c_int32, POINTER(llama_pos))),
    "llama_process": (c_int32, (llama_context_p, c_int, llama_batch_ext_p)),
    "llama_set_n_threads": (None, (llama_context_p, c_int32, c_int32)),
    "llama_n_threads": (c_int32, (llama_context_p,)),
    "llama_n_threads_batch": (c_int32, (llama_context_p,)),
    "llama_set_embeddings": (None, (llama_context_p, c_bool)),
    "llama_set_causal_attn": (None, (llama_context_p, c_bool)),
    "llama_get_causal_attn": (c_bool, (llama_context_p,)),
    "llama_set_warmup": (None, (llama_context_p, c_bool)),
    "llama_set_abort_callback": (None, (llama_context_p, ggml_abort_callback, c_void_p)),
    "llama_synchronize": (None, (llama_context_p,)),
    "llama_get_logits": (POINTER(c_float), (llama_context_p,)),
    "llama_get_logits_ith": (POINTER(c_float), (llama_context_p, c_int32)),
    "llama_get_embeddings": (POINTER(c_float), (llama_context_p,)),
    "llama_get_embeddings_ith": (POINTER(c_float), (llama_context_p, c_int32)),
    "llama_get_embeddings_seq": (POINTER(c_float), (llama_context_p, llama_seq_id)),
    "llama_get_sampled_token_ith": (llama_token, (llama_context_p, c_int32)),
    "llama_get_sampled_probs_ith": (POINTER(c_float), (llama_context_p, c_int32)),
    "llama_get_sampled_probs_count_ith": (c_uint32, (llama_context_p, c_int32)),
    "llama_get_sampled_logits_ith": (POINTER(c_float), (llama_context_p, c_int32)),
    "llama_get_sampled_logits_count_ith": (c_uint32, (llama_context_p, c_int32)),
    "llama_get_sampled_candidates_ith": (POINTER(llama_token), (llama_context_p, c_int32)),
    "llama_get_sampled_candidates_count_ith": (c_uint32, (llama_context_p, c_int32)),
    "llama_vocab_get_text": (c_char_p, (llama_vocab_p, llama_token)),
    "llama_vocab_get_score": (c_float, (llama_vocab_p, llama_token)),
    "llama_vocab_get_attr": (c_int, (llama_vocab_p, llama_token)),
    "llama_vocab_is_eog": (c_bool, (llama_vocab_p, llama_token)),
    "llama_vocab_is_control": (c_bool, (llama_vocab_p, llama_token)),
    "llama_vocab_bos": (llama_token, (llama_vocab_p,)),
    "llama_vocab_eos": (llama_token, (llama_vocab_p,)),
    "llama_vocab_eot": (llama_token, (llama_vocab_p,)),
    "llama_vocab_sep": (llama_token, (llama_vocab_p,)),
    "llama_vocab_nl": (llama_token, (llama_vocab_p,)),
    "llama_vocab_pad": (llama_token, (llama_vocab_p,)),
    "llama_vocab_mask": (llama_token, (llama_vocab_p,)),
    "llama_vocab_get_add_bos": (c_bool, (llama_vocab_p,)),
    "llama_vocab_get_add_eos": (c_bool, (llama_vocab_p,)),
    "llama_vocab_get_add_sep": (c_bool, (llama_vocab_p,)),
    "llama_vocab_get_suppress_tokens": (POINTER(llama_token), (llama_vocab_p, POINTER(c_int32))),
    "llama_vocab_fim_pre": (llama_token, (llama_vocab_p,)),
    "llama_vocab_fim_suf": (llama_token, (llama_vocab_p,)),
    "llama_vocab_fim_mid": (llama_token, (llama_vocab_p,)),
    "llama_vocab_fim_pad": (llama_token, (llama_vocab_p,)),
    "llama_vocab_fim_rep": (llama_token, (llama_vocab_p,)),
    "llama_vocab_fim_sep": (llama_token, (llama_vocab_p,)),
    "llama_token_get_text": (c_char_p, (llama_vocab_p, llama_token)),
    "llama_token_get_score": (c_float, (llama_vocab_p, llama_token)),
    "llama_token_get_attr": (c_int, (llama_vocab_p, llama_token)),
    "llama_token_is_eog": (c_bool, (llama_vocab_p, llama_token)),
    "llama_token_is_control": (c_bool, (llama_vocab_p, llama_token)),
    "llama_token_bos": (llama_token, (llama_vocab_p,)),
    "llama_token_eos": (llama_token, (llama_vocab_p,)),
    "llama_token_eot": (llama_token, (llama_vocab_p,)),
    "llama_token_cls": (llama_token, (llama_vocab_p,)),
    "llama_token_sep": (llama_token, (llama_vocab_p,)),
    "llama_token_nl": (llama_token, (llama_vocab_p,)),
    "llama_token_pad": (llama_token, (llama_vocab_p,)),
    "llama_add_bos_token": (c_bool, (llama_vocab_p,)),
    "llama_add_eos_token": (c_bool, (llama_vocab_p,)),
    "llama_token_fim_pre": (llama_token, (llama_vocab_p,)),
    "llama_token_fim_suf": (llama_token, (llama_vocab_p,)),
    "llama_token_fim_mid": (llama_token, (llama_vocab_p,)),
    "llama_token_fim_pad": (llama_token, (llama_vocab_p,)),
    "llama_token_fim_rep": (llama_token, (llama_vocab_p,)),
    "llama_token_fim_sep": (llama_token, (llama_vocab_p,)),
    "llama_vocab_cls": (llama_token, (llama_vocab_p,)),
    "llama_tokenize": (c_int32, (llama_vocab_p, c_char_p, c_int32, POINTER(llama_token), c_int32, c_bool, c_bool)),
    "llama_token_to_piece": (c_int32, (llama_vocab_p, llama_token, POINTER(c_char), c_int32, c_int32, c_bool)),
    "llama_detokenize": (
        c_int32,
        (llama_vocab_p, POINTER(llama_token), c_int32, POINTER(c_char), c_int32, c_bool, c_bool),
    ),
    "llama_chat_apply_template": (
        c_int32,
        (c_char_p, POINTER(llama_chat_message), c_size_t, c_bool, POINTER(c_char), c_int32),
    ),
    "llama_chat_builtin_templates": (c_int32, (POINTER(c_char_p), c_size_t)),
    "llama_set_sampler": (c_bool, (llama_context_p, llama_seq_id, POINTER(llama_sampler))),
    "llama_sampler_init": (POINTER(llama_sampler), (POINTER(llama_sampler_i), llama_sampler_context_t)),
    "llama_sampler_name": (c_char_p, (POINTER(llama_sampler),)),
    "llama_sampler_accept": (None, (POINTER(llama_sampler), llama_token)),
    "llama_sampler_apply": (None, (POINTER(llama_sampler), POINTER(llama_token_data_array))),
    "llama_sampler_reset": (None, (POINTER(llama_sampler),)),
    "llama_sampler_clone": (POINTER(llama_sampler), (POINTER(llama_sampler),)),
    "llama_sampler_copy": (None, (POINTER(llama_sampler), POINTER(llama_sampler))),
    "llama_sampler_free": (None, (POINTER(llama_sampler),)),
    "llama_sampler_chain_init": (POINTER(llama_sampler), (llama_sampler_chain_params,)),
    "llama_sampler_chain_add": (None, (POINTER(llama_sampler), POINTER(llama_sampler))),
    "llama_sampler_chain_get": (POINTER(llama_sampler), (POINTER(llama_sampler), c_int32)),
    "llama_sampler_chain_n": (c_int32, (POINTER(llama_sampler),)),
    "llama_sampler_chain_remove": (POINTER(llama_sampler), (POINTER(llama_sampler), c_int32)),
    "llama_sampler_init_greedy": (POINTER(llama_sampler), ()),
    "llama_sampler_init_dist": (POINTER(llama_sampler), (c_uint32,)),
    "llama_sampler_init_top_k": (POINTER(llama_sampler), (c_int32,)),
    "llama_sampler_init_top_p": (POINTER(llama_sampler), (c_float, c_size_t)),
    "llama_sampler_init_min_p": (POINTER(llama_sampler), (c_float, c_size_t)),
    "llama_sampler_init_typical": (POINTER(llama_sampler), (c_float, c_size_t)),
    "llama_sampler_init_temp": (POINTER(llama_sampler), (c_float,)),
    "llama_sampler_init_temp_ext": (POINTER(llama_sampler), (c_float, c_float, c_float)),
    "llama_sampler_init_xtc": (POINTER(llama_sampler), (c_float, c_float, c_size_t, c_uint32)),
    "llama_sampler_init_top_n_sigma": (POINTER(llama_sampler), (c_float,)),
    "llama_sampler_init_mirostat": (POINTER(llama_sampler), (c_int32, c_uint32, c_float, c_float, c_int32)),
    "llama_sampler_init_mirostat_v2": (POINTER(llama_sampler), (c_uint32, c_float, c_float)),
    "llama_sampler_init_grammar": (POINTER(llama_sampler), (llama_vocab_p, c_char_p, c_char_p)),
    "llama_sampler_init_grammar_lazy": (
        POINTER(llama_sampler),
        (llama_vocab_p, c_char_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(llama_token), c_size_t),
    ),
    "llama_sampler_init_grammar_lazy_patterns": (
        POINTER(llama_sampler),
        (llama_vocab_p, c_char_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(llama_token), c_size_t),
    ),
    "llama_sampler_init_penalties": (POINTER(llama_sampler), (c_int32, c_int32, c_float, c_float, c_float)),
    "llama_sampler_init_dry": (
        POINTER(llama_sampler),
        (llama_vocab_p, c_float, c_float, c_int32, c_int32, POINTER(c_char_p), c_size_t),
    ),
    "llama_sampler_init_adaptive_p": (POINTER(llama_sampler), (c_float, c_float, c_uint32)),
    "llama_sampler_init_logit_bias": (POINTER(llama_sampler), (c_int32, c_int32, POINTER(llama_logit_bias))),
    "llama_sampler_init_infill": (POINTER(llama_sampler), (llama_vocab_p,)),
    "llama_sampler_get_seed": (c_uint32, (POINTER(llama_sampler),)),
    "llama_sampler_sample": (llama_token, (POINTER(llama_sampler), llama_context_p, c_int32)),
    "llama_split_path": (c_int32, (POINTER(c_char), c_size_t, c_char_p, c_int32, c_int32)),
    "llama_split_prefix": (c_int32, (POINTER(c_char), c_size_t, c_char_p, c_int32, c_int32)),
    "llama_print_system_info": (c_char_p, ()),
    "llama_log_get": (None, (POINTER(ggml_log_callback), POINTER(c_void_p))),
    "llama_log_set": (None, (ggml_log_callback, c_void_p)),
    "llama_perf_context": (llama_perf_context_data, (llama_context_p,)),
    "llama_perf_context_print": (None, (llama_context_p,)),
    "llama_perf_context_reset": (None, (llama_context_p,)),
    "llama_perf_sampler": (llama_perf_sampler_data, (POINTER(llama_sampler),)),
    "llama_perf_sampler_print": (None, (POINTER(llama_sampler),)),
    "llama_perf_sampler_reset": (None, (POINTER(llama_sampler),)),
    "llama_opt_param_filter_all": (c_bool, (POINTER(ggml_tensor), c_void_p)),
    "llama_opt_init": (None, (llama_context_p, llama_model_p, llama_opt_params)),
    "llama_opt_epoch": (
        None,
        (
            llama_context_p,
            ggml_opt_dataset_t,
            ggml_opt_result_t,
            ggml_opt_result_t,
            c_int64,
            ggml_opt_epoch_callback,
            ggml_opt_epoch_callback,
        ),
    ),
}
