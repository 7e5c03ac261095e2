"""What embedding and reranking give, and the arithmetic behind it."""

from __future__ import annotations

import math
import numbers
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localllm.engine.embedder import Pooling, Row
from localllm.errors import ContextOverflowError, InvalidRequestError
from localllm.native.handles import Model


@dataclass(frozen=True)
class Embeddings:
    """The vectors of several texts, in their order. A sequence: `len()`, indexing and iteration give single vectors.

    Attributes:
        vectors: arrays of floats (`array.array("f")`: `list(v)` and `numpy.asarray(v)` take them), one for each text; with
            pooling "none" a tuple of them for each text, one for each of its tokens.
        n_tokens: tokens of each text, special ones and the instruction included.
        pooling: how a text's tokens became one vector.
    """

    vectors: tuple[Row | tuple[Row, ...], ...]
    n_tokens: tuple[int, ...]
    pooling: Pooling

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, at: int) -> Row | tuple[Row, ...]:
        return self.vectors[at]

    def __iter__(self) -> Iterator[Row | tuple[Row, ...]]:
        return iter(self.vectors)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(self.n_tokens)

    def tolist(self) -> list[list[float]]:
        """The vectors as lists of floats; with pooling "none" those of all tokens, one after the other."""
        rows = (row for entry in self.vectors for row in (entry if isinstance(entry, tuple) else (entry,)))
        return [list(row) for row in rows]


@dataclass(frozen=True)
class Ranked:
    """A document's place in a ranking.

    Attributes:
        index: int, its place in the list that was given.
        document: str.
        logit: float, the model's score without bounds; the natural logarithm of the odds that the document is relevant.
        probability: float in [0, 1], the same as a probability.
    """

    index: int
    document: str
    logit: float
    probability: float


@dataclass(frozen=True)
class EmbedOptions:
    """How texts become vectors.

    Attributes:
        pooling: "mean", "cls", "last", or "none" for a vector of each token; None: what the file asks for, else "mean".
        normalize: bool, scale vectors to length 1; one of zeros stays as it is.
        instruction: str, put before each text, e.g. "query: ".
        dimensions: int, keep so many numbers of each vector (Matryoshka models, arXiv:2205.13147), before the scaling.
        truncate: bool, cut texts that are too long; false: they are an error.
    """

    pooling: Pooling | None = None
    normalize: bool = True
    instruction: str = ""
    dimensions: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in (None, "none", "mean", "cls", "last"):
            raise InvalidRequestError(f"pooling: {self.pooling!r} is not one of 'mean', 'cls', 'last', 'none', or None")
        for name in ("normalize", "truncate"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}: must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.instruction, str):
            raise InvalidRequestError(f"instruction: must be text, not {type(self.instruction).__name__}")
        if self.dimensions is not None:
            whole = isinstance(self.dimensions, numbers.Integral) and not isinstance(self.dimensions, bool)
            if not whole or self.dimensions < 1:
                raise InvalidRequestError(f"dimensions: must be an integer of at least 1, or None, not {self.dimensions!r}")


def texts_of(name: str, value: object) -> list[str]:
    """One text or several as a list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise InvalidRequestError(f"{name}: must be a text or a list of texts, not {type(value).__name__}")
    for at, text in enumerate(value):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name}[{at}]: must be text, not {type(text).__name__}")
    return list(value)


def fit(name: str, tokens: list[int], n_ctx: int, closing: set[int], truncate: bool) -> list[int]:
    """The tokens of one text as the model can take them.

    Args:
        name: str, of the text, for messages.
        tokens: list of int.
        n_ctx: int, most tokens.
        closing: tokens that end every text; one at the end stays there when the text is cut.
        truncate: bool, cut what is too long.

    Raises:
        InvalidRequestError: There is nothing: an empty text, and a vocabulary without special tokens to stand for it.
        ContextOverflowError: It is too long.
    """
    if not tokens:
        raise InvalidRequestError(f"{name}: empty, and this model has no special tokens that would stand for an empty text")
    if len(tokens) <= n_ctx:
        return tokens
    if not truncate:
        message = f"{name}: {len(tokens)} tokens, the model takes {n_ctx}; split it, or pass truncate=True"
        raise ContextOverflowError(message, len(tokens), n_ctx)
    return [*tokens[: n_ctx - 1], tokens[-1]] if tokens[-1] in closing else tokens[:n_ctx]


def closing_tokens(model: Model) -> set[int]:
    """The tokens that a vocabulary may put at the end of every text."""
    native, vocab = model.native, model.vocab
    return {native.llama_vocab_eos(vocab), native.llama_vocab_sep(vocab)}


def finished(rows: Sequence[Row], options: EmbedOptions) -> list[Row]:
    """Rows cut to their dimensions and scaled."""
    if options.dimensions is not None and rows and options.dimensions > len(rows[0]):
        raise InvalidRequestError(f"dimensions: {options.dimensions}, the model's vectors have {len(rows[0])}")
    cut = [row[: options.dimensions] for row in rows] if options.dimensions is not None else list(rows)
    return [_unit(row) for row in cut] if options.normalize else cut


def _unit(row: Row) -> Row:
    length = math.sqrt(sum(x * x for x in row))
    return array("f", (x / length for x in row)) if length > 0 else row


def pair_tokens(model: Model, query: str, document: str) -> list[int]:
    """Query and document as one text: by the file's own "rerank" template, else with the special tokens that the vocabulary puts
    between and behind texts: "[CLS] query [SEP] document [SEP]" for BERT, "<s> query </s></s> document </s>" for RoBERTa.
    """
    native, vocab = model.native, model.vocab
    template = native.llama_model_chat_template(model.pointer, b"rerank")
    if template:
        before, query_mark, rest = template.decode().partition("{query}")
        between, document_mark, after = rest.partition("{document}")
        # Text of the caller's is no place for special tokens, the template's own is.
        parts = [(before, True), (query if query_mark else "", False), (between, True)]
        parts += [(document if document_mark else "", False), (after, True)]
        return [token for text, special in parts for token in (model.tokenize(text, False, special) if text else ())]
    bos, eos, sep = native.llama_vocab_bos(vocab), native.llama_vocab_eos(vocab), native.llama_vocab_sep(vocab)
    end = [eos if eos >= 0 else sep] if native.llama_vocab_get_add_eos(vocab) else []
    between = [sep] if native.llama_vocab_get_add_sep(vocab) else []
    return [
        *([bos] if native.llama_vocab_get_add_bos(vocab) else []),
        *model.tokenize(query, False, False),
        *end,
        *between,
        *model.tokenize(document, False, False),
        *(end or between),
    ]


def relevance(model: Model, row: Row) -> tuple[float, float]:
    """(logit, probability) that a document is relevant, from the outputs of a model's head.

    One output is the logit itself. Of several, one means "yes": the class of that name, else the first; Qwen3's reranker gives
    probabilities, others logits.
    """
    if len(row) == 1:
        return row[0], _sigmoid(row[0])
    native = model.native
    labels = [(native.llama_model_cls_label(model.pointer, at) or b"").decode(errors="replace").lower() for at in range(len(row))]
    yes = next((at for at, label in enumerate(labels) if label in ("yes", "true", "relevant")), 0)
    values: Sequence[float] = row
    if model.metadata().get("general.architecture") not in ("qwen3", "qwen3vl"):
        largest = max(row)
        powers = [math.exp(x - largest) for x in row]
        values = [power / sum(powers) for power in powers]
    probability = min(1.0, max(0.0, values[yes]))
    return _logit(probability), probability


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _logit(p: float) -> float:
    if p <= 0:
        return -math.inf
    return math.inf if p >= 1 else math.log(p / (1 - p))
