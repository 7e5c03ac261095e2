"""The head of a LiLiCorr draft by itself: its scores for given values, for comparisons and measurements."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localllm.errors import InvalidRequestError
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Owned
from localllm.native.library import load

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head: widths of the draft's rows and of its own, tokens of a draft, candidates of each, and its layers."""

    n_embd: int
    n_hidden: int
    n_slots: int
    n_candidates: int
    n_layers: int
    n_heads: int
    n_mlp: int
    n_factors: int


@dataclass(frozen=True)
class Block:
    """What a head scores of one block.

    Attributes:
        logprobs: [n_slots, n_candidates], natural-log probabilities of the candidates, best first.
        embeddings: [n_slots, n_candidates, n_embd], the target's token embeddings of the candidates.
        hidden: [n_slots, n_embd], the draft's rows after its last norm.
        anchor: [n_embd], the draft's context row of the last token that the target has computed.
    """

    logprobs: Floats
    embeddings: Floats
    hidden: Floats
    anchor: Floats


@dataclass(frozen=True)
class Scores:
    """What a head makes of a block.

    Attributes:
        start: [n_candidates], of the first slot.
        pair: [n_slots - 1, n_candidates, n_candidates], of each candidate after each of the slot before.
        path: indices of the candidates chosen, as many as are probable enough.
    """

    start: Floats
    pair: Floats
    path: tuple[int, ...]


def candidates(logits: Floats, k: int) -> tuple[Ints, Floats]:
    """The most likely tokens of each row of logits.

    Args:
        logits: [n, n_vocab].
        k: int, how many, at most n_vocab.

    Returns:
        (ids, log-probabilities), both [n, k], best first, among equals the lower id.
    """
    native = load()
    rows = np.ascontiguousarray(logits, np.float32)
    ids, logprobs = np.empty((len(rows), k), np.int32), np.empty((len(rows), k), np.float32)
    native.check(native.lm_lilicorr_candidates(_floats(rows), *rows.shape, k, _ints(ids), _floats(logprobs)))
    return ids, logprobs


class LilicorrHead:
    """An lm_lilicorr, on the CPU.

    Args:
        path: str, a GGUF file with a head: of its own, or with its draft.
        n_threads: int.
        n_blocks: int, most blocks of one pass.

    Raises:
        ModelError: The file has no head, or is damaged; the message names it and what is wrong.
    """

    def __init__(self, path: str | os.PathLike[str], n_threads: int = 1, n_blocks: int = 8) -> None:
        self.native = load()
        out = localllm_h.lm_lilicorr_p()
        self.native.check(self.native.lm_lilicorr_create(os.fsencode(path), n_threads, n_blocks, ctypes.byref(out)))
        address = ctypes.cast(out, ctypes.c_void_p).value
        assert address
        self._owned = Owned(self, address, self.native.lm_lilicorr_free, "LiLiCorr head", at_exit=False)
        self.shape = HeadShape(**self.native.json_call("lm_lilicorr_info", self._owned.pointer))

    def score(self, blocks: Sequence[Block], p_min: float = 0.0) -> list[Scores]:
        """Scores blocks, as many at once as the head was made for.

        Args:
            blocks: Block.
            p_min: float, 0 to 1; a path ends before a candidate that is less probable than this among those of its slot.

        Raises:
            InvalidRequestError: An array does not have the head's shape.
        """
        rows = (localllm_h.lm_lilicorr_block * len(blocks))()
        kept = [self._fill(row, block, p_min) for row, block in zip(rows, blocks, strict=True)]
        self.native.check(self.native.lm_lilicorr_score(self._owned.pointer, rows, len(blocks)))
        return [
            Scores(start, pair, tuple(path[: row.n_path].tolist()))
            for row, (start, pair, path, _) in zip(rows, kept, strict=True)
        ]

    def _fill(self, row: Any, block: Block, p_min: float) -> tuple[Floats, Floats, Ints, list[Floats]]:
        shape = self.shape
        nodes = (shape.n_slots, shape.n_candidates)
        shapes = {
            "logprobs": nodes,
            "embeddings": (*nodes, shape.n_embd),
            "hidden": (shape.n_slots, shape.n_embd),
            "anchor": (shape.n_embd,),
        }
        given: list[Floats] = []
        for name, expected in shapes.items():
            value = np.ascontiguousarray(getattr(block, name), np.float32)
            if value.shape != expected:
                raise InvalidRequestError(f"{name}: has the shape {value.shape}, the head takes {expected}")
            given.append(value)
            setattr(row, name, _floats(value))
        start = np.empty(shape.n_candidates, np.float32)
        pair = np.empty((shape.n_slots - 1, shape.n_candidates, shape.n_candidates), np.float32)
        path = np.empty(shape.n_slots, np.int32)
        row.start, row.pair, row.path, row.p_min = _floats(start), _floats(pair), _ints(path), p_min
        return start, pair, path, given

    def close(self) -> None:
        self._owned.close()


def _floats(array: Floats) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _ints(array: Ints) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
