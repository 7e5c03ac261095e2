"""Special tokens around texts, and texts cut to a length."""

from __future__ import annotations

from localllm.native.bindings import llama as llama_h
from localllm.native.handles import Model


def cut(model: Model, tokens: list[int], limit: int) -> list[int]:
    """The first tokens of a text, and the special token that closes it."""
    closing = tokens[-1:] if tokens[-1] in _closing(model) else []
    return tokens[: limit - len(closing)] + closing


def pair(model: Model, query: list[int], document: list[int]) -> list[int]:
    """A query and a document for a reranker: BOS query EOS SEP document EOS, of these what the file says is to be added.

    As llama.cpp's server does. But files from before llama.cpp knew of pairs (2025) do not say how they end; WordPiece texts
    always end with SEP.
    """
    native, vocab = model.native, model.vocab
    bos, eos, sep = native.llama_vocab_bos(vocab), native.llama_vocab_eos(vocab), native.llama_vocab_sep(vocab)
    ends = [eos if eos != llama_h.LLAMA_TOKEN_NULL else sep] if native.llama_vocab_get_add_eos(vocab) else []
    return [
        *([bos] if native.llama_vocab_get_add_bos(vocab) else []),
        *query,
        *ends,
        *([sep] if native.llama_vocab_get_add_sep(vocab) else []),
        *document,
        *(ends or ([sep] if _is_wordpiece(model) else [])),
    ]


def _closing(model: Model) -> set[int]:
    """What tokenising puts at the end of a text: EOS where the file says so, SEP for WordPiece."""
    native, vocab = model.native, model.vocab
    closing: set[int] = set()
    if native.llama_vocab_get_add_eos(vocab):
        closing.add(native.llama_vocab_eos(vocab))
    if _is_wordpiece(model):
        closing.add(native.llama_vocab_sep(vocab))
    return closing


def _is_wordpiece(model: Model) -> bool:
    return bool(model.native.llama_vocab_type(model.vocab) == llama_h.LLAMA_VOCAB_TYPE_WPM)
