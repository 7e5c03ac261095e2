"""From texts to requests for the embedder, and from its rows to vectors."""

from __future__ import annotations

import array
import ctypes
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localllm.chat.texts import require_whole_characters
from localllm.embedding.tokens import cut
from localllm.embedding.vectors import Embeddings
from localllm.engine.checks import shown
from localllm.engine.embed_core import EmbedRequest, Rows
from localllm.engine.embedder import Embedder
from localllm.errors import ContextOverflowError, InvalidRequestError, UnsupportedModelError
from localllm.native.handles import Model

VectorPooling = Literal["mean", "cls", "last", "none"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How vectors are made.

    Attributes:
        pooling: how one vector is made of a text's tokens: "mean", "cls" (the first token's), "last", or "none": one vector per
            token. None: what the file names; "mean" if it names nothing, as files of generating models do.
        normalize: bool, make every vector's length 1, so that a dot product is a cosine.
        instruction: str, put before each text as it is, e.g. "search_query: " or "query: "; what fits is on the model's card.
        dimensions: int, keep so many of the first dimensions (Matryoshka, arXiv:2205.13147; the model must have been trained for
            it), before normalising; None: all.
        truncate: bool, cut texts that are too long; their closing special token stays.
    """

    pooling: VectorPooling | None = None
    normalize: bool = True
    instruction: str = ""
    dimensions: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in (None, "mean", "cls", "last", "none"):
            raise InvalidRequestError(f"pooling: {self.pooling!r} is not one of None, 'mean', 'cls', 'last', 'none'")
        if not isinstance(self.instruction, str):
            raise InvalidRequestError(f"instruction: must be text, not {type(self.instruction).__name__}")
        require_whole_characters("instruction", self.instruction)
        whole = isinstance(self.dimensions, numbers.Integral) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and not whole:
            raise InvalidRequestError(f"dimensions: must be an integer or None, not {self.dimensions!r}")
        for name in ("normalize", "truncate"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}: must be True or False, not {getattr(self, name)!r}")


def as_texts(name: str, texts: str | Sequence[str]) -> list[str]:
    """One text or several, as a list.

    Raises:
        InvalidRequestError: They are something else, or one has half of a character.
    """
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Sequence):
        raise InvalidRequestError(f"{name}: must be a text or a list of texts, not {type(texts).__name__}")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name}[{place}]: must be text, not {type(text).__name__}")
        require_whole_characters(f"{name}[{place}]", text)
    return list(texts)


def prepare(
    embedder: Embedder, texts: str | Sequence[str], options: EmbedOptions
) -> tuple[EmbedRequest | None, Callable[[Rows | None], Embeddings]]:
    """What to ask the embedder (None: nothing), and what makes vectors of the answer.

    Raises:
        InvalidRequestError: A text is of the wrong type, has half of a character, or has no tokens; more dimensions are wanted
            than there are.
        ContextOverflowError: A text is too long, and may not be cut.
        UnsupportedModelError: The model is a reranker, and no pooling is named.
    """
    pooling = options.pooling or _own_pooling(embedder)
    width = int(options.dimensions or embedder.row)
    if options.dimensions is not None and not 1 <= options.dimensions <= embedder.row:
        raise InvalidRequestError(
            f"dimensions: {shown(options.dimensions)} is outside the range 1 to {embedder.row} of this model"
        )
    ids, truncated = [], []
    for place, text in enumerate(as_texts("texts", texts)):
        tokens, cut = _tokens(embedder, place, options.instruction + text, options.truncate)
        ids.append(tokens)
        truncated.append(cut)
    request = EmbedRequest(tuple(ids), pooling) if ids else None
    result = Embeddings(array.array("f"), width, tuple(map(len, ids)), tuple(truncated), pooling)

    def finish(rows: Rows | None) -> Embeddings:
        return replace(result, values=_finished(embedder.model, rows, width, options.normalize)) if rows else result

    return request, finish


def _own_pooling(embedder: Embedder) -> VectorPooling:
    if embedder.pooling == "rank":
        raise UnsupportedModelError(
            f"{embedder.model.path}: this model scores documents, it is not made for vectors: use rerank, or name a pooling"
        )
    return embedder.pooling


def _tokens(embedder: Embedder, place: int, text: str, truncate: bool) -> tuple[list[int], bool]:
    tokens = embedder.model.tokenize(text, add_special=True, parse_special=True)
    if not tokens:
        raise InvalidRequestError(f"texts[{place}]: empty; this model adds no special tokens, so there is nothing to compute")
    if len(tokens) <= embedder.limit:
        return tokens, False
    if not truncate:
        message = (
            f"texts[{place}]: {len(tokens)} tokens, the limit is {embedder.limit}; split it, or pass truncate=True to cut it"
        )
        raise ContextOverflowError(message, len(tokens), embedder.limit)
    return cut(embedder.model, tokens, embedder.limit), True


def _finished(model: Model, rows: Rows, width: int, normalize: bool) -> array.array[float]:
    """Rows cut to `width` and of length 1, in place."""
    values, n_rows = rows.values, sum(rows.counts)
    address, _ = values.buffer_info()
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    model.native.check(model.native.lm_rows_finish(pointer, n_rows, rows.row, width, normalize))
    del values[n_rows * width :]
    return values
