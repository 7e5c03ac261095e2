"""A model asked the same with and without speculation, in turn."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from localllm.bench.figures import Result, Round, result
from localllm.bench.prompts import PROMPTS
from localllm.engine import checks
from localllm.engine.config import SpeculationConfig, SpeculationKind
from localllm.errors import ContextOverflowError, InvalidRequestError, LocalLLMError
from localllm.models import LocalModel

PLAIN = "none"
# Enough for buffers to be allocated and weights to be in memory; what drafts cost is learned in the first round.
_WARM_UP, _WARM_UP_TOKENS = "Count from one to ten, in words.", 16
# Learns from every request: in a second round it would know the answers of the first.
_REMEMBERS = "ngram-mod"
_OWN = ("speculation", "prefix_cache", "pinned", "parallel", "keep_alive")

Progress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    """What `compare` has found.

    Attributes:
        path: str, the model's file.
        prompts: names of the prompts.
        n_tokens, n_rounds, parallel: int, as they were given.
        results: Results in the order of the speculations, plain decoding ("none") before them.
    """

    path: str
    prompts: tuple[str, ...]
    n_tokens: int
    n_rounds: int
    parallel: int
    results: tuple[Result, ...]


def compare(
    reference: str | os.PathLike[str],
    speculations: Mapping[str, SpeculationConfig | SpeculationKind] | None = None,
    *,
    prompts: Mapping[str, str] | Sequence[str] = PROMPTS,
    n_tokens: int = 128,
    n_rounds: int = 3,
    parallel: int = 1,
    raw: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Measures how fast a model reads prompts and answers, plainly and with kinds of speculation.

    Every kind has an engine of its own, over the same weights where it loads them alike. All are asked in turn in each round, and
    choose greedily; nothing is kept of a round. Ratios are taken within a round: what else the machine does, it does to both.

    Args:
        reference: the model, as of LocalModel.
        speculations: name -> SpeculationConfig or kind; plain decoding is always measured, as "none".
        prompts: name -> text, or texts. They go through the model's chat template, if it has one.
        n_tokens: int, most tokens of an answer, which may end before.
        n_rounds: int, rounds of which medians are taken.
        parallel: int, requests at the same time; prompts are repeated until all groups have so many, which flatters "ngram-mod":
            it learns from its neighbours.
        raw: bool, the prompts are continued as they are, without the template.
        progress: called with how many groups of requests were answered, and how many there are.
        options: further ones of LocalModel, e.g. `n_ctx=8192, n_threads=4`.

    Returns:
        Comparison; a kind that cannot be had, or fails, has an `error` in place of figures.

    Raises:
        InvalidRequestError: An argument is wrong.
        LocalLLMError: What plain decoding raises: there is nothing to compare with.
    """
    for name, value in (("n_tokens", n_tokens), ("n_rounds", n_rounds), ("parallel", parallel)):
        checks.whole(name, value, least=1)
    if not isinstance(raw, bool):
        raise InvalidRequestError(f"raw: must be True or False, not {raw!r}")
    texts = _named(prompts)
    for name in _OWN:
        if name in options:
            raise InvalidRequestError(f"{name}: not an option of a model here; see the arguments of `compare`")
    runner = _Runner(tuple(texts.values()), n_tokens, parallel, raw)
    models: dict[str, LocalModel] = {}
    try:
        for name, speculation in {PLAIN: PLAIN, **_checked(speculations or {})}.items():
            # Pinned: none of them may make way for the next.
            models[name] = LocalModel(
                reference, speculation=speculation, parallel=parallel, prefix_cache=False, pinned=True, **options
            )
        results = _measured(models, runner, len(texts), n_rounds, progress or (lambda n_done, n_all: None))
        return Comparison(str(models[PLAIN].path), tuple(texts), n_tokens, n_rounds, parallel, results)
    finally:
        for model in models.values():
            model.close()


class _Runner:
    """Asks a model everything once, so many requests at a time."""

    def __init__(self, prompts: Sequence[str], n_tokens: int, parallel: int, raw: bool) -> None:
        n_groups = -(-len(prompts) // parallel)
        asked = [prompts[at % len(prompts)] for at in range(n_groups * parallel)]
        self.groups = [asked[start : start + parallel] for start in range(0, len(asked), parallel)]
        self._n_tokens = n_tokens
        self._raw = raw

    def prepare(self, model: LocalModel) -> str:
        """Loads a model, and lets it answer something once. Returns what its speculation came to.

        Raises:
            ContextOverflowError: Requests of a group do not fit the context together.
            LocalLLMError: What loading and answering raise.
        """
        engine = model.engine
        for group in self.groups:
            n_needed = sum(model.count_tokens(self._text(model, prompt)) + self._n_tokens for prompt in group)
            if n_needed > engine.n_ctx:
                raise ContextOverflowError(
                    f"n_ctx: what is asked at once needs {n_needed} tokens with its answers, and there are {engine.n_ctx}; "
                    "give more, or ask for less",
                    n_needed,
                    engine.n_ctx,
                )
        self._ask(model, [_WARM_UP] * len(self.groups[0]), _WARM_UP_TOKENS)
        return _kinds(model)

    def round(self, model: LocalModel, advance: Callable[[], None]) -> Round:
        """All answers of a model, which has not been asked before as far as it can tell.

        Raises:
            LocalLLMError: What loading and answering raise.
        """
        if _REMEMBERS in _kinds(model):
            model.close()  # the weights stay with plain decoding, unless they were loaded otherwise
            self.prepare(model)
        answers = []
        for group in self.groups:
            answers.append(self._ask(model, group, self._n_tokens))
            advance()
        return answers

    def _ask(self, model: LocalModel, group: Sequence[str], n_tokens: int) -> Any:
        return model.complete_all([self._text(model, prompt) for prompt in group], max_tokens=n_tokens, temperature=0)

    def _text(self, model: LocalModel, prompt: str) -> str:
        if self._raw or not model.header.chat_template:
            return prompt
        return model.render([{"role": "user", "content": prompt}])


def _measured(
    models: dict[str, LocalModel], runner: _Runner, n_prompts: int, n_rounds: int, progress: Progress
) -> tuple[Result, ...]:
    kinds: dict[str, str] = {}
    errors: dict[str, LocalLLMError] = {}
    rounds: dict[str, list[Round]] = {name: [] for name in models}
    done = itertools.count(1)

    def advance() -> None:
        n_done = next(done)
        progress(n_done, max(n_done, (len(models) - len(errors)) * n_rounds * len(runner.groups)))

    for name, model in models.items():
        kind = _attempt(name, model, runner.prepare)
        if isinstance(kind, LocalLLMError):
            errors[name] = kind
        else:
            kinds[name] = kind
    for _ in range(n_rounds):
        for name, model in models.items():
            if name in errors:
                continue
            answers = _attempt(name, model, lambda one: runner.round(one, advance))
            if isinstance(answers, LocalLLMError):
                errors[name] = answers
            else:
                rounds[name].append(answers)
    return tuple(
        Result(name, error=errors[name]) if name in errors else result(name, kinds[name], rounds[name], rounds[PLAIN], n_prompts)
        for name in models
    )


def _attempt(name: str, model: LocalModel, action: Callable[[LocalModel], T]) -> T | LocalLLMError:
    """What an action gives, or the error that it fails with, and then the model is closed. Plain decoding must not fail."""
    try:
        return action(model)
    except LocalLLMError as error:
        if name == PLAIN:
            raise
        model.close()
        return _without_traceback(error)


def _without_traceback(error: LocalLLMError) -> LocalLLMError:
    """An error to be kept: its traceback, and those of what led to it, would keep engines and weights, too."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


def _kinds(model: LocalModel) -> str:
    """What a model's speculation came to."""
    speculation = model.engine.config.speculation
    assert isinstance(speculation, SpeculationConfig)
    return "+".join(speculation.kinds) or PLAIN


def _named(prompts: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    if isinstance(prompts, Mapping):
        named = dict(prompts)
    else:
        named = {str(at): text for at, text in enumerate(checks.items("prompts", prompts), 1)}
    if not named:
        raise InvalidRequestError("prompts: there is none")
    for name, text in named.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidRequestError(f"prompts: {name} is no text, or an empty one")
    return named


def _checked(speculations: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(speculations, Mapping):
        raise InvalidRequestError(f"speculations: must map names to kinds, not be of type {type(speculations).__name__}")
    if PLAIN in speculations:
        raise InvalidRequestError(f"speculations: the name {PLAIN!r} is that of plain decoding, which is always measured")
    return dict(speculations)
