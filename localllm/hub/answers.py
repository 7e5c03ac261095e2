"""What an answer of a Hub means: every refusal is exactly one typed error, with what to do about it.

The Hub tells refusals apart by the headers X-Error-Code and X-Error-Message; mirrors and proxies often send the status alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from localllm.errors import (
    AccessDeniedError,
    FileNotInRepoError,
    GatedRepoError,
    HubError,
    NetworkError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from localllm.hub.retries import asked_wait_seconds

_DISABLED = "Access to this resource is disabled."
_BAD_TOKEN = "Invalid credentials in Authorization header"


@dataclass(frozen=True)
class Question:
    """What was asked for, in the user's terms.

    Attributes:
        endpoint: str, the Hub's address.
        repo: str.
        kind: "repository", "revision" or "file": what a bare 404 means.
        revision: str, branch, tag or commit; "" where none plays a part.
        file: str, path in the repository; "" where none plays a part.
        with_token: bool, a token went along.
    """

    endpoint: str
    repo: str
    kind: Literal["repository", "revision", "file"]
    revision: str = ""
    file: str = ""
    with_token: bool = False

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{at}/{self.file}" if self.file else f"{self.repo}{at}"


def refusal(status: int, headers: Mapping[str, str], question: Question) -> HubError:
    """The error that an answer other than 2xx or 3xx means.

    Args:
        status: HTTP status.
        headers: of the answer; looked up by their lower-case names.
        question: what was asked for.
    """
    code, message = headers.get("x-error-code", ""), _shown(headers.get("x-error-message", ""))
    if message == _DISABLED:
        return AccessDeniedError(f"{question.repo}: the Hub has disabled this repository; choose another one")
    if code == "GatedRepo":
        return _gated(question)
    if message == _BAD_TOKEN:
        return _bad_token(question)
    if code == "RepoNotFound" or (status == 401 and not question.with_token):
        return _no_repository(question)
    if code == "RevisionNotFound":
        return _no_revision(question)
    if code == "EntryNotFound":
        return _no_file(question)
    if status == 401:
        return _bad_token(question)
    if status == 403:
        said = f" ({message})" if message else ""
        return AccessDeniedError(f"{question}: {question.endpoint} does not allow it{said}; use a token that may read it")
    if status in (404, 410):
        missing = {"repository": _no_repository, "revision": _no_revision, "file": _no_file}
        return missing[question.kind](question)
    return _failure(status, headers, message, question)


def _gated(question: Question) -> GatedRepoError:
    terms = f"accept its terms at {question.endpoint}/{question.repo}"
    if question.with_token:
        return GatedRepoError(f"{question.repo} is gated, and your token's account has no access (yet): {terms}")
    return GatedRepoError(f"{question.repo} is gated: {terms}, then set HF_TOKEN to a token of that account")


def _no_repository(question: Question) -> RepositoryNotFoundError:
    hint = "and your token may not read it" if question.with_token else "and then HF_TOKEN has to be set"
    return RepositoryNotFoundError(
        f"{question.endpoint} shows no repository {question.repo!r}: check the spelling, or it is private, {hint}"
    )


def _no_revision(question: Question) -> RevisionNotFoundError:
    return RevisionNotFoundError(f"{question.repo} has no revision {question.revision!r}; give a branch, a tag or a whole commit")


def _no_file(question: Question) -> FileNotInRepoError:
    return FileNotInRepoError(
        f"{question.repo} has no file {question.file!r} at {question.revision!r}; list its files to see them"
    )


def _bad_token(question: Question) -> AccessDeniedError:
    return AccessDeniedError(f"{question.endpoint} does not accept the token (wrong or expired); set HF_TOKEN to a valid one")


def _failure(status: int, headers: Mapping[str, str], message: str, question: Question) -> HubError:
    said = f" ({message})" if message else ""
    if status == 429:
        seconds = asked_wait_seconds(headers)
        when = f"in {seconds:.0f} seconds" if seconds is not None else "later"
        advice = "" if question.with_token else ", or set HF_TOKEN: known users may ask more often"
        return NetworkError(f"{question}: {question.endpoint} limits how often it may be asked; try again {when}{advice}")
    if status == 407:
        return NetworkError(f"{question}: the proxy wants a user and password: put them into HTTPS_PROXY or HTTP_PROXY")
    if status >= 500 or status == 408:
        return NetworkError(f"{question}: {question.endpoint} answers {status}{said}; try again later")
    return HubError(f"{question}: {question.endpoint} answers {status}{said}; is it a Hub? HF_ENDPOINT says which one is asked")


def _shown(text: str) -> str:
    """A server's words, fit for a message of ours."""
    return "".join(character if character.isprintable() else " " for character in text[:200]).strip()
