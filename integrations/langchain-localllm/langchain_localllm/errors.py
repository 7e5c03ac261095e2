"""localllm's errors, each of which is one of LangChain's kinds of model error, too.

`except localllm.errors.ContextOverflowError` and `except langchain_core.exceptions.ContextOverflowError` both catch the
ContextOverflowError of this module. What says `is_retryable` is tried again by LangChain's ModelRetryMiddleware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from langchain_core import exceptions as kinds

from localllm import errors


class InvalidRequestError(errors.InvalidRequestError, kinds.ModelInvalidRequestError):
    """An argument, message or content block has the wrong form; the message says where."""


class TemplateError(errors.TemplateError, kinds.ModelInvalidRequestError):
    """The chat template refuses the messages."""


class GrammarError(errors.GrammarError, kinds.ModelInvalidRequestError):
    """A schema or grammar cannot be expressed."""


class StateError(errors.StateError, kinds.ModelInvalidRequestError):
    """A saved state cannot be used."""


class ContextOverflowError(errors.ContextOverflowError, kinds.ContextOverflowError):
    """The messages need more tokens than the context holds; `needed_tokens` and `available_tokens` say how many."""


class QueueFullError(errors.QueueFullError, kinds.ModelRateLimitError):
    """The engine's queue is full."""


class RequestTimeoutError(errors.RequestTimeoutError, kinds.ModelTimeoutError):
    """There was no answer within `timeout` seconds."""


class ClosedError(errors.ClosedError, kinds.ModelAPIError):
    """The engine was closed meanwhile; the next call opens it again."""


class NativeError(errors.NativeError, kinds.ModelAPIError):
    """llama.cpp reported a failure."""


class NativeLibraryError(errors.NativeLibraryError, kinds.ModelError):
    """The native libraries cannot be used; `localllm doctor` says why."""


class MissingPackageError(errors.MissingPackageError, kinds.ModelError):
    """A package that the request needs is not installed; the message says which."""


class MediaError(errors.MediaError, kinds.ModelInvalidRequestError):
    """A picture, sound or video cannot be used; the message says which and why."""


class ModelError(errors.ModelError, kinds.ModelError):
    """Something is wrong with a model file."""


class ModelNotFoundError(errors.ModelNotFoundError, kinds.ModelNotFoundError):
    """There is no such model."""


class ModelFileError(errors.ModelFileError, kinds.ModelError):
    """The file is damaged, or no GGUF."""


class UnsupportedModelError(errors.UnsupportedModelError, kinds.ModelError):
    """The file is no model that answers."""


class ModelLoadError(errors.ModelLoadError, kinds.ModelError):
    """llama.cpp cannot load the file."""


class NoGainError(errors.NoGainError, kinds.ModelError):
    """No version of the model is faster."""


class HubError(errors.HubError, kinds.ModelError):
    """A model cannot be fetched."""


class ReferenceFormatError(errors.ReferenceFormatError, kinds.ModelInvalidRequestError):
    """The model's name is not written as one."""


class RepositoryNotFoundError(errors.RepositoryNotFoundError, kinds.ModelNotFoundError):
    """The Hub has no such repository, or does not show it."""


class RevisionNotFoundError(errors.RevisionNotFoundError, kinds.ModelNotFoundError):
    """The repository has no such revision."""


class FileNotInRepoError(errors.FileNotInRepoError, kinds.ModelNotFoundError):
    """The repository has no such file."""


class QuantNotFoundError(errors.QuantNotFoundError, kinds.ModelNotFoundError):
    """The repository has no such quantization."""


class GatedRepoError(errors.GatedRepoError, kinds.ModelPermissionDeniedError):
    """The repository's terms have to be accepted first."""


class AccessDeniedError(errors.AccessDeniedError, kinds.ModelAuthenticationError):
    """The Hub does not accept the token."""


class NetworkError(errors.NetworkError, kinds.ModelConnectionError):
    """The Hub cannot be reached."""


class OfflineError(errors.OfflineError, kinds.ModelNotFoundError):
    """The model is not on this machine, and offline mode is on."""


class DownloadCancelledError(errors.DownloadCancelledError, kinds.ModelError):
    """The download was cancelled."""


class CorruptFileError(errors.CorruptFileError, kinds.ModelError):
    """What came is not what its checksum says."""


class IncompleteSetError(errors.IncompleteSetError, kinds.ModelError):
    """Files of the model are missing."""


class PinnedError(errors.PinnedError, kinds.ModelError):
    """The model is pinned."""


class InUseError(errors.InUseError, kinds.ModelError):
    """The model is in use."""


class DiskSpaceError(errors.DiskSpaceError, kinds.ModelError):
    """There is no room for the model's files."""


class DoesNotFitError(errors.DoesNotFitError, kinds.ModelError):
    """There is not enough memory for the model; the message says what would help."""


_TYPED: dict[type, type] = {
    made.__bases__[0]: made
    for made in list(globals().values())
    if isinstance(made, type) and issubclass(made, errors.LocalLLMError) and made.__module__ == __name__
}


def make_typed(error: errors.LocalLLMError) -> None:
    """Makes an error one of LangChain's kinds as well. It stays the same object, with its text, attributes and traceback."""
    kind = _TYPED.get(type(error))
    if kind is not None:
        error.__class__ = kind  # the classes differ in their bases, not in what an object of them holds


@contextlib.contextmanager
def model_errors() -> Iterator[None]:
    """What localllm raises within is one of LangChain's model errors, too."""
    try:
        yield
    except errors.LocalLLMError as error:
        make_typed(error)
        raise
