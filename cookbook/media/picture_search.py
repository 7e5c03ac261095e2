"""Questions about a folder of pictures: each is described once, found again by its description, and then looked at.

python cookbook/media/picture_search.py FOLDER QUESTION [MODEL [EMBEDDER]]
"""

import sys
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import ChatLocalLLM, LocalLLMEmbeddings

DESCRIBE = "Describe this picture in one sentence."


def shown(path: Path, text: str) -> list[HumanMessage]:
    return [HumanMessage([{"type": "image", "url": path.as_uri()}, {"type": "text", "text": text}])]


def main(folder: str, question: str, model: str = "qwen2.5-vl-3b", embedder: str = "bge-small", **options):
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=60, model_options=options)
    pictures = sorted(Path(folder).resolve().glob("*.png"))
    descriptions = llm.batch([shown(path, DESCRIBE) for path in pictures])
    store = InMemoryVectorStore(LocalLLMEmbeddings(model=embedder))
    store.add_documents(
        [Document(answer.text, metadata={"path": path}) for path, answer in zip(pictures, descriptions, strict=True)]
    )
    (found,) = store.similarity_search(question, k=1)
    answer = llm.invoke(shown(found.metadata["path"], question))
    print(f"{found.metadata['path'].name}: {found.page_content}\n{answer.text}")
    return found, answer


if __name__ == "__main__":
    main(*sys.argv[1:])
