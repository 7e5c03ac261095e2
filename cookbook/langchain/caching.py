"""Answers kept and given again, tokens counted, and calls spread over time.

python cookbook/langchain/caching.py [MODEL]
"""

import sys

from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_localllm import ChatLocalLLM

QUESTION = [("system", "You are a helpful assistant."), ("user", "What is the capital of France?")]


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(
        model=model,
        temperature=0,
        max_tokens=16,
        cache=InMemoryCache(),
        rate_limiter=InMemoryRateLimiter(requests_per_second=20, check_every_n_seconds=0.01, max_bucket_size=5),
    )
    before = llm.local_model.engine.stats().n_requests
    with get_usage_metadata_callback() as usage:
        first, second = llm.invoke(QUESTION), llm.invoke(QUESTION)
    # What a call says otherwise is another question.
    shorter = llm.invoke(QUESTION, max_tokens=4)
    # The engine keeps what it has computed, too: prompts that begin alike are not computed again.
    follow_up = llm.invoke([*QUESTION, first, ("user", "And of Italy?")])
    print(first.text, second.usage_metadata, usage.usage_metadata, sep="\n")
    print("tokens of the second question that were known:", follow_up.usage_metadata["input_token_details"]["cache_read"])
    n_requests = llm.local_model.engine.stats().n_requests - before
    return {
        "first": first, "second": second, "shorter": shorter, "follow_up": follow_up,
        "usage": usage.usage_metadata, "n_requests": n_requests,
    }  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
