"""The context that gives vectors or scores, and the arrays of its batch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localllm.engine.batch import Batch
from localllm.engine.config import ContextConfig
from localllm.engine.packing import Piece
from localllm.engine.params import cells, context_params
from localllm.engine.worker import Switch
from localllm.errors import UnsupportedModelError
from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Context, Model
from localllm.native.memory import memory_of

Pooling = Literal["mean", "cls", "last", "none", "rank"]
POOLINGS: dict[Pooling, int] = {
    "none": localllm_h.LM_POOL_NONE,
    "mean": localllm_h.LM_POOL_MEAN,
    "cls": localllm_h.LM_POOL_CLS,
    "last": localllm_h.LM_POOL_LAST,
    "rank": localllm_h.LM_POOL_RANK,
}
_OF_FILE: dict[str, Pooling] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
_MAX_SLOTS = 64  # llama.cpp reserves a row of logits for each


def own_pooling(model: Model) -> Pooling:
    """What the file names as its pooling. If it names none: "rank" for a model with a classification head, else "mean"."""
    metadata = model.metadata()
    named = _OF_FILE.get(metadata.get(f"{metadata.get('general.architecture')}.pooling_type", ""))
    ranks = model.native.json_call("lm_pool_info", model.pointer)["width"] > 0
    return named or ("rank" if ranks else "mean")


@dataclass(frozen=True)
class Head:
    """A classification head.

    Attributes:
        n_outputs: int, values per text.
        relevant: int, which of them says that the text is relevant.
        softmax: bool, llama.cpp has made probabilities of them.
    """

    n_outputs: int
    relevant: int
    softmax: bool


def rank_head(model: Model) -> Head:
    """The head of a model that ranks.

    Raises:
        UnsupportedModelError: It has none, or one whose outputs say nothing about relevance.
    """
    info = model.native.json_call("lm_pool_info", model.pointer)
    n_outputs, width, labels = info["outputs"], info["width"], info["labels"]
    if not width:
        raise UnsupportedModelError(
            f"{model.path}: this model has no classification head, so it cannot rank; use a reranker (a Qwen3-Reranker must "
            "have been converted with its head, cls.output), or compare vectors of embed()"
        )
    if width != n_outputs:
        raise UnsupportedModelError(f"{model.path}: the head gives {width} values, llama.cpp reads {n_outputs} ({labels})")
    if n_outputs == 1 and info["softmax"]:
        raise UnsupportedModelError(f"{model.path}: the head has one output, of which llama.cpp takes the softmax: always 1")
    relevant = [place for place, label in enumerate(labels) if label.lower() in ("yes", "true", "relevant")]
    if n_outputs > 1 and len(relevant) != 1:
        raise UnsupportedModelError(
            f"{model.path}: the head has the classes {labels}, of which not exactly one is called yes, true or relevant"
        )
    return Head(n_outputs, relevant[0] if n_outputs > 1 else 0, info["softmax"])


@dataclass(frozen=True)
class Work:
    """A piece with what it needs: the tokens of its text, its pooling, and where the text's rows go (address, floats)."""

    piece: Piece
    tokens: Sequence[int]
    pooling: Pooling
    address: int
    n_out: int


class Pooler:
    """Owns the context.

    A model that looks in both directions needs a text whole in one micro-batch. Its context is made for `n_ubatch` tokens and
    grows with the longest text so far, up to the limit: llama.cpp reserves memory for what could come, also for the logits of
    every token, which are of no use here (tokens times vocabulary times 4 bytes).

    What a batch holds besides a text changes its vector in the fourth digit: on a CPU flash attention adds up in half precision.
    With `flash_attention="off"` it is the seventh, for up to three times the time, as masked pairs of tokens are computed, too.

    Args:
        model: Model.
        config: ContextConfig.
        rank: bool, for scores; else for vectors.

    Attributes:
        limit: int, most tokens of a text.
        whole: bool, a text must be in one batch.
        memory: MemoryUse of the context as it is now, and the weights.
        n_batch: int, tokens that a batch should have at most; n_slots, n_cells: texts, and tokens of texts, under way.
        row: int, floats per row.
        head: Head, None if `rank` is false.
        switch: Switch, stops what it computes.

    Raises:
        UnsupportedModelError: The model gives no vectors, or no scores.
        ModelLoadError: llama.cpp cannot make the context.
    """

    def __init__(self, model: Model, config: ContextConfig, rank: bool) -> None:
        self.native = model.native
        self.model = model
        native, pointer = self.native, model.pointer
        has_encoder = native.llama_model_has_encoder(pointer)
        if has_encoder and native.llama_model_has_decoder(pointer):
            raise UnsupportedModelError(f"{model.path}: an encoder-decoder model; only encoders and decoders give vectors here")
        self.head = rank_head(model) if rank else None
        self.row: int = self.head.n_outputs if self.head else native.llama_model_n_embd_out(pointer)
        self.limit = _limit(model, config)
        self._params = context_params(native, config, native.llama_model_n_ctx_train(pointer))
        self.n_batch: int = min(config.n_ubatch, config.n_batch)
        self._params.n_ctx = max(self._params.n_ctx, self.n_batch)
        # A recurrent state is kept for each sequence, whether there is one or not.
        keeps_states = native.llama_model_is_recurrent(pointer) or native.llama_model_is_hybrid(pointer)
        self.n_slots: int = min(config.parallel if keeps_states else _MAX_SLOTS, self.n_batch)
        self._params.n_seq_max = self.n_slots
        self._params.embeddings = True
        self._params.pooling_type = llama_h.LLAMA_POOLING_TYPE_RANK if rank else llama_h.LLAMA_POOLING_TYPE_NONE
        self.n_cells: int = self._params.n_ctx
        self.switch = Switch(native)
        self._new_context(self.n_batch)
        causal = native.llama_get_causal_attn(self.context.pointer)
        self.whole: bool = has_encoder or not self.context.memory or not causal

    def _new_context(self, capacity: int) -> None:
        self._params.n_batch = self._params.n_ubatch = capacity
        self.context = Context(self.model, self._params)
        self.memory = memory_of(self.context)
        self.switch.fit(self.context)
        self._capacity = capacity
        self._batch = Batch(capacity, output=True)

    def run(self, works: list[Work]) -> list[bool]:
        """Computes a batch and writes the rows of its texts. Returns which pieces gave numbers.

        Raises:
            NativeError: llama.cpp failed; nothing is known of the context then.
            ModelLoadError: There is not enough memory for a text of this length.
        """
        self._grow(sum(work.piece.count for work in works))
        pieces = (localllm_h.lm_piece * len(works))()
        self._fill(works, pieces)
        status = self.native.lm_embed(self.context.pointer, self._batch.reference, pieces, len(works))
        if self.native.lm_log_pending():
            logs.forward(self.native)
        if status:
            self.native.check(status)
        for work in works:
            if work.piece.ends:
                self.forget(work.piece.slot)
        return [piece.status == localllm_h.LM_OK for piece in pieces]

    def _fill(self, works: list[Work], pieces: Any) -> None:
        at = 0
        for work, piece in zip(works, pieces, strict=True):
            start, count = work.piece.start, work.piece.count
            piece.out = ctypes.cast(work.address, ctypes.POINTER(ctypes.c_float))
            piece.n_out = work.n_out
            piece.first, piece.n_tokens, piece.n_done = at, count, start
            piece.pooling = POOLINGS[work.pooling]
            at = self._batch.put(at, work.tokens[start : start + count], start, work.piece.slot)
        self._batch.n_tokens = at

    def _grow(self, n_tokens: int) -> None:
        if n_tokens <= self._capacity:
            return
        before = self._capacity
        self.context.close()
        try:
            self._new_context(min(self.limit, 1 << (n_tokens - 1).bit_length()))
        except BaseException:
            self._new_context(before)
            raise

    def forget(self, slot: int) -> None:
        """Empties a sequence."""
        if self.context.memory:
            self.native.llama_memory_seq_rm(self.context.memory, slot, -1, -1)

    def reset(self) -> None:
        """A new context in place of one whose state is unknown after a failure."""
        self.context.close()
        self._new_context(self._capacity)

    def close(self) -> None:
        self.context.close()


def _limit(model: Model, config: ContextConfig) -> int:
    """Most tokens of a text: the context's length, but no more than the model was trained for, unless RoPE is stretched."""
    native = model.native
    trained: int = native.llama_model_n_ctx_train(model.pointer)
    n_ctx = cells(config, trained)
    if model.n_positions:
        return min(n_ctx, model.n_positions)
    stretched = config.rope_freq_base > 0 or config.rope_freq_scale > 0
    return n_ctx if stretched else min(n_ctx, trained)
