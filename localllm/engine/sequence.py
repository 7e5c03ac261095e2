"""One request on its way through the engine."""

from __future__ import annotations

import enum
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from localllm.engine.media import MediaRun, Rows, run_at, whole
from localllm.engine.request import Request, Sink
from localllm.engine.speculation.tally import Tally
from localllm.engine.steering import UNSTEERED, Steering


class State(enum.Enum):
    """WAITING has no cells in the KV cache; RUNNING has a slot; FINISHED has sent its last event."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(eq=False)
class Sequence:
    """The state of one request.

    `tokens[:n_computed]` are in the KV cache. What follows has to be computed: many tokens while the prompt is taken in
    ("prefill"), one token afterwards ("decode"). The engine needs no other distinction.

    Attributes:
        id: int, counts up in order of arrival.
        tokens: the prompt and what was generated so far.
        n_computed: int, tokens that are in the KV cache.
        n_cached: int, tokens that were resident already when it started.
        cached_from: str, where these were: a tier of the prefix cache, or "running"; "": nowhere.
        cache_miss: str, why they are no more, as Usage says it.
        slot: int, the sequence's id within llama.cpp; -1 while it waits.
        checkpoints: lengths, ascending, at which its state is to be kept on the way.
        n_dropped: int, tokens that had to leave a full context; `tokens` are what is left.
        shifted: bool, its state is not the one that computing its tokens would give: nobody else can go on from it.
        draft: tokens that may follow, guessed; they ride in the next batch.
        spare: int, the slot that holds the state from before the draft, where a state cannot be cut; -1: none.
        replaying: bool, the tokens behind a draft that was wrong have to be computed again.
        unsettled: bool, its slot was cut back to a snapshot; until the next batch has gone through, it must not be copied.
        tally: Tally of its drafts.
        steering: Steering, what its adapters do to the model; only states computed with an equal one are of use to it.
        rows: Rows of the picture or sound that it is at, while that is being computed.
        encoded: the pictures and sounds for which the encoder had to run.
        timer: ends it when its time is up; None: it has all the time.
        answer: what the runner keeps for it (sampler, text, row); None until it starts for the first time.
    """

    id: int
    request: Request
    sink: Sink
    tokens: list[int]
    n_computed: int = 0
    n_cached: int = 0
    cached_from: str = ""
    cache_miss: str = ""
    slot: int = -1
    checkpoints: tuple[int, ...] = ()
    n_dropped: int = 0
    shifted: bool = False
    draft: list[int] = field(default_factory=list)
    spare: int = -1
    replaying: bool = False
    unsettled: bool = False
    tally: Tally = field(default_factory=Tally)
    steering: Steering = UNSTEERED
    state: State = State.WAITING
    cancelled: bool = False
    rows: Rows | None = None
    encoded: set[int] = field(default_factory=set)
    timer: threading.Timer | None = None
    timed_out: bool = False
    answer: Any = None
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0

    @property
    def n_pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.n_computed

    @property
    def n_usable(self) -> int:
        """Tokens whose state can be gone on from: those computed, less the beginning of a picture or sound."""
        return whole(self.request.media, self.n_computed)

    @property
    def run(self) -> MediaRun | None:
        """The picture or sound that is to be computed next."""
        return run_at(self.request.media, self.n_computed)

    @property
    def n_generated(self) -> int:
        return len(self.tokens) + self.n_dropped - len(self.request.prompt)

    @property
    def decoding(self) -> bool:
        """Whether an answer is under way: only its newest token is missing, or what a wrong draft left to compute again."""
        return self.n_generated > 0 and (self.n_pending == 1 or self.replaying)

    @property
    def n_left(self) -> int | None:
        """Tokens that the answer may still grow by; None: no limit."""
        limit = self.request.max_tokens
        return None if limit is None else limit - self.n_generated
