"""A projector with the memory of what it has made: a picture seen once is not encoded again."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.engine import checks
from localllm.engine.cache.disk import state_key
from localllm.engine.media import KEY_BYTES, MediaNames, MediaRun, Rows
from localllm.errors import InvalidRequestError, NativeError
from localllm.media.cache import RowCache, RowFiles
from localllm.media.content import Audio, Image
from localllm.native.handles import Model
from localllm.native.projector import AudioPart, ImagePart, Part, Piece, Projector, Split, TextPart

_MOST_TOKENS = 1 << 20

# Shared by all models of the process, so that no id means two things in it.
_names, _names_lock = MediaNames(), threading.Lock()


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """How pictures and sound are encoded, and what is kept of it. What was encoded is also kept in files if the context's
    `cache_dir` names a folder.

    Attributes:
        mmproj: the projector's file, or a name of one on the Hub; "auto": the one that was fetched with the model, or lies beside
            it; None: the model takes only text.
        mmproj_gpu: bool, encode on the GPU, if there is one.
        image_min_tokens, image_max_tokens: int, for models that take pictures of any size; None: what the file says. More tokens
            show more detail and take more time.
        media_batch_tokens: int, most tokens of pictures of one size that are encoded in one pass.
        media_ram_bytes: int, for what was encoded; 0: nothing is kept in RAM.
        media_disk_bytes: int, for all files of what was encoded.
    """

    mmproj: str | None = "auto"
    mmproj_gpu: bool = True
    image_min_tokens: int | None = None
    image_max_tokens: int | None = None
    media_batch_tokens: int = 1024
    media_ram_bytes: int = 256 * 2**20
    media_disk_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        if self.mmproj is not None:
            object.__setattr__(self, "mmproj", checks.path("mmproj", self.mmproj))
        if not isinstance(self.mmproj_gpu, bool):
            raise InvalidRequestError(f"mmproj_gpu: must be True or False, not {self.mmproj_gpu!r}")
        for name in ("image_min_tokens", "image_max_tokens", "media_batch_tokens"):
            value = getattr(self, name)
            if value is not None and not 1 <= checks.whole(name, value) <= _MOST_TOKENS:
                raise InvalidRequestError(f"{name}: must be from 1 to {_MOST_TOKENS}, not {checks.shown(value)}")
        for name in ("media_ram_bytes", "media_disk_bytes"):
            if not 0 <= checks.whole(name, getattr(self, name)) < 2**63:
                raise InvalidRequestError(f"{name}: must be a number of bytes, not {checks.shown(getattr(self, name))}")
        low, high = self.image_min_tokens, self.image_max_tokens
        if low is not None and high is not None and low > high:
            raise InvalidRequestError(f"image_min_tokens: {low} is more than image_max_tokens, {high}")

    def options(self, n_threads: int) -> dict[str, Any]:
        """Fields of lm_projector_open."""
        told = {"image_min_tokens": self.image_min_tokens, "image_max_tokens": self.image_max_tokens}
        return {
            "use_gpu": self.mmproj_gpu,
            "n_threads": n_threads,
            "batch_max_tokens": self.media_batch_tokens,
            **{name: value for name, value in told.items() if value is not None},
        }


@dataclass(frozen=True)
class SplitPrompt:
    """A prompt with pictures and sound, as the engine takes it."""

    ids: tuple[int, ...] = field(repr=False)
    runs: tuple[MediaRun, ...]


@dataclass(frozen=True)
class _Content:
    """What the rows of a run are made of: the prompt's parts without content, its own ones with theirs, by their places, which of
    the pieces of these it is, and how the encoder sees it.
    """

    outline: tuple[Part, ...]
    media: dict[int, Image | Audio]
    ordinal: int
    description: bytes


class Encoder:
    """A projector, and the rows that it made lately.

    Args:
        model: Model, the one that is to see or hear.
        path: str, its mmproj file.
        config: ProjectorConfig, whose `mmproj` does not matter.
        n_threads: int, for the encoder.
        folder: path, where what was encoded is kept in files; None: nowhere.
        read_only: bool, never write into the folder.

    Attributes:
        projector: Projector.
        n_passes: int, how often the encoder has run.

    Raises:
        UnsupportedModelError, ModelLoadError: As Projector.
    """

    def __init__(
        self,
        model: Model,
        path: str,
        config: ProjectorConfig,
        n_threads: int,
        folder: str | os.PathLike[str] | None = None,
        read_only: bool = False,
    ) -> None:
        self.config = config
        self.projector = Projector(model, path, config.options(n_threads))
        seen = (config.image_min_tokens, config.image_max_tokens)
        self._key = state_key(path, seen)
        files = RowFiles(Path(folder).expanduser(), config.media_disk_bytes, read_only) if folder else None
        self._cache = RowCache(config.media_ram_bytes, files)
        self._fresh: dict[bytes, Any] = {}
        self._lock = threading.Lock()
        self.n_passes = 0

    @property
    def cached_bytes(self) -> int:
        """Of the rows in RAM."""
        return self._cache.n_bytes

    def split(self, parts: Sequence[TextPart | Image | Audio], add_special: bool) -> SplitPrompt:
        """A prompt as ids and runs. Nothing is encoded, and no pixel is looked at. From any thread.

        Args:
            parts: text, pictures and sound in their order.
            add_special: bool, with the tokens that the vocabulary puts at the ends of a text.

        Raises:
            InvalidRequestError: The model takes no pictures, or no sound, or not such.
        """
        outline = tuple(part if isinstance(part, TextPart) else _outline(part) for part in parts)
        split = self.projector.split(outline, add_special)
        owners = _owners(split.pieces, len(parts))
        ids: list[int] = []
        runs: list[MediaRun] = []
        ordinals: dict[int, int] = {}
        media = [at for at, part in enumerate(parts) if not isinstance(part, TextPart)]
        for piece in split.pieces:
            if piece.part < 0:
                ids.extend(piece.tokens)
                continue
            ordinal = ordinals[piece.part] = ordinals.get(piece.part, -1) + 1
            own = {at: part for at in owners[piece.part] if not isinstance(part := parts[at], TextPart)}
            content = _Content(outline, own, ordinal, piece.description)
            runs.append(self._run(len(ids), piece, content, media.index(piece.part)))
            ids.extend(runs[-1].ids)
        return SplitPrompt(tuple(ids), tuple(runs))

    def rows(self, run: MediaRun, soon: Sequence[MediaRun] = ()) -> Rows:
        """The rows of a run; see RowSource."""
        with self._lock:
            if (fresh := self._fresh.pop(run.key, None)) is not None:
                return Rows(fresh, encoded=True)
            if (kept := self._kept(run)) is not None:
                return Rows(kept, encoded=False)
            together = [run, *self._alike(run, soon)]
            made = self._encode(together)
            for other, rows in zip(together, made, strict=True):
                self._cache.put(other.key, rows)
            # What was made in advance is told of as made when it is asked for.
            self._fresh = {other.key: rows for other, rows in zip(together[1:], made[1:], strict=True)}
            return Rows(made[0], encoded=True)

    def close(self) -> None:
        """Releases the projector; later calls do nothing."""
        self.projector.close()

    # ---- inside

    def _run(self, start: int, piece: Piece, content: _Content, medium: int) -> MediaRun:
        digest = hashlib.blake2b(self._key, digest_size=KEY_BYTES)
        for one in content.media.values():
            digest.update(one.digest)
        digest.update(content.ordinal.to_bytes(4, "little") + piece.description)
        key = digest.digest()
        with _names_lock:
            ids = _names.ids(key, piece.n_tokens)
        shape = (piece.n_positions, piece.causal, piece.positions, piece.moves)
        return MediaRun(start, key, ids, *shape, medium, self, content)

    def _kept(self, run: MediaRun) -> Any | None:
        return self._cache.get(run.key, run.n_tokens * self.projector.n_embd)

    def _alike(self, run: MediaRun, soon: Sequence[MediaRun]) -> list[MediaRun]:
        """What else can go through the encoder in the same pass."""
        found: dict[bytes, MediaRun] = {}
        room = self.config.media_batch_tokens - run.n_tokens
        for other in soon:
            alike = other.content.description == run.content.description and other.key != run.key
            if alike and other.key not in found and other.n_tokens <= room and self._kept(other) is None:
                found[other.key] = other
                room -= other.n_tokens
        return list(found.values())

    def _encode(self, runs: Sequence[MediaRun]) -> list[Any]:
        splits: list[tuple[Split, int]] = []
        try:
            for run in runs:
                splits.append(self._prepared(run.content))
            made, n_passes = self.projector.encode(splits)
        finally:
            for split, _ in splits:
                split.close()
        self.n_passes += n_passes
        return made

    def _prepared(self, content: _Content) -> tuple[Split, int]:
        """A run's picture alone, ready to be encoded; with its prompt, where that makes a difference to the encoder."""
        filled = {at: _filled(one) for at, one in content.media.items()}
        whole = [filled.get(at, part) for at, part in enumerate(content.outline)]
        for parts, first in (([*filled.values()], 0), (whole, min(filled))):
            split = self.projector.split(parts, add_special=False)
            pieces = [piece for piece in split.pieces if piece.part == first]
            if len(pieces) > content.ordinal and pieces[content.ordinal].description == content.description:
                return split, pieces[content.ordinal].index
            split.close()
        raise NativeError("llama.cpp prepares this picture or sound in another way than it has announced")


def _outline(part: Image | Audio) -> Part:
    if isinstance(part, Image):
        return ImagePart(part.width, part.height, frame=part.frame)
    return AudioPart(len(part.samples))


def _filled(part: Image | Audio) -> Part:
    if isinstance(part, Image):
        return ImagePart(part.width, part.height, part.pixels, part.frame)
    return AudioPart(len(part.samples), part.samples)


def _owners(pieces: Sequence[Piece], n_parts: int) -> dict[int, tuple[int, ...]]:
    """The parts that each piece's part stands for: of two frames that are taken as one, only the first is named."""
    named = sorted({piece.part for piece in pieces if piece.part >= 0})
    ends = [*named[1:], n_parts][: len(named)]
    return {part: tuple(range(part, end)) for part, end in zip(named, ends, strict=True)}
