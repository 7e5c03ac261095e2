"""Prompts for filling in the middle: what stands before and behind a gap, in the order that models are trained with."""

from __future__ import annotations

from localllm.errors import InvalidRequestError, UnsupportedModelError
from localllm.native.handles import Model

_MARKS = {"prefix": "llama_vocab_fim_pre", "suffix": "llama_vocab_fim_suf", "middle": "llama_vocab_fim_mid"}


def infill_tokens(model: Model, prefix: str, suffix: str) -> tuple[int, ...]:
    """The prompt that asks for what belongs between two texts: prefix, suffix, middle (PSM, arXiv:2207.14255).

    Args:
        model: Model, whose vocabulary serves.
        prefix, suffix: str; special tokens written in them are letters, since they are somebody's file.

    Returns:
        tuple of token ids.

    Raises:
        InvalidRequestError: One of them is no text.
        UnsupportedModelError: The vocabulary has no tokens for this.
    """
    for name, text in (("prompt", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name}: must be text, not {type(text).__name__}")
    native, vocab = model.native, model.vocab
    marks = {name: int(getattr(native, function)(vocab)) for name, function in _MARKS.items()}
    missing = [name for name, token in marks.items() if token < 0]
    if missing:
        raise UnsupportedModelError(
            f"{model.path}: this model was not made for filling in the middle: its vocabulary has no mark for "
            f"{', '.join(missing)}; leave `suffix` out, or take a model for code (Qwen2.5-Coder, StarCoder, CodeGemma)"
        )
    before = model.tokenize(prefix, add_special=False, parse_special=False)
    behind = model.tokenize(suffix, add_special=False, parse_special=False)
    begin = [native.llama_vocab_bos(vocab)] if native.llama_vocab_get_add_bos(vocab) else []
    return (*begin, marks["prefix"], *before, marks["suffix"], *behind, marks["middle"])
