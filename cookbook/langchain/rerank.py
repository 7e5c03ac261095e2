"""Two stages of a search: many documents by their vectors, then the best of them by a reranker.

    python cookbook/langchain/rerank.py RERANKER [EMBEDDING_MODEL]

A reranker is a model with a classification head, for example "gpustack/bge-reranker-v2-m3-GGUF:Q8_0".
"""

import sys

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import LocalLLMCrossEncoder, LocalLLMEmbeddings, LocalLLMReranker

TEXTS = [
    "Paris is the capital of France.",
    "Lyon is known for its kitchen.",
    "France has many kinds of cheese.",
    "Berlin is the capital of Germany.",
    "A capital is where a country is governed from.",
    "The fox is quick.",
]
QUESTION = "What is the capital of France?"


def main(reranker: str, embedding_model: str = "smollm2") -> dict:
    store = InMemoryVectorStore.from_texts(TEXTS, LocalLLMEmbeddings(model=embedding_model))
    compressors = {
        # Scores are in the metadata of what it gives.
        "reranker": LocalLLMReranker(model=reranker, top_n=3),
        # LangChain's own compressor, for which a model needs only to score pairs.
        "cross-encoder": CrossEncoderReranker(model=LocalLLMCrossEncoder(model=reranker), top_n=3),
    }
    found = {"vectors": store.similarity_search(QUESTION, k=5)}
    for name, compressor in compressors.items():
        many = store.as_retriever(search_kwargs={"k": 5})
        found[name] = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=many).invoke(QUESTION)
    for name, documents in found.items():
        print(f"{name}:")
        for document in documents:
            print("   ", document.page_content, document.metadata.get("relevance_score", ""))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
