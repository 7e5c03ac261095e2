"""LlamaIndex on a loop: whether two coroutines share batches, and how long the loop stands still meanwhile.

    python benchmarks/overlap.py [MODEL] [--tokens 64] [--threads 2] [--json FILE]

- batches: batches decoded for one answer, and for two that are awaited together. Answers that do not overlap take twice as many.
- stalls: a coroutine sleeps for a millisecond again and again; how much later it comes round, in milliseconds, while the others
  work. What the machine does besides counts as well: "idle" has nothing but the sleeping.

The vectors are made by the same file.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.embeddings.localllm import LocalLLMEmbedding
from llama_index.llms.localllm import LocalLLM
from loops import print_stalls, stalls
from programs import arguments
from pydantic import BaseModel, Field

QUESTION = [ChatMessage(role="user", content="Tell me about the sea.")]
PROMPT = PromptTemplate("Tell me about the sea.")


class Facts(BaseModel):
    """Facts about the sea."""

    kind: Literal["salty", "sweet"]
    depths: list[int] = Field(min_length=4, max_length=8)


async def batches(llm: LocalLLM, n: int, n_tokens: int) -> tuple[int, float]:
    """Batches and seconds for n answers that are awaited together."""
    engine = llm.local_model.engine
    before, start = engine.stats().n_steps, time.perf_counter()
    await asyncio.gather(*(llm.achat(QUESTION, max_tokens=n_tokens, ignore_eos=True) for _ in range(n)))
    return engine.stats().n_steps - before, time.perf_counter() - start


async def streamed(llm: LocalLLM, n_tokens: int) -> None:
    async for _ in await llm.astream_chat(QUESTION, max_tokens=n_tokens, ignore_eos=True):
        pass


async def grown(llm: LocalLLM) -> None:
    async for _ in await llm.astream_structured_predict(Facts, PROMPT, llm_kwargs={"max_tokens": 200}):
        pass


async def measure(options: Any) -> dict[str, Any]:
    llm = LocalLLM(options.model, temperature=0, model_options={"n_threads": options.threads, "parallel": 4})
    vectors = LocalLLMEmbedding(options.model, model_options={"n_threads": options.threads})
    long = [ChatMessage(role="user", content="The sea is deep and wide. " * 200)]
    texts = ["The sea is deep and wide. " * 4] * 16
    n = options.tokens
    figures: dict[str, Any] = {"stalls": {"idle": await stalls(lambda: asyncio.sleep(2))}}
    figures["stalls"]["first call, loading"] = await stalls(lambda: llm.achat(QUESTION, max_tokens=2))
    await vectors.aget_text_embedding("The sea.")
    figures["batches"] = {name: await batches(llm, count, n) for name, count in (("one", 1), ("two", 2))}
    work: dict[str, Callable[[], Awaitable[Any]]] = {
        "4 answers": lambda: batches(llm, 4, n),
        "4 streams": lambda: asyncio.gather(*(streamed(llm, n) for _ in range(4))),
        "a long prompt": lambda: llm.achat(long, max_tokens=2),
        "an object that grows": lambda: grown(llm),
        "16 vectors": lambda: vectors.aget_text_embedding_batch(texts),
    }
    for name, each in work.items():
        figures["stalls"][name] = await stalls(each)
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    for name, (n_steps, seconds) in figures["batches"].items():
        print(f"{name:22} {n_steps:5} batches {seconds:7.2f} s")
    print_stalls(figures["stalls"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
