"""`localllm embed` and `localllm rerank`: texts in, JSON lines out."""

from __future__ import annotations

import json
import sys

from localllm.embedding.ranking import Ranked
from localllm.embedding.vectors import Embeddings


def read_texts(arguments: list[str]) -> list[str]:
    """The texts; a "-" stands for the lines of standard input."""
    texts: list[str] = []
    for argument in arguments:
        texts += [line.rstrip("\r\n") for line in sys.stdin] if argument == "-" else [argument]
    return texts


def print_vectors(embeddings: Embeddings) -> None:
    """One line per text; with pooling "none" its embedding is a list of vectors."""
    for index, (tokens, vector) in enumerate(zip(embeddings.tokens, embeddings, strict=True)):
        print(json.dumps({"index": index, "tokens": tokens, "embedding": _short(vector.tolist())}))


def print_ranking(ranking: list[Ranked], documents: list[str]) -> None:
    """One line per document, best first."""
    for each in ranking:
        numbers = {"probability": _short(each.probability), "logit": _short(each.logit)}
        print(json.dumps({"index": each.index, **numbers, "document": documents[each.index]}, ensure_ascii=False))


def _short(value: object) -> object:
    """Floats with the nine digits that tell every single-precision number from its neighbours."""
    if isinstance(value, list):
        return [_short(entry) for entry in value]
    return float(f"{value:.9g}")
