"""Owners of native objects: one class per kind of C handle, each freed exactly once and never before what depends on it.

Every owner holds what it depends on, so that order of release follows from references alone. Release happens at `close()`,
at garbage collection, or at interpreter exit, whichever comes first; `weakref.finalize` guarantees one of them, without a
`__del__`. A constructor that fails has registered nothing.

At exit finalizers run newest first: contexts before their models, but also an answer's sampler before the engine whose thread
is using it. So what is only memory (samplers, texts, templates) is left to the end of the process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import operator
import os
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.errors import ClosedError, InvalidRequestError
from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.library import Native, load


class Owned:
    """A C pointer with its release function. The owner classes below have one each."""

    def __init__(self, owner: object, pointer: int, release: Callable[[int], object], name: str, at_exit: bool = True) -> None:
        self._name = name
        self._pointer = pointer
        self._finalizer = weakref.finalize(owner, _release, release, pointer, os.getpid())
        self._finalizer.atexit = at_exit

    @property
    def pointer(self) -> int:
        """The C pointer.

        Raises:
            ClosedError: It was released.
        """
        if not self._finalizer.alive:
            raise ClosedError(f"this {self._name} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Releases the native object; later calls do nothing."""
        self._finalizer()


def _release(release: Callable[[int], object], pointer: int, pid: int) -> None:
    """Releases in the process that made the object: a forked child only has copies, and no threads to free them with."""
    if os.getpid() == pid:
        release(pointer)


class Model:
    """A loaded model file (weights, or only its vocabulary).

    Args:
        path: str, a GGUF file.
        params: llama_model_params; `default_model_params()` gives llama.cpp's defaults.
        any_kind: bool, also files that cannot stand alone, as drafts.

    Attributes:
        overrides: tuple of bytes, the metadata that `params` put in place of the file's, sorted: it may change what is computed.
        n_mtp: int, heads for further tokens that were loaded with it.

    Raises:
        ModelLoadError: llama.cpp refuses the file; the message holds its reason.
        NativeLibraryError: The native libraries cannot be used.
    """

    def __init__(self, path: str, params: llama_h.llama_model_params, *, any_kind: bool = False) -> None:
        self.native = load()
        self.path = path
        out = llama_h.llama_model_p()
        try:
            status = self.native.lm_model_load(os.fsencode(path), ctypes.byref(params), any_kind, ctypes.byref(out))
            self.native.check(status, path)
        finally:
            logs.forward(self.native)
        self._owned = Owned(self, _address(out), self.native.llama_model_free, "model")
        self.overrides = _overrides(params)
        self.n_mtp: int = self.native.llama_model_n_layer_nextn(self.pointer) if params.load_mtp else 0
        self.vocab: int = self.native.llama_model_get_vocab(self.pointer)
        self._pieces: dict[int, bytes] = {}

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    @property
    def closed(self) -> bool:
        return self._owned.closed

    def close(self) -> None:
        self._owned.close()

    @property
    def n_layer(self) -> int:
        n: int = self.native.llama_model_n_layer(self.pointer)
        return n

    @property
    def n_positions(self) -> int:
        """Positions in the model's table of learned positions, which no sequence can go beyond; 0: it has none, as with RoPE."""
        n: int = self.native.json_call("lm_pool_info", self.pointer)["positions"]
        return n

    def check_lora(self, path: str) -> None:
        """Reads a LoRA adapter's file without loading it. Safe while another thread computes with the model.

        Raises:
            ModelError: It is none, damaged, or made for another model; the message names the file and the reason.
        """
        self.native.check(self.native.lm_lora_check(self.pointer, os.fsencode(path)), path)

    def check_control(self) -> None:
        """Makes sure that control vectors have an effect.

        Raises:
            UnsupportedModelError: llama.cpp applies none to this architecture.
        """
        self.native.check(self.native.lm_control_check(self.pointer), self.path)

    def control_vector(self, path: str) -> Any:
        """The directions of a control vector, as a ctypes array of floats: n_embd values for each layer from 1 on.

        Raises:
            ModelError: The file is none, damaged, or made for another model; the message names the file and the reason.
        """
        size = ctypes.c_size_t()
        self.native.check(self.native.lm_control_load(self.pointer, os.fsencode(path), None, ctypes.byref(size)), path)
        data = (ctypes.c_float * size.value)()
        status = self.native.lm_control_load(self.pointer, os.fsencode(path), data, ctypes.byref(size))
        self.native.check(status, path)
        return data

    def metadata(self) -> dict[str, str]:
        """All scalar metadata of the file, as text."""
        result: dict[str, str] = self.native.json_call("lm_model_metadata", self.pointer)
        return result

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Text to token ids.

        Args:
            text: str.
            add_special: bool, add what the model wants around a text (BOS, EOS).
            parse_special: bool, recognise special tokens written in the text.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"text: must be a str, not {type(text).__name__}")
        data = text.encode("utf-8", errors="replace")
        tokens = (ctypes.c_int32 * (len(data) + 16))()
        count = ctypes.c_int32(len(tokens))
        call = self.native.lm_tokenize
        status = call(self.pointer, data, len(data), add_special, parse_special, tokens, ctypes.byref(count))
        if status == localllm_h.LM_INVALID_ARGUMENT and count.value > len(tokens):
            tokens = (ctypes.c_int32 * count.value)()
            status = call(self.pointer, data, len(data), add_special, parse_special, tokens, ctypes.byref(count))
        self.native.check(status)
        return tokens[: count.value]

    @functools.cached_property
    def special(self) -> re.Pattern[str] | None:
        """A pattern of the texts that `tokenize` takes for control tokens with `parse_special`; None: there are none."""
        texts = sorted(filter(None, self.native.json_call("lm_special_tokens", self.pointer)), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def piece(self, token: int) -> bytes:
        """The text of one token, special ones included."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self.detokenize([token], special=True)
        return found

    def detokenize(self, tokens: Sequence[int], special: bool) -> bytes:
        """The text of tokens as bytes; `special`: with the text of special tokens."""
        try:
            ids = [operator.index(token) for token in tokens]
        except TypeError as error:
            raise InvalidRequestError(f"tokens: must be token ids ({error})") from error
        if any(not -(2**31) <= token < 2**31 for token in ids):
            raise InvalidRequestError("tokens: must be token ids, of 32 bits")
        array = (ctypes.c_int32 * len(ids))(*ids)
        out = ctypes.POINTER(ctypes.c_char)()
        size = ctypes.c_size_t()
        status = self.native.lm_detokenize(self.pointer, array, len(ids), special, ctypes.byref(out), ctypes.byref(size))
        self.native.check(status)
        try:
            return ctypes.string_at(out, size.value)
        finally:
            self.native.lm_string_free(out)


class Lora:
    """A LoRA adapter over a model, loaded. llama.cpp frees it with the model, if it was not discarded before.

    Args:
        model: Model.
        path: str, a GGUF file; `Model.check_lora` reads it more thoroughly.

    Raises:
        ModelError: The file is no adapter, or not for this model; the message names it and the reason.
    """

    def __init__(self, model: Model, path: str) -> None:
        self.model = model
        out = llama_h.llama_adapter_lora_p()
        try:
            status = model.native.lm_lora_load(model.pointer, os.fsencode(path), ctypes.byref(out))
            model.native.check(status, path)
        finally:
            logs.forward(model.native)
        self._pointer: int | None = _address(out)

    @property
    def pointer(self) -> int:
        """The C pointer.

        Raises:
            ClosedError: The model was closed, or the adapter discarded.
        """
        self.model.pointer  # noqa: B018  raises if it is closed
        if self._pointer is None:
            raise ClosedError("this adapter was discarded")
        return self._pointer

    def discard(self) -> None:
        """Frees it before its model; it must not be on any context."""
        pointer, self._pointer = self.pointer, None
        self.model.native.check(self.model.native.lm_lora_free(self.model.pointer, pointer))


class Context:
    """A llama_context: KV cache and compute buffers over a model.

    Args:
        model: Model.
        params: llama_context_params; `default_context_params()` gives llama.cpp's defaults.

    Raises:
        ModelLoadError: llama.cpp cannot make it (memory, unsupported options); the message holds its reason.
    """

    def __init__(self, model: Model, params: llama_h.llama_context_params) -> None:
        self.native = model.native
        self.model = model
        out = llama_h.llama_context_p()
        try:
            status = self.native.lm_context_create(model.pointer, ctypes.byref(params), ctypes.byref(out))
            self.native.check(status, model.path)
        finally:
            logs.forward(self.native)
        self._owned = Owned(self, _address(out), self.native.llama_free, "context")
        self.memory: int | None = self.native.llama_get_memory(self.pointer)

    def steer(self, loras: Sequence[tuple[Lora, float]], controls: Sequence[tuple[Any, float, int, int]]) -> None:
        """Puts exactly these adapters on the context.

        Args:
            loras: (adapter, scale).
            controls: (array of `Model.control_vector`, scale, first layer, last layer); they are added up.

        Raises:
            InvalidRequestError: An adapter is not one of this model, or the model has no such layers.
            NativeError: llama.cpp could not.
        """
        pointers = (llama_h.llama_adapter_lora_p * len(loras))(*(lora.pointer for lora, _ in loras))
        scales = (ctypes.c_float * len(loras))(*(scale for _, scale in loras))
        parts = (localllm_h.lm_control * len(controls))(
            *(
                localllm_h.lm_control(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), scale, first, last)
                for data, scale, first, last in controls
            )
        )
        status = self.native.lm_steer(self.pointer, pointers, scales, len(loras), parts, len(controls))
        self.native.check(status)

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    @property
    def closed(self) -> bool:
        return self._owned.closed

    def close(self) -> None:
        self._owned.close()


class Sampler:
    """An lm_sampler for one sequence.

    Args:
        model: Model.
        options: dict, the fields that lm_sampler_create documents.

    Raises:
        InvalidRequestError: A field is unknown or out of range.
        GrammarError: The grammar is not valid.
    """

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self.native = model.native
        self.model = model
        out = localllm_h.lm_sampler_p()
        text = to_json(options)
        self.native.check(self.native.lm_sampler_create(model.pointer, text, ctypes.byref(out)))
        self._owned = Owned(self, _address(out), self.native.lm_sampler_free, "sampler", at_exit=False)

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    @property
    def seed(self) -> int:
        out = ctypes.c_uint32()
        self.native.check(self.native.lm_sampler_seed(self.pointer, ctypes.byref(out)))
        return out.value

    def accept(self, tokens: Sequence[int], generated: bool) -> None:
        """Tells of tokens that were not sampled here; `generated` false for the prompt."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        self.native.check(self.native.lm_sampler_accept(self.pointer, array, len(tokens), generated))

    def reset(self) -> None:
        self.native.check(self.native.lm_sampler_reset(self.pointer))

    def close(self) -> None:
        self._owned.close()


@dataclass(frozen=True)
class Proposal:
    """What a drafter is told of a sequence, and asked for.

    `news` are its tokens since the last time, `n_accepted` says how many of the last draft were right (-1: not checked).
    """

    slot: int
    news: Sequence[int]
    n_accepted: int
    n_max: int


class Drafter:
    """An lm_drafter: guesses how sequences go on, from what stands in them already.

    Args:
        model: Model.
        options: dict, the fields that lm_drafter_create documents.
        n_slots: int, sequences.
        n_max: int, most tokens of a draft.

    Raises:
        InvalidRequestError: A field is unknown or out of range.
    """

    def __init__(self, model: Model, options: dict[str, Any], n_slots: int, n_max: int) -> None:
        self.native = model.native
        out = localllm_h.lm_drafter_p()
        self.native.check(self.native.lm_drafter_create(model.pointer, to_json(options), n_slots, ctypes.byref(out)))
        self._owned = Owned(self, _address(out), self.native.lm_drafter_free, "drafter", at_exit=False)
        self._rows = (localllm_h.lm_proposal * n_slots)()
        # "Any": ctypes takes any sequence for a slice, its type stubs only lists.
        self._drafts: list[Any] = [(llama_h.llama_token * n_max)() for _ in range(n_slots)]
        for row, draft in zip(self._rows, self._drafts, strict=True):
            row.draft = draft

    def begin(self, slot: int, tokens: Sequence[int]) -> None:
        """A sequence begins with these tokens, at least one."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        self.native.check(self.native.lm_drafter_begin(self._owned.pointer, slot, array, len(tokens)))

    def propose(self, proposals: Sequence[Proposal]) -> list[list[int]]:
        """A draft for each proposal, in their order; [] where nothing comes to mind."""
        news = [(ctypes.c_int32 * len(proposal.news))(*proposal.news) for proposal in proposals]
        for row, proposal, tokens in zip(self._rows, proposals, news, strict=False):
            row.slot, row.n_accepted, row.n_max = proposal.slot, proposal.n_accepted, proposal.n_max
            row.news, row.n_news = tokens, len(tokens)
        self.native.check(self.native.lm_drafter_propose(self._owned.pointer, self._rows, len(proposals)))
        return [self._drafts[at][: self._rows[at].n_draft] for at in range(len(proposals))]

    def close(self) -> None:
        self._owned.close()


class Text:
    """An lm_text: tokens of one answer to text, with stop rules.

    Args:
        model: Model.
        options: dict, the fields that lm_text_create documents.
    """

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self.native = model.native
        self.model = model
        out = localllm_h.lm_text_p()
        text = to_json(options)
        self.native.check(self.native.lm_text_create(model.pointer, text, ctypes.byref(out)))
        self._owned = Owned(self, _address(out), self.native.lm_text_free, "text", at_exit=False)

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    def push(self, token: int) -> tuple[str, int]:
        """One token; returns the text that may be shown now, and an `lm_finish`."""
        data, size, finish = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t(), ctypes.c_int()
        self.native.check(
            self.native.lm_text_push(self.pointer, token, ctypes.byref(data), ctypes.byref(size), ctypes.byref(finish))
        )
        return ctypes.string_at(data, size.value).decode(), finish.value

    def flush(self) -> str:
        """The answer is over: what was held back."""
        data, size = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t()
        self.native.check(self.native.lm_text_flush(self.pointer, ctypes.byref(data), ctypes.byref(size)))
        return ctypes.string_at(data, size.value).decode()

    def close(self) -> None:
        self._owned.close()


class Chat:
    """An lm_chat: the chat templates of a model, or one given as text. It needs the model only while it is made.

    Args:
        model: Model or None.
        source: str or None, a Jinja template to use instead of the model's.

    Raises:
        TemplateError: The template cannot be parsed.
    """

    def __init__(self, model: Model | None, source: str | None = None) -> None:
        self.native = model.native if model else load()
        out = localllm_h.lm_chat_p()
        pointer = model.pointer if model else None
        text = source.encode() if source else None
        self.native.check(self.native.lm_chat_create(pointer, text, ctypes.byref(out)))
        self._owned = Owned(self, _address(out), self.native.lm_chat_free, "chat", at_exit=False)

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    def info(self) -> dict[str, Any]:
        """Template text and capabilities."""
        result: dict[str, Any] = self.native.json_call("lm_chat_info", self.pointer)
        return result

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Renders messages; fields as lm_chat_apply documents them.

        Half a character (a lone surrogate) is a "?" in messages, as in all text that a model reads. In what an answer is held
        to (a schema, a grammar, a tool's name) it would be another one than the caller's.

        Raises:
            InvalidRequestError: A field other than the messages holds half a character, or one what JSON cannot.
            TemplateError: The template cannot render them.
        """
        messages = json.loads(to_json({"messages": request.get("messages")}, errors="replace"))
        text = to_json({**request, **messages})
        result: dict[str, Any] = self.native.json_call("lm_chat_apply", self.pointer, text)
        return result

    def close(self) -> None:
        self._owned.close()


class Parser:
    """An lm_parser: reads answers in the format that `Chat.apply` returned as "parser"."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.native = load()
        out = localllm_h.lm_parser_p()
        self.native.check(self.native.lm_parser_create(to_json(options), ctypes.byref(out)))
        self._owned = Owned(self, _address(out), self.native.lm_parser_free, "parser", at_exit=False)

    def parse(self, text: str, is_partial: bool) -> dict[str, Any]:
        """A whole or partial answer as {"role", "content", "reasoning_content", "tool_calls"}."""
        data = text.encode("utf-8", errors="replace")
        result: dict[str, Any] = self.native.json_call("lm_parser_parse", self._owned.pointer, data, len(data), is_partial)
        return result

    def close(self) -> None:
        self._owned.close()


def to_json(value: dict[str, Any], errors: str = "strict") -> bytes:
    """A value as JSON for liblocalllm.

    Raises:
        InvalidRequestError: It holds what JSON cannot: objects, NaN, more levels than Python can follow, or, unless `errors` says
            otherwise, half a character (a lone surrogate).
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", errors=errors)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error


def default_model_params(native: Native) -> llama_h.llama_model_params:
    params: llama_h.llama_model_params = native.llama_model_default_params()
    return params


def default_context_params(native: Native) -> llama_h.llama_context_params:
    params: llama_h.llama_context_params = native.llama_context_default_params()
    return params


def _overrides(params: llama_h.llama_model_params) -> tuple[bytes, ...]:
    """The entries of llama_model_params.kv_overrides, which end with an empty key."""
    entries = itertools.takewhile(lambda entry: entry.key, params.kv_overrides or ())
    return tuple(sorted(bytes(entry) for entry in entries))


def _address(pointer: Any) -> int:
    value: int | None = pointer.value
    if value is None:
        raise RuntimeError("liblocalllm reported success without a pointer")
    return value
