"""Texts, messages and options to requests for the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from localllm import options as keywords
from localllm.chat.prompt import ChatOptions, Prompt, render
from localllm.chat.quoting import Shown
from localllm.chat.texts import require_whole_characters
from localllm.chat.types import ChatMessage
from localllm.engine.config import SamplingParams
from localllm.engine.media import MediaRun
from localllm.engine.request import Request
from localllm.engine.steering import ControlVector, Lora, adapters
from localllm.errors import InvalidRequestError
from localllm.hub.resolve import resolve
from localllm.infilling import infill_tokens
from localllm.media.encoder import Encoder
from localllm.media.eyes import Eyes
from localllm.native.handles import Chat, Model
from localllm.native.projector import TextPart

Messages = Sequence[Mapping[str, Any] | ChatMessage]

_OWN = ("max_tokens", "priority", "timeout", "context_shift", "speculate", "loras", "control_vectors")


def completion(model: Model, prompt: str, options: Mapping[str, Any]) -> Request:
    """The request that continues a text.

    Args:
        model: Model, whose vocabulary serves.
        prompt: str, as it is; with a `suffix` among the options, what stands before the gap.
        options: as of `LocalModel.complete`, adapters resolved by `steered`.

    Raises:
        InvalidRequestError: An option is wrong, or the prompt is no text, or one with half of a character.
        UnsupportedModelError: There is a suffix, and the model cannot fill in the middle.
    """
    rest = dict(options)
    suffix = rest.pop("suffix", None)
    require_whole_characters("prompt", prompt)
    require_whole_characters("suffix", suffix)
    tokens = _prompt_tokens(model, prompt) if suffix is None else infill_tokens(model, prompt, suffix)
    return request(tokens, rest, others={"suffix"})


def conversation(
    model: Model, template: Chat, messages: Messages, options: Mapping[str, Any], eyes: Eyes | None = None
) -> tuple[Request, Prompt]:
    """The request that answers messages, and the prompt that tells how to read the answer; arguments as of `completion`.

    Args:
        eyes: Eyes, for pictures and sound; None: there are only texts.

    Raises:
        InvalidRequestError: A message or option is wrong.
        TemplateError: The template refuses the messages.
        What `eyes` raises.
    """
    names = keywords.fields(ChatOptions)
    chat_options = ChatOptions(**{name: value for name, value in options.items() if name in names})
    rest = {name: value for name, value in options.items() if name not in names}
    prompt = render(template, messages, chat_options, model.special, eyes.look if eyes else None)
    rest["stop"] = (*_stops(rest.get("stop")), *prompt.stops)
    if eyes is not None and prompt.shows:
        tokens, media = _tokens_and_media(model, prompt, eyes.encoder)
    else:
        tokens, media = _tokens(model, prompt), ()
    asked = request(tokens, rest, others=names)
    if "grammar" in prompt.guide and asked.sampling.grammar:
        raise InvalidRequestError("sampling: its grammar does not go together with tools or another constraint of the answer")
    return dataclasses.replace(
        asked,
        media=media,
        visible_tokens=prompt.visible_tokens,
        grammar=prompt.guide,
        boundaries=_boundaries(model, tokens, prompt),
    ), prompt


def steered(options: Mapping[str, Any], loras: Sequence[Lora], controls: Sequence[ControlVector]) -> dict[str, Any]:
    """Options of a request with the adapters that it is to have, their references resolved to files.

    Args:
        options: as of `LocalModel.complete`.
        loras, controls: what is meant where the options name none.

    Raises:
        InvalidRequestError: What is given is no list of adapters.
        ModelNotFoundError: A reference means no file.
    """
    given: dict[str, Any] = {"loras": loras, "control_vectors": controls}
    given.update({name: options[name] for name in given if options.get(name) is not None})
    for name, kind in (("loras", Lora), ("control_vectors", ControlVector)):
        wanted = [one for one in adapters(name, given[name], kind) if one.scale]
        given[name] = tuple(dataclasses.replace(one, path=str(resolve(one.path))) for one in wanted)
    return {**options, **given}


def request(tokens: tuple[int, ...], options: Mapping[str, Any], others: set[str] | None = None) -> Request:
    """A Request from keyword options; sampling fields may be given one by one or as `sampling`.

    Raises:
        InvalidRequestError: An option is unknown or wrong; of `others` it may be said that they were meant.
    """
    sampling = options.get("sampling") or SamplingParams()
    if not isinstance(sampling, SamplingParams):
        raise InvalidRequestError(f"sampling: must be SamplingParams, not {type(sampling).__name__}")
    own = (*_OWN, "stop", "sampling")
    (rest,) = keywords.split(
        {name: value for name, value in options.items() if name not in own}, SamplingParams, others={*own, *(others or ())}
    )
    if rest:
        sampling = dataclasses.replace(sampling, **rest)
    fields = {name: options[name] for name in _OWN if name in options}
    return Request(prompt=tokens, sampling=sampling, stop=_stops(options.get("stop")), **fields)


def _prompt_tokens(model: Model, text: str) -> tuple[int, ...]:
    if not isinstance(text, str):
        raise InvalidRequestError(f"prompt: must be text, not {type(text).__name__}")
    return _unclosed(model, tuple(model.tokenize(text, add_special=True, parse_special=True)))


def _unclosed(model: Model, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Some vocabularies close every text with EOS; what is to be continued is not closed."""
    closes = model.native.llama_vocab_get_add_eos(model.vocab)
    return tokens[:-1] if closes and len(tokens) > 1 and tokens[-1] == model.native.llama_vocab_eos(model.vocab) else tokens


def _tokens(model: Model, prompt: Prompt) -> tuple[int, ...]:
    """The tokens of a rendered prompt; what is not trusted is cut into such of plain text."""
    texts = [part for part in prompt.parts if not isinstance(part, Shown)]
    parts = texts if texts and texts[0][1] else [("", True), *texts]
    tokens = list(_prompt_tokens(model, parts[0][0]))
    for text, trusted in parts[1:]:
        tokens += model.tokenize(text, add_special=False, parse_special=trusted)
    return tuple(tokens)


def _tokens_and_media(model: Model, prompt: Prompt, encoder: Encoder) -> tuple[tuple[int, ...], tuple[MediaRun, ...]]:
    """The same with pictures and sounds in their places."""
    parts = [part.medium if isinstance(part, Shown) else TextPart(*part) for part in prompt.parts]
    split = encoder.split(parts, add_special=True)
    return _unclosed(model, split.ids), split.runs


def _boundaries(model: Model, tokens: tuple[int, ...], prompt: Prompt) -> tuple[int, ...]:
    """Where messages begin in a prompt, as far as the template tells."""
    delimiters = (model.tokenize(text, add_special=False, parse_special=True) for text in prompt.delimiters)
    return tuple(sorted({place for each in delimiters for place in _places(tokens, tuple(each))}))


def _places(tokens: tuple[int, ...], pattern: tuple[int, ...]) -> list[int]:
    """Where a run of ids occurs among others."""
    if not pattern:
        return []
    starts = (at for at, token in enumerate(tokens) if token == pattern[0])
    return [at for at in starts if tokens[at : at + len(pattern)] == pattern]


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    require_whole_characters("stop", value)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise InvalidRequestError(f"stop: must be a text or a list of texts, not {type(value).__name__}")
    return tuple(value)
