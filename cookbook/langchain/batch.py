"""Twenty questions at once: the engine computes them together, and a chain around it changes nothing about that.

python cookbook/langchain/batch.py [MODEL]
"""

import asyncio
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_localllm import ChatLocalLLM


def main(model: str = "smollm2", n: int = 20) -> dict:
    # How many are computed together; those that come after the first 10 take the place of the ones that have ended.
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=8, parallel=10)
    prompt = ChatPromptTemplate([("system", "Answer with a number."), ("user", "What is {n} plus {n}?")])
    chain = prompt | llm.with_retry(stop_after_attempt=2) | StrOutputParser()
    questions = [{"n": number} for number in range(n)]

    engine = llm.local_model.engine
    chain.invoke(questions[0])
    alone = engine.stats().n_steps
    answers = chain.batch(questions)
    together = engine.stats().n_steps - alone
    awaited = asyncio.run(chain.abatch(questions[:4], config={"max_concurrency": 2}))
    print(*answers, sep="\n")
    print(f"one question: {alone} steps; {n} questions: {together} steps, not {n * alone}")
    return {"answers": answers, "awaited": awaited, "alone": alone, "together": together}


if __name__ == "__main__":
    main(*sys.argv[1:])
