"""The file that a reference means: found, or fetched, once for all who ask, and nobody waits for it with a lock held."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from localllm.hub.gguf import Header, read_header
from localllm.hub.progress import CancelToken
from localllm.residency.flights import Flights


class Located:
    """Callable from any thread.

    Args:
        find: gives the file; may take hours, and ends with a DownloadCancelledError when its CancelToken is cancelled.
    """

    def __init__(self, find: Callable[[CancelToken], Path]) -> None:
        self._find = find
        self._path: Path | None = None
        self._header: Header | None = None
        self.forked()

    def forked(self) -> None:
        """Nobody is fetching it: this is a new one, or in a child of the process, which has none of its threads."""
        self._flights: Flights[Path] = Flights()
        self._cancel: CancelToken | None = None

    @property
    def path(self) -> Path:
        """The file; if it is being fetched already, that is waited for."""
        return self._path or self._flights.get("path", lambda: self._path, self._fetch)

    @property
    def known(self) -> Path | None:
        """The file, if it has been found already."""
        return self._path

    @property
    def header(self) -> Header:
        """What its header says."""
        if (header := self._header) is None:
            header = self._header = read_header(self.path)
        return header

    def look_again(self) -> None:
        """If the file is gone, it is searched, or fetched, at the next use."""
        if self._path is not None and not os.path.lexists(self._path):
            self._path = self._header = None

    def changed(self) -> None:
        """Another file has taken its place."""
        self._header = None

    def cancel(self) -> None:
        """Ends the fetching, if it is under way; whoever asks next goes on with it."""
        if (token := self._cancel) is not None:
            token.cancel()

    def _fetch(self) -> Path:
        self._cancel = token = CancelToken()
        try:
            self._path = found = self._find(token)
        finally:
            self._cancel = None
        return found
