"""What an engine is made with. Frozen, checked when made; every message of an error begins with the field's name."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from localllm.engine import checks, fields
from localllm.engine.speculation.config import SpeculationConfig as SpeculationConfig
from localllm.engine.speculation.config import SpeculationKind as SpeculationKind
from localllm.errors import InvalidRequestError

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io"]
SplitMode = Literal["none", "layer", "row", "tensor"]
FlashAttention = Literal["auto", "off", "on"]
KVType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
MetadataValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """How weights are loaded.

    Attributes:
        n_gpu_layers: int, layers to put on GPUs; "all" (the default) is right on a machine without a GPU too; "auto": as many as
            fit, which llama.cpp chooses when the model is loaded, for the context that it is loaded with first (a LocalModel
            does; an Engine wants a number or "all").
        split_mode: how a model is spread over several GPUs: "none" (main_gpu alone), "layer", "row" or "tensor".
        main_gpu: int, the GPU for `split_mode="none"`.
        tensor_split: floats, the share of each GPU, at most as many as llama.cpp can use; () lets llama.cpp choose.
        load_mode: "auto", "none", "mmap", "mlock", "mmap+mlock" or "direct_io".
        vocab_only: bool, load the vocabulary and metadata, no weights.
        check_tensors: bool, check all weights for invalid values while loading.
        use_extra_buffers: bool, let the CPU repack weights for speed (takes them out of the page cache).
        mtp: bool, load the heads for further tokens that some files have ("draft-mtp" needs them); they are left out else.
        metadata_overrides: metadata of the file to replace, e.g. {"tokenizer.ggml.add_bos_token": False}; a dict, or (key, value)
            pairs. A value has the type that the file's has.
    """

    n_gpu_layers: int | Literal["all", "auto"] = "all"
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    load_mode: LoadMode = "auto"
    vocab_only: bool = False
    check_tensors: bool = False
    use_extra_buffers: bool = True
    mtp: bool = False
    metadata_overrides: Mapping[str, MetadataValue] | Sequence[tuple[str, MetadataValue]] = ()

    def __post_init__(self) -> None:
        if self.n_gpu_layers not in ("all", "auto"):
            if isinstance(self.n_gpu_layers, str):
                raise InvalidRequestError(f"n_gpu_layers: must be a number of layers, 'all' or 'auto', not {self.n_gpu_layers!r}")
            fields.integer(self, "n_gpu_layers", 0, 2**31 - 1)
        fields.choice("split_mode", self.split_mode, SplitMode)
        fields.integer(self, "main_gpu", 0, 2**31 - 1)
        fields.choice("load_mode", self.load_mode, LoadMode)
        shares = tuple(checks.real("tensor_split", share) for share in checks.items("tensor_split", self.tensor_split))
        if any(share < 0 for share in shares):
            raise InvalidRequestError(f"tensor_split: {min(shares)} is not a share of at least 0")
        object.__setattr__(self, "tensor_split", shares)
        for flag in ("vocab_only", "check_tensors", "use_extra_buffers", "mtp"):
            fields.boolean(flag, getattr(self, flag))
        object.__setattr__(self, "metadata_overrides", _overrides(self.metadata_overrides))

    @property
    def overrides(self) -> tuple[tuple[str, MetadataValue], ...]:
        """`metadata_overrides` as (key, value) pairs, checked."""
        return cast("tuple[tuple[str, MetadataValue], ...]", self.metadata_overrides)


def _overrides(given: object) -> tuple[tuple[str, MetadataValue], ...]:
    """Pairs of keys and values as llama.cpp can take them."""
    name = "metadata_overrides"
    entries = checks.items(name, given.items() if isinstance(given, Mapping) else given)
    pairs: dict[str, MetadataValue] = {}
    for entry in entries:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            raise InvalidRequestError(f"{name}: {checks.shown(entry)} is not a pair of key and value")
        key, value = entry
        if not isinstance(key, str) or not _fits(key) or not key:
            raise InvalidRequestError(f"{name}: {key!r} is not a key of 1 to 127 bytes")
        if key in pairs:
            raise InvalidRequestError(f"{name}: {key} appears twice")
        pairs[key] = _override(f"{name}: the value of {key}", value)
    return tuple(pairs.items())


def _override(name: str, value: object) -> MetadataValue:
    if isinstance(value, str):
        if not _fits(value):
            raise InvalidRequestError(f"{name} is no text of at most 127 bytes")
        return value
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        if not -(2**63) <= int(value) < 2**63:
            raise InvalidRequestError(f"{name}, {checks.shown(value)}, does not fit in 64 bits")
        return int(value)
    if isinstance(value, numbers.Real):
        return checks.real(name, value)
    raise InvalidRequestError(f"{name} must be a boolean, a number or a text, not of type {type(value).__name__}")


def _fits(text: str) -> bool:
    """Whether llama.cpp's structure for overrides holds a text: UTF-8 that ends at a zero byte."""
    try:
        return "\0" not in text and len(text.encode()) < 128
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """How the context of a model is made.

    All sequences share one KV cache ("unified"): `n_ctx` cells in all, of which any sequence may use as many as it needs.
    Sequences with a common beginning can then share the cells of it. The price is that attention looks at the cells of the
    other sequences too, masked; a split cache would avoid this, but would fix each sequence's share beforehand. Measured
    (benchmarks/unified.py): unified costs nothing with one sequence and 6 to 14% with eight, whose common text it saves whole.

    Attributes:
        n_ctx: int, KV cells in tokens, shared by all sequences; also the most that one sequence may use, unless the
            model has a table of fewer learned positions (GPT-2). 0: the length that the model was trained for. "auto": as
            much of that length as fits the free memory when it is loaded, see `LocalModel.placement` (a LocalModel does; an
            Engine wants a number).
        parallel: int, sequences that are computed together (1 to 256).
        n_batch: int, most tokens in one llama_decode.
        n_ubatch: int, most tokens in one micro-batch; while other sequences stream, a prompt is taken in so many at a time.
        n_threads: int, threads for single tokens; 0: one per physical core that this process may use.
        n_threads_batch: int, threads for prompts; 0: like n_threads.
        flash_attention: "auto", "off" or "on".
        type_k, type_v: the cache's data types; a quantised type_v needs flash attention. `type_v="bf16"` makes answers of Q4_0,
            Q4_1 and Q8_0 models on x86-64 independent of how many tokens are computed together, see SamplingParams.
        offload_kqv: bool, keep the KV cache on the GPU where layers are.
        op_offload: bool, let the GPU compute large host operations.
        swa_full: bool, keep the whole history of sliding-window layers (more memory, any prefix can be reused).
        rope_freq_base, rope_freq_scale: float, 0: from the model.
        max_queue: int, requests that may wait; 0: no limit.
        prefix_cache: bool, keep what has been computed, and go on from there when a prompt begins alike; also from what another
            request is computing at the moment.
        cache_ram_bytes: int, RAM for copies of ended sequences, made in idle moments when cells or slots get scarce; 0: none.
        cache_dir: str or PathLike, a folder for copies that outlive the process, written in idle moments; "": none. Processes may
            share it.
        cache_disk_bytes: int, for all files of that folder.
        cache_read_only: bool, only read from that folder.
        kept_sequences: int, how many ended sequences may stay in the cells that are not needed otherwise.
        speculation: SpeculationConfig, or the name of a kind with its defaults.
    """

    n_ctx: int | Literal["auto"] = 4096
    parallel: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    flash_attention: FlashAttention = "auto"
    type_k: KVType = "f16"
    type_v: KVType = "f16"
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = False
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    max_queue: int = 0
    prefix_cache: bool = True
    kept_sequences: int = 16
    cache_ram_bytes: int = 2**29
    cache_dir: str | os.PathLike[str] = ""
    cache_disk_bytes: int = 2**32
    cache_read_only: bool = False
    speculation: SpeculationConfig | SpeculationKind = "none"

    def __post_init__(self) -> None:
        if isinstance(self.speculation, str):
            fields.choice("speculation", self.speculation, SpeculationKind)
            object.__setattr__(self, "speculation", SpeculationConfig(kind=self.speculation))
        if not isinstance(self.speculation, SpeculationConfig):
            raise InvalidRequestError("speculation: must be a SpeculationConfig or the name of a kind")
        if self.n_ctx != "auto":
            fields.integer(self, "n_ctx", 0, 2**27)
        fields.integer(self, "parallel", 1, 256)
        fields.integer(self, "n_batch", 1, 2**20)
        fields.integer(self, "n_ubatch", 1, 2**20)
        fields.integer(self, "n_threads", 0, 512)
        fields.integer(self, "n_threads_batch", 0, 512)
        fields.integer(self, "max_queue", 0, 2**31 - 1)
        fields.integer(self, "cache_ram_bytes", 0, 2**63 - 1)
        fields.integer(self, "cache_disk_bytes", 0, 2**63 - 1)
        object.__setattr__(self, "cache_dir", checks.path("cache_dir", self.cache_dir))
        fields.integer(self, "kept_sequences", 0, 256 - self.parallel)
        fields.choice("flash_attention", self.flash_attention, FlashAttention)
        fields.choice("type_k", self.type_k, KVType)
        fields.choice("type_v", self.type_v, KVType)
        fields.number(self, "rope_freq_base", 0, checks.MAX_FLOAT)
        fields.number(self, "rope_freq_scale", 0, checks.MAX_FLOAT)
        for flag in ("offload_kqv", "op_offload", "swa_full", "prefix_cache", "cache_read_only"):
            fields.boolean(flag, getattr(self, flag))
        if self.parallel > self.n_batch:
            raise InvalidRequestError("n_batch: smaller than parallel; every sequence needs room for one token")
        if self.flash_attention == "off" and self.type_v not in ("f32", "f16", "bf16"):
            raise InvalidRequestError(f"type_v: {self.type_v} needs flash attention, which is off")


SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature", "infill", "adaptive_p",
)  # fmt: skip
_DEFAULT_SAMPLERS = SAMPLERS[:9]
MAX_SEED = 2**32 - 1  # llama.cpp's word for "any"
_MAX_WINDOW = 2**24  # as in liblocalllm: the samplers reserve memory for every token of their history


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; llama.cpp's full set, by its names, with its defaults.

    The same request with the same seed gives the same answer, whatever else is in its batches, as far as llama.cpp's kernels
    permit: what the other sequences say changes not one bit, but how many there are, and where a sequence's cells lie, changes
    the order of additions and so the last digits. Quantised weights magnify that (SmolLM2-135M as Q4_1: log-probabilities
    differ by up to 0.7), so between two tokens that are about as probable the choice may differ between a busy and an idle
    engine, or between a cold and a warm cache. `ContextConfig(parallel=1, prefix_cache=False)` is repeatable to the bit. With
    `type_v="bf16"` as well, and a model of Q4_0, Q4_1 or Q8_0 on an x86-64 CPU, it is so with and without speculation, and for
    prompts in pieces of any size; long prompts take up to 2.7 times as long then (benchmarks/README.md, "lossless.py").

    The stages run in the order of `samplers`; logit bias and the vocabulary's suppressed tokens come before all of them,
    and a grammar has the last word. Penalties and DRY see the prompt as well as the answer.

    Attributes:
        temperature: float >= 0; 0 always takes the most probable token.
        dynatemp_range, dynatemp_exponent: float, temperature varies by this with the entropy (arXiv:2309.02772).
        top_k: int >= 0, keep the k best; 0: all.
        top_p: float in [0, 1], keep the best until their probabilities reach p (arXiv:1904.09751).
        min_p: float in [0, 1], drop what is less probable than min_p times the best.
        typical_p: float in [0, 1], locally typical sampling (arXiv:2202.00666); 1: off.
        top_n_sigma: float, keep logits within n standard deviations of the best (arXiv:2411.07641); -1: off.
        xtc_probability, xtc_threshold: float in [0, 1], drop all but the least of the tokens above the threshold.
        repeat_penalty: float > 0, 1: off.  frequency_penalty, presence_penalty: float, 0: off.
        penalty_last_n: int, tokens that the penalties look back on; 0: off, -1: the whole context.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers: DRY repetition penalty.
        mirostat: 0, 1 or 2 (arXiv:2007.14966), replaces the filters.  mirostat_tau, mirostat_eta: float.
        adaptive_target, adaptive_decay: float, for the sampler "adaptive_p".
        min_keep: int >= 0, filters leave at least so many tokens.
        logit_bias: ((token id, bias), ...) or a dict, also with ids as texts, as in JSON; a bias of -inf bans the token.
        seed: int in [0, 2**32 - 2], or None for a random one.
        ignore_eos: bool, never choose a token that ends the answer.
        grammar: str, GBNF; "" for none.
        n_probs: int in [0, 100], report so many most probable tokens with each chosen one.
        logprobs: bool, report the log-probability of each chosen token.
        sampled_probs: bool, probabilities as left by the samplers; false: the model's own.
        samplers: names of `SAMPLERS` in the order of use.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    min_keep: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    grammar: str = ""
    n_probs: int = 0
    logprobs: bool = False
    sampled_probs: bool = False
    samplers: tuple[str, ...] = field(default=_DEFAULT_SAMPLERS)

    def __post_init__(self) -> None:
        fields.freeze(self, "dry_sequence_breakers")
        fields.freeze(self, "samplers")
        if isinstance(self.logit_bias, dict):
            # JSON, and with it OpenAI's form, has texts for names.
            pairs = (
                (int(key) if isinstance(key, str) and key.isdecimal() else key, bias) for key, bias in self.logit_bias.items()
            )
            object.__setattr__(self, "logit_bias", tuple(pairs))
        if not isinstance(self.logit_bias, (tuple, list)):
            raise InvalidRequestError("logit_bias: must be a dict, or a list of (token id, bias)")
        for name, (low, high) in _FLOAT_RANGES.items():
            fields.number(self, name, low, high)
        for name, (first, last) in _INTEGER_RANGES.items():
            fields.integer(self, name, first, last)
        for flag in ("ignore_eos", "logprobs", "sampled_probs"):
            fields.boolean(flag, getattr(self, flag))
        if self.repeat_penalty < 1e-6:
            raise InvalidRequestError("repeat_penalty: must be greater than 0 (1 switches it off)")
        if self.seed is not None:
            fields.integer(self, "seed", 0, MAX_SEED - 1)
        if not isinstance(self.grammar, str):
            raise InvalidRequestError("grammar: must be text in GBNF, or ''")
        self._check_lists()

    def _check_lists(self) -> None:
        pairs: list[tuple[int, float]] = []
        for entry in self.logit_bias:
            token, bias = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (None, None)
            if not isinstance(token, numbers.Integral) or isinstance(token, bool) or token < 0:
                raise InvalidRequestError(f"logit_bias: {checks.shown(entry)} is not (token id, bias)")
            if isinstance(bias, bool) or not isinstance(bias, numbers.Real):
                raise InvalidRequestError(f"logit_bias: the bias of token {token} must be a number or -inf, not {bias!r}")
            if bias != -math.inf and not -checks.MAX_FLOAT <= bias <= checks.MAX_FLOAT:
                reason = f"{checks.shown(bias)} is neither -inf nor in the range {-checks.MAX_FLOAT:g} to {checks.MAX_FLOAT:g}"
                raise InvalidRequestError(f"logit_bias: the bias of token {checks.shown(token)}, {reason}")
            if token >= 2**31:
                raise InvalidRequestError(f"logit_bias: {checks.shown(token)} is no token id")
            pairs.append((int(token), float(bias)))
        object.__setattr__(self, "logit_bias", tuple(pairs))
        for breaker in self.dry_sequence_breakers:
            if not isinstance(breaker, str) or not breaker:
                raise InvalidRequestError("dry_sequence_breakers: must be texts that are not empty")
        for name in self.samplers:
            if name not in SAMPLERS:
                raise InvalidRequestError(f"samplers: unknown name {name!r}; there are {', '.join(SAMPLERS)}")
        if len(set(self.samplers)) != len(self.samplers):
            raise InvalidRequestError("samplers: a name appears twice")

    @property
    def window(self) -> int:
        """How many past tokens any stage looks at; -1: all."""
        if -1 in (self.penalty_last_n, self.dry_penalty_last_n):
            return -1
        return max(64, self.penalty_last_n, self.dry_penalty_last_n)


# Ends included. 1e30 stands for "any" in single precision.
_FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e30), "dynatemp_range": (0, 1e30), "dynatemp_exponent": (0, 1e30), "top_p": (0, 1), "min_p": (0, 1),
    "typical_p": (0, 1), "top_n_sigma": (-1, 1e30), "xtc_probability": (0, 1), "xtc_threshold": (0, 1),
    "repeat_penalty": (0, 1e30), "frequency_penalty": (-1e30, 1e30), "presence_penalty": (-1e30, 1e30),
    "dry_multiplier": (0, 1e30), "dry_base": (0, 1e30), "mirostat_tau": (0, 1e30), "mirostat_eta": (0, 1e30),
    "adaptive_target": (-1, 1), "adaptive_decay": (0, 0.99),
}  # fmt: skip
_INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "top_k": (0, 2**31 - 1), "penalty_last_n": (-1, _MAX_WINDOW), "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (-1, _MAX_WINDOW), "mirostat": (0, 2), "min_keep": (0, 2**31 - 1), "n_probs": (0, 100),
}  # fmt: skip
