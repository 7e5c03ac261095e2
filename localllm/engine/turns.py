"""Whose turn it is. Pure policy.

llama.cpp applies adapters to a whole context, so a batch holds sequences of one steering only, and the steerings take turns: who
has waited longest goes first. Between two turns of a steering that has answers under way, the prompts of all others get one
micro-batch together, so that these answers are delayed by no more than that and a token of everybody else's.
"""

from __future__ import annotations

from collections.abc import Iterable

from localllm.engine.sequence import Sequence


class Turns:
    """The order of steerings, known by their keys.

    Args:
        n_batch: int, most prompt tokens of a turn while nobody's answer is under way.
        n_ubatch: int, most prompt tokens while one is.
    """

    def __init__(self, n_batch: int, n_ubatch: int) -> None:
        self._n_batch = n_batch
        self._n_ubatch = n_ubatch
        # Longest without a turn first. A new steering comes last, else a row of new ones could keep the others waiting.
        self._order: list[bytes] = []
        # Prompt tokens of others since its last turn.
        self._delays: dict[bytes, int] = {}

    def next(self, running: Iterable[Sequence]) -> tuple[bytes, int]:
        """Whose turn it is.

        Args:
            running: all running sequences, at least one.

        Returns:
            (key of a steering, prompt tokens that its turn may have).
        """
        present: dict[bytes, bool] = {}
        for sequence in running:
            key = sequence.steering.key
            present[key] = present.get(key, False) or sequence.decoding
        if self._order != [*present]:
            self._order = [key for key in self._order if key in present]
            self._order += [key for key in present if key not in self._order]
            self._delays = {key: self._delays.get(key, 0) for key in self._order}
        streaming = [key for key, streams in present.items() if streams]
        for key in self._order:
            room = self._room(key, streaming)
            if room > 0 or present[key]:
                return key, room
        raise AssertionError("a streaming steering can always have its turn, and without one so can all others")

    def took(self, key: bytes, n_prompt: int) -> None:
        """A turn is over, in which so many prompt tokens were computed."""
        if len(self._order) < 2 or key not in self._delays:
            return
        self._order.remove(key)
        self._order.append(key)
        for other in self._order:
            self._delays[other] += n_prompt
        self._delays[key] = 0

    def _room(self, key: bytes, streaming: list[bytes]) -> int:
        if not streaming:
            return self._n_batch
        return self._n_ubatch - max((self._delays[other] for other in streaming if other != key), default=0)
