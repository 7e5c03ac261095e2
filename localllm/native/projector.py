"""A projector: what a model with eyes or ears needs besides its own file (llama.cpp's mtmd)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Model, Owned, to_json

#: Floats in a row, as a ctypes array.
Floats = Any


@dataclass(frozen=True)
class TextPart:
    """Text of a prompt; `special`: control tokens written out in it are such."""

    text: str
    special: bool = False


@dataclass(frozen=True)
class ImagePart:
    """A picture: width * height * 3 bytes, red, green, blue; None where only its size matters.

    `frame`: it is one of a video, of which some models take two at a time.
    """

    width: int
    height: int
    pixels: Any = None
    frame: bool = False


@dataclass(frozen=True)
class AudioPart:
    """Sound: float32 samples of one channel, as anything with a buffer; None where only their number matters."""

    n_samples: int
    samples: Any = None


Part = TextPart | ImagePart | AudioPart


@dataclass(frozen=True)
class Piece:
    """A piece of a prompt: text tokens, or rows that the encoder has yet to make.

    Attributes:
        index: int, its place among the pieces.
        part: int, the part that it came from; -1 for text.
        tokens: of text; () for rows.
        n_tokens: int, cells that it takes.
        n_positions: int, by how much the position of what follows moves on; fewer than cells with M-RoPE.
        causal: bool, false: its rows see one another, and have to be computed in one micro-batch.
        positions: the rows' positions if the first one's is 0, all of the first section, then of the next.
        moves: as many, 1 for those that count from the first one's, 0 for those that do not.
        description: bytes, how the encoder sees it: everything but its content.
    """

    index: int
    part: int
    tokens: tuple[int, ...]
    n_tokens: int
    n_positions: int
    causal: bool = True
    positions: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()
    description: bytes = b""


class Projector:
    """An lm_projector.

    Args:
        model: Model, the one that is to see or hear.
        path: str, its mmproj file.
        options: dict, the fields that lm_projector_open documents.

    Attributes:
        has_images, has_audio: bool, what it takes.
        samples_per_second: int, of the sound that it takes; -1 without.
        n_sections: int, positions of a row: 4 with M-RoPE, else 1.
        n_embd: int, floats of a row.

    Raises:
        UnsupportedModelError: The file is no projector.
        ModelLoadError: It is damaged, or made for another model.
    """

    def __init__(self, model: Model, path: str, options: dict[str, Any]) -> None:
        self.native = model.native
        self.model = model  # it must not outlive the weights
        self.path = path
        out = localllm_h.lm_projector_p()
        status = self.native.lm_projector_open(model.pointer, os.fsencode(path), to_json(options), ctypes.byref(out))
        self.native.check(status, path)
        assert out.value is not None
        self._owned = Owned(self, out.value, self.native.lm_projector_free, "projector")
        info = self.native.json_call("lm_projector_info", self.pointer)
        self.has_images: bool = info["image"]
        self.has_audio: bool = info["audio"]
        self.samples_per_second: int = info["samples_per_second"]
        self.n_sections: int = info["n_sections"]
        self.n_embd: int = info["n_embd"]

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    def split(self, parts: Sequence[Part], add_special: bool) -> Split:
        """A prompt in pieces. From any thread.

        Args:
            parts: in their order; at least one.
            add_special: bool, with the tokens that the vocabulary puts at the ends of a text.
        """
        return Split(self, parts, add_special)

    def encode(self, wanted: Sequence[tuple[Split, int]]) -> tuple[list[Floats], int]:
        """The rows of pieces, and the number of passes of the encoder.

        Args:
            wanted: pieces, by what they are of and their index. Pictures of one size that follow one another share a pass.

        Raises:
            NativeError: llama.cpp could not compute them.
        """
        refs = (localllm_h.lm_media_ref * len(wanted))()
        for ref, (split, index) in zip(refs, wanted, strict=True):
            ref.media, ref.index = split.pointer, index
        sizes = [split.pieces[index].n_tokens * self.n_embd for split, index in wanted]
        rows = (ctypes.c_float * sum(sizes))()
        n_passes = ctypes.c_int32()
        self.native.check(self.native.lm_media_encode(self.pointer, refs, len(wanted), rows, len(rows), ctypes.byref(n_passes)))
        parts, at = [], 0
        for size in sizes:
            # Copied: a view would keep the rows of all others alive.
            part = (ctypes.c_float * size)()
            ctypes.memmove(part, ctypes.byref(rows, at * ctypes.sizeof(ctypes.c_float)), ctypes.sizeof(part))
            parts.append(part)
            at += size
        return parts, n_passes.value

    def close(self) -> None:
        self._owned.close()


class Split:
    """An lm_media: the pieces of one prompt, with what the encoder needs of its pictures.

    Attributes:
        pieces: Pieces, in order.
    """

    def __init__(self, projector: Projector, parts: Sequence[Part], add_special: bool) -> None:
        self.native = projector.native
        self.projector = projector
        rows = (localllm_h.lm_part * len(parts))()
        kept = [_fill(row, part) for row, part in zip(rows, parts, strict=True)]
        out = localllm_h.lm_media_p()
        self.native.check(self.native.lm_media_split(projector.pointer, rows, len(parts), add_special, ctypes.byref(out)))
        del kept  # had to live until here
        assert out.value is not None
        self._owned = Owned(self, out.value, self.native.lm_media_free, "split prompt", at_exit=False)
        self.pieces = self._read(projector.n_sections)

    @property
    def pointer(self) -> int:
        return self._owned.pointer

    def close(self) -> None:
        self._owned.close()

    def _read(self, n_sections: int) -> tuple[Piece, ...]:
        n = ctypes.c_int32()
        self.native.check(self.native.lm_media_size(self.pointer, ctypes.byref(n)))
        pieces = []
        for index in range(n.value):
            raw = localllm_h.lm_media_piece()
            self.native.check(self.native.lm_media_get(self.pointer, index, ctypes.byref(raw)))
            if raw.part < 0:
                pieces.append(Piece(index, -1, tuple(raw.tokens[: raw.n_tokens]), raw.n_tokens, raw.n_positions))
                continue
            count = raw.n_tokens * n_sections
            at_zero, at_one = raw.positions[:count], raw.positions[count : 2 * count]
            moves = tuple(later - earlier for earlier, later in zip(at_zero, at_one, strict=True))
            pieces.append(
                Piece(
                    index,
                    raw.part,
                    (),
                    raw.n_tokens,
                    raw.n_positions,
                    raw.causal,
                    tuple(at_zero),
                    moves,
                    ctypes.string_at(raw.description, raw.size),
                )
            )
        return tuple(pieces)


def _fill(row: Any, part: Part) -> Any:
    """Writes a part into its native form; returns what that points to."""
    if isinstance(part, TextPart):
        data = part.text.encode("utf-8", errors="replace")
        row.kind, row.text, row.size, row.parse_special = localllm_h.LM_PART_TEXT, data, len(data), part.special
        return data
    if isinstance(part, ImagePart):
        row.kind, row.width, row.height, row.frame = localllm_h.LM_PART_IMAGE, part.width, part.height, part.frame
        pixels = _buffer(part.pixels, ctypes.c_uint8, part.width * part.height * 3)
        row.pixels = pixels
        return pixels
    row.kind, row.n_samples = localllm_h.LM_PART_AUDIO, part.n_samples
    samples = _buffer(part.samples, ctypes.c_float, part.n_samples)
    row.samples = samples
    return samples


def _buffer(data: Any, item: Any, count: int) -> Any:
    if data is None:
        return None
    view = memoryview(data).cast("B")
    if len(view) != count * ctypes.sizeof(item):
        raise ValueError(f"{len(view)} bytes where {count * ctypes.sizeof(item)} were announced")
    array = item * count
    return array.from_buffer(view) if not view.readonly else array.from_buffer_copy(view)
