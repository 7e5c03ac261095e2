"""Brings files of a repository into the cache: continued where they stopped, checked against their hash, one writer at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.errors import CorruptFileError, DownloadCancelledError, HubError, NetworkError, OfflineError, ReferenceFormatError
from localllm.hub.client import HubClient
from localllm.hub.layout import RepoCache, checksum, free_bytes, locked, unusable
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.options import check_kind, check_whole
from localllm.hub.partial import Partial, hash_file, no_room, remove_partial
from localllm.hub.progress import CancelToken, Meter, Progress, ProgressCallback, RateCap

if TYPE_CHECKING:
    from localllm.hub.body import Body

_WORTH_NO_WAIT_BYTES = 1 << 20


@dataclass(frozen=True)
class DownloadOptions:
    """How files are fetched.

    Attributes:
        recheck: bool, files that are in the cache already are hashed, too; otherwise one of the right size is believed.
        check_disk: bool, refuse beforehand what the file system has no room for.
        margin_bytes: int, that stay free on it.
        rate_cap: RateCap or None, shared by whatever has the same one.
        parallel: int, files at once.
        segment_bytes: int, asked for at once: front servers refuse more than 50 GB in one answer.

    Raises:
        InvalidRequestError: An option of another type, or out of its range.
    """

    recheck: bool = True
    check_disk: bool = True
    margin_bytes: int = 64 << 20
    rate_cap: RateCap | None = None
    parallel: int = 4
    segment_bytes: int = 32 << 30

    def __post_init__(self) -> None:
        for name in ("recheck", "check_disk"):
            check_kind(name, getattr(self, name), bool)
        for name, least in (("margin_bytes", 0), ("parallel", 1), ("segment_bytes", 1)):
            check_whole(name, getattr(self, name), least)
        check_kind("rate_cap", self.rate_cap, RateCap, type(None))


def download(
    client: HubClient,
    repo: str,
    commit: str,
    file: RepoFile,
    *,
    cache: str | os.PathLike[str] | None = None,
    options: DownloadOptions | None = None,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Path:
    """Makes sure that one file is in the cache, and is what the repository has.

    A transfer that ends early, in whatever way, is continued by the next call, of any process. While another process fetches the
    same content, this one waits for it.

    Args:
        client: HubClient.
        repo: str, "owner/name".
        commit: str, 40 hexadecimal digits.
        file: RepoFile, from the listing of that commit.
        cache: folder; by default what the environment says (HF_HUB_CACHE, HF_HOME, ...).
        options: DownloadOptions.
        progress: called with a Progress now and then, in this thread. What it raises ends the download.
        cancel: CancelToken.

    Returns:
        Path, the file in the snapshot of that commit.

    Raises:
        CorruptFileError: Twice in a row something else arrived; what did is kept beside the blobs, with the ending ".corrupt".
        DiskSpaceError: No room; what has arrived is kept.
        NetworkError, OfflineError, GatedRepoError and other kinds of HubError: It cannot be had, or not be written.
        ReferenceFormatError: The file's name could lead out of the cache.
        DownloadCancelledError: By `cancel`.
    """
    place = RepoCache.of(repo, cache)
    return _Download(client, place, commit, file, options or DownloadOptions(), progress, cancel or CancelToken()).run()


def download_all(
    client: HubClient,
    listing: Listing,
    files: Sequence[RepoFile],
    *,
    cache: str | os.PathLike[str] | None = None,
    options: DownloadOptions | None = None,
    progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> list[Path]:
    """Makes sure that several files of one commit are in the cache, a few at a time.

    The first failure stops the others; what they have received is kept. Once all are there, the cache's reference for
    `listing.revision` is set to the commit, so that other programs find the files by the branch, too.

    Args:
        client, cache, options, cancel: see `download`.
        listing: Listing that the files are from.
        files: RepoFile, several.
        progress: see `download`; called by one thread at a time, but not by the caller's.

    Returns:
        list of Path, in the order of `files`.

    Raises:
        What `download` raises. ReferenceFormatError: Two names differ in upper and lower case only.
    """
    options, cancel = options or DownloadOptions(), cancel or CancelToken()
    place = RepoCache.of(listing.repo, cache)
    _refuse_collisions(files)
    if options.check_disk:
        _check_room(place, listing.repo, _missing_bytes(place, listing.commit, files), options)
    told = _one_at_a_time(progress)
    stop = CancelToken()
    with cancel.calling(stop.cancel), ThreadPoolExecutor(options.parallel, "localllm-download") as pool:
        tasks = [_Download(client, place, listing.commit, file, options, told, stop) for file in files]
        running = [pool.submit(task.run) for task in tasks]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() and future.exception() is None for future in running):
                stop.cancel()
    paths = _results(running)
    with contextlib.suppress(OSError):  # a cache that cannot be written, with all files in it
        place.write_ref(listing.revision, listing.commit)
    return paths


class _Download:
    """One file on its way into the cache."""

    def __init__(
        self,
        client: HubClient,
        place: RepoCache,
        commit: str,
        file: RepoFile,
        options: DownloadOptions,
        progress: ProgressCallback | None,
        cancel: CancelToken,
    ) -> None:
        self.client = client
        self.place = place
        self.commit = commit
        self.file = file
        self.options = options
        self.cancel = cancel
        self.checksum = checksum(file)
        self.name = f"{place.repo}/{file.path}"
        self.meter = Meter(file.path, file.n_bytes, progress)
        self._checked: dict[tuple[int, int, int], bool] = {}

    def run(self) -> Path:
        self.cancel.check()
        try:
            path = self._in_snapshot() or self._make()
        except OSError as error:
            if isinstance(error, HubError):
                raise
            raise unusable(self.place.root, error) from error
        self.meter.tell("finished", self.file.n_bytes)
        return path

    def _make(self) -> Path:
        if self.client.offline and self._in_blobs() is None:
            raise self._missing_offline()
        self.place.prepare(self.commit, self.file.path, self.checksum)
        with locked(self.place.lock(self.checksum), self.cancel, self._tell_waiting):
            found = self._in_snapshot()
            if found is not None:
                return found
            # While this one waited, the folders may have been removed with the last model in them.
            self.place.prepare(self.commit, self.file.path, self.checksum)
            if self._in_blobs() is None:
                self._fetch()
            else:
                remove_partial(self.place.partial(self.checksum))
            return self.place.publish(self.checksum, self.commit, self.file.path)

    # ---- what is there already

    def _in_snapshot(self) -> Path | None:
        found = self.place.find(self.commit, self.file)
        return found if found is not None and self._sound(found) else None

    def _in_blobs(self) -> Path | None:
        found = self.place.find_blob(self.file)
        return found if found is not None and self._sound(found) else None

    def _sound(self, path: Path) -> bool:
        """Whether a file of the cache may be taken. It is hashed once, by whatever name it is met again."""
        if not self.options.recheck:
            return True
        status = path.stat()
        key = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if key not in self._checked:
            self._checked[key] = hash_file(path, self.file, self.cancel, self._tell_checking) == self.checksum
        return self._checked[key]

    def _missing_offline(self) -> HubError:
        if self.place.find(self.commit, self.file) is not None:
            return CorruptFileError(
                f"{self.name}: the copy in the cache {self.place.root} is damaged; go online to fetch it again"
            )
        return OfflineError(
            f"{self.name} is not in the cache {self.place.root}, and offline mode is on; switch it off to fetch it"
        )

    def _tell_waiting(self) -> None:
        self.meter.tell("waiting", self.place.partial_bytes(self.file))

    def _tell_checking(self, done_bytes: int) -> None:
        self.meter.tell("checking", done_bytes)

    # ---- what has to come

    def _fetch(self) -> None:
        """Brings the blob into its place; a damaged copy gets a second chance, from the beginning."""
        kept, found = self.place.aside(self.checksum), ""
        for last in (False, True):
            path = self.place.partial(self.checksum)
            with contextlib.closing(
                Partial(path, self.file, self.checksum, self.commit, self.cancel, self._tell_checking)
            ) as partial:
                if self.options.check_disk:
                    _check_room(self.place, self.name, self.file.n_bytes - partial.n_bytes, self.options)
                self._fill(partial)
                found = partial.finish(self.cancel, self._tell_checking)
                if found == self.checksum:
                    partial.move(self.place.blob(self.checksum))
                    if last:
                        kept.unlink(missing_ok=True)
                    return
                partial.move(kept)
            self.meter.tell("retrying", 0)
        raise CorruptFileError(
            f"{self.name}: what arrives has the checksum {found}, not {self.checksum}, twice in a row; it is kept as {kept}. "
            "A proxy or mirror may be changing it: try another network or HF_ENDPOINT"
        )

    def _fill(self, partial: Partial) -> None:
        """Receives until the file is whole, over as many connections as it takes while each brings something new."""
        patience, failures, received = self.client.patience, 0, False
        furthest = partial.n_bytes
        while partial.n_bytes < self.file.n_bytes:
            problem: NetworkError | None
            try:
                body = self._open(partial)
            except NetworkError as error:
                if not received:
                    raise
                problem = error
            else:
                problem = self._receive(body, partial)
            gained = partial.n_bytes - furthest
            if partial.n_bytes >= self.file.n_bytes:
                return
            if gained > 0:
                furthest, received, failures = partial.n_bytes, True, 0
                if problem is None:
                    continue
            else:
                failures += 1
                problem = problem or NetworkError(f"{self.name}: the server ends too early; try again later")
                if failures >= patience.tries:
                    raise problem
            self.meter.tell("retrying", partial.n_bytes)
            if gained < _WORTH_NO_WAIT_BYTES:
                self.cancel.sleep(patience.wait_seconds(max(failures, 1)))

    def _open(self, partial: Partial) -> Body:
        stop = partial.n_bytes + self.options.segment_bytes
        return self.client.open(
            self.place.repo,
            self.commit,
            self.file.path,
            partial.n_bytes,
            stop if stop < self.file.n_bytes else None,
            partial.validator,
            self.cancel,
        )

    def _receive(self, body: Body, partial: Partial) -> NetworkError | None:
        """Takes what one answer brings; why it ended early, if it did."""
        with body:
            if body.start < partial.n_bytes:
                partial.rewind()
            elif body.start and body.total_bytes not in (None, self.file.n_bytes):
                raise CorruptFileError(
                    f"{self.name}: the server's copy has {body.total_bytes:,} bytes, not {self.file.n_bytes:,}; list them again"
                )
            partial.comes_from(body.validator)
            self.meter.tell("downloading", partial.n_bytes)
            try:
                for chunk in body:
                    self._take(chunk, partial)
                    # Only a body that is read to its end leaves its connection to the next request.
                    if partial.n_bytes >= self.file.n_bytes and body.stop != self.file.n_bytes:
                        break
            except NetworkError as error:
                return error
        return None

    def _take(self, chunk: bytes, partial: Partial) -> None:
        self.cancel.check()
        room = self.file.n_bytes - partial.n_bytes
        partial.write(chunk if len(chunk) <= room else chunk[:room])
        self.meter.tell("downloading", partial.n_bytes)
        if self.options.rate_cap is not None:
            seconds = self.options.rate_cap.delay_seconds(len(chunk), time.monotonic())
            if seconds > 0:
                self.cancel.sleep(seconds)


def _check_room(place: RepoCache, name: str, needed_bytes: int, options: DownloadOptions) -> None:
    free = free_bytes(place.blobs)
    if needed_bytes and needed_bytes + options.margin_bytes > free:
        raise no_room(name, place.root, needed_bytes, free, f"of which {options.margin_bytes:,} have to stay free")


def _missing_bytes(place: RepoCache, commit: str, files: Sequence[RepoFile]) -> int:
    """What is still to be written for these files; contents that several of them share count once."""
    missing = {}
    for file in files:
        if place.find(commit, file) is None and place.find_blob(file) is None:
            missing[checksum(file)] = max(0, file.n_bytes - place.partial_bytes(file))
    return sum(missing.values())


def _refuse_collisions(files: Sequence[RepoFile]) -> None:
    names: dict[str, str] = {}
    for file in files:
        other = names.setdefault(file.path.casefold(), file.path)
        if other != file.path:
            raise ReferenceFormatError(f"{other!r} and {file.path!r} are one file on some systems; fetch one of them")


def _one_at_a_time(progress: ProgressCallback | None) -> ProgressCallback | None:
    if progress is None:
        return None
    lock = threading.Lock()

    def told(event: Progress) -> None:
        with lock:
            progress(event)

    return told


def _results(running: Sequence[Future[Path]]) -> list[Path]:
    """The paths; or the failure that stopped the others, not what it did to them."""
    failures = [error for error in (future.exception() for future in running) if error is not None]
    for error in failures:
        if not isinstance(error, DownloadCancelledError):
            raise error
    if failures:
        raise failures[0]
    return [future.result() for future in running]
