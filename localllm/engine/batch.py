"""The arrays of a llama_batch, filled slice by slice."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from localllm.native.bindings import llama as llama_h


class Batch:
    """A batch in which each token belongs to one sequence.

    Args:
        size: int, most tokens.
        output: bool, whether every token has an output; else those that are set in `outputs`.

    Attributes:
        n_tokens: int, to be set before `reference` is given to llama.cpp.
        outputs: array of 0 and 1.
        reference: what a native function takes.
    """

    def __init__(self, size: int, output: bool) -> None:
        # "Any": ctypes takes any sequence for a slice, its type stubs only lists.
        self._tokens: Any = (llama_h.llama_token * size)()
        self._positions: Any = (llama_h.llama_pos * size)()
        self._slots: Any = (llama_h.llama_seq_id * size)()
        self.outputs: Any = (ctypes.c_int8 * size)(*([int(output)] * size))
        step = ctypes.sizeof(llama_h.llama_seq_id)
        first = ctypes.addressof(self._slots)
        pointer = ctypes.POINTER(llama_h.llama_seq_id)
        self._batch = llama_h.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=None,
            pos=self._positions,
            n_seq_id=(ctypes.c_int32 * size)(*([1] * size)),
            seq_id=(pointer * size)(*(ctypes.cast(first + at * step, pointer) for at in range(size))),
            logits=self.outputs,
        )
        self.reference = ctypes.byref(self._batch)

    @property
    def n_tokens(self) -> int:
        return int(self._batch.n_tokens)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._batch.n_tokens = n

    def put(self, at: int, tokens: Sequence[int], position: int, slot: int) -> int:
        """Writes tokens of one sequence, the first at `position`, from place `at` on; returns the place behind them."""
        count = len(tokens)
        if count == 1:
            self._tokens[at] = tokens[0]
            self._positions[at] = position
            self._slots[at] = slot
            return at + 1
        end = at + count
        self._tokens[at:end] = tokens
        self._positions[at:end] = range(position, position + count)
        self._slots[at:end] = [slot] * count
        return end
