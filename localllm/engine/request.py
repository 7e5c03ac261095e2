"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from localllm.engine.checks import items, real, shown, whole
from localllm.engine.config import MAX_SEED, SamplingParams
from localllm.engine.media import MediaRun
from localllm.engine.speculation.tally import SpeculationStats
from localllm.engine.steering import ControlVector, Lora
from localllm.errors import InvalidRequestError

FinishReason = Literal["stop", "length", "cancelled"]
StoppedBy = Literal["eog", "stop", ""]
MAX_SECONDS = 10**6  # Python's timers take no more than some hundred years, some systems' far less


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to be continued.

    Attributes:
        prompt: token ids, at least one; negative ones stand for pictures and sound.
        sampling: SamplingParams.
        max_tokens: int >= 1, most tokens of the answer; None: until the model stops or the context is full.
        stop: texts that end the answer; neither they nor the beginning of one is ever shown.
        stop_tokens: token ids that end the answer, besides the model's own.
        visible_tokens: special tokens (ids or texts) that are part of the answer's text, e.g. "<tool_call>".
        special: bool, show all special tokens.
        boundaries: positions in the prompt where its messages begin. A model whose state cannot be cut (recurrent, hybrid,
            sliding window) keeps checkpoints there, from which prompts that begin alike can go on.
        priority: int, waiting requests with a higher one start earlier; equal ones in order of arrival.
        timeout: float, seconds from now after which it fails with a RequestTimeoutError, wherever it is; None: never.
        context_shift: int, how many of the first tokens to keep when the context is full: half of the others are then dropped,
            and the answer goes on without them. None: it ends there, with "length".
        speculate: bool, false: no drafts for this request.
        loras: Lora adapters that change the model for this request, in any order.
        control_vectors: ControlVectors that are added up and steer it.
        media: MediaRuns, what the negative ids of the prompt stand for, in their order.
        grammar: fields of lm_sampler_create beyond SamplingParams that a chat template asks for (triggers and so on).
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    visible_tokens: tuple[int | str, ...] = ()
    special: bool = False
    boundaries: tuple[int, ...] = ()
    priority: int = 0
    timeout: float | None = None
    context_shift: int | None = None
    speculate: bool = True
    loras: tuple[Lora, ...] = ()
    control_vectors: tuple[ControlVector, ...] = ()
    media: tuple[MediaRun, ...] = ()
    grammar: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, tuple):
            raise InvalidRequestError("prompt: must be a tuple of token ids")
        if not all(type(token) is int for token in self.prompt):
            object.__setattr__(self, "prompt", tuple(whole("prompt", token) for token in self.prompt))
        if not self.prompt:
            raise InvalidRequestError("prompt: empty; there is nothing to continue")
        if not isinstance(self.sampling, SamplingParams):
            raise InvalidRequestError(f"sampling: must be SamplingParams, not {type(self.sampling).__name__}")
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens))
            if self.max_tokens < 1:
                raise InvalidRequestError(f"max_tokens: must be at least 1, or None, not {shown(self.max_tokens)}")
        object.__setattr__(self, "priority", whole("priority", self.priority))
        if self.timeout is not None:
            object.__setattr__(self, "timeout", real("timeout", self.timeout))
            if not 0 < self.timeout <= MAX_SECONDS:
                raise InvalidRequestError(
                    f"timeout: must be a number of seconds above 0 and up to {MAX_SECONDS}, or None, not {self.timeout:g}"
                )
        if self.context_shift is not None:
            object.__setattr__(self, "context_shift", whole("context_shift", self.context_shift))
            if self.context_shift < 0:
                raise InvalidRequestError(f"context_shift: must be at least 0, or None, not {shown(self.context_shift)}")
        if not isinstance(self.speculate, bool):
            raise InvalidRequestError(f"speculate: must be true or false, not {self.speculate!r}")
        object.__setattr__(self, "stop", items("stop", self.stop))
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InvalidRequestError("stop: must be a list of texts that are not empty")
        if not isinstance(self.special, bool):
            raise InvalidRequestError(f"special: must be true or false, not {self.special!r}")
        if not isinstance(self.grammar, dict):
            raise InvalidRequestError(f"grammar: must be a dict, not {type(self.grammar).__name__}")
        for name, kind in (("loras", Lora), ("control_vectors", ControlVector), ("media", MediaRun)):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
                raise InvalidRequestError(f"{name}: must be a tuple of {kind.__name__}")
        if self.media:
            self._check_media()
        for name in ("stop_tokens", "boundaries"):
            object.__setattr__(self, name, tuple(whole(name, value) for value in items(name, getattr(self, name))))
        if self.boundaries and not 0 <= min(self.boundaries) <= max(self.boundaries) <= len(self.prompt):
            raise InvalidRequestError("boundaries: must be positions in the prompt")
        visible = items("visible_tokens", self.visible_tokens)
        tokens = tuple(one if isinstance(one, str) else whole("visible_tokens", one) for one in visible)
        object.__setattr__(self, "visible_tokens", tokens)

    def _check_media(self) -> None:
        end = 0
        for run in self.media:
            if run.start < end or self.prompt[run.start : run.end] != run.ids or not run.ids:
                raise InvalidRequestError("media: must stand in the prompt, in its order, with their ids")
            end = run.end
        if self.context_shift is not None:
            raise InvalidRequestError("context_shift: not with pictures or sound, whose parts cannot be dropped one by one")

    def repeated(self, n: int) -> list[Request]:
        """The same request n times: with seeds that follow one another, or each with a random one if it has none.

        Asked together, they compute their prompt once and share its cells.
        """
        if whole("n", n) < 1:
            raise InvalidRequestError(f"n: must be at least 1, not {shown(n)}")
        if self.sampling.seed is None:
            return [self] * n
        seeds = [(self.sampling.seed + at) % MAX_SEED for at in range(n)]
        return [replace(self, sampling=replace(self.sampling, seed=seed)) for seed in seeds]

    @property
    def steered(self) -> bool:
        """Whether it names adapters."""
        return bool(self.loras or self.control_vectors)


@dataclass(frozen=True)
class TopToken:
    """A token with its natural-log probability; `piece` is its text, as bytes, since it may be a part of a character."""

    token: int
    logprob: float
    piece: bytes = b""


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a chosen token, and the most probable ones in its place, best first."""

    token: int
    logprob: float
    top: tuple[TopToken, ...] = ()
    piece: bytes = b""


@dataclass(frozen=True)
class Delta:
    """What one step adds to an answer: text that may be shown now, and the tokens of the step."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer.

    Attributes:
        prompt_tokens, completion_tokens: int.
        cached_tokens: int, tokens of the prompt that were not computed, because the state after them was there.
        drafted_tokens, accepted_tokens: int, tokens of all drafts, and how many of them were right.
        reasoning_tokens: int, tokens of a chat's answer with which the model thought before it answered.
        cached_from: str, where the state was: "device" (left by an earlier request), "running" (another request's, which goes
            on), "ram", "disk", or "" (nowhere).
        cache_miss: str, why it did not cover more of the prompt: "" (all that can be was covered), "off" (no prefix cache, or no
            request yet), "new" (nothing known begins alike any further), "checkpoint" (something does, but a state of this model
            can be continued only where it was kept), "slow" (there is a copy, but computing is quicker), "room" (no cells or
            sequence free for it), "damaged" (the copy could not be used).
        media_tokens: int, tokens of the prompt that are pictures or sound.
        media_encoded, media_cached: int, pictures and sounds for which the encoder has run, and those for which it had not to,
            because what it had made of them was kept, or the state behind them was there.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    cached_from: str = ""
    cache_miss: str = ""
    reasoning_tokens: int = 0
    media_tokens: int = 0
    media_encoded: int = 0
    media_cached: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds that one request spent: waiting for a place, on its prompt, and on its answer."""

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Finished:
    """The end of an answer, sent once; `speculation` tells of its drafts, None where there were to be none."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    stopped_by: StoppedBy = ""
    speculation: SpeculationStats | None = None


@dataclass(frozen=True)
class Failed:
    """The end of a request that failed, sent once."""

    error: Exception


Event = Delta | Finished | Failed
Sink = Callable[[Event], None]


@dataclass(frozen=True)
class Generation:
    """A whole answer; `deltas` are the steps in which it came, `speculation` tells of its drafts, if there were to be some."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    deltas: tuple[Delta, ...] = field(default=(), repr=False, compare=False)
    speculation: SpeculationStats | None = field(default=None, repr=False, compare=False)
