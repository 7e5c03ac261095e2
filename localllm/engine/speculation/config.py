"""How tokens are guessed ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from localllm.engine import checks, fields
from localllm.errors import InvalidRequestError

SpeculationKind = Literal[
    "none", "auto", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
    "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark", "draft-lilicorr",
]  # fmt: skip

Candidates = Literal["auto", "graph", "host"]

#: Kinds that a model drafts, with the most tokens that they draft if nothing else is said. Blocks are as long as was learned.
MODEL_KINDS = {
    "draft-simple": 8, "draft-eagle3": 4, "draft-mtp": 3, "draft-dflash": 16, "draft-dspark": 16, "draft-lilicorr": 16,
}  # fmt: skip
_NGRAM_TOKENS = 48
#: What "auto" comes to where nothing but the text itself can be asked.
NGRAM_KIND: SpeculationKind = "ngram-map-k"


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """How tokens are guessed ahead, so that several are checked in one batch. The model's own sampler decides on each of them.

    The n-gram kinds need no second model. They look for the newest tokens earlier in the sequence (prompt and answer) and propose
    what stood behind them, which pays when an answer repeats much of what it was given: edits, extraction, code, tables.

    The draft kinds have a model guess: a smaller one ("draft-simple"), one that was trained for this model and reads its inner
    states ("draft-eagle3", "draft-dflash", "draft-dspark", "draft-lilicorr"), or heads for further tokens, which some models have
    ("draft-mtp").

    Attributes:
        kind: "none"; "auto" (what `draft` is made for; without one the heads of the model, if its file has some, else
            "ngram-map-k"); "ngram-simple" (the last occurrence), "ngram-map-k" (the same with an index and a memory of what was
            accepted), "ngram-map-k4v" (the most frequent of up to four continuations), "ngram-mod" (a table that all sequences
            fill and use) or "ngram-cache" (statistics of 1- to 4-grams); "draft-simple", "draft-eagle3", "draft-mtp",
            "draft-dflash" (also DFlash2), "draft-dspark" or "draft-lilicorr".
        chain: further kinds, asked in this order where the ones before find nothing. At most one kind is a model's.
        draft: the draft's GGUF file; a LocalModel takes a reference, too. "draft-mtp" needs none if the model has the heads.
        head: the GGUF file of a LiLiCorr head, where that is not a part of `draft`.
        candidates: where "draft-lilicorr" finds the likeliest tokens: "graph" (where the draft is computed), "host", or "auto".
        n_max: int, most tokens of a draft, 1 to 1024; None: as the kind is used to, 48 for n-grams, 3 to 8 for models that
            draft token by token, a whole block else.
        n_min: int, shorter drafts are dropped.
        n_match: int, tokens that must be the same for an n-gram's match; "ngram-cache" has its own.
        min_hits: int, how often a match must have been seen by "ngram-map-k4v" before it is used.
        p_min: float, a model's draft ends before a token that it holds less probable, 0 to 1.
        n_snapshots: int, states that recurrent and hybrid models keep for each sequence, so that drafts of up to so many tokens
            can be taken back at no cost; each takes as much memory as a sequence's state. After a longer draft that was wrong,
            the sequence goes back to a copy from before it, and what was right of it is computed again. 0: always so. None:
            `n_max` where a model drafts, else 0.
        throttle: bool, shorten drafts that are often wrong, and pause while they cost more time than they save.
    """

    kind: SpeculationKind = "none"
    chain: tuple[SpeculationKind, ...] = ()
    draft: str = ""
    head: str = ""
    candidates: Candidates = "auto"
    n_max: int | None = None
    n_min: int = 0
    n_match: int = 5
    min_hits: int = 1
    p_min: float = 0.0
    n_snapshots: int | None = None
    throttle: bool = True

    def __post_init__(self) -> None:
        fields.freeze(self, "chain")
        for kind in (self.kind, *self.chain):
            fields.choice("kind" if kind == self.kind else "chain", kind, SpeculationKind)
        others = {"none", "auto"} & {*self.chain}
        if others or (self.chain and self.kind in ("none", "auto")) or len({self.kind, *self.chain}) <= len(self.chain):
            raise InvalidRequestError("chain: holds further kinds, each once, none of them 'none' or 'auto'")
        if sum(kind in MODEL_KINDS for kind in self.kinds) > 1:
            raise InvalidRequestError("chain: a second kind of draft that a model makes; at most one is")
        object.__setattr__(self, "draft", checks.path("draft", self.draft))
        object.__setattr__(self, "head", checks.path("head", self.head))
        fields.choice("candidates", self.candidates, Candidates)
        if self.head and self.kind != "auto" and self.model_kind != "draft-lilicorr":
            raise InvalidRequestError(f"head: {self.head} is of no use to {self.kind!r}; it goes with 'draft-lilicorr'")
        if self.draft and self.kind != "auto" and self.model_kind is None:
            raise InvalidRequestError(f"draft: {self.draft} is of no use to {self.kind!r}; kind='auto' finds out what it is for")
        if self.model_kind not in (None, "draft-mtp") and not self.draft:
            raise InvalidRequestError(f"draft: missing; {self.model_kind!r} needs the file of a draft")
        if self.n_max is not None:
            fields.integer(self, "n_max", 1, 1024)
        fields.integer(self, "n_min", 0, self.most)
        fields.integer(self, "n_match", 1, 1024)
        fields.integer(self, "min_hits", 1, 2**15 - 1)
        fields.number(self, "p_min", 0, 1)
        if self.n_snapshots is not None:
            fields.integer(self, "n_snapshots", 0, self.most)
        fields.boolean("throttle", self.throttle)

    @property
    def kinds(self) -> tuple[SpeculationKind, ...]:
        """All kinds, in the order in which they are asked; none for "none"."""
        return () if self.kind == "none" else (self.kind, *self.chain)

    @property
    def model_kind(self) -> SpeculationKind | None:
        """The one of them that a model drafts."""
        return next((kind for kind in self.kinds if kind in MODEL_KINDS), None)

    @property
    def most(self) -> int:
        """Most tokens of a draft."""
        usual = (MODEL_KINDS.get(kind, _NGRAM_TOKENS) for kind in self.kinds)
        return self.n_max if self.n_max is not None else max(usual, default=_NGRAM_TOKENS)

    @property
    def snapshots(self) -> int:
        """States that are kept to go back to."""
        if self.n_snapshots is not None:
            return self.n_snapshots
        return 0 if self.model_kind is None else min(self.most, self.n_max or MODEL_KINDS[self.model_kind])

    def resolved(self, kind: SpeculationKind) -> SpeculationConfig:
        """The same with what "auto" came to."""
        return replace(self, kind=kind)

    def ngram_options(self) -> dict[str, Any]:
        """The fields of lm_drafter_create."""
        return {
            "chain": [kind for kind in self.kinds if kind not in MODEL_KINDS],
            "n_max": self.n_max or _NGRAM_TOKENS,
            "n_min": self.n_min,
            "n_match": self.n_match,
            "min_hits": self.min_hits,
        }

    def model_options(self) -> dict[str, Any]:
        """The fields of lm_follower_create."""
        assert self.model_kind is not None
        options: dict[str, Any] = {
            "kind": self.model_kind,
            "n_max": self.n_max or MODEL_KINDS[self.model_kind],
            "n_min": self.n_min,
            "p_min": self.p_min,
        }
        if self.model_kind == "draft-lilicorr":
            options |= {"candidates": self.candidates, **({"head": self.head} if self.head else {})}
        return options
