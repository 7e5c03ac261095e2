"""What a repository holds at which commit, and bytes of its files, from one Hub.

Routes and headers are the Hub's public interface, as huggingface_hub uses it. A large file is answered by a redirect to a signed
address on another origin, which never sees the token.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from localllm.errors import CorruptFileError, InvalidRequestError, NetworkError
from localllm.hub import environment
from localllm.hub.addresses import is_private, joined, origin
from localllm.hub.answers import Question
from localllm.hub.listing import Listing, RepoFile, is_size, size_in
from localllm.hub.paths import checked_blob, checked_path, checked_repo, checked_revision, is_commit
from localllm.hub.plain_json import parsed
from localllm.hub.progress import CancelToken
from localllm.hub.retries import Patience

if TYPE_CHECKING:
    import httpx

    from localllm.hub.body import Body, Validator

logger = logging.getLogger("localllm.hub")

_MAX_JSON_BYTES = 64 << 20
_MAX_PAGES = 10_000
_MAX_RANGE_BYTES = 256 << 20
_MAX_SKIPPED_BYTES = 64 << 20
_NEXT_PAGE = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')
_SHA256_DIGITS = 64


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository as its server describes it.

    Attributes:
        repo: str.
        commit: str, 40 hexadecimal digits.
        path: str, in the repository.
        n_bytes: int.
        etag: str, git's SHA-1 of a small file, SHA-256 of a large one.
        sha256: str or None, if the server says it.
        url: str, the lasting address.
        location: str, where the bytes are for now; it may hold a signature and expire.
    """

    repo: str
    commit: str
    path: str
    n_bytes: int
    etag: str
    sha256: str | None
    url: str
    location: str = field(repr=False, compare=False)


class HubClient:
    """A Hub, or a mirror that answers like one. Threads may share it.

    Args:
        endpoint: str, its address; by default HF_ENDPOINT, else https://huggingface.co.
        token: str; by default HF_TOKEN, else the token file that `hf auth login` writes; False sends none. It goes to the
            endpoint's origin only; over http, only to this machine.
        offline: bool, every request is an OfflineError and no socket is made; by default HF_HUB_OFFLINE.
        patience: Patience, timeouts and retries.

    Raises:
        InvalidRequestError: The endpoint is no address.
        AccessDeniedError: The token is none, or would be sent in the clear.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | Literal[False] | None = None,
        offline: bool | None = None,
        patience: Patience | None = None,
    ) -> None:
        from localllm.hub.transport import Transport

        self.endpoint = environment.endpoint(endpoint)
        self.offline = environment.offline(offline)
        if token is None:
            chosen = environment.implicit_token()
            if chosen and not is_private(self.endpoint):
                logger.warning("%s has no TLS: your token is not sent to it", self.endpoint)
                chosen = None
        else:
            chosen = environment.checked_token(token, "token") if token else None
        self._transport = Transport(self.endpoint, chosen, self.offline, patience or Patience())

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections; the client may still be used."""
        self._transport.close()

    @property
    def patience(self) -> Patience:
        return self._transport.patience

    def commit(self, repo: str, revision: str = "main", cancel: CancelToken | None = None) -> str:
        """The commit that a revision means now.

        Args:
            repo: "owner/name".
            revision: branch, tag or commit.
            cancel: stops waiting.

        Returns:
            str, 40 hexadecimal digits.

        Raises:
            RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError, AccessDeniedError, NetworkError, OfflineError.
        """
        return self._pin(repo, revision, cancel)[1]

    def refs(self, repo: str, cancel: CancelToken | None = None) -> dict[str, str]:
        """The commits of all branches and tags, by name. Raises what `commit` raises."""
        question = self._question(repo, "repository")
        answer = self._json(f"{self._api(repo)}/refs", question, cancel)[0]
        try:
            return {str(ref["name"]): str(ref["targetCommit"]) for kind in ("branches", "tags") for ref in answer.get(kind, [])}
        except (AttributeError, KeyError, TypeError):
            raise self._nonsense(question) from None

    def listing(self, repo: str, revision: str = "main", cancel: CancelToken | None = None) -> Listing:
        """All files of a repository at a revision, however many pages they fill.

        Args:
            repo: "owner/name"; a former name works, and the listing has the present one.
            revision: branch, tag or commit.
            cancel: stops waiting.

        Returns:
            Listing.

        Raises:
            RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError, AccessDeniedError, NetworkError, OfflineError.
        """
        repo_now, commit = self._pin(repo, revision, cancel)
        question = self._question(repo_now, "revision", revision)
        url: str | None = f"{self._api(repo_now)}/tree/{commit}?recursive=true"
        files: list[RepoFile] = []
        seen: set[str] = set()
        while url is not None:
            if url in seen or len(seen) >= _MAX_PAGES:
                raise NetworkError(f"{question}: {self.endpoint} lists the files without end; is it a Hub?")
            seen.add(url)
            entries, next_page = self._json(url, question, cancel)
            files += self._files(entries, question)
            url = self._next(url, next_page)
        return Listing(repo_now, revision, commit, tuple(files))

    def file(self, repo: str, commit: str, path: str, cancel: CancelToken | None = None) -> RemoteFile:
        """What the server says about one file, without its content.

        Args:
            repo: "owner/name".
            commit: or branch, or tag.
            path: of the file in the repository.
            cancel: stops waiting.

        Returns:
            RemoteFile.

        Raises:
            FileNotInRepoError, and what `commit` raises.
        """
        question = self._question(repo, "file", commit, path)
        url = self._resolve(repo, commit, path)
        headers = {"Accept-Encoding": "identity"}
        response = self._transport.open("HEAD", url, question, lambda address: headers, cancel, stay=True)
        response.close()
        get = response.headers.get
        etag = (get("x-linked-etag") or get("etag") or "").removeprefix("W/").strip('"')
        n_bytes = size_in(get("x-linked-size") or ("" if response.is_redirect else get("content-length") or ""))
        found = get("x-repo-commit") or commit
        if not etag or n_bytes is None or not is_commit(found) or (is_commit(commit) and found != commit):
            raise self._nonsense(question)
        sha256 = etag if len(etag) == _SHA256_DIGITS and all(digit in "0123456789abcdef" for digit in etag) else None
        location = joined(str(response.url), get("location") or "") if response.is_redirect else str(response.url)
        return RemoteFile(repo, found, path, n_bytes, etag, sha256, url, location or url)

    def read_range(self, file: RemoteFile, start: int, length: int, cancel: CancelToken | None = None) -> bytes:
        """A part of a file.

        Args:
            file: from `file`.
            start: position of the first byte.
            length: bytes, at most 256 MiB; fewer are returned only at the end of the file.
            cancel: stops waiting.

        Returns:
            bytes. A server that ignores ranges is read up to the part, if that is not too far.

        Raises:
            InvalidRequestError: A position or length out of range.
            NetworkError: Not to be had; FileNotInRepoError and what `commit` raises, if it is gone.
            CorruptFileError: The server has another file by now.
        """
        if not 0 <= start <= file.n_bytes or not 0 <= length <= _MAX_RANGE_BYTES:
            raise InvalidRequestError(f"start and length must lie in {file.path} and within 256 MiB, not {start} and {length}")
        stop = min(start + length, file.n_bytes)
        question = self._question(file.repo, "file", file.commit, file.path)
        parts = bytearray()
        failures = 0
        while start + len(parts) < stop:
            before = len(parts)
            at = start + before
            body = self._transport.open_body(file.location, question, at, stop, None, cancel, fallback=file.url)
            with body:
                self._check_body(body, file, at, question)
                try:
                    _collect(body, at, stop, parts)
                    problem = NetworkError(f"{question}: the server ends too early; try again later")
                except NetworkError as error:
                    problem = error
            if len(parts) > before:
                failures = 0
                continue
            failures += 1
            if failures >= self.patience.tries:
                raise problem
            self._transport.pause(failures, cancel)
        return bytes(parts)

    def open(
        self,
        repo: str,
        commit: str,
        path: str,
        start: int = 0,
        stop: int | None = None,
        validator: Validator | None = None,
        cancel: CancelToken | None = None,
    ) -> Body:
        """The content of a file from `start` on, as it arrives; to be used in a `with` block.

        Args:
            repo, commit, path: of the file.
            start: position of the first byte that is wanted; `Body.start` says which one comes.
            stop: position after the last one; by default the end of the file.
            validator: of an earlier body of this file: if it has changed, it comes from its beginning.
            cancel: stops waiting, and the body.

        Raises:
            FileNotInRepoError, and what `commit` raises.
        """
        question = self._question(repo, "file", commit, path)
        return self._transport.open_body(self._resolve(repo, commit, path), question, start, stop, validator, cancel)

    # ---- inside

    def _question(
        self, repo: str, kind: Literal["repository", "revision", "file"], revision: str = "", file: str = ""
    ) -> Question:
        return Question(self.endpoint, checked_repo(repo), kind, revision, file, self._transport.with_token)

    def _api(self, repo: str) -> str:
        return f"{self.endpoint}/api/models/{quote(repo, safe='/')}"

    def _resolve(self, repo: str, revision: str, path: str) -> str:
        at = quote(checked_revision(revision), safe="")
        return f"{self.endpoint}/{quote(repo, safe='/')}/resolve/{at}/{quote(checked_path(path), safe='/')}"

    def _pin(self, repo: str, revision: str, cancel: CancelToken | None) -> tuple[str, str]:
        """The repository's present name, and the commit that a revision means."""
        question = self._question(repo, "repository" if revision == "main" else "revision", checked_revision(revision))
        answer = self._json(f"{self._api(repo)}/revision/{quote(revision, safe='')}", question, cancel)[0]
        name, commit = (answer.get("id"), answer.get("sha")) if isinstance(answer, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(commit, str) or not is_commit(commit):
            raise self._nonsense(question)
        return checked_repo(name), commit

    def _json(self, url: str, question: Question, cancel: CancelToken | None) -> tuple[Any, str]:
        """An answer in JSON, and the address of the next page or ""."""
        failures = 0
        while True:
            response = self._transport.open("GET", url, question, cancel=cancel)
            read = self._read(response, question, cancel)
            if isinstance(read, bytes):
                break
            failures += 1
            if failures >= self.patience.tries:
                raise read
            self._transport.pause(failures, cancel)
        try:
            answer = parsed(read)
        except ValueError:
            raise self._nonsense(question) from None
        found = _NEXT_PAGE.search(response.headers.get("link", ""))
        return answer, (joined(str(response.url), found[1]) or "") if found else ""

    def _read(self, response: httpx.Response, question: Question, cancel: CancelToken | None) -> bytes | NetworkError:
        """A whole answer; or why another try may bring it."""
        import httpx

        from localllm.hub.body import ended_by

        data = bytearray()
        try:
            with ended_by(cancel, response):
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > _MAX_JSON_BYTES:
                        raise self._nonsense(question)
        except (httpx.TransportError, httpx.DecodingError) as error:
            if cancel is not None:
                cancel.check()
            return NetworkError(f"{question}: the connection to {self.endpoint} broke ({error}); try again later")
        finally:
            response.close()
        return bytes(data)

    def _files(self, entries: Any, question: Question) -> list[RepoFile]:
        try:
            return [_repo_file(entry) for entry in entries if entry["type"] == "file"]
        except (KeyError, TypeError, ValueError):
            raise self._nonsense(question) from None

    def _next(self, url: str, next_page: str) -> str | None:
        """A mirror may pass on the address of the Hub behind it: only the query is taken from what leads away."""
        if not next_page or origin(next_page) == origin(url):
            return next_page or None
        return f"{url.partition('?')[0]}?{next_page.partition('?')[2]}"

    def _check_body(self, body: Body, file: RemoteFile, at: int, question: Question) -> None:
        if body.total_bytes not in (None, file.n_bytes):
            raise CorruptFileError(f"{question}: the server's copy has {body.total_bytes:,} bytes instead of {file.n_bytes:,}")
        if at - body.start > _MAX_SKIPPED_BYTES:
            raise NetworkError(f"{question}: the server gives no parts of files, and this one is too far from the start")

    def _nonsense(self, question: Question) -> NetworkError:
        return NetworkError(
            f"{question}: {self.endpoint} does not answer as a Hub does; check HF_ENDPOINT, and what lies between"
        )


def client_for(endpoint: str, offline: bool | None = None) -> HubClient:
    """A client for the endpoint that a reference or record names; "" for the usual one.

    Whoever wrote it may not be the user: the token of the environment goes to the endpoint of the environment alone.
    """
    is_usual = endpoint in ("", environment.endpoint())
    return HubClient(endpoint or None, token=None if is_usual else False, offline=offline)


def _collect(body: Body, at: int, stop: int, parts: bytearray) -> None:
    """Appends what a body holds of the bytes from `at` to `stop`."""
    position, wanted = body.start, at
    for chunk in body:
        end = position + len(chunk)
        if end > wanted:
            parts += chunk[wanted - position : stop - position]
            wanted = min(end, stop)
        position = end
        if position >= stop and body.stop != stop:
            return


def _repo_file(entry: dict[str, Any]) -> RepoFile:
    lfs = entry.get("lfs")
    n_bytes = lfs["size"] if lfs else entry["size"]
    if not is_size(n_bytes) or not isinstance(entry["path"], str):
        raise ValueError(entry["path"])
    return RepoFile(entry["path"], n_bytes, checked_blob(entry["oid"]), checked_blob(lfs["oid"]) if lfs else None)
