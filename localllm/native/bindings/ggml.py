# Generated from ggml.h, ggml-alloc.h, ggml-opt.h, ggml-backend.h, ggml-cpu.h, gguf.h
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
    c_double,
    c_float,
    c_int,
    c_int16,
    c_int32,
    c_int64,
    c_int8,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_uint8,
    c_void_p,
)
from enum import IntEnum

GGML_FILE_MAGIC = 0x67676D6C
GGML_FILE_VERSION = 2
GGML_QNT_VERSION = 2
GGML_QNT_VERSION_FACTOR = 1000
GGML_MAX_DIMS = 4
GGML_MAX_PARAMS = 2048
GGML_MAX_SRC = 10
GGML_MAX_N_THREADS = 512
GGML_MAX_OP_PARAMS = 64
GGML_MAX_NAME = 64
GGML_DEFAULT_N_THREADS = 4
GGML_DEFAULT_GRAPH_SIZE = 2048
GGML_MEM_ALIGN = 16
GGML_EXIT_SUCCESS = 0
GGML_EXIT_ABORTED = 1
GGML_ROPE_TYPE_NORMAL = 0
GGML_ROPE_TYPE_NEOX = 2
GGML_ROPE_TYPE_MROPE = 8
GGML_ROPE_TYPE_VISION = 24
GGML_ROPE_TYPE_IMROPE = 40
GGML_MROPE_SECTIONS = 4
GGML_N_TASKS_MAX = -1
GGML_BACKEND_META_MAX_DEVICES = 16
GGUF_MAGIC = "GGUF"
GGUF_VERSION = 3
GGUF_KEY_GENERAL_ALIGNMENT = "general.alignment"
GGUF_DEFAULT_ALIGNMENT = 32

GGML_STATUS_ALLOC_FAILED = -2
GGML_STATUS_FAILED = -1
GGML_STATUS_SUCCESS = 0
GGML_STATUS_ABORTED = 1


class ggml_status(IntEnum):
    GGML_STATUS_ALLOC_FAILED = -2
    GGML_STATUS_FAILED = -1
    GGML_STATUS_SUCCESS = 0
    GGML_STATUS_ABORTED = 1


GGML_TYPE_F32 = 0
GGML_TYPE_F16 = 1
GGML_TYPE_Q4_0 = 2
GGML_TYPE_Q4_1 = 3
GGML_TYPE_Q5_0 = 6
GGML_TYPE_Q5_1 = 7
GGML_TYPE_Q8_0 = 8
GGML_TYPE_Q8_1 = 9
GGML_TYPE_Q2_K = 10
GGML_TYPE_Q3_K = 11
GGML_TYPE_Q4_K = 12
GGML_TYPE_Q5_K = 13
GGML_TYPE_Q6_K = 14
GGML_TYPE_Q8_K = 15
GGML_TYPE_IQ2_XXS = 16
GGML_TYPE_IQ2_XS = 17
GGML_TYPE_IQ3_XXS = 18
GGML_TYPE_IQ1_S = 19
GGML_TYPE_IQ4_NL = 20
GGML_TYPE_IQ3_S = 21
GGML_TYPE_IQ2_S = 22
GGML_TYPE_IQ4_XS = 23
GGML_TYPE_I8 = 24
GGML_TYPE_I16 = 25
GGML_TYPE_I32 = 26
GGML_TYPE_I64 = 27
GGML_TYPE_F64 = 28
GGML_TYPE_IQ1_M = 29
GGML_TYPE_BF16 = 30
GGML_TYPE_TQ1_0 = 34
GGML_TYPE_TQ2_0 = 35
GGML_TYPE_MXFP4 = 39
GGML_TYPE_NVFP4 = 40
GGML_TYPE_Q1_0 = 41
GGML_TYPE_Q2_0 = 42
GGML_TYPE_COUNT = 43


class ggml_type(IntEnum):
    GGML_TYPE_F32 = 0
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q4_0 = 2
    GGML_TYPE_Q4_1 = 3
    GGML_TYPE_Q5_0 = 6
    GGML_TYPE_Q5_1 = 7
    GGML_TYPE_Q8_0 = 8
    GGML_TYPE_Q8_1 = 9
    GGML_TYPE_Q2_K = 10
    GGML_TYPE_Q3_K = 11
    GGML_TYPE_Q4_K = 12
    GGML_TYPE_Q5_K = 13
    GGML_TYPE_Q6_K = 14
    GGML_TYPE_Q8_K = 15
    GGML_TYPE_IQ2_XXS = 16
    GGML_TYPE_IQ2_XS = 17
    GGML_TYPE_IQ3_XXS = 18
    GGML_TYPE_IQ1_S = 19
    GGML_TYPE_IQ4_NL = 20
    GGML_TYPE_IQ3_S = 21
    GGML_TYPE_IQ2_S = 22
    GGML_TYPE_IQ4_XS = 23
    GGML_TYPE_I8 = 24
    GGML_TYPE_I16 = 25
    GGML_TYPE_I32 = 26
    GGML_TYPE_I64 = 27
    GGML_TYPE_F64 = 28
    GGML_TYPE_IQ1_M = 29
    GGML_TYPE_BF16 = 30
    GGML_TYPE_TQ1_0 = 34
    GGML_TYPE_TQ2_0 = 35
    GGML_TYPE_MXFP4 = 39
    GGML_TYPE_NVFP4 = 40
    GGML_TYPE_Q1_0 = 41
    GGML_TYPE_Q2_0 = 42
    GGML_TYPE_COUNT = 43


GGML_PREC_UNDEFINED = 0
GGML_PREC_DEFAULT = 0
GGML_PREC_F32 = 10
GGML_PREC_BF16 = 15
GGML_PREC_F16 = 20
GGML_PREC_Q8 = 30
GGML_PREC_Q4 = 40


class ggml_prec(IntEnum):
    GGML_PREC_UNDEFINED = 0
    GGML_PREC_DEFAULT = 0
    GGML_PREC_F32 = 10
    GGML_PREC_BF16 = 15
    GGML_PREC_F16 = 20
    GGML_PREC_Q8 = 30
    GGML_PREC_Q4 = 40


GGML_HINT_NONE = 0
GGML_HINT_SRC0_IS_HADAMARD = 1


class ggml_op_hint(IntEnum):
    GGML_HINT_NONE = 0
    GGML_HINT_SRC0_IS_HADAMARD = 1


GGML_FTYPE_UNKNOWN = -1
GGML_FTYPE_ALL_F32 = 0
GGML_FTYPE_MOSTLY_F16 = 1
GGML_FTYPE_MOSTLY_Q4_0 = 2
GGML_FTYPE_MOSTLY_Q4_1 = 3
GGML_FTYPE_MOSTLY_Q4_1_SOME_F16 = 4
GGML_FTYPE_MOSTLY_Q8_0 = 7
GGML_FTYPE_MOSTLY_Q5_0 = 8
GGML_FTYPE_MOSTLY_Q5_1 = 9
GGML_FTYPE_MOSTLY_Q2_K = 10
GGML_FTYPE_MOSTLY_Q3_K = 11
GGML_FTYPE_MOSTLY_Q4_K = 12
GGML_FTYPE_MOSTLY_Q5_K = 13
GGML_FTYPE_MOSTLY_Q6_K = 14
GGML_FTYPE_MOSTLY_IQ2_XXS = 15
GGML_FTYPE_MOSTLY_IQ2_XS = 16
GGML_FTYPE_MOSTLY_IQ3_XXS = 17
GGML_FTYPE_MOSTLY_IQ1_S = 18
GGML_FTYPE_MOSTLY_IQ4_NL = 19
GGML_FTYPE_MOSTLY_IQ3_S = 20
GGML_FTYPE_MOSTLY_IQ2_S = 21
GGML_FTYPE_MOSTLY_IQ4_XS = 22
GGML_FTYPE_MOSTLY_IQ1_M = 23
GGML_FTYPE_MOSTLY_BF16 = 24
GGML_FTYPE_MOSTLY_MXFP4 = 25
GGML_FTYPE_MOSTLY_NVFP4 = 26
GGML_FTYPE_MOSTLY_Q1_0 = 27
GGML_FTYPE_MOSTLY_Q2_0 = 28


class ggml_ftype(IntEnum):
    GGML_FTYPE_UNKNOWN = -1
    GGML_FTYPE_ALL_F32 = 0
    GGML_FTYPE_MOSTLY_F16 = 1
    GGML_FTYPE_MOSTLY_Q4_0 = 2
    GGML_FTYPE_MOSTLY_Q4_1 = 3
    GGML_FTYPE_MOSTLY_Q4_1_SOME_F16 = 4
    GGML_FTYPE_MOSTLY_Q8_0 = 7
    GGML_FTYPE_MOSTLY_Q5_0 = 8
    GGML_FTYPE_MOSTLY_Q5_1 = 9
    GGML_FTYPE_MOSTLY_Q2_K = 10
    GGML_FTYPE_MOSTLY_Q3_K = 11
    GGML_FTYPE_MOSTLY_Q4_K = 12
    GGML_FTYPE_MOSTLY_Q5_K = 13
    GGML_FTYPE_MOSTLY_Q6_K = 14
    GGML_FTYPE_MOSTLY_IQ2_XXS = 15
    GGML_FTYPE_MOSTLY_IQ2_XS = 16
    GGML_FTYPE_MOSTLY_IQ3_XXS = 17
    GGML_FTYPE_MOSTLY_IQ1_S = 18
    GGML_FTYPE_MOSTLY_IQ4_NL = 19
    GGML_FTYPE_MOSTLY_IQ3_S = 20
    GGML_FTYPE_MOSTLY_IQ2_S = 21
    GGML_FTYPE_MOSTLY_IQ4_XS = 22
    GGML_FTYPE_MOSTLY_IQ1_M = 23
    GGML_FTYPE_MOSTLY_BF16 = 24
    GGML_FTYPE_MOSTLY_MXFP4 = 25
    GGML_FTYPE_MOSTLY_NVFP4 = 26
    GGML_FTYPE_MOSTLY_Q1_0 = 27
    GGML_FTYPE_MOSTLY_Q2_0 = 28


GGML_OP_NONE = 0
GGML_OP_DUP = 1
GGML_OP_ADD = 2
GGML_OP_ADD_ID = 3
GGML_OP_ADD1 = 4
GGML_OP_ACC = 5
GGML_OP_SUB = 6
GGML_OP_MUL = 7
GGML_OP_DIV = 8
GGML_OP_SQR = 9
GGML_OP_SQRT = 10
GGML_OP_LOG = 11
GGML_OP_SIN = 12
GGML_OP_COS = 13
GGML_OP_SUM = 14
GGML_OP_SUM_ROWS = 15
GGML_OP_CUMSUM = 16
GGML_OP_MEAN = 17
GGML_OP_ARGMAX = 18
GGML_OP_COUNT_EQUAL = 19
GGML_OP_REPEAT = 20
GGML_OP_REPEAT_BACK = 21
GGML_OP_CONCAT = 22
GGML_OP_SILU_BACK = 23
GGML_OP_NORM = 24
GGML_OP_RMS_NORM = 25
GGML_OP_RMS_NORM_BACK = 26
GGML_OP_GROUP_NORM = 27
GGML_OP_L2_NORM = 28
GGML_OP_MUL_MAT = 29
GGML_OP_MUL_MAT_ID = 30
GGML_OP_OUT_PROD = 31
GGML_OP_SCALE = 32
GGML_OP_SET = 33
GGML_OP_CPY = 34
GGML_OP_CONT = 35
GGML_OP_RESHAPE = 36
GGML_OP_VIEW = 37
GGML_OP_PERMUTE = 38
GGML_OP_TRANSPOSE = 39
GGML_OP_GET_ROWS = 40
GGML_OP_GET_ROWS_BACK = 41
GGML_OP_SET_ROWS = 42
GGML_OP_DIAG = 43
GGML_OP_DIAG_MASK_INF = 44
GGML_OP_DIAG_MASK_ZERO = 45
GGML_OP_SOFT_MAX = 46
GGML_OP_SOFT_MAX_BACK = 47
GGML_OP_ROPE = 48
GGML_OP_ROPE_BACK = 49
GGML_OP_CLAMP = 50
GGML_OP_CONV_TRANSPOSE_1D = 51
GGML_OP_IM2COL = 52
GGML_OP_IM2COL_BACK = 53
GGML_OP_IM2COL_3D = 54
GGML_OP_COL2IM_1D = 55
GGML_OP_CONV_2D = 56
GGML_OP_CONV_3D = 57
GGML_OP_CONV_2D_DW = 58
GGML_OP_CONV_TRANSPOSE_2D = 59
GGML_OP_POOL_1D = 60
GGML_OP_POOL_2D = 61
GGML_OP_POOL_2D_BACK = 62
GGML_OP_UPSCALE = 63
GGML_OP_PAD = 64
GGML_OP_PAD_REFLECT_1D = 65
GGML_OP_ROLL = 66
GGML_OP_ARANGE = 67
GGML_OP_TIMESTEP_EMBEDDING = 68
GGML_OP_ARGSORT = 69
GGML_OP_TOP_K = 70
GGML_OP_LEAKY_RELU = 71
GGML_OP_TRI = 72
GGML_OP_FILL = 73
GGML_OP_FLASH_ATTN_EXT = 74
GGML_OP_FLASH_ATTN_BACK = 75
GGML_OP_SSM_CONV = 76
GGML_OP_SSM_SCAN = 77
GGML_OP_WIN_PART = 78
GGML_OP_WIN_UNPART = 79
GGML_OP_GET_REL_POS = 80
GGML_OP_ADD_REL_POS = 81
GGML_OP_RWKV_WKV6 = 82
GGML_OP_GATED_LINEAR_ATTN = 83
GGML_OP_RWKV_WKV7 = 84
GGML_OP_SOLVE_TRI = 85
GGML_OP_GATED_DELTA_NET = 86
GGML_OP_LIGHTNING_INDEXER = 87
GGML_OP_DSV4_HC_COMB = 88
GGML_OP_DSV4_HC_PRE = 89
GGML_OP_DSV4_HC_POST = 90
GGML_OP_UNARY = 91
GGML_OP_MAP_CUSTOM1 = 92
GGML_OP_MAP_CUSTOM2 = 93
GGML_OP_MAP_CUSTOM3 = 94
GGML_OP_CUSTOM = 95
GGML_OP_CROSS_ENTROPY_LOSS = 96
GGML_OP_CROSS_ENTROPY_LOSS_BACK = 97
GGML_OP_OPT_STEP_ADAMW = 98
GGML_OP_OPT_STEP_SGD = 99
GGML_OP_GLU = 100
GGML_OP_COUNT = 101


class ggml_op(IntEnum):
    GGML_OP_NONE = 0
    GGML_OP_DUP = 1
    GGML_OP_ADD = 2
    GGML_OP_ADD_ID = 3
    GGML_OP_ADD1 = 4
    GGML_OP_ACC = 5
    GGML_OP_SUB = 6
    GGML_OP_MUL = 7
    GGML_OP_DIV = 8
    GGML_OP_SQR = 9
    GGML_OP_SQRT = 10
    GGML_OP_LOG = 11
    GGML_OP_SIN = 12
    GGML_OP_COS = 13
    GGML_OP_SUM = 14
    GGML_OP_SUM_ROWS = 15
    GGML_OP_CUMSUM = 16
    GGML_OP_MEAN = 17
    GGML_OP_ARGMAX = 18
    GGML_OP_COUNT_EQUAL = 19
    GGML_OP_REPEAT = 20
    GGML_OP_REPEAT_BACK = 21
    GGML_OP_CONCAT = 22
    GGML_OP_SILU_BACK = 23
    GGML_OP_NORM = 24
    GGML_OP_RMS_NORM = 25
    GGML_OP_RMS_NORM_BACK = 26
    GGML_OP_GROUP_NORM = 27
    GGML_OP_L2_NORM = 28
    GGML_OP_MUL_MAT = 29
    GGML_OP_MUL_MAT_ID = 30
    GGML_OP_OUT_PROD = 31
    GGML_OP_SCALE = 32
    GGML_OP_SET = 33
    GGML_OP_CPY = 34
    GGML_OP_CONT = 35
    GGML_OP_RESHAPE = 36
    GGML_OP_VIEW = 37
    GGML_OP_PERMUTE = 38
    GGML_OP_TRANSPOSE = 39
    GGML_OP_GET_ROWS = 40
    GGML_OP_GET_ROWS_BACK = 41
    GGML_OP_SET_ROWS = 42
    GGML_OP_DIAG = 43
    GGML_OP_DIAG_MASK_INF = 44
    GGML_OP_DIAG_MASK_ZERO = 45
    GGML_OP_SOFT_MAX = 46
    GGML_OP_SOFT_MAX_BACK = 47
    GGML_OP_ROPE = 48
    GGML_OP_ROPE_BACK = 49
    GGML_OP_CLAMP = 50
    GGML_OP_CONV_TRANSPOSE_1D = 51
    GGML_OP_IM2COL = 52
    GGML_OP_IM2COL_BACK = 53
    GGML_OP_IM2COL_3D = 54
    GGML_OP_COL2IM_1D = 55
    GGML_OP_CONV_2D = 56
    GGML_OP_CONV_3D = 57
    GGML_OP_CONV_2D_DW = 58
    GGML_OP_CONV_TRANSPOSE_2D = 59
    GGML_OP_POOL_1D = 60
    GGML_OP_POOL_2D = 61
    GGML_OP_POOL_2D_BACK = 62
    GGML_OP_UPSCALE = 63
    GGML_OP_PAD = 64
    GGML_OP_PAD_REFLECT_1D = 65
    GGML_OP_ROLL = 66
    GGML_OP_ARANGE = 67
    GGML_OP_TIMESTEP_EMBEDDING = 68
    GGML_OP_ARGSORT = 69
    GGML_OP_TOP_K = 70
    GGML_OP_LEAKY_RELU = 71
    GGML_OP_TRI = 72
    GGML_OP_FILL = 73
    GGML_OP_FLASH_ATTN_EXT = 74
    GGML_OP_FLASH_ATTN_BACK = 75
    GGML_OP_SSM_CONV = 76
    GGML_OP_SSM_SCAN = 77
    GGML_OP_WIN_PART = 78
    GGML_OP_WIN_UNPART = 79
    GGML_OP_GET_REL_POS = 80
    GGML_OP_ADD_REL_POS = 81
    GGML_OP_RWKV_WKV6 = 82
    GGML_OP_GATED_LINEAR_ATTN = 83
    GGML_OP_RWKV_WKV7 = 84
    GGML_OP_SOLVE_TRI = 85
    GGML_OP_GATED_DELTA_NET = 86
    GGML_OP_LIGHTNING_INDEXER = 87
    GGML_OP_DSV4_HC_COMB = 88
    GGML_OP_DSV4_HC_PRE = 89
    GGML_OP_DSV4_HC_POST = 90
    GGML_OP_UNARY = 91
    GGML_OP_MAP_CUSTOM1 = 92
    GGML_OP_MAP_CUSTOM2 = 93
    GGML_OP_MAP_CUSTOM3 = 94
    GGML_OP_CUSTOM = 95
    GGML_OP_CROSS_ENTROPY_LOSS = 96
    GGML_OP_CROSS_ENTROPY_LOSS_BACK = 97
    GGML_OP_OPT_STEP_ADAMW = 98
    GGML_OP_OPT_STEP_SGD = 99
    GGML_OP_GLU = 100
    GGML_OP_COUNT = 101


GGML_UNARY_OP_ABS = 0
GGML_UNARY_OP_SGN = 1
GGML_UNARY_OP_NEG = 2
GGML_UNARY_OP_STEP = 3
GGML_UNARY_OP_TANH = 4
GGML_UNARY_OP_ELU = 5
GGML_UNARY_OP_RELU = 6
GGML_UNARY_OP_SIGMOID = 7
GGML_UNARY_OP_GELU = 8
GGML_UNARY_OP_GELU_QUICK = 9
GGML_UNARY_OP_SILU = 10
GGML_UNARY_OP_HARDSWISH = 11
GGML_UNARY_OP_HARDSIGMOID = 12
GGML_UNARY_OP_EXP = 13
GGML_UNARY_OP_EXPM1 = 14
GGML_UNARY_OP_SOFTPLUS = 15
GGML_UNARY_OP_GELU_ERF = 16
GGML_UNARY_OP_XIELU = 17
GGML_UNARY_OP_FLOOR = 18
GGML_UNARY_OP_CEIL = 19
GGML_UNARY_OP_ROUND = 20
GGML_UNARY_OP_TRUNC = 21
GGML_UNARY_OP_COUNT = 22


class ggml_unary_op(IntEnum):
    GGML_UNARY_OP_ABS = 0
    GGML_UNARY_OP_SGN = 1
    GGML_UNARY_OP_NEG = 2
    GGML_UNARY_OP_STEP = 3
    GGML_UNARY_OP_TANH = 4
    GGML_UNARY_OP_ELU = 5
    GGML_UNARY_OP_RELU = 6
    GGML_UNARY_OP_SIGMOID = 7
    GGML_UNARY_OP_GELU = 8
    GGML_UNARY_OP_GELU_QUICK = 9
    GGML_UNARY_OP_SILU = 10
    GGML_UNARY_OP_HARDSWISH = 11
    GGML_UNARY_OP_HARDSIGMOID = 12
    GGML_UNARY_OP_EXP = 13
    GGML_UNARY_OP_EXPM1 = 14
    GGML_UNARY_OP_SOFTPLUS = 15
    GGML_UNARY_OP_GELU_ERF = 16
    GGML_UNARY_OP_XIELU = 17
    GGML_UNARY_OP_FLOOR = 18
    GGML_UNARY_OP_CEIL = 19
    GGML_UNARY_OP_ROUND = 20
    GGML_UNARY_OP_TRUNC = 21
    GGML_UNARY_OP_COUNT = 22


GGML_GLU_OP_REGLU = 0
GGML_GLU_OP_GEGLU = 1
GGML_GLU_OP_SWIGLU = 2
GGML_GLU_OP_SWIGLU_OAI = 3
GGML_GLU_OP_GEGLU_ERF = 4
GGML_GLU_OP_GEGLU_QUICK = 5
GGML_GLU_OP_SWIGLU_CLAMP = 6
GGML_GLU_OP_COUNT = 7


class ggml_glu_op(IntEnum):
    GGML_GLU_OP_REGLU = 0
    GGML_GLU_OP_GEGLU = 1
    GGML_GLU_OP_SWIGLU = 2
    GGML_GLU_OP_SWIGLU_OAI = 3
    GGML_GLU_OP_GEGLU_ERF = 4
    GGML_GLU_OP_GEGLU_QUICK = 5
    GGML_GLU_OP_SWIGLU_CLAMP = 6
    GGML_GLU_OP_COUNT = 7


GGML_OBJECT_TYPE_TENSOR = 0
GGML_OBJECT_TYPE_GRAPH = 1
GGML_OBJECT_TYPE_WORK_BUFFER = 2


class ggml_object_type(IntEnum):
    GGML_OBJECT_TYPE_TENSOR = 0
    GGML_OBJECT_TYPE_GRAPH = 1
    GGML_OBJECT_TYPE_WORK_BUFFER = 2


GGML_LOG_LEVEL_NONE = 0
GGML_LOG_LEVEL_DEBUG = 1
GGML_LOG_LEVEL_INFO = 2
GGML_LOG_LEVEL_WARN = 3
GGML_LOG_LEVEL_ERROR = 4
GGML_LOG_LEVEL_CONT = 5


class ggml_log_level(IntEnum):
    GGML_LOG_LEVEL_NONE = 0
    GGML_LOG_LEVEL_DEBUG = 1
    GGML_LOG_LEVEL_INFO = 2
    GGML_LOG_LEVEL_WARN = 3
    GGML_LOG_LEVEL_ERROR = 4
    GGML_LOG_LEVEL_CONT = 5


GGML_TENSOR_FLAG_INPUT = 1
GGML_TENSOR_FLAG_OUTPUT = 2
GGML_TENSOR_FLAG_PARAM = 4
GGML_TENSOR_FLAG_LOSS = 8
GGML_TENSOR_FLAG_COMPUTE = 16


class ggml_tensor_flag(IntEnum):
    GGML_TENSOR_FLAG_INPUT = 1
    GGML_TENSOR_FLAG_OUTPUT = 2
    GGML_TENSOR_FLAG_PARAM = 4
    GGML_TENSOR_FLAG_LOSS = 8
    GGML_TENSOR_FLAG_COMPUTE = 16


GGML_TRI_TYPE_UPPER_DIAG = 0
GGML_TRI_TYPE_UPPER = 1
GGML_TRI_TYPE_LOWER_DIAG = 2
GGML_TRI_TYPE_LOWER = 3


class ggml_tri_type(IntEnum):
    GGML_TRI_TYPE_UPPER_DIAG = 0
    GGML_TRI_TYPE_UPPER = 1
    GGML_TRI_TYPE_LOWER_DIAG = 2
    GGML_TRI_TYPE_LOWER = 3


GGML_OP_POOL_MAX = 0
GGML_OP_POOL_AVG = 1
GGML_OP_POOL_COUNT = 2


class ggml_op_pool(IntEnum):
    GGML_OP_POOL_MAX = 0
    GGML_OP_POOL_AVG = 1
    GGML_OP_POOL_COUNT = 2


GGML_SCALE_MODE_NEAREST = 0
GGML_SCALE_MODE_BILINEAR = 1
GGML_SCALE_MODE_BICUBIC = 2
GGML_SCALE_MODE_COUNT = 3


class ggml_scale_mode(IntEnum):
    GGML_SCALE_MODE_NEAREST = 0
    GGML_SCALE_MODE_BILINEAR = 1
    GGML_SCALE_MODE_BICUBIC = 2
    GGML_SCALE_MODE_COUNT = 3


GGML_SCALE_FLAG_ALIGN_CORNERS = 256
GGML_SCALE_FLAG_ANTIALIAS = 512


class ggml_scale_flag(IntEnum):
    GGML_SCALE_FLAG_ALIGN_CORNERS = 256
    GGML_SCALE_FLAG_ANTIALIAS = 512


GGML_SORT_ORDER_ASC = 0
GGML_SORT_ORDER_DESC = 1


class ggml_sort_order(IntEnum):
    GGML_SORT_ORDER_ASC = 0
    GGML_SORT_ORDER_DESC = 1


GGML_SCHED_PRIO_LOW = -1
GGML_SCHED_PRIO_NORMAL = 0
GGML_SCHED_PRIO_MEDIUM = 1
GGML_SCHED_PRIO_HIGH = 2
GGML_SCHED_PRIO_REALTIME = 3


class ggml_sched_priority(IntEnum):
    GGML_SCHED_PRIO_LOW = -1
    GGML_SCHED_PRIO_NORMAL = 0
    GGML_SCHED_PRIO_MEDIUM = 1
    GGML_SCHED_PRIO_HIGH = 2
    GGML_SCHED_PRIO_REALTIME = 3


GGML_BACKEND_BUFFER_USAGE_ANY = 0
GGML_BACKEND_BUFFER_USAGE_WEIGHTS = 1
GGML_BACKEND_BUFFER_USAGE_COMPUTE = 2


class ggml_backend_buffer_usage(IntEnum):
    GGML_BACKEND_BUFFER_USAGE_ANY = 0
    GGML_BACKEND_BUFFER_USAGE_WEIGHTS = 1
    GGML_BACKEND_BUFFER_USAGE_COMPUTE = 2


GGML_BACKEND_DEVICE_TYPE_CPU = 0
GGML_BACKEND_DEVICE_TYPE_GPU = 1
GGML_BACKEND_DEVICE_TYPE_IGPU = 2
GGML_BACKEND_DEVICE_TYPE_ACCEL = 3
GGML_BACKEND_DEVICE_TYPE_META = 4


class ggml_backend_dev_type(IntEnum):
    GGML_BACKEND_DEVICE_TYPE_CPU = 0
    GGML_BACKEND_DEVICE_TYPE_GPU = 1
    GGML_BACKEND_DEVICE_TYPE_IGPU = 2
    GGML_BACKEND_DEVICE_TYPE_ACCEL = 3
    GGML_BACKEND_DEVICE_TYPE_META = 4


GGML_BACKEND_SPLIT_AXIS_0 = 0
GGML_BACKEND_SPLIT_AXIS_1 = 1
GGML_BACKEND_SPLIT_AXIS_2 = 2
GGML_BACKEND_SPLIT_AXIS_3 = 3
GGML_BACKEND_SPLIT_AXIS_MIRRORED = 10
GGML_BACKEND_SPLIT_AXIS_PARTIAL = 11
GGML_BACKEND_SPLIT_AXIS_NONE = 98
GGML_BACKEND_SPLIT_AXIS_UNKNOWN = 99


class ggml_backend_meta_split_axis(IntEnum):
    GGML_BACKEND_SPLIT_AXIS_0 = 0
    GGML_BACKEND_SPLIT_AXIS_1 = 1
    GGML_BACKEND_SPLIT_AXIS_2 = 2
    GGML_BACKEND_SPLIT_AXIS_3 = 3
    GGML_BACKEND_SPLIT_AXIS_MIRRORED = 10
    GGML_BACKEND_SPLIT_AXIS_PARTIAL = 11
    GGML_BACKEND_SPLIT_AXIS_NONE = 98
    GGML_BACKEND_SPLIT_AXIS_UNKNOWN = 99


GGML_OPT_LOSS_TYPE_MEAN = 0
GGML_OPT_LOSS_TYPE_SUM = 1
GGML_OPT_LOSS_TYPE_CROSS_ENTROPY = 2
GGML_OPT_LOSS_TYPE_MEAN_SQUARED_ERROR = 3


class ggml_opt_loss_type(IntEnum):
    GGML_OPT_LOSS_TYPE_MEAN = 0
    GGML_OPT_LOSS_TYPE_SUM = 1
    GGML_OPT_LOSS_TYPE_CROSS_ENTROPY = 2
    GGML_OPT_LOSS_TYPE_MEAN_SQUARED_ERROR = 3


GGML_OPT_BUILD_TYPE_FORWARD = 10
GGML_OPT_BUILD_TYPE_GRAD = 20
GGML_OPT_BUILD_TYPE_OPT = 30


class ggml_opt_build_type(IntEnum):
    GGML_OPT_BUILD_TYPE_FORWARD = 10
    GGML_OPT_BUILD_TYPE_GRAD = 20
    GGML_OPT_BUILD_TYPE_OPT = 30


GGML_OPT_OPTIMIZER_TYPE_ADAMW = 0
GGML_OPT_OPTIMIZER_TYPE_SGD = 1
GGML_OPT_OPTIMIZER_TYPE_COUNT = 2


class ggml_opt_optimizer_type(IntEnum):
    GGML_OPT_OPTIMIZER_TYPE_ADAMW = 0
    GGML_OPT_OPTIMIZER_TYPE_SGD = 1
    GGML_OPT_OPTIMIZER_TYPE_COUNT = 2


GGML_NUMA_STRATEGY_DISABLED = 0
GGML_NUMA_STRATEGY_DISTRIBUTE = 1
GGML_NUMA_STRATEGY_ISOLATE = 2
GGML_NUMA_STRATEGY_NUMACTL = 3
GGML_NUMA_STRATEGY_MIRROR = 4
GGML_NUMA_STRATEGY_COUNT = 5


class ggml_numa_strategy(IntEnum):
    GGML_NUMA_STRATEGY_DISABLED = 0
    GGML_NUMA_STRATEGY_DISTRIBUTE = 1
    GGML_NUMA_STRATEGY_ISOLATE = 2
    GGML_NUMA_STRATEGY_NUMACTL = 3
    GGML_NUMA_STRATEGY_MIRROR = 4
    GGML_NUMA_STRATEGY_COUNT = 5


GGUF_TYPE_UINT8 = 0
GGUF_TYPE_INT8 = 1
GGUF_TYPE_UINT16 = 2
GGUF_TYPE_INT16 = 3
GGUF_TYPE_UINT32 = 4
GGUF_TYPE_INT32 = 5
GGUF_TYPE_FLOAT32 = 6
GGUF_TYPE_BOOL = 7
GGUF_TYPE_STRING = 8
GGUF_TYPE_ARRAY = 9
GGUF_TYPE_UINT64 = 10
GGUF_TYPE_INT64 = 11
GGUF_TYPE_FLOAT64 = 12
GGUF_TYPE_COUNT = 13


class gguf_type(IntEnum):
    GGUF_TYPE_UINT8 = 0
    GGUF_TYPE_INT8 = 1
    GGUF_TYPE_UINT16 = 2
    GGUF_TYPE_INT16 = 3
    GGUF_TYPE_UINT32 = 4
    GGUF_TYPE_INT32 = 5
    GGUF_TYPE_FLOAT32 = 6
    GGUF_TYPE_BOOL = 7
    GGUF_TYPE_STRING = 8
    GGUF_TYPE_ARRAY = 9
    GGUF_TYPE_UINT64 = 10
    GGUF_TYPE_INT64 = 11
    GGUF_TYPE_FLOAT64 = 12
    GGUF_TYPE_COUNT = 13


class ggml_tensor(Structure):
    __slots__ = ("_keep",)


ggml_abort_callback_t = CFUNCTYPE(None, c_char_p)
ggml_fp16_t = c_uint16


class ggml_bf16_t(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("bits", c_uint16),
    ]


ggml_guid = c_uint8 * 16
ggml_guid_t = POINTER(ggml_guid)
ggml_backend_buffer_p = c_void_p

ggml_tensor._fields_ = [
    ("type", c_int),
    ("buffer", ggml_backend_buffer_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", POINTER(ggml_tensor) * 10),
    ("view_src", POINTER(ggml_tensor)),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]

ggml_context_p = c_void_p


class ggml_init_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("mem_size", c_size_t),
        ("mem_buffer", c_void_p),
        ("no_alloc", c_bool),
    ]


ggml_log_callback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
ggml_to_float_t = CFUNCTYPE(None, c_void_p, POINTER(c_float), c_int64)
ggml_from_float_t = CFUNCTYPE(None, POINTER(c_float), c_void_p, c_int64)


class ggml_type_traits(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("type_name", c_char_p),
        ("blck_size", c_int64),
        ("blck_size_interleave", c_int64),
        ("type_size", c_size_t),
        ("is_quantized", c_bool),
        ("to_float", ggml_to_float_t),
        ("from_float_ref", ggml_from_float_t),
    ]


class ggml_threadpool_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("cpumask", c_bool * 512),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
    ]


ggml_backend_buffer_type_p = c_void_p
ggml_backend_buffer_type_t = ggml_backend_buffer_type_p
ggml_backend_buffer_t = ggml_backend_buffer_p
ggml_backend_event_p = c_void_p
ggml_backend_event_t = ggml_backend_event_p
ggml_backend_p = c_void_p
ggml_backend_t = ggml_backend_p
ggml_backend_graph_plan_t = c_void_p
ggml_backend_reg_p = c_void_p
ggml_backend_reg_t = ggml_backend_reg_p
ggml_backend_device_p = c_void_p
ggml_backend_dev_t = ggml_backend_device_p
ggml_cgraph_p = c_void_p


class ggml_backend_dev_caps(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("async", c_bool),
        ("host_buffer", c_bool),
        ("buffer_from_host_ptr", c_bool),
        ("events", c_bool),
        ("mmap_support", c_bool),
    ]


class ggml_backend_dev_props(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("name", c_char_p),
        ("description", c_char_p),
        ("memory_free", c_size_t),
        ("memory_total", c_size_t),
        ("type", c_int),
        ("device_id", c_char_p),
        ("caps", ggml_backend_dev_caps),
    ]


ggml_backend_comm_init_t = CFUNCTYPE(c_void_p, POINTER(ggml_backend_t), c_size_t)
ggml_backend_comm_free_t = CFUNCTYPE(None, c_void_p)
ggml_backend_comm_allreduce_tensor_t = CFUNCTYPE(c_bool, c_void_p, POINTER(POINTER(ggml_tensor)))
ggml_backend_split_buffer_type_t = CFUNCTYPE(ggml_backend_buffer_type_t, c_int, POINTER(c_float))
ggml_backend_set_n_threads_t = CFUNCTYPE(None, ggml_backend_t, c_int)
ggml_backend_dev_get_extra_bufts_t = CFUNCTYPE(POINTER(ggml_backend_buffer_type_t), ggml_backend_dev_t)
ggml_abort_callback = CFUNCTYPE(c_bool, c_void_p)
ggml_backend_set_abort_callback_t = CFUNCTYPE(None, ggml_backend_t, ggml_abort_callback, c_void_p)


class ggml_backend_feature(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("name", c_char_p),
        ("value", c_char_p),
    ]


ggml_backend_get_features_t = CFUNCTYPE(POINTER(ggml_backend_feature), ggml_backend_reg_t)
ggml_backend_sched_p = c_void_p
ggml_backend_sched_t = ggml_backend_sched_p
ggml_backend_sched_eval_callback = CFUNCTYPE(c_bool, POINTER(ggml_tensor), c_bool, c_void_p)


class ggml_backend_meta_split_state(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("axis", c_int),
        ("ne", c_int64 * 256),
        ("nr", c_uint32 * 16),
        ("n_segments", c_uint32),
    ]


ggml_backend_meta_get_split_state_t = CFUNCTYPE(ggml_backend_meta_split_state, POINTER(ggml_tensor), c_void_p)


class ggml_backend_graph_copy(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("buffer", ggml_backend_buffer_t),
        ("ctx_allocated", ggml_context_p),
        ("ctx_unallocated", ggml_context_p),
        ("graph", ggml_cgraph_p),
    ]


ggml_backend_eval_callback = CFUNCTYPE(c_bool, c_int, POINTER(ggml_tensor), POINTER(ggml_tensor), c_void_p)
ggml_threadpool_p = c_void_p


class ggml_cplan(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("work_size", c_size_t),
        ("work_data", POINTER(c_uint8)),
        ("n_threads", c_int),
        ("threadpool", ggml_threadpool_p),
        ("abort_callback", ggml_abort_callback),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    ]


ggml_vec_dot_t = CFUNCTYPE(None, c_int, POINTER(c_float), c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_int)


class ggml_type_traits_cpu(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("from_float", ggml_from_float_t),
        ("vec_dot", ggml_vec_dot_t),
        ("vec_dot_type", c_int),
        ("nrows", c_int64),
    ]


ggml_threadpool_t = ggml_threadpool_p
gguf_context_p = c_void_p


class gguf_init_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("no_alloc", c_bool),
        ("ctx", POINTER(ggml_context_p)),
    ]


gguf_reader_callback_t = CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_uint64, c_size_t)


class ggml_opt_optimizer_params_adamw(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("alpha", c_float),
        ("beta1", c_float),
        ("beta2", c_float),
        ("eps", c_float),
        ("wd", c_float),
    ]


class ggml_opt_optimizer_params_sgd(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("alpha", c_float),
        ("wd", c_float),
    ]


class ggml_opt_optimizer_params(Structure):
    __slots__ = ("_keep",)
    _fields_ = [
        ("adamw", ggml_opt_optimizer_params_adamw),
        ("sgd", ggml_opt_optimizer_params_sgd),
    ]


ggml_opt_get_optimizer_params = CFUNCTYPE(ggml_opt_optimizer_params, c_void_p)
ggml_opt_dataset_p = c_void_p
ggml_opt_dataset_t = ggml_opt_dataset_p
ggml_opt_result_p = c_void_p
ggml_opt_result_t = ggml_opt_result_p
ggml_opt_context_p = c_void_p
ggml_opt_context_t = ggml_opt_context_p

ggml_opt_epoch_callback = CFUNCTYPE(
    None,
    c_bool,
    ggml_opt_context_t,
    ggml_opt_dataset_t,
    ggml_opt_result_t,
    c_int64,
    c_int64,
    c_int64,
)

STRUCTURES: tuple[type[Structure], ...] = (
    ggml_bf16_t,
    ggml_tensor,
    ggml_init_params,
    ggml_type_traits,
    ggml_threadpool_params,
    ggml_backend_dev_caps,
    ggml_backend_dev_props,
    ggml_backend_feature,
    ggml_backend_meta_split_state,
    ggml_backend_graph_copy,
    ggml_cplan,
    ggml_type_traits_cpu,
    gguf_init_params,
    ggml_opt_optimizer_params,
)

LIBRARIES: tuple[str, ...] = ("ggml-base", "ggml", "ggml-cpu")

OPTIONAL: tuple[str, ...] = (
    "ggml_numa_init",
    "ggml_is_numa",
    "ggml_new_i32",
    "ggml_new_f32",
    "ggml_set_i32",
    "ggml_set_f32",
    "ggml_get_i32_1d",
    "ggml_set_i32_1d",
    "ggml_get_i32_nd",
    "ggml_set_i32_nd",
    "ggml_get_f32_1d",
    "ggml_set_f32_1d",
    "ggml_get_f32_nd",
    "ggml_set_f32_nd",
    "ggml_threadpool_new",
    "ggml_threadpool_free",
    "ggml_threadpool_get_n_threads",
    "ggml_threadpool_pause",
    "ggml_threadpool_resume",
    "ggml_graph_plan",
    "ggml_graph_compute",
    "ggml_graph_compute_with_ctx",
    "ggml_cpu_has_sse3",
    "ggml_cpu_has_ssse3",
    "ggml_cpu_has_avx",
    "ggml_cpu_has_avx_vnni",
    "ggml_cpu_has_avx2",
    "ggml_cpu_has_bmi2",
    "ggml_cpu_has_f16c",
    "ggml_cpu_has_fma",
    "ggml_cpu_has_avx512",
    "ggml_cpu_has_avx512_vbmi",
    "ggml_cpu_has_avx512_vnni",
    "ggml_cpu_has_avx512_bf16",
    "ggml_cpu_has_amx_int8",
    "ggml_cpu_has_neon",
    "ggml_cpu_has_arm_fma",
    "ggml_cpu_has_fp16_va",
    "ggml_cpu_has_dotprod",
    "ggml_cpu_has_matmul_int8",
    "ggml_cpu_has_sve",
    "ggml_cpu_get_sve_cnt",
    "ggml_cpu_has_sme",
    "ggml_cpu_has_sme2",
    "ggml_cpu_has_riscv_v",
    "ggml_cpu_get_rvv_vlen",
    "ggml_cpu_has_vsx",
    "ggml_cpu_has_vxe",
    "ggml_cpu_has_wasm_simd",
    "ggml_cpu_has_llamafile",
    "ggml_get_type_traits_cpu",
    "ggml_cpu_init",
    "ggml_backend_cpu_init",
    "ggml_backend_is_cpu",
    "ggml_backend_cpu_set_n_threads",
    "ggml_backend_cpu_set_threadpool",
    "ggml_backend_cpu_set_abort_callback",
    "ggml_backend_cpu_set_use_ref",
    "ggml_backend_cpu_reg",
    "ggml_cpu_fp32_to_fp32",
    "ggml_cpu_fp32_to_i32",
    "ggml_cpu_fp32_to_fp16",
    "ggml_cpu_fp16_to_fp32",
    "ggml_cpu_fp32_to_bf16",
    "ggml_cpu_bf16_to_fp32",
)

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "ggml_set_abort_callback": (ggml_abort_callback_t, (ggml_abort_callback_t,)),
    "ggml_status_to_string": (c_char_p, (c_int,)),
    "ggml_fp16_to_fp32": (c_float, (ggml_fp16_t,)),
    "ggml_fp32_to_fp16": (ggml_fp16_t, (c_float,)),
    "ggml_fp16_to_fp32_row": (None, (POINTER(ggml_fp16_t), POINTER(c_float), c_int64)),
    "ggml_fp32_to_fp16_row": (None, (POINTER(c_float), POINTER(ggml_fp16_t), c_int64)),
    "ggml_fp32_to_bf16": (ggml_bf16_t, (c_float,)),
    "ggml_bf16_to_fp32": (c_float, (ggml_bf16_t,)),
    "ggml_bf16_to_fp32_row": (None, (POINTER(ggml_bf16_t), POINTER(c_float), c_int64)),
    "ggml_fp32_to_bf16_row_ref": (None, (POINTER(c_float), POINTER(ggml_bf16_t), c_int64)),
    "ggml_fp32_to_bf16_row": (None, (POINTER(c_float), POINTER(ggml_bf16_t), c_int64)),
    "ggml_guid_matches": (c_bool, (ggml_guid_t, ggml_guid_t)),
    "ggml_version": (c_char_p, ()),
    "ggml_commit": (c_char_p, ()),
    "ggml_time_init": (None, ()),
    "ggml_time_ms": (c_int64, ()),
    "ggml_time_us": (c_int64, ()),
    "ggml_nelements": (c_int64, (POINTER(ggml_tensor),)),
    "ggml_nrows": (c_int64, (POINTER(ggml_tensor),)),
    "ggml_nbytes": (c_size_t, (POINTER(ggml_tensor),)),
    "ggml_nbytes_pad": (c_size_t, (POINTER(ggml_tensor),)),
    "ggml_blck_size": (c_int64, (c_int,)),
    "ggml_type_size": (c_size_t, (c_int,)),
    "ggml_row_size": (c_size_t, (c_int, c_int64)),
    "ggml_type_sizef": (c_double, (c_int,)),
    "ggml_type_name": (c_char_p, (c_int,)),
    "ggml_op_name": (c_char_p, (c_int,)),
    "ggml_op_desc": (c_char_p, (POINTER(ggml_tensor),)),
    "ggml_element_size": (c_size_t, (POINTER(ggml_tensor),)),
    "ggml_is_quantized": (c_bool, (c_int,)),
    "ggml_ftype_to_ggml_type": (c_int, (c_int,)),
    "ggml_is_transposed": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_permuted": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_empty": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_view": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_scalar": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_vector": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_matrix": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_3d": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_n_dims": (c_int, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_0": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_1": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_2": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_to_1": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_to_2": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_to_3": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguously_allocated": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_channels": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_is_contiguous_rows": (c_bool, (POINTER(ggml_tensor),)),
    "ggml_are_same_shape": (c_bool, (POINTER(ggml_tensor), POINTER(ggml_tensor))),
    "ggml_are_same_stride": (c_bool, (POINTER(ggml_tensor), POINTER(ggml_tensor))),
    "ggml_tensor_overhead": (c_size_t, ()),
    "ggml_validate_row_data": (c_bool, (c_int, c_void_p, c_size_t)),
    "ggml_init": (ggml_context_p, (ggml_init_params,)),
    "ggml_reset": (None, (ggml_context_p,)),
    "ggml_free": (None, (ggml_context_p,)),
    "ggml_used_mem": (c_size_t, (ggml_context_p,)),
    "ggml_get_no_alloc": (c_bool, (ggml_context_p,)),
    "ggml_set_no_alloc": (None, (ggml_context_p, c_bool)),
    "ggml_get_mem_buffer": (c_void_p, (ggml_context_p,)),
    "ggml_get_mem_size": (c_size_t, (ggml_context_p,)),
    "ggml_get_max_tensor_size": (c_size_t, (ggml_context_p,)),
    "ggml_new_tensor": (POINTER(ggml_tensor), (ggml_context_p, c_int, c_int, POINTER(c_int64))),
    "ggml_new_tensor_1d": (POINTER(ggml_tensor), (ggml_context_p, c_int, c_int64)),
    "ggml_new_tensor_2d": (POINTER(ggml_tensor), (ggml_context_p, c_int, c_int64, c_int64)),
    "ggml_new_tensor_3d": (POINTER(ggml_tensor), (ggml_context_p, c_int, c_int64, c_int64, c_int64)),
    "ggml_new_tensor_4d": (POINTER(ggml_tensor), (ggml_context_p, c_int, c_int64, c_int64, c_int64, c_int64)),
    "ggml_dup_tensor": (POINTER(ggml_tensor), (ggml_context_p, POINTER(ggml_tensor))),
    "ggml_view_tensor": (POINTER(ggml_tensor), (ggml_context_p, POINTER(ggml_tensor))),
    "ggml_get_first_tensor": (POINTER(ggml_tensor), (ggml_context_p,)),
    "ggml_get_next_tensor": (POINTER(ggml_tensor), (ggml_context_p, POINTER(ggml_tensor))),
    "ggml_get_tensor": (POINTER(ggml_tensor), (ggml_context_p, c_char_p)),
    "ggml_unravel_index": (
        None,
        (POINTER(ggml_tensor), c_int64, POINTER(c_int64), POINTER(c_int64), POINTER(c_int64), POINTER(c_int64)),
    ),
    "ggml_get_data": (c_void_p, (POINTER(ggml_tensor),)),
    "ggml_get_data_f32": (POINTER(c_float), (POINTER(ggml_tensor),)),
    "ggml_get_name": (c_char_p, (POINTER(ggml_tensor),)),
    "ggml_set_name": (POINTER(ggml_tensor), (POINTER(ggml_tensor), c_char_p)),
    "ggml_log_get": (None, (POINTER(ggml_log_callback), POINTER(c_void_p))),
    "ggml_log_set": (None, (ggml_log_callback, c_void_p)),
    "ggml_quantize_init": (None, (c_int,)),
    "ggml_quantize_free": (None, ()),
    "ggml_quantize_requires_imatrix": (c_bool, (c_int,)),
    "ggml_quantize_chunk": (
        c_size_t,
        (c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, POINTER(c_float)),
    ),
    "ggml_get_type_traits": (POINTER(ggml_type_traits), (c_int,)),
    "ggml_threadpool_params_default": (ggml_threadpool_params, (c_int,)),
    "ggml_threadpool_params_init": (None, (POINTER(ggml_threadpool_params), c_int)),
    "ggml_threadpool_params_match": (c_bool, (POINTER(ggml_threadpool_params), POINTER(ggml_threadpool_params))),
    "ggml_backend_buft_name": (c_char_p, (ggml_backend_buffer_type_t,)),
    "ggml_backend_buft_alloc_buffer": (ggml_backend_buffer_t, (ggml_backend_buffer_type_t, c_size_t)),
    "ggml_backend_buft_get_alignment": (c_size_t, (ggml_backend_buffer_type_t,)),
    "ggml_backend_buft_get_max_size": (c_size_t, (ggml_backend_buffer_type_t,)),
    "ggml_backend_buft_get_alloc_size": (c_size_t, (ggml_backend_buffer_type_t, POINTER(ggml_tensor))),
    "ggml_backend_buft_is_host": (c_bool, (ggml_backend_buffer_type_t,)),
    "ggml_backend_buft_get_device": (ggml_backend_dev_t, (ggml_backend_buffer_type_t,)),
    "ggml_backend_buffer_name": (c_char_p, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_free": (None, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_get_base": (c_void_p, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_get_size": (c_size_t, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_init_tensor": (c_int, (ggml_backend_buffer_t, POINTER(ggml_tensor))),
    "ggml_backend_buffer_get_alignment": (c_size_t, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_get_max_size": (c_size_t, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_get_alloc_size": (c_size_t, (ggml_backend_buffer_t, POINTER(ggml_tensor))),
    "ggml_backend_buffer_clear": (None, (ggml_backend_buffer_t, c_uint8)),
    "ggml_backend_buffer_is_host": (c_bool, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_set_usage": (None, (ggml_backend_buffer_t, c_int)),
    "ggml_backend_buffer_get_usage": (c_int, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_get_type": (ggml_backend_buffer_type_t, (ggml_backend_buffer_t,)),
    "ggml_backend_buffer_reset": (None, (ggml_backend_buffer_t,)),
    "ggml_backend_tensor_copy": (None, (POINTER(ggml_tensor), POINTER(ggml_tensor))),
    "ggml_backend_guid": (ggml_guid_t, (ggml_backend_t,)),
    "ggml_backend_name": (c_char_p, (ggml_backend_t,)),
    "ggml_backend_free": (None, (ggml_backend_t,)),
    "ggml_backend_get_default_buffer_type": (ggml_backend_buffer_type_t, (ggml_backend_t,)),
    "ggml_backend_alloc_buffer": (ggml_backend_buffer_t, (ggml_backend_t, c_size_t)),
    "ggml_backend_get_alignment": (c_size_t, (ggml_backend_t,)),
    "ggml_backend_get_max_size": (c_size_t, (ggml_backend_t,)),
    "ggml_backend_tensor_set_async": (None, (ggml_backend_t, POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get_async": (None, (ggml_backend_t, POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_set_2d_async": (
        None,
        (ggml_backend_t, POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t),
    ),
    "ggml_backend_tensor_get_2d_async": (
        None,
        (ggml_backend_t, POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t),
    ),
    "ggml_backend_tensor_set": (None, (POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_set_2d": (
        None,
        (POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t),
    ),
    "ggml_backend_tensor_get_2d": (
        None,
        (POINTER(ggml_tensor), c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t),
    ),
    "ggml_backend_tensor_memset": (None, (POINTER(ggml_tensor), c_uint8, c_size_t, c_size_t)),
    "ggml_backend_synchronize": (None, (ggml_backend_t,)),
    "ggml_backend_graph_plan_create": (ggml_backend_graph_plan_t, (ggml_backend_t, ggml_cgraph_p)),
    "ggml_backend_graph_plan_free": (None, (ggml_backend_t, ggml_backend_graph_plan_t)),
    "ggml_backend_graph_plan_compute": (c_int, (ggml_backend_t, ggml_backend_graph_plan_t)),
    "ggml_backend_graph_compute": (c_int, (ggml_backend_t, ggml_cgraph_p)),
    "ggml_backend_graph_compute_async": (c_int, (ggml_backend_t, ggml_cgraph_p)),
    "ggml_backend_supports_op": (c_bool, (ggml_backend_t, POINTER(ggml_tensor))),
    "ggml_backend_supports_buft": (c_bool, (ggml_backend_t, ggml_backend_buffer_type_t)),
    "ggml_backend_offload_op": (c_bool, (ggml_backend_t, POINTER(ggml_tensor))),
    "ggml_backend_tensor_copy_async": (
        None,
        (ggml_backend_t, ggml_backend_t, POINTER(ggml_tensor), POINTER(ggml_tensor)),
    ),
    "ggml_backend_get_device": (ggml_backend_dev_t, (ggml_backend_t,)),
    "ggml_backend_event_new": (ggml_backend_event_t, (ggml_backend_dev_t,)),
    "ggml_backend_event_free": (None, (ggml_backend_event_t,)),
    "ggml_backend_event_record": (None, (ggml_backend_event_t, ggml_backend_t)),
    "ggml_backend_event_synchronize": (None, (ggml_backend_event_t,)),
    "ggml_backend_event_wait": (None, (ggml_backend_t, ggml_backend_event_t)),
    "ggml_backend_dev_name": (c_char_p, (ggml_backend_dev_t,)),
    "ggml_backend_dev_description": (c_char_p, (ggml_backend_dev_t,)),
    "ggml_backend_dev_memory": (None, (ggml_backend_dev_t, POINTER(c_size_t), POINTER(c_size_t))),
    "ggml_backend_dev_type": (c_int, (ggml_backend_dev_t,)),
    "ggml_backend_dev_get_props": (None, (ggml_backend_dev_t, POINTER(ggml_backend_dev_props))),
    "ggml_backend_dev_backend_reg": (ggml_backend_reg_t, (ggml_backend_dev_t,)),
    "ggml_backend_dev_init": (ggml_backend_t, (ggml_backend_dev_t, c_char_p)),
    "ggml_backend_dev_buffer_type": (ggml_backend_buffer_type_t, (ggml_backend_dev_t,)),
    "ggml_backend_dev_host_buffer_type": (ggml_backend_buffer_type_t, (ggml_backend_dev_t,)),
    "ggml_backend_dev_buffer_from_host_ptr": (
        ggml_backend_buffer_t,
        (ggml_backend_dev_t, c_void_p, c_size_t, c_size_t),
    ),
    "ggml_backend_dev_supports_op": (c_bool, (ggml_backend_dev_t, POINTER(ggml_tensor))),
    "ggml_backend_dev_supports_buft": (c_bool, (ggml_backend_dev_t, ggml_backend_buffer_type_t)),
    "ggml_backend_dev_offload_op": (c_bool, (ggml_backend_dev_t, POINTER(ggml_tensor))),
    "ggml_backend_reg_name": (c_char_p, (ggml_backend_reg_t,)),
    "ggml_backend_reg_dev_count": (c_size_t, (ggml_backend_reg_t,)),
    "ggml_backend_reg_dev_get": (ggml_backend_dev_t, (ggml_backend_reg_t, c_size_t)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (ggml_backend_reg_t, c_char_p)),
    "ggml_backend_register": (None, (ggml_backend_reg_t,)),
    "ggml_backend_device_register": (None, (ggml_backend_dev_t,)),
    "ggml_backend_reg_count": (c_size_t, ()),
    "ggml_backend_reg_get": (ggml_backend_reg_t, (c_size_t,)),
    "ggml_backend_reg_by_name": (ggml_backend_reg_t, (c_char_p,)),
    "ggml_backend_dev_count": (c_size_t, ()),
    "ggml_backend_dev_get": (ggml_backend_dev_t, (c_size_t,)),
    "ggml_backend_dev_by_name": (ggml_backend_dev_t, (c_char_p,)),
    "ggml_backend_dev_by_type": (ggml_backend_dev_t, (c_int,)),
    "ggml_backend_init_by_name": (ggml_backend_t, (c_char_p, c_char_p)),
    "ggml_backend_init_by_type": (ggml_backend_t, (c_int, c_char_p)),
    "ggml_backend_init_best": (ggml_backend_t, ()),
    "ggml_backend_load": (ggml_backend_reg_t, (c_char_p,)),
    "ggml_backend_unload": (None, (ggml_backend_reg_t,)),
    "ggml_backend_load_all": (None, ()),
    "ggml_backend_load_all_from_path": (None, (c_char_p,)),
    "ggml_backend_sched_new": (
        ggml_backend_sched_t,
        (POINTER(ggml_backend_t), POINTER(ggml_backend_buffer_type_t), c_int, c_size_t, c_bool, c_bool),
    ),
    "ggml_backend_sched_free": (None, (ggml_backend_sched_t,)),
    "ggml_backend_sched_reserve_size": (None, (ggml_backend_sched_t, ggml_cgraph_p, POINTER(c_size_t))),
    "ggml_backend_sched_reserve": (c_bool, (ggml_backend_sched_t, ggml_cgraph_p)),
    "ggml_backend_sched_get_n_backends": (c_int, (ggml_backend_sched_t,)),
    "ggml_backend_sched_get_backend": (ggml_backend_t, (ggml_backend_sched_t, c_int)),
    "ggml_backend_sched_get_n_splits": (c_int, (ggml_backend_sched_t,)),
    "ggml_backend_sched_get_n_copies": (c_int, (ggml_backend_sched_t,)),
    "ggml_backend_sched_get_buffer_type": (ggml_backend_buffer_type_t, (ggml_backend_sched_t, ggml_backend_t)),
    "ggml_backend_sched_get_buffer_size": (c_size_t, (ggml_backend_sched_t, ggml_backend_t)),
    "ggml_backend_sched_set_tensor_backend": (None, (ggml_backend_sched_t, POINTER(ggml_tensor), ggml_backend_t)),
    "ggml_backend_sched_get_tensor_backend": (ggml_backend_t, (ggml_backend_sched_t, POINTER(ggml_tensor))),
    "ggml_backend_sched_split_graph": (None, (ggml_backend_sched_t, ggml_cgraph_p)),
    "ggml_backend_sched_alloc_graph": (c_bool, (ggml_backend_sched_t, ggml_cgraph_p)),
    "ggml_backend_sched_graph_compute": (c_int, (ggml_backend_sched_t, ggml_cgraph_p)),
    "ggml_backend_sched_graph_compute_async": (c_int, (ggml_backend_sched_t, ggml_cgraph_p)),
    "ggml_backend_sched_synchronize": (None, (ggml_backend_sched_t,)),
    "ggml_backend_sched_reset": (None, (ggml_backend_sched_t,)),
    "ggml_backend_sched_set_eval_callback": (None, (ggml_backend_sched_t, ggml_backend_sched_eval_callback, c_void_p)),
    "ggml_backend_meta_split_axis_name": (c_char_p, (c_int,)),
    "ggml_backend_meta_device": (
        ggml_backend_dev_t,
        (POINTER(ggml_backend_dev_t), c_size_t, ggml_backend_meta_get_split_state_t, c_void_p),
    ),
    "ggml_backend_graph_copy": (ggml_backend_graph_copy, (ggml_backend_t, ggml_cgraph_p)),
    "ggml_backend_graph_copy_free": (None, (ggml_backend_graph_copy,)),
    "ggml_backend_compare_graph_backend": (
        c_bool,
        (
            ggml_backend_t,
            ggml_backend_t,
            ggml_cgraph_p,
            ggml_backend_eval_callback,
            c_void_p,
            POINTER(POINTER(ggml_tensor)),
            c_size_t,
        ),
    ),
    "ggml_backend_tensor_alloc": (c_int, (ggml_backend_buffer_t, POINTER(ggml_tensor), c_void_p)),
    "ggml_backend_view_init": (c_int, (POINTER(ggml_tensor),)),
    "ggml_backend_cpu_buffer_from_ptr": (ggml_backend_buffer_t, (c_void_p, c_size_t)),
    "ggml_backend_cpu_buffer_type": (ggml_backend_buffer_type_t, ()),
    "ggml_numa_init": (None, (c_int,)),
    "ggml_is_numa": (c_bool, ()),
    "ggml_new_i32": (POINTER(ggml_tensor), (ggml_context_p, c_int32)),
    "ggml_new_f32": (POINTER(ggml_tensor), (ggml_context_p, c_float)),
    "ggml_set_i32": (POINTER(ggml_tensor), (POINTER(ggml_tensor), c_int32)),
    "ggml_set_f32": (POINTER(ggml_tensor), (POINTER(ggml_tensor), c_float)),
    "ggml_get_i32_1d": (c_int32, (POINTER(ggml_tensor), c_int)),
    "ggml_set_i32_1d": (None, (POINTER(ggml_tensor), c_int, c_int32)),
    "ggml_get_i32_nd": (c_int32, (POINTER(ggml_tensor), c_int, c_int, c_int, c_int)),
    "ggml_set_i32_nd": (None, (POINTER(ggml_tensor), c_int, c_int, c_int, c_int, c_int32)),
    "ggml_get_f32_1d": (c_float, (POINTER(ggml_tensor), c_int)),
    "ggml_set_f32_1d": (None, (POINTER(ggml_tensor), c_int, c_float)),
    "ggml_get_f32_nd": (c_float, (POINTER(ggml_tensor), c_int, c_int, c_int, c_int)),
    "ggml_set_f32_nd": (None, (POINTER(ggml_tensor), c_int, c_int, c_int, c_int, c_float)),
    "ggml_threadpool_new": (ggml_threadpool_p, (POINTER(ggml_threadpool_params),)),
    "ggml_threadpool_free": (None, (ggml_threadpool_p,)),
    "ggml_threadpool_get_n_threads": (c_int, (ggml_threadpool_p,)),
    "ggml_threadpool_pause": (None, (ggml_threadpool_p,)),
    "ggml_threadpool_resume": (None, (ggml_threadpool_p,)),
    "ggml_graph_plan": (ggml_cplan, (ggml_cgraph_p, c_int, ggml_threadpool_p)),
    "ggml_graph_compute": (c_int, (ggml_cgraph_p, POINTER(ggml_cplan))),
    "ggml_graph_compute_with_ctx": (c_int, (ggml_context_p, ggml_cgraph_p, c_int)),
    "ggml_cpu_has_sse3": (c_int, ()),
    "ggml_cpu_has_ssse3": (c_int, ()),
    "ggml_cpu_has_avx": (c_int, ()),
    "ggml_cpu_has_avx_vnni": (c_int, ()),
    "ggml_cpu_has_avx2": (c_int, ()),
    "ggml_cpu_has_bmi2": (c_int, ()),
    "ggml_cpu_has_f16c": (c_int, ()),
    "ggml_cpu_has_fma": (c_int, ()),
    "ggml_cpu_has_avx512": (c_int, ()),
    "ggml_cpu_has_avx512_vbmi": (c_int, ()),
    "ggml_cpu_has_avx512_vnni": (c_int, ()),
    "ggml_cpu_has_avx512_bf16": (c_int, ()),
    "ggml_cpu_has_amx_int8": (c_int, ()),
    "ggml_cpu_has_neon": (c_int, ()),
    "ggml_cpu_has_arm_fma": (c_int, ()),
    "ggml_cpu_has_fp16_va": (c_int, ()),
    "ggml_cpu_has_dotprod": (c_int, ()),
    "ggml_cpu_has_matmul_int8": (c_int, ()),
    "ggml_cpu_has_sve": (c_int, ()),
    "ggml_cpu_get_sve_cnt": (c_int, ()),
    "ggml_cpu_has_sme": (c_int, ()),
    "ggml_cpu_has_sme2": (c_int, ()),
    "ggml_cpu_has_riscv_v": (c_int, ()),
    "ggml_cpu_get_rvv_vlen": (c_int, ()),
    "ggml_cpu_has_vsx": (c_int, ()),
    "ggml_cpu_has_vxe": (c_int, ()),
    "ggml_cpu_has_wasm_simd": (c_int, ()),
    "ggml_cpu_has_llamafile": (c_int, ()),
    "ggml_get_type_traits_cpu": (POINTER(ggml_type_traits_cpu), (c_int,)),
    "ggml_cpu_init": (None, ()),
    "ggml_backend_cpu_init": (ggml_backend_t, ()),
    "ggml_backend_is_cpu": (c_bool, (ggml_backend_t,)),
    "ggml_backend_cpu_set_n_threads": (None, (ggml_backend_t, c_int)),
    "ggml_backend_cpu_set_threadpool": (None, (ggml_backend_t, ggml_threadpool_t)),
    "ggml_backend_cpu_set_abort_callback": (None, (ggml_backend_t, ggml_abort_callback, c_void_p)),
    "ggml_backend_cpu_set_use_ref": (None, (ggml_backend_t, c_bool)),
    "ggml_backend_cpu_reg": (ggml_backend_reg_t, ()),
    "ggml_cpu_fp32_to_fp32": (None, (POINTER(c_float), POINTER(c_float), c_int64)),
    "ggml_cpu_fp32_to_i32": (None, (POINTER(c_float), POINTER(c_int32), c_int64)),
    "ggml_cpu_fp32_to_fp16": (None, (POINTER(c_float), POINTER(ggml_fp16_t), c_int64)),
    "ggml_cpu_fp16_to_fp32": (None, (POINTER(ggml_fp16_t), POINTER(c_float), c_int64)),
    "ggml_cpu_fp32_to_bf16": (None, (POINTER(c_float), POINTER(ggml_bf16_t), c_int64)),
    "ggml_cpu_bf16_to_fp32": (None, (POINTER(ggml_bf16_t), POINTER(c_float), c_int64)),
    "gguf_init_empty": (gguf_context_p, ()),
    "gguf_init_from_file_ptr": (gguf_context_p, (c_void_p, gguf_init_params)),
    "gguf_init_from_file": (gguf_context_p, (c_char_p, gguf_init_params)),
    "gguf_init_from_buffer": (gguf_context_p, (c_void_p, c_size_t, gguf_init_params)),
    "gguf_init_from_callback": (
        gguf_context_p,
        (gguf_reader_callback_t, c_void_p, c_size_t, c_uint64, gguf_init_params),
    ),
    "gguf_free": (None, (gguf_context_p,)),
    "gguf_type_name": (c_char_p, (c_int,)),
    "gguf_get_version": (c_uint32, (gguf_context_p,)),
    "gguf_get_alignment": (c_size_t, (gguf_context_p,)),
    "gguf_get_data_offset": (c_size_t, (gguf_context_p,)),
    "gguf_get_n_kv": (c_int64, (gguf_context_p,)),
    "gguf_find_key": (c_int64, (gguf_context_p, c_char_p)),
    "gguf_get_key": (c_char_p, (gguf_context_p, c_int64)),
    "gguf_get_kv_type": (c_int, (gguf_context_p, c_int64)),
    "gguf_get_arr_type": (c_int, (gguf_context_p, c_int64)),
    "gguf_get_val_u8": (c_uint8, (gguf_context_p, c_int64)),
    "gguf_get_val_i8": (c_int8, (gguf_context_p, c_int64)),
    "gguf_get_val_u16": (c_uint16, (gguf_context_p, c_int64)),
    "gguf_get_val_i16": (c_int16, (gguf_context_p, c_int64)),
    "gguf_get_val_u32": (c_uint32, (gguf_context_p, c_int64)),
    "gguf_get_val_i32": (c_int32, (gguf_context_p, c_int64)),
    "gguf_get_val_f32": (c_float, (gguf_context_p, c_int64)),
    "gguf_get_val_u64": (c_uint64, (gguf_context_p, c_int64)),
    "gguf_get_val_i64": (c_int64, (gguf_context_p, c_int64)),
    "gguf_get_val_f64": (c_double, (gguf_context_p, c_int64)),
    "gguf_get_val_bool": (c_bool, (gguf_context_p, c_int64)),
    "gguf_get_val_str": (c_char_p, (gguf_context_p, c_int64)),
    "gguf_get_val_data": (c_void_p, (gguf_context_p, c_int64)),
    "gguf_get_arr_n": (c_size_t, (gguf_context_p, c_int64)),
    "gguf_get_arr_data": (c_void_p, (gguf_context_p, c_int64)),
    "gguf_get_arr_str": (c_char_p, (gguf_context_p, c_int64, c_size_t)),
    "gguf_get_n_tensors": (c_int64, (gguf_context_p,)),
    "gguf_find_tensor": (c_int64, (gguf_context_p, c_char_p)),
    "gguf_get_tensor_offset": (c_size_t, (gguf_context_p, c_int64)),
    "gguf_get_tensor_name": (c_char_p, (gguf_context_p, c_int64)),
    "gguf_get_tensor_ne": (POINTER(c_int64), (gguf_context_p, c_int64)),
    "gguf_get_tensor_type": (c_int, (gguf_context_p, c_int64)),
    "gguf_get_tensor_size": (c_size_t, (gguf_context_p, c_int64)),
    "gguf_remove_key": (c_int64, (gguf_context_p, c_char_p)),
    "gguf_set_val_u8": (None, (gguf_context_p, c_char_p, c_uint8)),
    "gguf_set_val_i8": (None, (gguf_context_p, c_char_p, c_int8)),
    "gguf_set_val_u16": (None, (gguf_context_p, c_char_p, c_uint16)),
    "gguf_set_val_i16": (None, (gguf_context_p, c_char_p, c_int16)),
    "gguf_set_val_u32": (None, (gguf_context_p, c_char_p, c_uint32)),
    "gguf_set_val_i32": (None, (gguf_context_p, c_char_p, c_int32)),
    "gguf_set_val_f32": (None, (gguf_context_p, c_char_p, c_float)),
    "gguf_set_val_u64": (None, (gguf_context_p, c_char_p, c_uint64)),
    "gguf_set_val_i64": (None, (gguf_context_p, c_char_p, c_int64)),
    "gguf_set_val_f64": (None, (gguf_context_p, c_char_p, c_double)),
    "gguf_set_val_bool": (None, (gguf_context_p, c_char_p, c_bool)),
    "gguf_set_val_str": (None, (gguf_context_p, c_char_p, c_char_p)),
    "gguf_set_arr_data": (None, (gguf_context_p, c_char_p, c_int, c_void_p, c_size_t)),
    "gguf_set_arr_str": (None, (gguf_context_p, c_char_p, POINTER(c_char_p), c_size_t)),
    "gguf_set_kv": (None, (gguf_context_p, gguf_context_p)),
    "gguf_add_tensor": (None, (gguf_context_p, POINTER(ggml_tensor))),
    "gguf_set_tensor_type": (None, (gguf_context_p, c_char_p, c_int)),
    "gguf_set_tensor_data": (None, (gguf_context_p, c_char_p, c_void_p)),
    "gguf_write_to_file_ptr": (c_bool, (gguf_context_p, c_void_p, c_bool)),
    "gguf_write_to_file": (c_bool, (gguf_context_p, c_char_p, c_bool)),
    "gguf_get_meta_size": (c_size_t, (gguf_context_p,)),
    "gguf_get_meta_data": (None, (gguf_context_p, c_void_p)),
}
