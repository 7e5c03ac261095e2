"""The language model of a speech model: tokens or rows in, the hidden row and the logits of the last one out."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from localllm.engine.config import ContextConfig, ModelConfig, SamplingParams
from localllm.engine.params import context_params, model_params, sampler_options
from localllm.errors import ContextOverflowError, InvalidRequestError
from localllm.native.bindings import llama as llama_h
from localllm.native.handles import Context, Model, Sampler
from localllm.native.library import load

_SECTIONS = 4  # positions of a row with M-RoPE


class Talker:
    """One sequence in a context that gives hidden rows. Not to be used from two threads at once.

    Args:
        path: str, a GGUF file.
        config: ModelConfig.
        context: ContextConfig; of `parallel` 1 is used.

    Attributes:
        model: Model.
        n_ctx: int, most positions.
        n_past: int, positions that are taken.
        n_embd: int, floats of a row.

    Raises:
        ModelLoadError: The file cannot be loaded.
        NativeLibraryError: The native libraries cannot be used.
    """

    def __init__(self, path: str, config: ModelConfig, context: ContextConfig) -> None:
        self._native = load()
        self.model = Model(path, model_params(self._native, config))
        try:
            pointer = self.model.pointer
            params = context_params(
                self._native, dataclasses.replace(context, parallel=1), self._native.llama_model_n_ctx_train(pointer)
            )
            params.embeddings = True
            params.n_ubatch = params.n_batch = min(params.n_batch, params.n_ubatch)
            self._context = Context(self.model, params)
        except BaseException:
            self.model.close()
            raise
        self.n_ctx: int = min(params.n_ctx, self._native.llama_n_ctx(self._context.pointer))
        self.n_embd: int = self._native.llama_model_n_embd(pointer)
        self.n_past = 0
        self._n_batch: int = self._native.llama_n_batch(self._context.pointer)
        rope = self._native.llama_model_rope_type(pointer)
        bent = rope in (llama_h.LLAMA_ROPE_TYPE_MROPE, llama_h.LLAMA_ROPE_TYPE_IMROPE)
        self._sections = _SECTIONS if bent else 1
        self._hidden: np.ndarray[Any, Any] | None = None
        self._output = 0  # where the last batch has its row

    @property
    def context(self) -> Context:
        return self._context

    def clear(self, n_past: int = 0) -> None:
        """Forgets everything, or what comes after the first `n_past` positions."""
        memory = self._context.memory
        if n_past <= 0:
            self._native.llama_memory_clear(memory, True)
        elif n_past < self.n_past:
            self._native.llama_memory_seq_rm(memory, 0, n_past, -1)
        self.n_past = min(self.n_past, max(0, n_past))
        self._hidden = None

    def feed(self, tokens: Sequence[int]) -> None:
        """Computes tokens behind what is there; the last one has an output.

        Raises:
            ContextOverflowError: They do not fit; nothing was computed.
            InvalidRequestError: One is not in the vocabulary, or there are none.
            NativeError: llama.cpp could not.
        """
        ids = np.ascontiguousarray(tokens, dtype=np.int32)
        self._room_for(len(ids))
        for first in range(0, len(ids), self._n_batch):
            part = ids[first : first + self._n_batch]
            self._decode(len(part), part, None, first + len(part) == len(ids))

    def feed_rows(self, rows: np.ndarray[Any, Any]) -> None:
        """Computes float32 rows [n, n_embd] in place of tokens. Raises as `feed` does."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.n_embd:
            raise InvalidRequestError(f"rows: of shape {rows.shape}; this model takes [n, {self.n_embd}]")
        self._room_for(len(rows))
        for first in range(0, len(rows), self._n_batch):
            part = rows[first : first + self._n_batch]
            self._decode(len(part), None, part, first + len(part) == len(rows))

    def hidden(self) -> np.ndarray[Any, Any]:
        """The last layer's normed row [n_embd] of what was computed last, float32; a copy."""
        assert self._hidden is not None, "nothing was computed yet"
        return self._hidden

    def sampler(self, params: SamplingParams) -> Sampler:
        """A sampler for this model; it has to be closed."""
        return Sampler(self.model, sampler_options(params, self.n_ctx))

    def sample(self, sampler: Sampler) -> int:
        """Chooses a token by the logits of what was computed last, and tells the sampler that it was taken."""
        token = llama_h.llama_token()
        self._native.check(
            self._native.lm_sampler_sample(sampler.pointer, self._context.pointer, self._output, ctypes.byref(token)),
            self.model.path,
        )
        sampler.accept([token.value], generated=True)
        return token.value

    def close(self) -> None:
        self._context.close()
        self.model.close()

    # ---- inside

    def _room_for(self, n: int) -> None:
        if n < 1:
            raise InvalidRequestError("nothing to compute: no tokens, and no rows")
        if self.n_past + n > self.n_ctx:
            raise ContextOverflowError(
                f"speech needs {self.n_past + n:,} positions of a context of {self.n_ctx:,}; raise n_ctx, or say less at once",
                self.n_past + n,
                self.n_ctx,
            )

    def _decode(self, n: int, tokens: Any, rows: Any, ends: bool) -> None:
        sections = 1 if rows is None else self._sections
        positions = np.tile(np.arange(self.n_past, self.n_past + n, dtype=np.int32), sections)
        outputs = np.zeros(n, np.int8)
        outputs[-1] = ends
        slot = (llama_h.llama_seq_id * 1)()
        slots = (ctypes.POINTER(llama_h.llama_seq_id) * n)(*([ctypes.cast(slot, ctypes.POINTER(llama_h.llama_seq_id))] * n))
        batch = llama_h.llama_batch(
            n_tokens=n,
            token=None if tokens is None else tokens.ctypes.data_as(ctypes.POINTER(llama_h.llama_token)),
            embd=None if rows is None else rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=positions.ctypes.data_as(ctypes.POINTER(llama_h.llama_pos)),
            n_seq_id=(ctypes.c_int32 * n)(*([1] * n)),
            seq_id=slots,
            logits=outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        self._native.check(self._native.lm_decode(self._context.pointer, ctypes.byref(batch)), self.model.path)
        self.n_past += n
        if ends:
            self._output = n - 1
            row = self._native.llama_get_embeddings_ith(self._context.pointer, self._output)
            self._hidden = np.ctypeslib.as_array(row, shape=(self.n_embd,)).copy()
