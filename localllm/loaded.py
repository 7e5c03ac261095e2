"""What one LocalModel has loaded of its file, each thing at its first use."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from pathlib import Path

from localllm import registry
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.params import model_params
from localllm.errors import InvalidRequestError, UnsupportedModelError
from localllm.hub.gguf import Header, read_header
from localllm.hub.memory import ContextOptions
from localllm.native.handles import Chat, Model
from localllm.native.library import load

_NO_MODEL = {
    "projector": "is a projector (mmproj): it goes with a model, and is no model itself",
    "adapter": "is a LoRA adapter: it goes with a model (loras=[...]), and is no model itself",
    "control vector": "is a control vector: it goes with a model (control_vectors=[...]), and is no model itself",
    "draft": "is a draft: it predicts for another model, and cannot answer alone",
    "vocabulary": "holds only a vocabulary, no weights",
    "other": "is a GGUF file, but no language model",
}


class Loaded:
    """Callable from any thread. Weights, engines and embedders come from the registry, so others may have them, too.

    Every method and property that loads something raises ModelError (no such file, or one that cannot be loaded) and
    NativeLibraryError (the native libraries cannot be used), or InvalidRequestError (metadata are replaced by such of another
    type).

    Args:
        reference: str, what `resolve` makes a path of.
        config: ModelConfig.
        context: ContextConfig.
        chat_template: str, a Jinja template, or the name of one in the file; None: the file's usual one.
    """

    def __init__(self, reference: str, config: ModelConfig, context: ContextConfig, chat_template: str | None) -> None:
        self._reference = reference
        self._config = config
        self._context = context
        self._chat_template = chat_template
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._embedders: dict[bool, Embedder] = {}
        self._vocabulary: Model | None = None
        self._template: Chat | None = None

    @functools.cached_property
    def path(self) -> Path:
        """The GGUF file; a model of the Hub is fetched if it is not on this machine."""
        from localllm.hub.locate import locate

        return locate(self._reference, context=_as_planned(self._context))

    @functools.cached_property
    def header(self) -> Header:
        """Metadata and tensor table of the file."""
        return read_header(self.path)

    @property
    def engine(self) -> Engine:
        """The engine; one that was closed is replaced."""
        with self._lock:
            if self._engine is None or self._engine.closed:
                self._require_weights()
                self._engine = registry.engine(self.path, self._config, self._context)
            return self._engine

    def embedder(self, *, rank: bool) -> Embedder:
        """What makes vectors, or with `rank` scores; one that was closed is replaced.

        Raises:
            UnsupportedModelError: The model gives no vectors, or no scores.
        """
        with self._lock:
            found = self._embedders.get(rank)
            if found is None or found.closed:
                self._require_weights()
                found = self._embedders[rank] = registry.embedder(self.path, self._config, self._context, rank=rank)
            return found

    @property
    def vocabulary(self) -> Model:
        """The loaded model, or, while there is none, the vocabulary alone."""
        with self._lock:
            if users := self._users():
                return users[0].model
            if self._vocabulary is None:
                self._require_kind("model", "vocabulary")
                config = dataclasses.replace(self._config, vocab_only=True)
                self._vocabulary = Model(str(self.path), model_params(load(), config))
            return self._vocabulary

    @property
    def template(self) -> Chat:
        """The chat template.

        Raises:
            InvalidRequestError: The file has no template of the name that was given.
            TemplateError: It is no template.
        """
        with self._lock:
            if self._template is None:
                self._template = Chat(self.vocabulary, self._template_text())
            return self._template

    def _template_text(self) -> str | None:
        text = self._chat_template
        if text is None or not re.fullmatch(r"[\w.-]+", text):
            return text
        named = self.header.chat_templates
        if text not in named:
            known = ", ".join(map(repr, named)) or "none"
            raise InvalidRequestError(f"chat_template: the file has no template {text!r}; it has {known}")
        return named[text]

    def __bool__(self) -> bool:
        """Whether weights are loaded for it."""
        return bool(self._users())

    def let_go(self) -> None:
        """Forgets everything; what nobody else uses is freed."""
        with self._lock:
            self._engine = None
            self._embedders = {}
            self._vocabulary = None
            self._template = None

    # ---- inside

    def _users(self) -> list[Engine | Embedder]:
        """What holds the weights, and was not closed."""
        users = [self._engine, *self._embedders.values()]
        return [user for user in users if user is not None and not user.closed]

    def _require_weights(self) -> None:
        self._require_kind("model")
        if self._config.vocab_only:
            raise UnsupportedModelError(f"{self.path}: opened with vocab_only=True, which loads no weights to answer with")

    def _require_kind(self, *kinds: str) -> None:
        if self.header.kind not in kinds:
            raise UnsupportedModelError(f"{self.path}: this file {_NO_MODEL[self.header.kind]}")
        for key, value in self._config.overrides:
            own = self.header.metadata.get(key)
            # llama.cpp would only log that, and go on with the file's value.
            if own is not None and type(own) is not type(value):
                types = f"of type {type(own).__name__}, not {type(value).__name__}"
                raise InvalidRequestError(f"metadata_overrides: the value of {key} in {self.path} is {types}")


def _as_planned(context: ContextConfig) -> ContextOptions:
    """What a context costs, as the model manager counts it."""
    return ContextOptions(
        n_ctx=context.n_ctx,
        parallel=context.parallel,
        kept_sequences=context.kept_sequences,
        type_k=context.type_k,
        type_v=context.type_v,
        flash_attention=context.flash_attention != "off",
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        swa_full=context.swa_full,
    )
