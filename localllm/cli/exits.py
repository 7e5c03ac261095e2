"""Exit codes: which kind of failure ended a command, for scripts."""

from __future__ import annotations

from localllm import errors
from localllm.cli.entry import INTERRUPTED

FAILURE, USAGE, MODEL, NATIVE = 1, 2, 3, 4
NOT_FOUND, NO_ACCESS, NO_SPACE, NO_MEMORY, DAMAGED, NETWORK, OFFLINE, INCOMPLETE, CANCELLED = (
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    INTERRUPTED,
)

HELP = (
    "Exit codes: 1 failure, 2 wrong arguments, 3 model (not here, not usable, or not for what is asked: a prompt longer than its "
    "context, a version that would be no faster), 4 native library, 10 no such repository, revision, file or quantization, "
    "11 no access (token, terms), 12 no room on the disk, 13 not enough memory, 14 damaged file, 15 network, 16 offline, "
    "17 files are missing, 130 interrupted."
)

# The first that fits counts: kinds of errors that are kinds of others come before them.
_CODES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    ((errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.FileNotInRepoError), NOT_FOUND),
    (errors.QuantNotFoundError, NOT_FOUND),
    ((errors.GatedRepoError, errors.AccessDeniedError), NO_ACCESS),
    (errors.DiskSpaceError, NO_SPACE),
    (errors.DoesNotFitError, NO_MEMORY),
    (errors.CorruptFileError, DAMAGED),
    (errors.NetworkError, NETWORK),
    (errors.OfflineError, OFFLINE),
    (errors.IncompleteSetError, INCOMPLETE),
    (errors.DownloadCancelledError, CANCELLED),
    (errors.ReferenceFormatError, USAGE),
    (errors.NativeLibraryError, NATIVE),
    (errors.ModelError, MODEL),
    ((errors.InvalidRequestError, errors.GrammarError), USAGE),
)


def exit_code(error: errors.LocalLLMError) -> int:
    """The exit code for an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), FAILURE)
