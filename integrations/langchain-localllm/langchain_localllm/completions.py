"""Answers of localllm as LangChain's generations of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from localllm import Delta, Finished, LocalModel, Usage
from localllm import Generation as LocalGeneration
from localllm.engine.request import TokenLogprob


def as_result(answers: Sequence[LocalGeneration], n: int, local: LocalModel) -> LLMResult:
    """The result for several prompts.

    Args:
        answers: n for the first prompt, then those for the second, and so on.
        n: int, answers for each prompt.
        local: LocalModel that gave them.
    """
    groups = [answers[at : at + n] for at in range(0, len(answers), n)]
    generations = [[Generation(text=answer.text, generation_info=_info(answer, local)) for answer in group] for group in groups]
    # A prompt counts once, however many answers it has.
    n_prompt = sum(group[0].usage.prompt_tokens for group in groups)
    n_answer = sum(answer.usage.completion_tokens for answer in answers)
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_answer, "total_tokens": n_prompt + n_answer}
    return LLMResult(generations=list(generations), llm_output={"token_usage": usage, "model_name": local.reference})


def whole(chunks: Sequence[GenerationChunk]) -> LLMResult:
    """The result for one prompt that was streamed."""
    merged = chunks[0]
    for chunk in chunks[1:]:
        merged += chunk
    info = merged.generation_info or {}
    used = info["usage_metadata"]
    usage = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), list(used.values())[:3], strict=True))
    generation = Generation(text=merged.text, generation_info=info)
    return LLMResult(generations=[[generation]], llm_output={"token_usage": usage, "model_name": info["model_name"]})


def as_chunk(event: Delta | Finished, local: LocalModel) -> GenerationChunk:
    """A piece of a stream. What holds for the whole answer comes with the last one, since chunks are added up."""
    if isinstance(event, Finished):
        return GenerationChunk(
            text="", generation_info=_facts(event.reason, event.usage, event.seed, asdict(event.timings), local)
        )
    info = {"logprobs": _logprobs(event.logprobs)} if event.logprobs else None
    return GenerationChunk(text=event.text, generation_info=info)


def _info(answer: LocalGeneration, local: LocalModel) -> dict[str, Any]:
    facts = _facts(answer.finish_reason, answer.usage, answer.seed, asdict(answer.timings), local)
    return {**facts, "logprobs": _logprobs(answer.logprobs)} if answer.logprobs else facts


def _facts(reason: str, usage: Usage, seed: int, timings: dict[str, float], local: LocalModel) -> dict[str, Any]:
    return {
        "finish_reason": reason,
        "model_name": local.reference,
        "model_provider": "localllm",
        "usage_metadata": {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "input_token_details": {"cache_read": usage.cached_tokens},
        },
        "seed": seed,
        "timings": timings,
    }


def _logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """In the form of OpenAI's completions, which LlamaCpp has too."""
    return {
        "tokens": [_text(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{_text(top.piece): top.logprob for top in entry.top} for entry in entries],
    }


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
