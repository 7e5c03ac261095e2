"""How much memory a model takes while it runs, from its header alone: before anything else of it is fetched.

The cache and the states follow llama.cpp's own code and are exact for all architectures but the few that `Geometry.is_exact`
names; weights are what the tensors hold; the scratch buffer is an estimate (see compute.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from localllm.errors import InvalidRequestError
from localllm.hub.compute import Batch, compute_bytes
from localllm.hub.geometry import ROLLBACK, Geometry, Layer, geometry
from localllm.hub.gguf import Header
from localllm.hub.gguf_parse import TENSOR_TYPES
from localllm.hub.options import check_kind, check_whole

_CELLS = 256  # llama.cpp rounds the number of cells up to a multiple of this
_BLOCKS = {name.lower(): (values, n_bytes) for name, values, n_bytes in TENSOR_TYPES.values()}
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_UNQUANTISED = ("f32", "f16", "bf16")


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """What a context is made with, as far as it costs memory; the defaults are those of `ContextConfig`.

    Attributes:
        n_ctx: int, cells of the cache in tokens, of all sequences together; 0: the length that the model was trained for.
        parallel: int, sequences that are computed together.
        kept_sequences: int, further ones that the prefix cache keeps; llama.cpp's n_seq_max is both together.
        unified: bool, all sequences share one cache; False: each has its part.
        type_k, type_v: data types of the cache, of `KV_TYPES`.
        flash_attention: bool, llama.cpp's "auto" is on for the CPU and for every model that it knows how to do it for.
        n_batch, n_ubatch: int, tokens of a batch and of a micro-batch.
        n_outputs: int, rows of logits in one batch (llama.cpp's n_outputs_max); 0: as many as the batch has tokens.
        swa_full: bool, sliding-window layers keep the whole context.
        n_rollback: int, earlier states that each sequence keeps, for architectures that can go back to them.
        mtp: bool, the layers for multi-token prediction are used: their weights are loaded and they keep a cache.
        repacked: tensor types that the CPU at hand keeps in another order than the file's (see `repacked_types`); () for none, as
            on a GPU.
    """

    n_ctx: int = 4096
    parallel: int = 4
    kept_sequences: int = 16
    unified: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool = True
    n_batch: int = 2048
    n_ubatch: int = 512
    n_outputs: int = 0
    swa_full: bool = False
    n_rollback: int = 0
    mtp: bool = False
    repacked: frozenset[str] = frozenset()

    @property
    def n_sequences(self) -> int:
        return self.parallel + self.kept_sequences

    def __post_init__(self) -> None:
        for name, low in (
            ("n_ctx", 0),
            ("parallel", 1),
            ("kept_sequences", 0),
            ("n_batch", 1),
            ("n_ubatch", 1),
            ("n_outputs", 0),
            ("n_rollback", 0),
        ):
            check_whole(name, getattr(self, name), low)
        for name in ("flash_attention", "swa_full"):
            check_kind(name, getattr(self, name), bool)
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise InvalidRequestError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(KV_TYPES)}")
        if self.type_v not in _UNQUANTISED and not self.flash_attention:
            raise InvalidRequestError(f"type_v: {self.type_v} needs flash attention, which is off")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a model and one context take.

    Attributes:
        weights_bytes: tensors that are loaded, all experts of them.
        kv_bytes: cache of keys and values, for n_ctx cells.
        state_bytes: states of recurrent layers, for all sequences, whatever n_ctx is.
        compute_bytes: scratch memory and logits; an estimate.
        companions_bytes: projector and draft, with the draft's own cache and scratch memory; what a projector computes with is
            only a rough guess, as it depends on the pictures.
        repack_bytes: of the weights, what the CPU keeps in another order. Once they are read, the file's own pages of these can
            leave the page cache, so they are not counted twice; while loading both are needed.
        is_exact: bool, False where kv_bytes and state_bytes are estimates, too.
    """

    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    compute_bytes: int
    companions_bytes: int
    repack_bytes: int = 0
    is_exact: bool = True

    @property
    def total_bytes(self) -> int:
        """All of it, in a machine's memory or a device's."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.compute_bytes + self.companions_bytes

    @property
    def loading_bytes(self) -> int:
        """The most that is needed for a moment: all of it, and the file's pages of what is repacked."""
        return self.total_bytes + self.repack_bytes


@dataclass(frozen=True)
class Companions:
    """Files that are used together with a model.

    Attributes:
        projector: Header of an mmproj file, or None.
        draft: Header of a draft model, or None; it gets a context like the model's own.
    """

    projector: Header | None = None
    draft: Header | None = None


def estimate(header: Header, options: ContextOptions | None = None, companions: Companions | None = None) -> MemoryEstimate:
    """The memory that a model takes with one context.

    Args:
        header: Header of the model's file; of a set, all files together (`read_model`, `merge_shards`).
        options: ContextOptions, None: the defaults.
        companions: Companions, None: none.

    Raises:
        InvalidRequestError: The type of the cache does not go with the model: llama.cpp wants whole blocks in every head.
    """
    options = options or ContextOptions()
    companions = companions or Companions()
    model = geometry(header)
    _check_types(model, options)
    plan = _Plan(header, model, options)
    extra = projector_bytes(companions.projector) + _draft_bytes(companions.draft, options)
    return MemoryEstimate(
        weights_bytes=_weights(header, options) + _duplicates(header, options),
        kv_bytes=plan.kv_bytes(),
        state_bytes=plan.state_bytes(),
        compute_bytes=plan.compute_bytes(),
        companions_bytes=extra,
        repack_bytes=_repacked(header, options) + _duplicates(header, options),
        is_exact=model.is_exact,
    )


def estimate_other(found: MemoryEstimate, header: Header, n_bytes: int) -> MemoryEstimate:
    """The estimate for another quantization of the same model, of which nothing but its size was read.

    Args:
        found: MemoryEstimate of the one whose header is known.
        header: Header of that one.
        n_bytes: int, size of all files of the other.
    """
    overhead = header.file_bytes - header.n_tensor_bytes
    loaded = found.weights_bytes / header.n_tensor_bytes if header.n_tensor_bytes else 1.0
    return dataclasses.replace(found, weights_bytes=int(max(0, n_bytes - overhead) * loaded), repack_bytes=0)


def repacked_types(cpu_flags: Sequence[str]) -> frozenset[str]:
    """Tensor types that llama.cpp repacks on a CPU, which makes long prompts much faster.

    From ggml_repack_get_optimal_repack_type (ggml/src/ggml-cpu/repack.cpp) of the pinned source.

    Args:
        cpu_flags: names of instruction sets as in /proc/cpuinfo, e.g. ["avx2", "avx512f"] or ["asimd", "asimddp", "i8mm"].
    """
    flags = {flag.lower() for flag in cpu_flags}
    found: set[str] = set()
    if "avx2" in flags:
        found |= {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
    if "avx512f" in flags:
        found |= {"Q2_K"}
    if flags & {"asimddp", "dotprod"}:
        found |= {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0", "Q1_0"}
    return frozenset(found)


def _pad(n: int, to: int = _CELLS) -> int:
    return -(-n // to) * to


def _row_bytes(n_values: int, type_name: str) -> int:
    values, n_bytes = _BLOCKS[type_name]
    return -(-n_values // values) * n_bytes


class _Plan:
    """The sizes that llama.cpp derives from the options, by llama_context::llama_context."""

    def __init__(self, header: Header, model: Geometry, options: ContextOptions) -> None:
        self.header, self.model, self.options = header, model, options
        n_ctx = options.n_ctx or header.context_length or 512
        # With causal attention no batch is larger than the context; the others take their input whole.
        n_batch = min(n_ctx, options.n_batch) if header.get("attention.causal") is not False else options.n_batch
        self.n_ubatch = min(n_batch, options.n_ubatch)
        self.n_batch = n_batch
        n_ctx = _pad(n_ctx)
        shares = options.unified and header.architecture != "deepseek4"
        self.n_streams = 1 if shares else options.n_sequences
        self.n_cells = n_ctx if options.unified else _pad(n_ctx // options.n_sequences)
        self.n_ctx = n_ctx if options.unified else self.n_cells * options.n_sequences
        n_window = model.window_tokens * (options.n_sequences if shares else 1) + self.n_ubatch
        self.n_window_cells = self.n_cells if options.swa_full else _pad(min(self.n_cells, n_window))

    def kv_bytes(self) -> int:
        layers = (*self.model.layers, *(self.model.nextn_layers if self.options.mtp else ()))
        return sum(self._layer_bytes(layer) for layer in layers)

    def _layer_bytes(self, layer: Layer) -> int:
        options = self.options
        cells = self.n_window_cells if layer.is_windowed else self.n_cells
        # Without flash attention all layers get the width of the widest.
        v_width = self.model.v_width_max if layer.v_width and not options.flash_attention else layer.v_width
        a_cell = _row_bytes(layer.k_width, options.type_k) + _row_bytes(v_width, options.type_v)
        n_bytes = cells * a_cell
        if layer.compression:
            a_key = _row_bytes(layer.k_width, options.type_k) + _row_bytes(layer.index_width, options.type_k)
            n_bytes += _pad(self.n_cells // layer.compression) * a_key
        else:
            n_bytes += self.n_cells * _row_bytes(layer.index_width, options.type_k)
        return n_bytes * self.n_streams

    def state_bytes(self) -> int:
        n_rollback = self.options.n_rollback if self.header.architecture in ROLLBACK else 0
        return 4 * sum(layer.state_values for layer in self.model.layers) * self.options.n_sequences * (1 + n_rollback)

    def compute_bytes(self) -> int:
        n_sequences = self.options.n_sequences
        n_tokens = _pad(min(self.n_ctx, self.n_ubatch), n_sequences)
        n_outputs = min(n_tokens, self.options.n_outputs or self.n_batch)
        n_window = self.n_window_cells if self.model.window_tokens else 0
        # Without a cache, tokens look at those of the same batch.
        n_cells = self.n_cells if self.model.has_cache else n_tokens
        options = self.options
        flash = options.flash_attention
        casts = (flash and self.model.has_cache and kind == "f32" for kind in (options.type_k, options.type_v))
        batch = Batch(n_tokens, n_sequences, n_outputs, n_cells, n_window, flash, *casts)
        logits = self.header.vocab_size * n_sequences * 4  # where llama.cpp hands out one row for each sequence
        return compute_bytes(self.header, self.model, batch) + logits


def _check_types(model: Geometry, options: ContextOptions) -> None:
    for name, kind, widths in (("type_k", options.type_k, model.key_widths), ("type_v", options.type_v, model.value_widths)):
        values = _BLOCKS[kind][0]
        uneven = [width for width in widths if width % values]
        if uneven:
            raise InvalidRequestError(f"{name}: {kind} has blocks of {values} values, but a head of this model has {uneven[0]}")


def _is_loaded(name: str, header: Header, options: ContextOptions) -> bool:
    """Whether llama.cpp loads a tensor: the layers for multi-token prediction only where they are used."""
    if options.mtp or not header.n_layer_nextn or not name.startswith("blk."):
        return True
    number = name.split(".")[1]
    first = header.block_count - header.n_layer_nextn
    return first == 0 or not number.isdecimal() or int(number) < first


def _weights(header: Header, options: ContextOptions) -> int:
    return sum(tensor.n_bytes for tensor in header.tensors if _is_loaded(tensor.name, header, options))


def _repacked(header: Header, options: ContextOptions) -> int:
    """Bytes of the matrices whose type is repacked: not embeddings, which are only looked up, nor odd shapes."""
    return sum(
        tensor.n_bytes
        for tensor in header.tensors
        if tensor.type in options.repacked
        and tensor.name != "token_embd.weight"
        and tensor.name.endswith(".weight")
        and len(tensor.shape) in (2, 3)
        and tensor.shape[1] % 8 == 0
        and _is_loaded(tensor.name, header, options)
    )


def _duplicates(header: Header, options: ContextOptions) -> int:
    """Bytes of an embedding matrix that is the output matrix, too: repacked for one use, in the file's order for the other."""
    names = {tensor.name: tensor for tensor in header.tensors}
    embedding = names.get("token_embd.weight")
    if embedding is None or "output.weight" in names or embedding.type not in options.repacked or embedding.shape[1] % 8:
        return 0
    return embedding.n_bytes


def projector_bytes(projector: Header | None) -> int:
    """Weights of a projector, and roughly what the largest picture or half a minute of sound takes while it is looked at."""
    if projector is None:
        return 0
    return projector.n_tensor_bytes + max(
        (
            _encoder_bytes(projector, part)
            for part in ("vision", "audio")
            if f"clip.{part}.embedding_length" in projector.metadata
        ),
        default=0,
    )


# tools/mtmd/clip.cpp takes pictures of any shape with these, up to so many tokens; each is made of four patches.
_FREE_SHAPES = ("_merger", "lfm2", "pixtral", "kimivl")
_MAX_PATCHES = 4 * 4096
_MAX_FRAMES = 1500  # Whisper's encoder: 30 s of sound


def _encoder_bytes(projector: Header, part: str) -> int:
    """What is alive in a layer of the encoder: input, norm, queries, keys and values, and the two of the feed-forward part."""

    def number(key: str) -> int:
        value = projector.metadata.get(f"clip.{part}.{key}", 0)
        return value if isinstance(value, int) and 0 < value < 1 << 20 else 0

    kind = str(projector.metadata.get(f"clip.{part}.projector_type", projector.metadata.get("clip.projector_type", "")))
    places = _MAX_FRAMES
    if part == "vision":
        whole = (number("image_size") // max(1, number("patch_size"))) ** 2
        places = max(whole, _MAX_PATCHES) if kind.endswith(_FREE_SHAPES) else min(whole, _MAX_PATCHES)
    return places * (5 * number("embedding_length") + 2 * number("feed_forward_length")) * 4


def _draft_bytes(draft: Header | None, options: ContextOptions) -> int:
    if draft is None:
        return 0
    model = geometry(draft)
    plan = _Plan(draft, model, options)
    return _weights(draft, options) + plan.kv_bytes() + plan.state_bytes() + plan.compute_bytes()
