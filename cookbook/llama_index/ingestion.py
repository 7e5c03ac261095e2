"""Documents to nodes with titles and vectors; what was done before is found in the cache, and processes share the work.

python cookbook/llama_index/ingestion.py [MODEL [EMBEDDING]]
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from llama_index.core import Document
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode
from llama_index.embeddings.localllm import LocalLLMEmbedding
from llama_index.llms.localllm import LocalLLM

DOCUMENTS = [
    Document(text="Bread is made of flour, water and salt. It is baked in an oven. " * 4),
    Document(text="Ships sail to the islands. They come back with spices. " * 4),
]


async def main(
    model: str = "qwen3-4b", embedding: str = "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0", **options: Any
) -> list[Sequence[BaseNode]]:
    llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 24, **options})
    vectors = LocalLLMEmbedding(embedding, text_instruction="search_document: ")
    splitter = SentenceSplitter(chunk_size=80, chunk_overlap=0, tokenizer=llm.tokenizer)

    titled = IngestionPipeline(transformations=[splitter, TitleExtractor(llm=llm, nodes=1), vectors], cache=IngestionCache())
    first = await titled.arun(documents=DOCUMENTS)
    again = await titled.arun(documents=DOCUMENTS)  # all from the cache: no token is computed
    print(f"{len(first)} nodes, titled {first[0].metadata['document_title']!r}")

    # Two processes, each with a model of its own. `run` starts fresh ones ("spawn"); `arun` copies this one ("fork", before
    # Python 3.14), and a copy makes a new engine, since the threads of this one are not there. Nodes are split here: a splitter
    # that is sent to another process forgets its tokenizer.
    nodes = splitter(DOCUMENTS)
    pipeline = IngestionPipeline(transformations=[vectors], disable_cache=True)
    shared = [await asyncio.to_thread(pipeline.run, nodes=nodes, num_workers=2)]
    shared.append(await pipeline.arun(nodes=nodes, num_workers=2))
    print([len(nodes) for nodes in shared])
    return [first, again, *shared]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
