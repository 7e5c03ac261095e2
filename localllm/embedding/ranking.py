"""Documents in the order of their relevance to a query."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localllm.chat.texts import require_whole_characters
from localllm.embedding.texts import as_texts
from localllm.embedding.tokens import pair
from localllm.engine.embed_core import EmbedRequest, Rows
from localllm.engine.embedder import Embedder
from localllm.engine.pooler import Head
from localllm.errors import ContextOverflowError, InvalidRequestError
from localllm.native.handles import Model

_SMALLEST = 2.0**-126  # of normal float32 numbers: a probability that vanished was below


@dataclass(frozen=True)
class Ranked:
    """A document's place in a ranking.

    Attributes:
        index: int, its place in the list that was given.
        logit: float, how relevant, without bounds: log(p / (1 - p)) of the probability.
        probability: float in [0, 1], the sigmoid of the logit.
        tokens: int, of query and document together, as they were computed.
        truncated: bool, the document was cut.
    """

    index: int
    logit: float
    probability: float
    tokens: int
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """How documents are ranked; `LocalModel.rerank` says more."""

    top_n: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        whole = isinstance(self.top_n, numbers.Integral) and not isinstance(self.top_n, bool)
        if self.top_n is not None and not (whole and self.top_n >= 1):
            raise InvalidRequestError(f"top_n: must be an integer of at least 1, or None, not {self.top_n!r}")
        if not isinstance(self.truncate, bool):
            raise InvalidRequestError(f"truncate: must be True or False, not {self.truncate!r}")


def prepare(
    embedder: Embedder, query: str, documents: Sequence[str], options: RankOptions
) -> tuple[EmbedRequest | None, Callable[[Rows | None], list[Ranked]]]:
    """What to ask the embedder (None: nothing), and what makes a ranking of the answer.

    Raises:
        InvalidRequestError: Query or documents are of the wrong type, or have half of a character.
        ContextOverflowError: A document is too long together with the query, and may not be cut.
    """
    if not isinstance(query, str):
        raise InvalidRequestError(f"query: must be text, not {type(query).__name__}")
    require_whole_characters("query", query)
    if isinstance(documents, str):
        raise InvalidRequestError("documents: must be a list of texts, not one text")
    prompts = Prompts(embedder.model, query, embedder.limit)
    pairs = [prompts.of(place, text, options.truncate) for place, text in enumerate(as_texts("documents", documents))]
    request = EmbedRequest(tuple(tokens for tokens, _ in pairs), "rank") if pairs else None

    def finish(rows: Rows | None) -> list[Ranked]:
        ranked = _scored(embedder, pairs, rows)
        ranked.sort(key=lambda each: (-each.logit, each.index))
        return ranked[: options.top_n]

    return request, finish


def prepare_pairs(
    embedder: Embedder, pairs: Sequence[tuple[str, str]], options: RankOptions
) -> tuple[EmbedRequest | None, Callable[[Rows | None], list[Ranked]]]:
    """Like `prepare`, of pairs of a query and a document each; the scores come in the order of the pairs."""
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise InvalidRequestError(f"pairs: must be a list of pairs of texts, not {type(pairs).__name__}")
    of_query: dict[str, Prompts] = {}
    prompts = []
    for place, each in enumerate(pairs):
        if not isinstance(each, (tuple, list)) or len(each) != 2 or not all(isinstance(text, str) for text in each):
            raise InvalidRequestError(f"pairs[{place}]: must be a query and a document, two texts")
        require_whole_characters(f"pairs[{place}]", each)
        query, document = each
        if query not in of_query:
            of_query[query] = Prompts(embedder.model, query, embedder.limit, name="pairs")
        prompts.append(of_query[query].of(place, document, options.truncate))
    request = EmbedRequest(tuple(tokens for tokens, _ in prompts), "rank") if prompts else None
    return request, lambda rows: _scored(embedder, prompts, rows)


def _scored(embedder: Embedder, prompts: Sequence[tuple[list[int], bool]], rows: Rows | None) -> list[Ranked]:
    head = embedder.head
    if rows is None or head is None:
        return []
    scores = []
    for place, (tokens, truncated) in enumerate(prompts):
        logit, probability = score(rows.values[place * rows.row : (place + 1) * rows.row].tolist(), head)
        scores.append(Ranked(place, logit, probability, len(tokens), truncated))
    return scores


class Prompts:
    """Prompts for one query: by the file's own template named "rerank" if it has one, else special tokens around the texts.

    Args:
        model: Model.
        query: str.
        limit: int, most tokens of a prompt.
        name: str, what errors call the list that documents are from.
    """

    def __init__(self, model: Model, query: str, limit: int, name: str = "documents") -> None:
        self.name = name
        self.model = model
        self.query = query
        self.limit = limit
        template: bytes | None = model.native.llama_model_chat_template(model.pointer, b"rerank")
        self._parts = re.split(r"(\{query\}|\{document\})", template.decode(errors="replace")) if template else []
        self._query_is_plain = bool(template) and _is_plain(model, query)
        self._query_ids = [] if template else model.tokenize(query, add_special=False, parse_special=False)

    def of(self, place: int, document: str, truncate: bool) -> tuple[list[int], bool]:
        """The prompt for a document, and whether the document had to be cut.

        Raises:
            ContextOverflowError: It is too long and may not be cut, or the query alone is too long.
        """
        tokens = self._tokens(document)
        n_whole = len(tokens)
        if not tokens:
            raise InvalidRequestError(f"{self.name}[{place}]: empty like the query; there is nothing to compute")
        if n_whole > self.limit and not truncate:
            message = f"{self.name}[{place}]: {n_whole} tokens with the query, the limit is {self.limit}"
            raise ContextOverflowError(f"{message}; split it, or pass truncate=True to cut it", n_whole, self.limit)
        ids = self.model.tokenize(document, add_special=False, parse_special=False) if n_whole > self.limit else []
        while len(tokens) > self.limit:
            if not ids:
                message = f"query: {len(tokens)} tokens without any document, the limit is {self.limit}; shorten it"
                raise ContextOverflowError(message, len(tokens), self.limit)
            # A part of a text may have other tokens than it had in the whole text: cut, write, and count again.
            ids = ids[: max(0, len(ids) - (len(tokens) - self.limit))]
            document = self.model.detokenize(ids, special=True).decode(errors="ignore")
            tokens = self._tokens(document)
        return tokens, len(tokens) < n_whole

    def _tokens(self, document: str) -> list[int]:
        if not self._parts:
            return pair(self.model, self._query_ids, self.model.tokenize(document, add_special=False, parse_special=False))
        texts = {"{query}": self.query, "{document}": document}
        if self._query_is_plain and _is_plain(self.model, document):
            # In one go, as the model was trained: a token may reach from the template into a text.
            prompt = "".join(texts.get(part, part) for part in self._parts)
            return self.model.tokenize(prompt, add_special=False, parse_special=True)
        # Special tokens of the template are what it says; in a text of the caller's they are letters.
        each = (self.model.tokenize(texts.get(part, part), False, part not in texts) for part in self._parts)
        return [token for tokens in each for token in tokens]


def _is_plain(model: Model, text: str) -> bool:
    """Whether no special token is written in a text."""
    return model.special is None or model.special.search(text) is None


def score(outputs: Sequence[float], head: Head) -> tuple[float, float]:
    """The logit and the probability of relevance.

    Of one output x: x and its sigmoid. Of several: the logit of the relevant class against all others together, and the
    class' softmax.
    """
    values = [math.log(max(value, _SMALLEST)) for value in outputs] if head.softmax else list(outputs)
    logit = values.pop(head.relevant)
    if values:
        greatest = max(values)
        logit -= greatest + math.log(sum(math.exp(value - greatest) for value in values))
    return logit, _sigmoid(logit)


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    power = math.exp(x)
    return power / (1 + power)
