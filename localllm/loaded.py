"""What one LocalModel has loaded of its file, each thing at its first use."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from localllm.drafting import draft_file, with_draft
from localllm.engine import checks
from localllm.engine.cache.disk import state_key
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.params import model_params
from localllm.engine.threads import default_threads
from localllm.errors import InvalidRequestError, LocalLLMError, ModelFileError, UnsupportedModelError
from localllm.hub.beside import projector_for
from localllm.hub.gguf import Header, read_model
from localllm.hub.here import this_machine
from localllm.hub.memory import ContextOptions
from localllm.hub.progress import CancelToken
from localllm.located import Located
from localllm.media.encoder import Encoder, ProjectorConfig
from localllm.native.handles import Chat, Model
from localllm.native.library import load
from localllm.offloop import in_thread
from localllm.residency.fitting import require_room_for_projector
from localllm.residency.measured import has_gpu
from localllm.residency.placement import Placement, Purpose
from localllm.residency.registry import registry
from localllm.residency.resident import Lease, Resident, Spec

_NO_MODEL = {
    "projector": "is a projector (mmproj): it goes with a model, and is no model itself",
    "adapter": "is a LoRA adapter: it goes with a model (loras=[...]), and is no model itself",
    "control vector": "is a control vector: it goes with a model (control_vectors=[...]), and is no model itself",
    "draft": "is a draft: it predicts for another model, and cannot answer alone",
    "vocabulary": "holds only a vocabulary, no weights",
    "other": "is a GGUF file, but no language model",
}


@dataclass(frozen=True)
class Terms:
    """How long a handle keeps what it has loaded.

    Attributes:
        keep_alive: float, seconds after which idle weights are freed; None: they stay as long as the handle.
        pinned: bool, idle weights do not make way for other models.
        check_memory: bool, what does not fit the free memory is an error.
    """

    keep_alive: float | None = None
    pinned: bool = False
    check_memory: bool = True

    def __post_init__(self) -> None:
        if self.keep_alive is not None:
            object.__setattr__(self, "keep_alive", checks.real("keep_alive", self.keep_alive))
            if self.keep_alive < 0:
                raise InvalidRequestError(f"keep_alive: {self.keep_alive} is not a number of seconds of at least 0, or None")
        for flag in ("pinned", "check_memory"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidRequestError(f"{flag}: must be True or False, not {getattr(self, flag)!r}")


_handles: weakref.WeakSet[Loaded] = weakref.WeakSet()


def _forked() -> None:
    for handle in list(_handles):
        handle.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Loaded:
    """Callable from any thread. Weights, engines and embedders come from the registry, so others may have them, too.

    Every method and property that loads something raises ModelError (no such file, or one that cannot be loaded), DoesNotFitError
    (there is not enough memory) and NativeLibraryError (the native libraries cannot be used), or InvalidRequestError (metadata
    are replaced by such of another type).

    Args:
        reference: str, what `locate` makes a path of.
        config: ModelConfig.
        context: ContextConfig.
        chat_template: str, a Jinja template, or the name of one in the file; None: the file's usual one.
        terms: Terms.
        projector: ProjectorConfig.
        offline: bool, the file is never fetched; None: what HF_HUB_OFFLINE says.
        token: str, for fetching it; None: what HF_TOKEN says.
    """

    def __init__(
        self,
        reference: str,
        config: ModelConfig,
        context: ContextConfig,
        chat_template: str | None,
        terms: Terms,
        projector: ProjectorConfig | None = None,
        offline: bool | None = None,
        token: str | None = None,
    ) -> None:
        self._reference = reference
        self._config = config
        self._context = context
        self._chat_template = chat_template
        self._terms = terms
        self._projector = projector or ProjectorConfig()
        self._offline = offline
        self._token = token
        self.keep_alive, self.pinned = terms.keep_alive, terms.pinned
        self._lock = threading.RLock()
        self._located = Located(self._locate)
        self._residents: dict[Purpose, Resident] = {}
        self._vocabulary: Model | None = None
        self._template: Chat | None = None
        _handles.add(self)
        self._fingerprint: tuple[tuple[int, int] | None, str] = (None, "")

    def forked(self) -> None:
        """This is a child of the process: nobody holds the lock, nobody fetches the file, and engines have no threads here."""
        self._lock = threading.RLock()
        self._residents = {}
        self._located.forked()

    @property
    def path(self) -> Path:
        """The GGUF file; a model of the Hub is fetched if it is not on this machine."""
        return self._located.path

    @property
    def header(self) -> Header:
        """Metadata and tensor table of the file."""
        return self._located.header

    @property
    def fingerprint(self) -> str:
        """What tells the file from others; read again when it has changed.

        Weights of a file that another one has taken the place of are let go: what comes after is answered by the new one.
        """
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            loaded = [resident.weights_key for resident in list(self._residents.values()) if resident.loaded is not None]
            if any((changed_ns, n_bytes) != stamp for _, changed_ns, n_bytes, *_ in loaded):
                self.let_go()
            if self._fingerprint[0] != stamp:
                self._fingerprint = (stamp, state_key(str(self.path), ()).hex())
        except OSError as error:
            if isinstance(error, LocalLLMError):
                raise
            raise ModelFileError(error.errno, error.strerror, str(self.path)) from error
        return self._fingerprint[1]

    def file_identity(self) -> tuple[str, int, int] | None:
        """Path, size (bytes) and time of change (ns) of the file whose weights answer; None if it is not on this machine."""
        from localllm.hub.locate import locate

        known = self._residents.get("engine")
        if known is not None and known.loaded is not None:
            path, changed_ns, n_bytes, *_ = known.weights_key
            return path, n_bytes, changed_ns
        self._located.look_again()
        try:
            found = self._located.known or locate(self._reference, download=False)
            status = found.stat()
        except (LocalLLMError, OSError):
            return None
        return os.path.realpath(found), status.st_size, status.st_mtime_ns

    def engine_lease(self) -> Lease[Engine]:
        """The engine, which is not unloaded before the lease is released or collected. It must be released."""
        return cast("Lease[Engine]", self._lease("engine"))

    def embedder_lease(self, *, rank: bool) -> Lease[Embedder]:
        """The same of what makes vectors, or with `rank` scores.

        Raises:
            UnsupportedModelError: The model gives no vectors, or no scores.
        """
        return cast("Lease[Embedder]", self._lease("ranker" if rank else "embedder"))

    async def aengine_lease(self) -> Lease[Engine]:
        """`engine_lease` without blocking the loop, and without a thread if the engine is there."""
        return cast("Lease[Engine]", self._lease_at_hand("engine") or await in_thread(self._lease, "engine"))

    async def aembedder_lease(self, *, rank: bool) -> Lease[Embedder]:
        """`embedder_lease`, likewise."""
        purpose: Purpose = "ranker" if rank else "embedder"
        return cast("Lease[Embedder]", self._lease_at_hand(purpose) or await in_thread(self._lease, purpose))

    @property
    def engine(self) -> Engine:
        """The engine; one that was closed is replaced. A model with `keep_alive` keeps it for some seconds at least."""
        return cast(Engine, self._taken("engine"))

    def embedder(self, *, rank: bool) -> Embedder:
        """What makes vectors, or with `rank` scores, likewise; raises as `embedder_lease` does."""
        return cast(Embedder, self._taken("ranker" if rank else "embedder"))

    def encoder(self, engine: Engine) -> Encoder | None:
        """What makes pictures and sound of this model's readable for an engine of it; None: the model takes only text.

        Raises:
            UnsupportedModelError: The file that was named is no projector.
            ModelLoadError: It is damaged, or made for another model.
            DoesNotFitError: There is not enough memory for it.
        """
        path = self._projector_file()
        if path is None:
            return None
        context = engine.config
        threads = context.n_threads_batch or context.n_threads or default_threads()

        def make() -> Encoder:
            if self._terms.check_memory and not (self._projector.mmproj_gpu and has_gpu(load())):
                require_room_for_projector(path, read_model(path), this_machine(margin_bytes=0).free_bytes)
            folder = context.cache_dir or None
            with registry.native_loading():
                return Encoder(engine.model, str(path), self._projector, threads, folder, context.cache_read_only)

        return engine.attached(("projector", str(path), self._projector), make)

    def _projector_file(self) -> Path | None:
        wanted = self._projector.mmproj
        if wanted is None:
            return None
        if wanted == "auto":
            return projector_for(self.path, self.header)
        return draft_file(wanted, offline=self._offline, token=self._token)

    @property
    def placement(self) -> Placement | None:
        """How the engine, or else an embedder, was loaded last; None: nothing was."""
        plans = [resident.plan for _, resident in sorted(self._residents.items(), key=lambda item: item[0] != "engine")]
        return next((plan.placement for plan in plans if plan), None)

    @property
    def vocabulary(self) -> Model:
        """The loaded model, or, while there is none, the vocabulary alone."""
        with self._file_at_hand():
            if values := self._values():
                return values[0].model
            if self._vocabulary is None:
                self._require_kind("model", "vocabulary")
                config = dataclasses.replace(self._config, vocab_only=True)
                with registry.native_loading():
                    self._vocabulary = Model(str(self.path), model_params(load(), config))
            return self._vocabulary

    @property
    def template(self) -> Chat:
        """The chat template.

        Raises:
            InvalidRequestError: The file has no template of the name that was given.
            TemplateError: It is no template.
        """
        with self._file_at_hand():
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
        return bool(self._values())

    def let_go(self) -> None:
        """Forgets everything; what nobody else uses is freed. A file that is being fetched is not waited for: that ends."""
        self._located.cancel()
        with self._lock:
            residents, self._residents = self._residents, {}
            self._vocabulary = None
            self._template = None
        for resident in residents.values():
            registry.let_go(resident, self)
        if residents:
            residents.clear()
            del resident
            registry.publish()

    # ---- inside

    def _locate(self, cancel: CancelToken) -> Path:
        from localllm.hub.locate import locate
        from localllm.machine import this_machine

        context = _as_planned(self._context)
        return locate(
            self._reference, offline=self._offline, context=context, machine=this_machine, cancel=cancel, token=self._token
        )

    def _draft_file(self, reference: str) -> Path:
        """The file of a draft. What has to be fetched is fetched while nobody else can load this model."""
        return draft_file(reference, offline=self._offline, token=self._token)

    @contextlib.contextmanager
    def _file_at_hand(self) -> Iterator[None]:
        """The lock, taken when the file is there: nobody who closes this waits for a download."""
        if not self:
            self._located.look_again()
        _ = self.path
        with self._lock:
            yield

    def _values(self) -> list[Engine | Embedder]:
        """What holds the weights, and was not closed."""
        return [value for resident in list(self._residents.values()) if (value := resident.loaded) is not None]

    def _lease(self, purpose: Purpose) -> Lease[Engine] | Lease[Embedder]:
        return registry.lease(self._resident(purpose), check_memory=self._terms.check_memory)

    def _lease_at_hand(self, purpose: Purpose) -> Lease[Engine] | Lease[Embedder] | None:
        """A lease, if nothing has to be waited for."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            known = self._residents.get(purpose)
        finally:
            self._lock.release()
        return registry.lease_at_hand(known) if known is not None else None

    def _taken(self, purpose: Purpose) -> Engine | Embedder:
        resident = self._resident(purpose)
        lease: Lease[Engine | Embedder] = registry.lease(resident, check_memory=self._terms.check_memory)
        with lease:
            registry.touch(resident)
            return lease.value

    def _resident(self, purpose: Purpose) -> Resident:
        """What stands for the file; another one if the file has changed since it was unloaded."""
        with self._file_at_hand():
            known = self._residents.get(purpose)
            if known is not None and known.loaded is not None:
                return known
            self._require_weights()
            config, context = with_draft(self.path, self.header, self._config, self._context, self._draft_file)
            found = registry.resident(Spec(self._reference, self.path, config, context, purpose))
            if found is known:
                return found
            if known is not None and known.weights_key != found.weights_key:
                self._vocabulary = self._template = None
                self._located.changed()
                self._require_weights()
            if known is not None:
                registry.let_go(known, self)
            self._residents[purpose] = found
            registry.hold(found, self)
            return found

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
        n_ctx=context.n_ctx if isinstance(context.n_ctx, int) else ContextOptions.n_ctx,
        parallel=context.parallel,
        kept_sequences=context.kept_sequences if context.prefix_cache else 0,
        type_k=context.type_k,
        type_v=context.type_v,
        flash_attention=context.flash_attention != "off",
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        swa_full=context.swa_full,
    )
