"""Headers of a repository's files, from the cache where they are there, else in ranges from the server; never weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localllm.errors import IncompleteSetError
from localllm.hub.client import HubClient
from localllm.hub.gguf import Header, merge_shards, parse_header, read_header
from localllm.hub.layout import RepoCache
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.progress import CancelToken
from localllm.hub.sets import FileSet


@dataclass
class Headers:
    """The headers of one repository at one commit; each is read once.

    Attributes:
        client: HubClient.
        listing: Listing.
        place: RepoCache, where files may be that came before.
        cancel: CancelToken or None.
    """

    client: HubClient
    listing: Listing
    place: RepoCache
    cancel: CancelToken | None = None
    _read: dict[str, Header] = field(default_factory=dict)

    def of(self, files: FileSet) -> Header:
        """The header of a set: metadata of its first file, tensors of all.

        Raises:
            IncompleteSetError: The set lacks files, or they do not belong together.
            ModelFileError: A file is damaged, or no GGUF.
            HubError: The server does not give it.
        """
        if not files.is_complete:
            raise IncompleteSetError(
                f"{self.listing.repo}/{files.path}: the repository lacks {len(files.missing)} files of this set"
            )
        headers = [self._file(file) for file in files.files]
        return merge_shards(headers) if len(headers) > 1 else headers[0]

    def _file(self, file: RepoFile) -> Header:
        if file.path not in self._read:
            local = self.place.find(self.listing.commit, file) or self.place.find_blob(file)
            if local is not None:
                self._read[file.path] = read_header(local)
            else:
                name = f"{self.listing.repo}/{file.path}"
                self._read[file.path] = parse_header(self._ranges(file), file.n_bytes, name)
        return self._read[file.path]

    def _ranges(self, file: RepoFile) -> Callable[[int, int], bytes]:
        remote = self.client.file(self.listing.repo, self.listing.commit, file.path, self.cancel)
        return lambda start, length: self.client.read_range(remote, start, length, self.cancel)
