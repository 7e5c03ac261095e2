"""The arrays of a llama_batch, filled slice by slice."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from localllm.engine.media import MediaRun
from localllm.native.bindings import llama as llama_h


class RowBatch:
    """A batch of rows of one sequence, in place of tokens.

    Args:
        size: int, most rows.
        n_sections: int, positions of a row.

    Attributes:
        outputs: array of 0 and 1.
        reference: what a native function takes.
        n_tokens: int, rows in it.
    """

    def __init__(self, size: int, n_sections: int) -> None:
        self._n_sections = n_sections
        self._positions: Any = (llama_h.llama_pos * (size * n_sections))()
        self._slot = (llama_h.llama_seq_id * 1)()
        self.outputs: Any = (ctypes.c_int8 * size)()
        pointer = ctypes.POINTER(llama_h.llama_seq_id)
        self._batch = llama_h.llama_batch(
            n_tokens=0,
            token=None,
            embd=None,
            pos=self._positions,
            n_seq_id=(ctypes.c_int32 * size)(*([1] * size)),
            seq_id=(pointer * size)(*([ctypes.cast(self._slot, pointer)] * size)),
            logits=self.outputs,
        )
        self.reference = ctypes.byref(self._batch)

    @property
    def n_tokens(self) -> int:
        return int(self._batch.n_tokens)

    def put(self, run: MediaRun, rows: Any, first: int, count: int, base: int, slot: int) -> None:
        """Rows `first` to `first + count` of a run.

        Args:
            run: MediaRun.
            rows: ctypes array of float32, all of the run's; it has to live until the batch is computed.
            first, count: int.
            base: int, the position at which the run begins.
            slot: int.
        """
        width = len(rows) // run.n_tokens
        for section in range(self._n_sections):
            part = slice(section * run.n_tokens + first, section * run.n_tokens + first + count)
            places = [place + base * move for place, move in zip(run.positions[part], run.moves[part], strict=True)]
            self._positions[section * count : (section + 1) * count] = places
        self._slot[0] = slot
        address = ctypes.addressof(rows) + first * width * ctypes.sizeof(ctypes.c_float)
        self._batch.embd = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        self._batch.n_tokens = count


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
