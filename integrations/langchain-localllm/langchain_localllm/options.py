"""Keyword options: where each belongs, what other classes call it, and what a call makes of them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm import ChatOptions, ContextConfig, ModelConfig, SamplingParams, asking
from localllm.errors import InvalidRequestError
from localllm.loaded import Terms
from localllm.options import fields, unknown

if TYPE_CHECKING:
    from langchain_localllm.chat_models import ChatLocalLLM

SAMPLING = fields(SamplingParams)
CHAT = fields(ChatOptions)
REQUEST = {"max_tokens", "stop", "timeout", "priority", "context_shift", "speculate", "loras", "control_vectors"}
LOADING = fields(ModelConfig) | fields(ContextConfig) | fields(Terms) | {"offline"}
# The fields of the class, by what they are for.
_OF_CALLS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "logprobs", "top_logprobs", "max_tokens", "stop", "timeout", "reasoning", "reasoning_budget",
)  # fmt: skip
_OF_LOADING = ("n_ctx", "parallel", "n_gpu_layers", "n_threads", "keep_alive", "chat_template", "loras", "control_vectors")
# What can change without changing an answer: of loading, and of calls.
NO_PART_OF_ANSWERS = {"keep_alive", "pinned", "check_memory", "offline", "timeout", "priority"}
# Dictionaries of further options, and which these are.
HOMES = {"sampling": SAMPLING, "chat_options": CHAT | {"priority", "context_shift", "speculate"}, "model_options": LOADING}


def _keep_alive(value: Any) -> Any:
    """Ollama's way to write it: seconds, "5m", "1h"; a negative one is for ever."""
    if not isinstance(value, str):
        return None if isinstance(value, (int, float)) and value < 0 else value
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (value[:-1], value[-1]) if value[-1:] in units else (value, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        raise InvalidRequestError(f"keep_alive: {value!r} is no time; write seconds, or '5m'") from None
    return None if seconds < 0 else seconds


# What langchain-ollama, langchain-openai and langchain-community's ChatLlamaCpp call it: name -> ours.
ALIASES = {
    "model_path": "model",
    "model_name": "model",
    "num_ctx": "n_ctx",
    "num_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_thread": "n_threads",
    "num_gpu": "n_gpu_layers",
    "num_batch": "n_batch",
    "repeat_last_n": "penalty_last_n",
    "last_n_tokens_size": "penalty_last_n",
    "stop_sequences": "stop",
    "request_timeout": "timeout",
    "format": "response_format",
    "token": "api_key",
}
# Fields of the class whose options have other names in the core.
FIELDS = {"reasoning": "enable_thinking", "top_logprobs": "n_probs"}
OF_CHATS = {**ALIASES, **FIELDS}
# What stands for "as usual" or "all" elsewhere: our name -> (value, ours).
_WORDS: dict[str, dict[Any, Any]] = {
    "max_tokens": {-1: None, -2: None},
    "seed": {-1: None},
    "n_gpu_layers": {-1: "all"},
    "response_format": {"": None},
}


def renamed(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Options by our names.

    Raises:
        InvalidRequestError: One is given twice, under two names; or it is a time that is none.
    """
    made: dict[str, Any] = {}
    for name, value in values.items():
        ours = aliases.get(name, name)
        if ours != name and value is None:
            if values.get(ours) is None:
                made.setdefault(ours, None)
            continue
        if ours != name and (values.get(ours) is not None or made.get(ours) is not None):
            raise InvalidRequestError(f"{name}: means the same as {ours}, which is given, too")
        words = _WORDS.get(ours, {})
        made[ours] = words.get(value, value) if words and isinstance(value, (int, str)) else value
    if "keep_alive" in made:
        made["keep_alive"] = _keep_alive(made["keep_alive"])
    if isinstance(made.get("model"), os.PathLike):
        made["model"] = str(Path(made["model"]).absolute())
    return made


def dealt(values: Any, own: Iterable[str], homes: Mapping[str, Set[str]]) -> Any:
    """Arguments of a constructor by our names, each in the field or dictionary where it belongs.

    Args:
        values: name -> value. What is no mapping is left to pydantic.
        own: names of the class' fields.
        homes: field -> names of the options that are kept in it, a dict.

    Raises:
        InvalidRequestError: A name is unknown, or given twice.
    """
    if not isinstance(values, Mapping):
        return values
    fields = set(own)
    made = renamed(values, {**ALIASES, **{core: field for field, core in FIELDS.items() if field in fields}})
    kept = {home: dict(made.get(home) or {}) for home in homes}
    if (token := kept.get("model_options", {}).pop("token", None)) is not None:
        # Dictionaries of options are shown, to tracers, say.
        if made.get("api_key") is not None:
            raise InvalidRequestError("token: means the same as api_key, which is given, too")
        made["api_key"] = token
    for name in [name for name in made if name not in fields]:
        home = next((home for home, known in homes.items() if name in known), None)
        if home is None:
            raise unknown(name, fields.union(*homes.values()))
        if name in kept[home]:
            raise InvalidRequestError(f"{name}: given twice, here and in {home}")
        value = made.pop(name)
        if value is not None:
            kept[home][name] = value
    return {**made, **kept}


def check_request(options: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError if an option of calls is unknown or wrong; needs no model."""
    given = {name: value for name, value in options.items() if value is not None and name not in ("loras", "control_vectors")}
    ChatOptions(**{name: value for name, value in given.items() if name in CHAT})
    asking.request((0,), {name: value for name, value in given.items() if name not in CHAT}, others=CHAT)


def of_call(kwargs: Mapping[str, Any], aliases: Mapping[str, str] = OF_CHATS, telling: Set[str] = frozenset()) -> dict[str, Any]:
    """Options of a call by our names.

    Args:
        kwargs: as they come through LangChain: what was bound, what the call said. None says nothing.
        aliases: other names -> ours.
        telling: our names of options whose None says something.

    Raises:
        InvalidRequestError: One can only be said to the constructor, or is given twice.
    """
    options = {name: value for name, value in kwargs.items() if name not in ("stream", "ls_structured_output_format")}
    # ChatOllama has a dictionary of them.
    for home, others in (("options", ()), ("sampling", (SamplingParams,))):
        given = options.pop(home, None)
        if isinstance(given, Mapping):
            options.update(given)
        elif isinstance(given, others):
            options[home] = given
        elif given is not None:
            raise InvalidRequestError(f"{home}: must be a dict of options, not {type(given).__name__}")
    said = {name: value for name, value in options.items() if value is not None or aliases.get(name, name) in telling}
    options = renamed(said, aliases)
    for name in options:
        if name in LOADING or name == "api_key":
            raise InvalidRequestError(
                f"{name}: says how the model is loaded, and is no option of a call; give it to the constructor"
            )
    return options


def tries(max_retries: Any) -> int:
    """How often a call is tried at most.

    Raises:
        InvalidRequestError: That is no number of further tries.
    """
    if max_retries is None:
        return 1
    if not isinstance(max_retries, int) or isinstance(max_retries, bool) or max_retries < 0:
        raise InvalidRequestError(f"max_retries: must be a number of further tries, at least 0, not {max_retries!r}")
    return 1 + max_retries


def defaults(model: ChatLocalLLM) -> dict[str, Any]:
    """The options of a call to a model that says nothing, by our names."""
    fields = {FIELDS.get(name, name): getattr(model, name) for name in _OF_CALLS}
    given = {name: value for name, value in fields.items() if value is not None}
    return {**model.sampling, **model.chat_options, **given}


def loading(model: ChatLocalLLM) -> dict[str, Any]:
    """What LocalModel is made with, besides its reference."""
    fields = {name: getattr(model, name) for name in _OF_LOADING}
    return {**model.model_options, **{name: value for name, value in fields.items() if value not in (None, [])}}
