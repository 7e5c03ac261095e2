"""A chain of prompt, model and parser, with retries and with another model for when the first one fails.

python cookbook/langchain/chain.py [MODEL]
"""

import asyncio
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_localllm import ChatLocalLLM


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=12)
    prompt = ChatPromptTemplate([("system", "You are a helpful assistant."), ("user", "What is the capital of {country}?")])
    # A context that is too small for the question, and a model that is not here: the third one answers.
    small = ChatLocalLLM(model=model, n_ctx=16)
    missing = ChatLocalLLM(model="no-such-model.gguf")
    chain = prompt | small.with_fallbacks([missing.with_retry(stop_after_attempt=2), llm]) | StrOutputParser()

    async def awaited() -> list[str]:
        return await chain.abatch([{"country": "France"}, {"country": "Italy"}], config={"max_concurrency": 1})

    seen = {"invoke": chain.invoke({"country": "France"}), "abatch": asyncio.run(awaited())}
    seen["stream"] = list((prompt | llm | StrOutputParser()).stream({"country": "France"}))
    print(seen["invoke"], seen["abatch"], "|".join(seen["stream"]), sep="\n")
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
