# Generated from localllm/native/src/localllm.h
# (llama.cpp 0c1e57098bba43ac29e6e3b677cdceebdd22334f).
# Do not edit; regenerate with: python -m localllm.native.generate

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_uint8,
    c_void_p,
)
from enum import IntEnum

from localllm.native.bindings.llama import (
    llama_adapter_lora_p as llama_adapter_lora_p,
    llama_batch as llama_batch,
    llama_context_p as llama_context_p,
    llama_context_params as llama_context_params,
    llama_model_p as llama_model_p,
    llama_model_params as llama_model_params,
    llama_pos as llama_pos,
    llama_seq_id as llama_seq_id,
    llama_token as llama_token,
    llama_token_data as llama_token_data,
)

LM_ABI_VERSION = 10

LM_OK = 0
LM_INVALID_ARGUMENT = 1
LM_OUT_OF_MEMORY = 2
LM_LOAD_FAILED = 3
LM_GRAMMAR = 4
LM_TEMPLATE = 5
LM_NO_SLOT = 6
LM_ABORTED = 7
LM_DECODE_FAILED = 8
LM_INTERNAL = 9
LM_UNSUPPORTED = 10


class lm_status(IntEnum):
    LM_OK = 0
    LM_INVALID_ARGUMENT = 1
    LM_OUT_OF_MEMORY = 2
    LM_LOAD_FAILED = 3
    LM_GRAMMAR = 4
    LM_TEMPLATE = 5
    LM_NO_SLOT = 6
    LM_ABORTED = 7
    LM_DECODE_FAILED = 8
    LM_INTERNAL = 9
    LM_UNSUPPORTED = 10


LM_FINISH_NONE = 0
LM_FINISH_EOG = 1
LM_FINISH_STOP = 2
LM_FINISH_LENGTH = 3


class lm_finish(IntEnum):
    LM_FINISH_NONE = 0
    LM_FINISH_EOG = 1
    LM_FINISH_STOP = 2
    LM_FINISH_LENGTH = 3


LM_POOL_NONE = 0
LM_POOL_MEAN = 1
LM_POOL_CLS = 2
LM_POOL_LAST = 3
LM_POOL_RANK = 4


class lm_pooling(IntEnum):
    LM_POOL_NONE = 0
    LM_POOL_MEAN = 1
    LM_POOL_CLS = 2
    LM_POOL_LAST = 3
    LM_POOL_RANK = 4


LM_PART_TEXT = 0
LM_PART_IMAGE = 1
LM_PART_AUDIO = 2


class lm_part_kind(IntEnum):
    LM_PART_TEXT = 0
    LM_PART_IMAGE = 1
    LM_PART_AUDIO = 2


lm_sampler_p = c_void_p
lm_text_p = c_void_p
lm_chat_p = c_void_p
lm_parser_p = c_void_p
lm_drafter_p = c_void_p
lm_follower_p = c_void_p
lm_lilicorr_p = c_void_p
lm_fit_p = c_void_p
lm_projector_p = c_void_p
lm_media_p = c_void_p


class lm_control(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("data", POINTER(c_float)),
        ("scale", c_float),
        ("layer_first", c_int32),
        ("layer_last", c_int32),
    ]


class lm_row(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("sampler", lm_sampler_p),
        ("text", lm_text_p),
        ("draft", POINTER(llama_token)),
        ("tokens", POINTER(llama_token)),
        ("logprobs", POINTER(c_float)),
        ("top", POINTER(llama_token_data)),
        ("index", c_int32),
        ("n_draft", c_int32),
        ("n_top", c_int32),
        ("max_tokens", c_int32),
        ("sampled_probs", c_bool),
        ("ignore_eog", c_bool),
        ("n_tokens", c_int32),
        ("finish", c_int32),
        ("status", c_int32),
        ("bytes", POINTER(c_char)),
        ("size", c_size_t),
        ("error", c_char_p),
    ]


class lm_piece(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("out", POINTER(c_float)),
        ("n_out", c_size_t),
        ("first", c_int32),
        ("n_tokens", c_int32),
        ("n_done", c_int32),
        ("pooling", c_int32),
        ("status", c_int32),
    ]


class lm_proposal(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("news", POINTER(llama_token)),
        ("draft", POINTER(llama_token)),
        ("slot", c_int32),
        ("n_news", c_int32),
        ("n_accepted", c_int32),
        ("n_max", c_int32),
        ("n_draft", c_int32),
    ]


class lm_draft_request(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("draft", POINTER(llama_token)),
        ("slot", c_int32),
        ("n_past", c_int32),
        ("last", llama_token),
        ("n_max", c_int32),
        ("n_draft", c_int32),
    ]


class lm_follower_times(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("follow_us", c_uint64),
        ("draft_us", c_uint64),
        ("candidates_us", c_uint64),
        ("head_us", c_uint64),
        ("n_followed", c_uint64),
        ("n_proposals", c_uint64),
    ]


class lm_lilicorr_block(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("logprobs", POINTER(c_float)),
        ("embeddings", POINTER(c_float)),
        ("hidden", POINTER(c_float)),
        ("anchor", POINTER(c_float)),
        ("start", POINTER(c_float)),
        ("pair", POINTER(c_float)),
        ("path", POINTER(c_int32)),
        ("p_min", c_float),
        ("n_path", c_int32),
    ]


class lm_part(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("kind", c_int32),
        ("text", c_char_p),
        ("size", c_size_t),
        ("parse_special", c_bool),
        ("pixels", POINTER(c_uint8)),
        ("width", c_uint32),
        ("height", c_uint32),
        ("frame", c_bool),
        ("samples", POINTER(c_float)),
        ("n_samples", c_size_t),
    ]


class lm_media_piece(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("part", c_int32),
        ("n_tokens", c_int32),
        ("n_positions", c_int32),
        ("causal", c_bool),
        ("tokens", POINTER(llama_token)),
        ("positions", POINTER(llama_pos)),
        ("description", POINTER(c_uint8)),
        ("size", c_size_t),
    ]


class lm_media_ref(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("media", lm_media_p),
        ("index", c_int32),
    ]


STRUCTURES: tuple[type[Structure], ...] = (
    lm_control,
    lm_row,
    lm_piece,
    lm_proposal,
    lm_draft_request,
    lm_follower_times,
    lm_lilicorr_block,
    lm_part,
    lm_media_piece,
    lm_media_ref,
)

LIBRARIES: tuple[str, ...] = ("localllm",)
OPTIONAL: tuple[str, ...] = ()

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "lm_abi_version": (c_int32, ()),
    "lm_last_error": (c_char_p, ()),
    "lm_string_free": (None, (POINTER(c_char),)),
    "lm_init": (c_int, (c_char_p,)),
    "lm_build_info": (c_int, (POINTER(POINTER(c_char)),)),
    "lm_devices": (c_int, (POINTER(POINTER(c_char)),)),
    "lm_layout_json": (c_char_p, ()),
    "lm_log_pending": (c_int32, ()),
    "lm_log_set_level": (None, (c_int32,)),
    "lm_log_take": (c_int, (POINTER(POINTER(c_char)),)),
    "lm_file_info": (c_int, (c_char_p, POINTER(POINTER(c_char)))),
    "lm_model_load": (c_int, (c_char_p, POINTER(llama_model_params), c_bool, POINTER(llama_model_p))),
    "lm_context_create": (c_int, (llama_model_p, POINTER(llama_context_params), POINTER(llama_context_p))),
    "lm_model_metadata": (c_int, (llama_model_p, POINTER(POINTER(c_char)))),
    "lm_tokenize": (
        c_int,
        (llama_model_p, c_char_p, c_size_t, c_bool, c_bool, POINTER(llama_token), POINTER(c_int32)),
    ),
    "lm_detokenize": (
        c_int,
        (llama_model_p, POINTER(llama_token), c_int32, c_bool, POINTER(POINTER(c_char)), POINTER(c_size_t)),
    ),
    "lm_special_tokens": (c_int, (llama_model_p, POINTER(POINTER(c_char)))),
    "lm_decode": (c_int, (llama_context_p, POINTER(llama_batch))),
    "lm_state_save": (c_int, (llama_context_p, llama_seq_id, POINTER(c_uint8), POINTER(c_size_t))),
    "lm_state_load": (c_int, (llama_context_p, llama_seq_id, POINTER(c_uint8), c_size_t)),
    "lm_abort_if_set": (c_bool, (c_void_p,)),
    "lm_lora_check": (c_int, (llama_model_p, c_char_p)),
    "lm_lora_load": (c_int, (llama_model_p, c_char_p, POINTER(llama_adapter_lora_p))),
    "lm_lora_free": (c_int, (llama_model_p, llama_adapter_lora_p)),
    "lm_control_check": (c_int, (llama_model_p,)),
    "lm_control_load": (c_int, (llama_model_p, c_char_p, POINTER(c_float), POINTER(c_size_t))),
    "lm_steer": (
        c_int,
        (llama_context_p, POINTER(llama_adapter_lora_p), POINTER(c_float), c_int32, POINTER(lm_control), c_int32),
    ),
    "lm_sampler_create": (c_int, (llama_model_p, c_char_p, POINTER(lm_sampler_p))),
    "lm_sampler_clone": (c_int, (lm_sampler_p, POINTER(lm_sampler_p))),
    "lm_sampler_free": (c_int, (lm_sampler_p,)),
    "lm_sampler_reset": (c_int, (lm_sampler_p,)),
    "lm_sampler_accept": (c_int, (lm_sampler_p, POINTER(llama_token), c_int32, c_bool)),
    "lm_sampler_sample": (c_int, (lm_sampler_p, llama_context_p, c_int32, POINTER(llama_token))),
    "lm_sampler_top": (
        c_int,
        (lm_sampler_p, llama_context_p, c_int32, c_bool, POINTER(llama_token_data), POINTER(c_int32)),
    ),
    "lm_sampler_seed": (c_int, (lm_sampler_p, POINTER(c_uint32))),
    "lm_text_create": (c_int, (llama_model_p, c_char_p, POINTER(lm_text_p))),
    "lm_text_free": (c_int, (lm_text_p,)),
    "lm_text_push": (c_int, (lm_text_p, llama_token, POINTER(POINTER(c_char)), POINTER(c_size_t), POINTER(c_int))),
    "lm_text_flush": (c_int, (lm_text_p, POINTER(POINTER(c_char)), POINTER(c_size_t))),
    "lm_step": (c_int, (llama_context_p, POINTER(POINTER(lm_row)), c_int32)),
    "lm_run": (c_int, (llama_context_p, POINTER(llama_batch), POINTER(POINTER(lm_row)), c_int32)),
    "lm_embed": (c_int, (llama_context_p, POINTER(llama_batch), POINTER(lm_piece), c_int32)),
    "lm_rows_finish": (c_int, (POINTER(c_float), c_size_t, c_int32, c_int32, c_bool)),
    "lm_pool_info": (c_int, (llama_model_p, POINTER(POINTER(c_char)))),
    "lm_drafter_create": (c_int, (llama_model_p, c_char_p, c_int32, POINTER(lm_drafter_p))),
    "lm_drafter_free": (c_int, (lm_drafter_p,)),
    "lm_drafter_begin": (c_int, (lm_drafter_p, c_int32, POINTER(llama_token), c_int32)),
    "lm_drafter_propose": (c_int, (lm_drafter_p, POINTER(lm_proposal), c_int32)),
    "lm_follower_create": (c_int, (llama_context_p, llama_context_p, c_char_p, c_int32, POINTER(lm_follower_p))),
    "lm_follower_free": (c_int, (lm_follower_p,)),
    "lm_follower_n_max": (c_int, (lm_follower_p, POINTER(c_int32))),
    "lm_follower_follow": (c_int, (lm_follower_p, POINTER(llama_batch))),
    "lm_follower_accept": (c_int, (lm_follower_p, c_int32, c_int32)),
    "lm_follower_carry": (c_int, (lm_follower_p, c_int32, POINTER(llama_pos), POINTER(c_uint8), POINTER(c_size_t))),
    "lm_follower_set_carry": (c_int, (lm_follower_p, c_int32, llama_pos, POINTER(c_uint8), c_size_t)),
    "lm_follower_lag": (c_int, (lm_follower_p, POINTER(c_int32))),
    "lm_follower_propose": (c_int, (lm_follower_p, POINTER(lm_draft_request), c_int32)),
    "lm_follower_get_times": (c_int, (lm_follower_p, POINTER(lm_follower_times))),
    "lm_lilicorr_create": (c_int, (c_char_p, c_int32, c_int32, POINTER(lm_lilicorr_p))),
    "lm_lilicorr_free": (c_int, (lm_lilicorr_p,)),
    "lm_lilicorr_info": (c_int, (lm_lilicorr_p, POINTER(POINTER(c_char)))),
    "lm_lilicorr_candidates": (
        c_int,
        (POINTER(c_float), c_int32, c_int32, c_int32, POINTER(llama_token), POINTER(c_float)),
    ),
    "lm_lilicorr_score": (c_int, (lm_lilicorr_p, POINTER(lm_lilicorr_block), c_int32)),
    "lm_chat_create": (c_int, (llama_model_p, c_char_p, POINTER(lm_chat_p))),
    "lm_chat_free": (c_int, (lm_chat_p,)),
    "lm_chat_info": (c_int, (lm_chat_p, POINTER(POINTER(c_char)))),
    "lm_chat_apply": (c_int, (lm_chat_p, c_char_p, POINTER(POINTER(c_char)))),
    "lm_parser_create": (c_int, (c_char_p, POINTER(lm_parser_p))),
    "lm_parser_free": (c_int, (lm_parser_p,)),
    "lm_parser_parse": (c_int, (lm_parser_p, c_char_p, c_size_t, c_bool, POINTER(POINTER(c_char)))),
    "lm_schema_to_grammar": (c_int, (c_char_p, POINTER(POINTER(c_char)))),
    "lm_grammar_check": (c_int, (c_char_p, c_char_p, c_size_t, POINTER(c_bool), POINTER(c_size_t))),
    "lm_memory_of": (c_int, (llama_context_p, POINTER(POINTER(c_char)))),
    "lm_memory_measure": (
        c_int,
        (c_char_p, POINTER(llama_model_params), POINTER(llama_context_params), POINTER(POINTER(c_char))),
    ),
    "lm_fit_create": (
        c_int,
        (c_char_p, POINTER(llama_model_params), POINTER(llama_context_params), c_uint64, c_uint32, POINTER(lm_fit_p)),
    ),
    "lm_fit_free": (c_int, (lm_fit_p,)),
    "lm_fit_info": (c_int, (lm_fit_p, POINTER(POINTER(c_char)))),
    "lm_fit_apply": (c_int, (lm_fit_p, POINTER(llama_model_params), POINTER(llama_context_params))),
    "lm_speed_types": (c_int, (POINTER(POINTER(c_char)),)),
    "lm_speed_matrix": (c_int, (c_char_p, c_int32, POINTER(POINTER(c_char)))),
    "lm_speed_layer": (c_int, (c_int32, POINTER(POINTER(c_char)))),
    "lm_quantize_types": (c_int, (POINTER(POINTER(c_char)),)),
    "lm_quantize_plan": (c_int, (c_char_p, POINTER(POINTER(c_char)))),
    "lm_quantize": (c_int, (c_char_p, c_char_p, c_char_p, c_int32, c_char_p, POINTER(c_int32))),
    "lm_bench_loop": (
        c_int,
        (
            llama_context_p,
            POINTER(llama_token),
            c_int32,
            c_int32,
            POINTER(llama_token),
            POINTER(c_double),
            POINTER(c_double),
        ),
    ),
    "lm_projector_open": (c_int, (llama_model_p, c_char_p, c_char_p, POINTER(lm_projector_p))),
    "lm_projector_free": (c_int, (lm_projector_p,)),
    "lm_projector_info": (c_int, (lm_projector_p, POINTER(POINTER(c_char)))),
    "lm_media_split": (c_int, (lm_projector_p, POINTER(lm_part), c_int32, c_bool, POINTER(lm_media_p))),
    "lm_media_free": (c_int, (lm_media_p,)),
    "lm_media_size": (c_int, (lm_media_p, POINTER(c_int32))),
    "lm_media_get": (c_int, (lm_media_p, c_int32, POINTER(lm_media_piece))),
    "lm_media_encode": (
        c_int,
        (lm_projector_p, POINTER(lm_media_ref), c_int32, POINTER(c_float), c_size_t, POINTER(c_int32)),
    ),
}
