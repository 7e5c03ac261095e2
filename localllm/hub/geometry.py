"""What each layer of a model keeps in memory while it runs: attention over all or a window of the context, a state, or nothing.

Follows the loading code of the pinned llama.cpp (src/llama-model.cpp, src/llama-hparams.cpp, src/models/*.cpp); the tables below
hold what those files fix in code and GGUF files do not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localllm.hub.gguf import Header, per_layer

# llama_model::create_memory gives these no cache.
_NO_CACHE = frozenset({
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "wavtokenizer-dec",
    "modern-bert", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "clip",
})  # fmt: skip
# llm_arch_is_recurrent: every layer keeps a state.
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
# llm_arch_is_hybrid, by how the layers with a state are told from the others.
_STATE_WHERE_NO_KV_HEADS = frozenset({
    "jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next",
})  # fmt: skip
_STATE_WHERE_NO_KV_HEADS_NOR_FFN = frozenset({"nemotron_h", "nemotron_h_moe"})
_STATE_BUT_EVERY_NTH = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_NEXTN_IN_TRUNK = frozenset({"bailingmoe3", "nemotron_h", "nemotron_h_moe"})
_STATE_AND_ATTENTION = frozenset({"falcon-h1"})
# llm_arch_supports_rs_rollback: can keep earlier states, so that guesses can be taken back.
ROLLBACK = frozenset({
    "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe",
    "bailingmoe3",
})  # fmt: skip


@dataclass(frozen=True)
class Window:
    """A sliding window that an architecture has in code.

    Attributes:
        every: int, of so many layers one looks at the whole context; 0: none of them does.
        full_first: bool, that one is the first, not the last of them.
        n_tokens: int, size of the window; 0: the file's.
        default_tokens: int, size of the window if the file has none; 0: then there is no window.
    """

    every: int
    full_first: bool = False
    n_tokens: int = 0
    default_tokens: int = 0


# load_swa_pattern in src/models/*.cpp: what holds if the file has no pattern of its own.
_WINDOWS = {
    "afmoe": Window(4), "cohere2": Window(4), "cohere2moe": Window(4, full_first=True),
    "exaone-moe": Window(4, default_tokens=128), "exaone4": Window(4, default_tokens=4096),
    "gemma2": Window(2, default_tokens=4096), "gemma3": Window(6), "gemma3n": Window(5), "gpt-oss": Window(2),
    "laguna": Window(4, full_first=True), "llama4": Window(4, n_tokens=8192, default_tokens=8192), "mellum": Window(4),
    "muse-glimmer": Window(4), "olmo2": Window(4), "plamo3": Window(8), "smallthinker": Window(4, full_first=True, n_tokens=4096),
}  # fmt: skip
# Those that only have what the file's pattern says.
_WINDOW_BY_PATTERN = frozenset({
    "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35", "dflash", "dots3note",
})  # fmt: skip
_GEMMA3N_LAYERS_WITH_KV = 20
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS of the pinned source
FINE_COMPRESSION = 4  # DSV4_CSA_RATIO: of so many tokens one key is kept, and one of the indexer


@dataclass(frozen=True)
class Layer:
    """What one layer keeps.

    Attributes:
        k_width, v_width: int, values that each cell of the cache holds; 0 for a layer without attention, or without V (MLA).
        is_windowed: bool, only the cells of the sliding window are kept.
        state_values: int, 32-bit values that each sequence keeps however long it is.
        index_width: int, values that sparse attention keeps in addition for each cell, as its own key.
        compression: int, of so many tokens one more key is kept (DeepSeek-V4); 0: none.
    """

    k_width: int = 0
    v_width: int = 0
    is_windowed: bool = False
    state_values: int = 0
    index_width: int = 0
    compression: int = 0


@dataclass(frozen=True)
class Geometry:
    """What a model keeps, layer by layer, and the widths that its computations have.

    Attributes:
        layers: Layers of the trunk.
        nextn_layers: Layers that predict further tokens; they keep something only in a context made for that.
        window_tokens: int, of sliding-window layers; 0: there are none.
        v_width_max: int, widest V of any layer, to which all are padded without flash attention.
        key_widths, value_widths: values in a key and in a value of one head, as they occur: the types of a quantised cache must
            have whole blocks in each.
        has_cache: bool, False for models that see all their input at once.
        is_exact: bool, False where the cache of the architecture is more than these layers say.
    """

    layers: tuple[Layer, ...]
    nextn_layers: tuple[Layer, ...]
    window_tokens: int
    v_width_max: int
    key_widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    has_cache: bool
    is_exact: bool = True


def geometry(header: Header) -> Geometry:
    """The geometry of a model.

    Args:
        header: Header of the file, or of the first file of a set.
    """
    architecture = header.architecture
    n_all = _n_layers(header)
    n_nextn = _n_nextn(header)
    heads = [_int(value) for value in per_layer(header, "attention.head_count", 0, n_all)]
    widths = _Widths(header, heads[0] if heads else 0)
    if architecture in _NO_CACHE:
        return Geometry(tuple(Layer() for _ in range(n_all)), (), 0, 0, (widths.key,), (widths.value,), False)
    kv_heads = [_int(value) for value in per_layer(header, "attention.head_count_kv", None, n_all)]
    if header.get("attention.head_count_kv") is None:
        kv_heads = heads
    if architecture == "graniteswitch" and kv_heads:
        kv_heads = [*kv_heads[:-1], 1]
    window, windowed = _windowed(header, n_all, n_all - n_nextn)
    stateful = _stateful(header, n_all - n_nextn, kv_heads)
    n_with_kv = _layers_with_kv(header, n_all)
    layers = []
    for at in range(n_all):
        state = widths.state_values(heads[0]) if stateful[at] else 0
        keeps = at < n_with_kv and _attends(architecture, header, at, stateful[at], kv_heads[at])
        k, v = widths.of(kv_heads[at], windowed[at]) if keeps else (0, 0)
        compression = _int(per_layer(header, "attention.compress_ratios", 0, n_all)[at]) if architecture == "deepseek4" else 0
        layers.append(Layer(k, v, windowed[at], state, widths.index(at, n_all - n_nextn) if keeps else 0, compression))
    v_max = max((widths.of(count, swa)[1] for count, swa in zip(kv_heads, windowed, strict=True)), default=0)
    # A file of nothing but NextN layers is a trunk of its own; and some hybrids give those layers cells in the trunk's cache.
    trunk = n_all if architecture in _NEXTN_IN_TRUNK else n_all - n_nextn or n_all
    has_window = window if any(windowed) else 0
    keys = tuple(sorted({widths.key_swa if swa else widths.key for swa in windowed}))
    values = tuple(sorted({widths.value_swa if swa else widths.value for swa in windowed}))
    is_exact = architecture != "deepseek4" and header.get("ple.conv_kernel") is None
    return Geometry(tuple(layers[:trunk]), tuple(layers[trunk:]), has_window, v_max, keys, values, True, is_exact)


def _n_layers(header: Header) -> int:
    n_layers = min(header.block_count, MAX_LAYERS)
    if header.architecture == "nanbeige":  # runs its layers several times, each time with a cache of its own
        n_layers = min(n_layers * max(1, _int(header.get("num_loops"))), MAX_LAYERS)
    return n_layers + (header.architecture == "graniteswitch")  # one more layer chooses the adapter


def _n_nextn(header: Header) -> int:
    if header.architecture == "graniteswitch":
        return 0
    nextn = header.n_layer_nextn
    if header.architecture == "deepseek4" and nextn:
        probe = f"blk.{header.block_count - nextn}.nextn.eh_proj.weight"
        return nextn if any(tensor.name == probe for tensor in header.tensors) else 0
    return nextn


def _layers_with_kv(header: Header, n_all: int) -> int:
    if header.architecture == "gemma4-assistant":  # looks at the cache of the model that it predicts for
        return 0
    if header.architecture == "gemma3n":
        return min(n_all, _GEMMA3N_LAYERS_WITH_KV)
    return n_all - min(n_all, _int(header.get("attention.shared_kv_layers"))) if header.architecture == "gemma4" else n_all


def _attends(architecture: str, header: Header, at: int, has_state: bool, kv_heads: int) -> bool:
    if architecture in _RECURRENT:
        return False
    if architecture in _STATE_WHERE_NO_KV_HEADS_NOR_FFN:
        return not has_state and _int(per_layer(header, "feed_forward_length", 0, at + 1)[at]) == 0
    return architecture in _STATE_AND_ATTENTION or not has_state


def _windowed(header: Header, n_all: int, n_trunk: int) -> tuple[int, Sequence[bool]]:
    """(size of the window, which layers have it)."""
    architecture = header.architecture
    none = [False] * n_all
    n_tokens = _int(header.get("attention.sliding_window"))
    pattern = header.get("attention.sliding_window_pattern")
    if architecture in _WINDOW_BY_PATTERN:
        is_listed = isinstance(pattern, tuple) and n_tokens > 0
        return (
            (n_tokens, [bool(value) for value in per_layer(header, "attention.sliding_window_pattern", False, n_all)])
            if is_listed
            else (0, none)
        )
    if architecture in ("lfm2", "deepseek4"):
        kv_heads = per_layer(header, "attention.head_count_kv", 0, n_all)
        everywhere = architecture == "deepseek4"
        return n_tokens, [n_tokens > 0 and (everywhere or _int(count) > 0) for count in kv_heads]
    known = _WINDOWS.get(architecture)
    if known is None or (architecture == "exaone4" and header.block_count != 64):
        return 0, none
    if header.get("attention.sliding_window") is None:
        n_tokens = known.default_tokens
    elif n_tokens and known.n_tokens:
        n_tokens = known.n_tokens
    if not n_tokens:
        return 0, none
    if isinstance(pattern, tuple):
        return n_tokens, [bool(value) for value in per_layer(header, "attention.sliding_window_pattern", False, n_all)]
    every = _int(pattern) if isinstance(pattern, int) and not isinstance(pattern, bool) else known.every
    return n_tokens, [at < n_trunk and _is_windowed(at, every, known.full_first) for at in range(n_all)]


def _is_windowed(at: int, every: int, full_first: bool) -> bool:
    if every == 0:
        return True
    return at % every != 0 if full_first else at % every < every - 1


def _stateful(header: Header, n_trunk: int, kv_heads: Sequence[int]) -> list[bool]:
    """Which layers keep a state."""
    architecture = header.architecture
    if architecture in _RECURRENT or architecture in _STATE_AND_ATTENTION:
        return [at < n_trunk for at in range(len(kv_heads))]
    if architecture in _STATE_WHERE_NO_KV_HEADS:
        return [at < n_trunk and count == 0 for at, count in enumerate(kv_heads)]
    if architecture in _STATE_WHERE_NO_KV_HEADS_NOR_FFN:
        ffn = per_layer(header, "feed_forward_length", 0, len(kv_heads))
        return [at < n_trunk and count == 0 and _int(ffn[at]) == 0 for at, count in enumerate(kv_heads)]
    if architecture in _STATE_BUT_EVERY_NTH:
        listed = header.get("attention.recurrent_layers")
        if listed is not None:
            values = per_layer(header, "attention.recurrent_layers", False, len(kv_heads))
            return [at < n_trunk and bool(value) for at, value in enumerate(values)]
        every = max(1, _int(header.get("full_attention_interval")) or _STATE_BUT_EVERY_NTH[architecture])
        return [at < n_trunk and (at + 1) % every != 0 for at in range(len(kv_heads))]
    return [False] * len(kv_heads)


class _Widths:
    """Widths of keys, values and states by llama_hparams: n_embd_k_gqa, n_embd_v_gqa, n_embd_r, n_embd_s."""

    def __init__(self, header: Header, n_heads: int) -> None:
        self.header = header
        default = header.embedding_length // n_heads if n_heads else 0
        self.key = self._get("attention.key_length", default) if n_heads else 0
        self.value = self._get("attention.value_length", default) if n_heads else 0
        self.key_swa = self._get("attention.key_length_swa", self.key)
        self.value_swa = self._get("attention.value_length_swa", self.value)
        self.is_mla = self._get("attention.key_length_mla", 0) > 0 and self._get("attention.value_length_mla", 0) > 0

    def _get(self, suffix: str, default: int) -> int:
        value = self.header.get(suffix)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    def of(self, kv_heads: int, is_windowed: bool) -> tuple[int, int]:
        key, value = (self.key_swa, self.value_swa) if is_windowed else (self.key, self.value)
        # DeepSeek-V4 keeps keys alone, too: src/llama-kv-cache-dsv4.cpp, dsv4_make_k_only.
        has_values = not self.is_mla and self.header.architecture != "deepseek4"
        return kv_heads * key, kv_heads * value if has_values else 0

    def index(self, at: int, n_trunk: int) -> int:
        """Width of the indexer's key (and value) of a layer with sparse attention."""
        width = self._get("attention.indexer.key_length", 0)
        architecture = self.header.architecture
        if not width or at >= n_trunk:
            return 0
        if architecture == "minimax-m3":  # its indexer is a cache like any other, of one head
            return width + self.value if at >= self._get("leading_dense_block_count", 0) else 0
        if architecture == "deepseek32":
            return width
        if architecture == "deepseek4":  # only with the finer of its two compressions
            return width if per_layer(self.header, "attention.compress_ratios", 0, at + 1)[at] == FINE_COMPRESSION else 0
        if architecture in ("qwen4exp", "glm5-next") and self._get("attention.indexer.kpool", 0):
            width *= 3  # key, gate and pooled value
        # Files without a list have an indexer everywhere; but GLM 5.2, known by its context, has it in the first two layers and
        # in every fourth from the third on.
        is_sparse = architecture == "glm-dsa" and self.header.context_length >= 1 << 20
        default = at < 2 or (at - 2) % 4 == 0 if is_sparse else True
        if architecture in ("glm-dsa", "glm5-next", "dots3note", "hy_v4", "qwen4exp"):
            return width if per_layer(self.header, "attention.indexer.types", default, at + 1)[at] else 0
        return 0

    def state_values(self, n_heads: int) -> int:
        embd, get = self.header.embedding_length, self._get
        conv, inner, state = get("ssm.conv_kernel", 0), get("ssm.inner_size", 0), get("ssm.state_size", 0)
        if wkv := get("wkv.head_size", 0):
            return get("token_shift_count", 2) * embd + embd * wkv
        if cache := get("shortconv.l_cache", 0):
            return embd * (cache - 1)
        if kda := get("kda.head_dim", 0):
            return 3 * (conv - 1 if conv else 3) * n_heads * kda + kda * kda * n_heads
        if self.header.architecture == "minimax-01":
            return self.key * self.key * n_heads
        groups = 0 if self.header.architecture in ("mamba", "jamba") else get("ssm.group_count", 0)
        return max(0, conv - 1) * (inner + 2 * groups * state) + state * inner


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
