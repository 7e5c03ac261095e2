"""Pictures and sound in a prompt, as the engine sees them: runs of cells that hold rows instead of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

KEY_BYTES = 32
_LOWEST = 2**31 - 2  # ids go from -2 down to the lowest int32 but one; -1 is llama.cpp's word for "no token"


@dataclass(frozen=True)
class Rows:
    """What the encoder made of a run.

    Attributes:
        data: ctypes array of float32, a row of the model's input width for each cell.
        encoded: bool, the encoder has run for it since these rows were last asked for; else they were kept.
    """

    data: Any
    encoded: bool


class RowSource(Protocol):
    """Makes the rows of runs, or has them."""

    def rows(self, run: MediaRun, soon: Sequence[MediaRun]) -> Rows:
        """The rows of a run.

        Args:
            run: MediaRun of this source.
            soon: further runs that are going to be needed, which may be encoded in the same pass.

        Raises:
            LocalLLMError: They cannot be made.
        """
        ...


@dataclass(frozen=True, eq=False)
class MediaRun:
    """Cells of a prompt that hold a picture or sound, or a part of one.

    Attributes:
        start: int, the first one's place in the prompt.
        key: 32 bytes that name its content and how the encoder sees it.
        ids: what stands for it in the prompt; see `media_ids`.
        n_positions: int, by how much the position of what follows moves on. Fewer than cells with M-RoPE.
        causal: bool, false: its rows see one another, and have to be computed in one micro-batch.
        positions: the rows' positions if the run began at 0: all of the first section, then of the next.
        moves: as many, 1 for those that count from where the run begins, 0 for those that do not.
        medium: int, which picture or sound of the request it belongs to.
        source: RowSource.
        content: what `source` needs to make the rows.
    """

    start: int
    key: bytes
    ids: tuple[int, ...] = field(repr=False)
    n_positions: int
    causal: bool
    positions: tuple[int, ...] = field(repr=False)
    moves: tuple[int, ...] = field(repr=False)
    medium: int
    source: RowSource = field(repr=False)
    content: Any = field(repr=False, default=None)

    @property
    def n_tokens(self) -> int:
        """Cells."""
        return len(self.ids)

    @property
    def end(self) -> int:
        """The place behind its last cell."""
        return self.start + len(self.ids)


def media_ids(key: bytes, n_tokens: int, salt: int = 0) -> tuple[int, ...]:
    """The ids that stand for a run in a prompt: negative ones, 31 bits each of a hash of its key (SHAKE-256).

    From nine cells on they hold as many bits as the key: equal ids are equal content. See MediaNames for shorter runs.
    """
    data = hashlib.shake_256(key + salt.to_bytes(4, "little")).digest(4 * n_tokens)
    values = memoryview(data).cast("I")
    return tuple(-2 - (value & 0x7FFFFFFF) % _LOWEST for value in values)


class MediaNames:
    """Which key the first id of a run stands for, so that two never share one. Not for several threads at once.

    Args:
        size: int, how many keys are remembered; beyond that the oldest are forgotten, and only their hashes tell them apart.
    """

    def __init__(self, size: int = 100_000) -> None:
        self._size = size
        self._keys: dict[int, bytes] = {}

    def ids(self, key: bytes, n_tokens: int) -> tuple[int, ...]:
        """The ids of a run; with others if another key has the same first id."""
        salt = 0
        while not self.claim((ids := media_ids(key, n_tokens, salt))[0], key):
            salt += 1
        return ids

    def claim(self, first: int, key: bytes) -> bool:
        """Makes an id stand for a key; False if it stands for another one."""
        known = self._keys.setdefault(first, key)
        if known == key and len(self._keys) > self._size:
            del self._keys[next(iter(self._keys))]
        return known == key


def whole(runs: Sequence[MediaRun], length: int) -> int:
    """The most of `length` tokens that ends in no run: a state inside one is of no use to anybody."""
    run = run_at(runs, length)
    return length if run is None or run.start == length else run.start


def run_at(runs: Sequence[MediaRun], place: int) -> MediaRun | None:
    """The run that a place of the prompt is in."""
    for run in runs:
        if place < run.end:
            return run if run.start <= place else None
    return None


def next_run(runs: Sequence[MediaRun], place: int) -> MediaRun | None:
    """The first run that begins at a place or behind it."""
    return next((run for run in runs if run.start >= place), None)
