"""What every family of speech models does in its own way: a piece of text to chunks of sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

#: float32 [n_samples], or rows [n, width].
Array = np.ndarray[Any, Any]

FinishReason = Literal["stop", "length", "cancelled", "hallucination"]


@dataclass(frozen=True)
class SayOptions:
    """How one piece is said. None: what the family's makers use.

    Attributes:
        language: str, one of the pipeline's languages; "": its usual one.
        seed: int, 0 to 2**32 - 2. The same one gives the same samples.
        temperature: float; 0: the most probable, always.
        top_k: int, top_p: float, repetition_penalty: float.
        max_frames: int, most frames of the piece; beyond it ends with "length".
        chunk_frames: int, frames of a chunk, at most; the first ones may be shorter.
        retries: int, how often a piece that went wrong (see the families) is said anew.
    """

    language: str = ""
    seed: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_frames: int = 2048
    chunk_frames: int = 72
    retries: int = 0


@dataclass
class Figures:
    """What a stream of sound has done so far.

    Attributes:
        n_prompt: int, tokens or rows that the talker was fed before the first frame, voices included.
        rows_in: int, rows (frames) that the talker has made for the decoder.
        rows_encoded: int, rows that the decoder has computed, those that it computes again for an exact stream included.
        samples_flushed: int, samples that were handed out.
        retries: int, pieces that were said anew.
        finish_reason: FinishReason of the last piece, None while it goes on.
    """

    n_prompt: int = 0
    rows_in: int = 0
    rows_encoded: int = 0
    samples_flushed: int = 0
    retries: int = 0
    finish_reason: FinishReason | None = None
    finished: list[FinishReason] = field(default_factory=list)

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.finished.append(reason)


class Pipeline(Protocol):
    """A loaded speech model. One piece at a time: whoever owns it holds a lock.

    Attributes:
        family: str, "qwen3tts", "pockettts" or "soprano".
        sample_rate: int, samples per second.
        frame_samples: int, samples that a frame makes.
        languages: names of languages, the usual one first.
        supports_cloning: bool, whether `embed_voice` works.
        needs_voice: bool, whether nothing sensible comes without a voice.
        pause_seconds: float, of silence between pieces, by default.
        max_frames: int, most frames of a piece.
    """

    family: str
    sample_rate: int
    frame_samples: int
    languages: tuple[str, ...]
    supports_cloning: bool
    needs_voice: bool
    pause_seconds: float
    max_frames: int

    def pieces(self, text: str, language: str) -> list[str]:
        """Text in pieces that are said one by one, prepared as the model wants it.

        Raises:
            InvalidRequestError: There is nothing to say in it, the language is not known, or the model does not
                read its script.
        """
        ...

    def embed_voice(self, samples: Array) -> Array:
        """Rows [n, n_embd] of a reference: mono, of `sample_rate`, float32.

        Raises:
            UnsupportedModelError: The model clones no voices.
        """
        ...

    def say(
        self, piece: str, voice: Array | None, options: SayOptions, figures: Figures, stopped: Callable[[], bool]
    ) -> Iterator[Array]:
        """Chunks of sound of one piece, each a new float32 array; together always the same, however long the chunks are.

        `stopped` is asked before each frame; once it is true, nothing more comes. `figures.finish` is called at the end.

        Raises:
            ContextOverflowError: The piece and its frames do not fit the context.
            NativeError: llama.cpp could not.
        """
        ...

    def close(self) -> None: ...
