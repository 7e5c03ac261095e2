"""Every error that localllm raises on purpose.

Each names the thing at fault and what to do about it. Catch `LocalLLMError` for all of them; classes that also derive
from a built-in exception (`ValueError`, `FileNotFoundError`, ...) can be caught as that, too.
"""

from __future__ import annotations

from typing import Any


class LocalLLMError(Exception):
    """Base class of all errors of this package."""


class InvalidRequestError(LocalLLMError, ValueError):
    """An argument has the wrong type or lies outside its range. The message starts with the argument's name."""


class NativeLibraryError(LocalLLMError, ImportError):
    """The shared libraries are missing, incomplete or of another version. `localllm doctor` says more."""


class MissingPackageError(LocalLLMError, ImportError):
    """A package that is not always installed is needed for what was asked; the message says how to install it."""


class NativeError(LocalLLMError, RuntimeError):
    """llama.cpp or liblocalllm reported a failure.

    Attributes:
        status: int, the status code of the call (see `localllm/native/src/localllm.h`).
    """

    def __init__(self, message: str, status: int = -1) -> None:
        super().__init__(message)
        self.status = status


class ModelError(LocalLLMError):
    """Base class of errors about one model file or one loaded model."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no such model file, and no known model of that name."""


class ModelFileError(ModelError, OSError):
    """The file exists but cannot be used: no permission, a directory, empty, not a GGUF, truncated or damaged."""


class UnsupportedModelError(ModelError):
    """The file is a sound GGUF, but this build cannot run it, or it is no model that can stand alone."""


class ModelLoadError(ModelError, RuntimeError):
    """Loading failed for a reason that only llama.cpp knows; its own messages are part of the text."""


class NoGainError(ModelError):
    """No version of the model is expected to be faster on this machine, or it is that version already."""


class ContextOverflowError(ModelError, ValueError):
    """The prompt, or prompt and answer, need more tokens than the context holds.

    Attributes:
        needed_tokens: int, tokens that were asked for.
        available_tokens: int, tokens that fit.
    """

    def __init__(self, message: str, needed_tokens: int, available_tokens: int) -> None:
        super().__init__(message)
        self.needed_tokens = needed_tokens
        self.available_tokens = available_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed_tokens, self.available_tokens)


class QueueFullError(LocalLLMError):
    """The engine's queue has reached `max_queue`; try again later, or raise the limit."""


class RequestTimeoutError(LocalLLMError, TimeoutError):
    """A request was not answered within its `timeout`; it was stopped. Ask for fewer tokens, or allow more time."""


class ClosedError(LocalLLMError, RuntimeError):
    """The engine or model was closed before or while the call ran."""


class StateError(LocalLLMError, ValueError):
    """A saved state is damaged, or belongs to another model, other options or another version; or there is none to save."""


class TemplateError(ModelError, ValueError):
    """The chat template cannot render these messages, or the answer cannot be parsed in its format."""


class GrammarError(LocalLLMError, ValueError):
    """A grammar or JSON schema is not valid."""


class MediaError(LocalLLMError, ValueError):
    """A picture, sound, video or document cannot be had or used. The message starts with the name of the part of the request."""


class HubError(LocalLLMError):
    """Base class of errors about references, repositories, downloads and the store of models."""


class ReferenceFormatError(HubError, ValueError):
    """A name of a model, a repository, a revision or a file in it is not written as one; the message says which part and how."""


class RepositoryNotFoundError(HubError, FileNotFoundError):
    """There is no such repository, or it is private and the token, if any, may not see it: the Hub answers both alike."""


class RevisionNotFoundError(HubError):
    """The repository has no such branch, tag or commit."""


class FileNotInRepoError(HubError):
    """The repository has no such file at this revision."""


class QuantNotFoundError(HubError):
    """No complete model in the repository has this quantization, or several have it; the message lists what there is."""


class GatedRepoError(HubError):
    """The repository's terms have to be accepted first; the message says where."""


class AccessDeniedError(HubError):
    """The token is wrong, missing or not allowed to do this, or the repository is disabled."""


class NetworkError(HubError, ConnectionError):
    """The endpoint, a proxy or what it forwards to cannot be reached, does not answer in time, or answers nonsense."""


class OfflineError(HubError):
    """The network would be needed, but offline mode is on."""


class DownloadCancelledError(HubError):
    """The download was cancelled; what was received so far is kept and will be continued."""


class CorruptFileError(HubError, OSError):
    """A file's content is not what its size or checksum says; the message says how to get a good one."""


class IncompleteSetError(HubError):
    """A model in several files lacks some of them, or they do not belong together; the message names them."""


class PinnedError(HubError):
    """A model is pinned, and so not removed; unpin it first, or remove it by force."""


class InUseError(HubError):
    """A model that is to be removed is in use by a program; the message names it."""


class DiskSpaceError(HubError, OSError):
    """The file system lacks room.

    Attributes:
        needed_bytes: int, still to be written.
        free_bytes: int, free on that file system.
    """

    def __init__(self, message: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed_bytes, self.free_bytes)


class DoesNotFitError(HubError, MemoryError):
    """A model needs more memory than there is.

    Attributes:
        needed_bytes: int, what it would take.
        free_bytes: int, what is free.
    """

    def __init__(self, message: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed_bytes, self.free_bytes)
