"""Answers judged by a model that can say nothing but YES and NO; eight judgements at a time share its batches.

python cookbook/llama_index/evaluation.py [MODEL]
"""

import asyncio
import sys
from typing import Any

from llama_index.core.evaluation import BatchEvalRunner, EvaluationResult, FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.llms.localllm import LocalLLM

QUESTIONS = ["What is bread made of?", "When was the first bug found?"]
ANSWERS = ["Of flour, water and salt.", "In 1947."]
SOURCES = [["Flour, water and salt make bread."], ["The first computer bug was a moth, found in 1947."]]


async def main(model: str = "qwen3-4b", **options: Any) -> dict[str, list[EvaluationResult]]:
    # The evaluators look for a YES: an expression leaves the model nothing else to say.
    judge = LocalLLM(model, **{"temperature": 0, "max_tokens": 4, "chat_options": {"choice": ["YES", "NO"]}, **options})
    runner = BatchEvalRunner({"faithful": FaithfulnessEvaluator(llm=judge), "relevant": RelevancyEvaluator(llm=judge)}, workers=8)
    results = await runner.aevaluate_response_strs(queries=QUESTIONS, response_strs=ANSWERS, contexts_list=SOURCES)
    for name, judged in results.items():
        print(name, [result.feedback for result in judged])
    return results


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
