# Generated from mtmd.h, mtmd-helper.h
# (llama.cpp 0c1e57098bba43ac29e6e3b677cdceebdd22334f).
# Do not edit; regenerate with: python -m localllm.native.generate

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint32,
    c_void_p,
)
from enum import IntEnum

from localllm.native.bindings.ggml import (
    ggml_backend_dev_t as ggml_backend_dev_t,
    ggml_backend_sched_eval_callback as ggml_backend_sched_eval_callback,
    ggml_log_callback as ggml_log_callback,
)

from localllm.native.bindings.llama import (
    llama_context_p as llama_context_p,
    llama_model_p as llama_model_p,
    llama_pos as llama_pos,
    llama_seq_id as llama_seq_id,
    llama_token as llama_token,
)

MTMD_INPUT_CHUNK_TYPE_TEXT = 0
MTMD_INPUT_CHUNK_TYPE_IMAGE = 1
MTMD_INPUT_CHUNK_TYPE_AUDIO = 2
MTMD_INPUT_CHUNK_TYPE_COUNT = 3


class mtmd_input_chunk_type(IntEnum):
    MTMD_INPUT_CHUNK_TYPE_TEXT = 0
    MTMD_INPUT_CHUNK_TYPE_IMAGE = 1
    MTMD_INPUT_CHUNK_TYPE_AUDIO = 2
    MTMD_INPUT_CHUNK_TYPE_COUNT = 3


MTMD_GEN_AUDIO_TYPE_NONE = 0
MTMD_GEN_AUDIO_TYPE_QWEN3TTS = 1
MTMD_GEN_AUDIO_TYPE_POCKETTTS = 2


class mtmd_gen_audio_type(IntEnum):
    MTMD_GEN_AUDIO_TYPE_NONE = 0
    MTMD_GEN_AUDIO_TYPE_QWEN3TTS = 1
    MTMD_GEN_AUDIO_TYPE_POCKETTTS = 2


MTMD_GEN_PROCESS_TYPE_GEN_CODE = 0
MTMD_GEN_PROCESS_TYPE_GEN_WAV = 1


class mtmd_gen_process_type(IntEnum):
    MTMD_GEN_PROCESS_TYPE_GEN_CODE = 0
    MTMD_GEN_PROCESS_TYPE_GEN_WAV = 1


MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM = 0
MTMD_HELPER_GEN_AUDIO_OUTTYPE_WAV = 1


class mtmd_helper_gen_audio_outtype(IntEnum):
    MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM = 0
    MTMD_HELPER_GEN_AUDIO_OUTTYPE_WAV = 1


mtmd_context_p = c_void_p
mtmd_bitmap_p = c_void_p
mtmd_image_tokens_p = c_void_p
mtmd_input_chunk_p = c_void_p
mtmd_input_chunks_p = c_void_p
mtmd_batch_p = c_void_p


class mtmd_input_text(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    ]


class mtmd_input_part(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("text", POINTER(mtmd_input_text)),
        ("bitmap", mtmd_bitmap_p),
    ]


mtmd_progress_callback = CFUNCTYPE(c_bool, c_float, c_void_p)


class mtmd_context_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("use_gpu", c_bool),
        ("device", ggml_backend_dev_t),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("cb_eval", ggml_backend_sched_eval_callback),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", mtmd_progress_callback),
        ("progress_callback_user_data", c_void_p),
    ]


mtmd_bitmap_lazy_callback = CFUNCTYPE(c_int, c_size_t, c_void_p, POINTER(mtmd_bitmap_p), POINTER(POINTER(c_char)))


class mtmd_decoder_pos(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("t", c_uint32),
        ("x", c_uint32),
        ("y", c_uint32),
        ("z", c_uint32),
    ]


class mtmd_caps(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("inp_vision", c_bool),
        ("inp_audio", c_bool),
    ]


class mtmd_gen_audio_info(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("type", c_int),
        ("sample_rate", c_int32),
        ("model_variant", c_char_p),
    ]


class mtmd_gen_inp(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("type", c_int),
        ("code0", c_int32),
        ("embd", POINTER(c_float)),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("seed", c_uint32),
        ("temp", c_float),
        ("codes", POINTER(c_int32)),
        ("n_codes", c_size_t),
        ("feats", POINTER(c_float)),
        ("n_feats", c_size_t),
        ("state_data", POINTER(c_char)),
        ("state_size", c_size_t),
    ]


class mtmd_gen_out(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("codes", POINTER(c_int32)),
        ("n_codes", c_size_t),
        ("feats", POINTER(c_float)),
        ("n_feats", c_size_t),
        ("embd", POINTER(c_float)),
        ("is_eos", c_bool),
        ("audio", POINTER(c_float)),
        ("n_samples", c_size_t),
        ("state_data", POINTER(c_char)),
        ("state_size", c_size_t),
    ]


mtmd_helper_video_p = c_void_p


class mtmd_helper_video_init_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("fps_target", c_float),
        ("ffmpeg_bin_dir", c_char_p),
        ("timestamp_interval_ms", c_int64),
    ]


class mtmd_helper_init_opt(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("video_params", mtmd_helper_video_init_params),
    ]


class mtmd_helper_bitmap_wrapper(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("bitmap", mtmd_bitmap_p),
        ("video_ctx", mtmd_helper_video_p),
    ]


class mtmd_helper_embd_batch(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("n_tokens", c_int32),
        ("embd", POINTER(c_float)),
        ("n_embd", c_int32),
        ("pos", POINTER(llama_pos)),
        ("n_pos", c_int32),
        ("seq_id", llama_seq_id),
    ]


mtmd_helper_post_decode_callback = CFUNCTYPE(c_int32, POINTER(mtmd_helper_embd_batch), c_void_p)


class mtmd_helper_video_info(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("width", c_uint32),
        ("height", c_uint32),
        ("fps", c_float),
        ("n_frames", c_int32),
    ]


mtmd_helper_gen_audio_p = c_void_p


class mtmd_helper_gen_audio_inp(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("seq_id", llama_seq_id),
        ("prompt", c_char_p),
        ("prompt_len", c_size_t),
        ("speaker_ref", mtmd_bitmap_p),
        ("lang", c_char_p),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("seed", c_uint32),
        ("out_type", c_int),
    ]


STRUCTURES: tuple[type[Structure], ...] = (
    mtmd_input_text,
    mtmd_input_part,
    mtmd_context_params,
    mtmd_decoder_pos,
    mtmd_caps,
    mtmd_gen_audio_info,
    mtmd_gen_inp,
    mtmd_gen_out,
    mtmd_helper_video_init_params,
    mtmd_helper_init_opt,
    mtmd_helper_bitmap_wrapper,
    mtmd_helper_embd_batch,
    mtmd_helper_video_info,
    mtmd_helper_gen_audio_inp,
)

LIBRARIES: tuple[str, ...] = ("mtmd",)
OPTIONAL: tuple[str, ...] = ()

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mtmd_default_marker": (c_char_p, ()),
    "mtmd_context_params_default": (mtmd_context_params, ()),
    "mtmd_init_from_file": (mtmd_context_p, (c_char_p, llama_model_p, mtmd_context_params)),
    "mtmd_free": (None, (mtmd_context_p,)),
    "mtmd_decode_use_non_causal": (c_bool, (mtmd_context_p, mtmd_input_chunk_p)),
    "mtmd_decode_use_mrope": (c_bool, (mtmd_context_p,)),
    "mtmd_support_vision": (c_bool, (mtmd_context_p,)),
    "mtmd_support_audio": (c_bool, (mtmd_context_p,)),
    "mtmd_get_audio_sample_rate": (c_int, (mtmd_context_p,)),
    "mtmd_get_marker": (c_char_p, (mtmd_context_p,)),
    "mtmd_bitmap_init": (mtmd_bitmap_p, (c_uint32, c_uint32, POINTER(c_ubyte))),
    "mtmd_bitmap_init_from_audio": (mtmd_bitmap_p, (c_size_t, POINTER(c_float))),
    "mtmd_bitmap_get_nx": (c_uint32, (mtmd_bitmap_p,)),
    "mtmd_bitmap_get_ny": (c_uint32, (mtmd_bitmap_p,)),
    "mtmd_bitmap_get_data": (POINTER(c_ubyte), (mtmd_bitmap_p,)),
    "mtmd_bitmap_get_n_bytes": (c_size_t, (mtmd_bitmap_p,)),
    "mtmd_bitmap_is_audio": (c_bool, (mtmd_bitmap_p,)),
    "mtmd_bitmap_free": (None, (mtmd_bitmap_p,)),
    "mtmd_bitmap_get_id": (c_char_p, (mtmd_bitmap_p,)),
    "mtmd_bitmap_set_id": (None, (mtmd_bitmap_p, c_char_p)),
    "mtmd_bitmap_set_mergeable": (None, (mtmd_bitmap_p, c_bool)),
    "mtmd_bitmap_init_lazy": (mtmd_bitmap_p, (mtmd_context_p, c_char_p, c_void_p, mtmd_bitmap_lazy_callback)),
    "mtmd_input_chunks_init": (mtmd_input_chunks_p, ()),
    "mtmd_input_chunks_size": (c_size_t, (mtmd_input_chunks_p,)),
    "mtmd_input_chunks_get": (mtmd_input_chunk_p, (mtmd_input_chunks_p, c_size_t)),
    "mtmd_input_chunks_free": (None, (mtmd_input_chunks_p,)),
    "mtmd_input_chunk_get_type": (c_int, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_get_tokens_text": (POINTER(llama_token), (mtmd_input_chunk_p, POINTER(c_size_t))),
    "mtmd_input_chunk_get_tokens_image": (mtmd_image_tokens_p, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_get_id": (c_char_p, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_get_n_pos": (llama_pos, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_copy": (mtmd_input_chunk_p, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_free": (None, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_get_placeholder": (mtmd_input_chunk_p, (mtmd_input_chunk_p,)),
    "mtmd_input_chunk_save": (c_int32, (mtmd_input_chunk_p, POINTER(c_char), c_size_t, POINTER(c_size_t))),
    "mtmd_input_chunk_load": (mtmd_input_chunk_p, (c_char_p, c_size_t)),
    "mtmd_image_tokens_get_n_tokens": (c_size_t, (mtmd_image_tokens_p,)),
    "mtmd_image_tokens_get_id": (c_char_p, (mtmd_image_tokens_p,)),
    "mtmd_image_tokens_get_n_pos": (llama_pos, (mtmd_image_tokens_p,)),
    "mtmd_image_tokens_get_nx": (c_size_t, (mtmd_image_tokens_p,)),
    "mtmd_image_tokens_get_ny": (c_size_t, (mtmd_image_tokens_p,)),
    "mtmd_image_tokens_get_decoder_pos": (mtmd_decoder_pos, (mtmd_image_tokens_p, llama_pos, c_size_t)),
    "mtmd_tokenize": (
        c_int32,
        (mtmd_context_p, mtmd_input_chunks_p, POINTER(mtmd_input_text), POINTER(mtmd_bitmap_p), c_size_t),
    ),
    "mtmd_tokenize_from_parts": (
        c_int32,
        (mtmd_context_p, mtmd_input_chunks_p, POINTER(POINTER(mtmd_input_part)), c_size_t, c_bool),
    ),
    "mtmd_encode": (c_int32, (mtmd_context_p, mtmd_image_tokens_p)),
    "mtmd_encode_chunk": (c_int32, (mtmd_context_p, mtmd_input_chunk_p)),
    "mtmd_get_output_embd": (POINTER(c_float), (mtmd_context_p,)),
    "mtmd_batch_init": (mtmd_batch_p, (mtmd_context_p,)),
    "mtmd_batch_free": (None, (mtmd_batch_p,)),
    "mtmd_batch_add_chunk": (c_int32, (mtmd_batch_p, mtmd_input_chunk_p)),
    "mtmd_batch_encode": (c_int32, (mtmd_batch_p,)),
    "mtmd_batch_get_output_embd": (POINTER(c_float), (mtmd_batch_p, mtmd_input_chunk_p)),
    "mtmd_log_set": (None, (ggml_log_callback, c_void_p)),
    "mtmd_get_cap_from_file": (mtmd_caps, (c_char_p,)),
    "mtmd_gen_audio_get_info": (mtmd_gen_audio_info, (mtmd_context_p,)),
    "mtmd_gen_inp_default": (mtmd_gen_inp, (mtmd_context_p,)),
    "mtmd_gen_audio_process": (c_int32, (mtmd_context_p, POINTER(mtmd_gen_inp), POINTER(mtmd_gen_out))),
    "mtmd_test_create_input_chunks": (mtmd_input_chunks_p, ()),
    "mtmd_helper_video_init_params_default": (mtmd_helper_video_init_params, ()),
    "mtmd_helper_init_opt_default": (mtmd_helper_init_opt, ()),
    "mtmd_helper_log_set": (None, (ggml_log_callback, c_void_p)),
    "mtmd_helper_support_video": (c_bool, (mtmd_context_p,)),
    "mtmd_helper_bitmap_init_from_file": (
        mtmd_helper_bitmap_wrapper,
        (mtmd_context_p, c_char_p, c_bool, mtmd_helper_init_opt),
    ),
    "mtmd_helper_bitmap_init_from_buf": (
        mtmd_helper_bitmap_wrapper,
        (mtmd_context_p, POINTER(c_ubyte), c_size_t, c_bool, mtmd_helper_init_opt),
    ),
    "mtmd_helper_get_n_tokens": (c_size_t, (mtmd_input_chunks_p,)),
    "mtmd_helper_get_n_pos": (llama_pos, (mtmd_input_chunks_p,)),
    "mtmd_helper_image_get_decoder_pos": (None, (mtmd_image_tokens_p, llama_pos, POINTER(mtmd_decoder_pos))),
    "mtmd_helper_eval_chunks": (
        c_int32,
        (
            mtmd_context_p,
            llama_context_p,
            mtmd_input_chunks_p,
            llama_pos,
            llama_seq_id,
            c_int32,
            c_bool,
            POINTER(llama_pos),
        ),
    ),
    "mtmd_helper_eval_chunk_single": (
        c_int32,
        (
            mtmd_context_p,
            llama_context_p,
            mtmd_input_chunk_p,
            llama_pos,
            llama_seq_id,
            c_int32,
            c_bool,
            POINTER(llama_pos),
        ),
    ),
    "mtmd_helper_decode_image_chunk": (
        c_int32,
        (
            mtmd_context_p,
            llama_context_p,
            mtmd_input_chunk_p,
            POINTER(c_float),
            llama_pos,
            llama_seq_id,
            c_int32,
            POINTER(llama_pos),
            mtmd_helper_post_decode_callback,
            c_void_p,
        ),
    ),
    "mtmd_helper_video_init": (mtmd_helper_video_p, (mtmd_context_p, c_char_p, mtmd_helper_video_init_params)),
    "mtmd_helper_video_init_from_buf": (
        mtmd_helper_video_p,
        (mtmd_context_p, POINTER(c_ubyte), c_size_t, mtmd_helper_video_init_params),
    ),
    "mtmd_helper_video_free": (None, (mtmd_helper_video_p,)),
    "mtmd_helper_video_get_info": (mtmd_helper_video_info, (mtmd_helper_video_p,)),
    "mtmd_helper_video_read_next": (c_int32, (mtmd_helper_video_p, POINTER(mtmd_bitmap_p), POINTER(POINTER(c_char)))),
    "mtmd_helper_model_can_chat": (c_bool, (llama_context_p, mtmd_context_p)),
    "mtmd_helper_gen_audio_init": (mtmd_helper_gen_audio_p, (llama_context_p, mtmd_context_p)),
    "mtmd_helper_gen_audio_free": (None, (mtmd_helper_gen_audio_p,)),
    "mtmd_helper_gen_audio_reset": (None, (mtmd_helper_gen_audio_p,)),
    "mtmd_helper_gen_audio_set_input": (c_int32, (mtmd_helper_gen_audio_p, POINTER(mtmd_helper_gen_audio_inp))),
    "mtmd_helper_gen_audio_step_prompt": (c_int32, (mtmd_helper_gen_audio_p, c_int32)),
    "mtmd_helper_gen_audio_step_gen": (
        c_int32,
        (mtmd_helper_gen_audio_p, llama_token, POINTER(c_float), POINTER(POINTER(c_float)), POINTER(c_bool)),
    ),
    "mtmd_helper_gen_audio_get_output": (
        c_int32,
        (mtmd_helper_gen_audio_p, POINTER(c_int32), POINTER(POINTER(c_char)), POINTER(c_size_t), POINTER(c_int64)),
    ),
}
