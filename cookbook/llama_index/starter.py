"""The starter tutorial: an agent that calculates and reads your documents, remembers, and finds its index again.

python cookbook/llama_index/starter.py [MODEL [EMBEDDING [FOLDER]]]
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from llama_index.core import Document, Settings, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context
from llama_index.embeddings.localllm import LocalLLMEmbedding
from llama_index.llms.localllm import LocalLLM

DOCUMENTS = [
    Document(text="Ada Lovelace wrote the first program in 1843. It was for a machine that was never built."),
    Document(text="The first computer bug was a moth. It was found in 1947, in a relay of the Mark II."),
]


def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


async def main(
    model: str = "qwen3-4b",
    embedding: str = "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0",
    folder: str | None = None,
    **options: Any,
) -> list[Any]:
    Settings.llm = llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 80, **options})
    Settings.tokenizer = llm.tokenizer
    Settings.embed_model = LocalLLMEmbedding(embedding, query_instruction="search_query: ", text_instruction="search_document: ")

    # The index is made once, and read again from its folder afterwards.
    store = Path(folder or tempfile.mkdtemp())
    VectorStoreIndex.from_documents(DOCUMENTS).storage_context.persist(store)
    index = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(store)))
    engine = index.as_query_engine(similarity_top_k=1)

    async def search(query: str) -> str:
        """Answers questions about the history of computers from documents."""
        return str(await engine.aquery(query))

    def agent(first: str) -> FunctionAgent:
        # Small models need to be told what to call first; with a larger one, leave initial_tool_choice out.
        return FunctionAgent(
            tools=[multiply, search],
            llm=llm,
            system_prompt="You are a helpful assistant.",
            initial_tool_choice=first,
            allow_parallel_tool_calls=False,
        )

    calculator, reader = agent("multiply"), agent("search")
    context = Context(calculator)
    answers = [
        await calculator.run("What is 12 times 34?", ctx=context),
        await calculator.run("And that times 2?", ctx=context),
        await reader.run("What was the first computer bug?"),
    ]
    for answer in answers:
        print([(call.tool_name, call.tool_kwargs, call.tool_output.content) for call in answer.tool_calls], answer)
    return answers


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
