"""Answers from documents: found by vectors, put in order by a reranker, written as they stream in.

python cookbook/llama_index/rag.py [MODEL [EMBEDDING [RERANKER]]]
"""

import asyncio
import sys
from typing import Any

from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.embeddings.localllm import LocalLLMEmbedding
from llama_index.llms.localllm import LocalLLM
from llama_index.postprocessor.localllm_rerank import LocalLLMRerank

DOCUMENTS = [
    Document(text="Ada Lovelace wrote the first program in 1843."),
    Document(text="The first computer bug was a moth, found in 1947."),
    Document(text="The Mark II was a computer made of relays."),
    Document(text="Flour, water and salt make bread."),
]


async def main(
    model: str = "qwen3-4b",
    embedding: str = "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0",
    reranker: str = "gpustack/bge-reranker-v2-m3-GGUF:Q8_0",
    **options: Any,
) -> tuple[StreamingResponse, AsyncStreamingResponse]:
    llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 80, **options})
    # LlamaIndex counts tokens to fill the context: with this model's own tokenizer it counts right.
    Settings.tokenizer = llm.tokenizer
    vectors = LocalLLMEmbedding(embedding, query_instruction="search_query: ", text_instruction="search_document: ")
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=vectors)
    engine = index.as_query_engine(
        llm=llm,
        similarity_top_k=4,
        node_postprocessors=[LocalLLMRerank(reranker, top_n=2, keep_retrieval_score=True)],
        streaming=True,
    )

    answer = engine.query("What was the first computer bug?")
    answer.print_response_stream()
    for node in answer.source_nodes:
        print(f"\n  {node.score:.3f} (vectors: {node.metadata['retrieval_score']:.3f}) {node.text}")

    # The same for coroutines: others go on meanwhile, and share batches.
    other = await engine.aquery("Who wrote the first program?")
    async for text in other.async_response_gen():
        print(text, end="", flush=True)
    print()
    return answer, other


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
