"""Answers from documents: cut, embedded, found again, and handed to the model, by a chain and by an agent.

    python cookbook/langchain/rag.py [MODEL] [EMBEDDING_MODEL]

SmolLM2 serves for both here, with its weights loaded once. A model made for embeddings finds more: "nomic-embed-text-v1.5".
"""

import sys
from typing import Annotated

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, dynamic_prompt, wrap_model_call
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import ChatLocalLLM, LocalLLMEmbeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter
from pydantic import Field

HANDBOOK = """
The library opens at nine in the morning and closes at eight in the evening. On Sundays it is closed.

Readers may take home ten books for four weeks. Somebody who brings a book back late pays one euro a day.

The reading room is on the second floor. Drinks are not allowed there, except for water in bottles.

Scanners are beside the entrance. They are free of charge; prints cost ten cents a page.
"""
QUESTION = "How many books may readers take home?"


def fill(embeddings: LocalLLMEmbeddings) -> InMemoryVectorStore:
    splitter = RecursiveCharacterTextSplitter(chunk_size=120, chunk_overlap=0, add_start_index=True)
    pieces = splitter.split_documents([Document(HANDBOOK, metadata={"source": "handbook"})])
    return InMemoryVectorStore.from_documents(pieces, embeddings)


def ask_chain(llm: ChatLocalLLM, store: InMemoryVectorStore) -> dict:
    """Two steps, always: what is found goes into the system message."""

    @dynamic_prompt
    def with_context(request: ModelRequest) -> str:
        found = store.similarity_search(request.state["messages"][-1].text, k=2)
        return "Answer by this alone:\n\n" + "\n\n".join(document.page_content for document in found)

    return create_agent(llm, tools=[], middleware=[with_context]).invoke({"messages": [("user", QUESTION)]})


def ask_agent(llm: ChatLocalLLM, store: InMemoryVectorStore) -> dict:
    """The model asks for what it needs, in its own words."""

    @tool(response_format="content_and_artifact")
    def search_handbook(query: Annotated[str, Field(max_length=40)]) -> tuple[str, list[Document]]:
        """Finds passages of the library's handbook."""
        found = store.similarity_search(query, k=2)
        return "\n\n".join(document.page_content for document in found), found

    @wrap_model_call
    def look_first(request, handler):
        looked = any(isinstance(message, ToolMessage) for message in request.messages)
        return handler(request.override(tool_choice="none" if looked else "any"))

    agent = create_agent(llm, tools=[search_handbook], middleware=[look_first])
    return agent.invoke({"messages": [("user", QUESTION)]})


def main(model: str = "smollm2", embedding_model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=48)
    store = fill(LocalLLMEmbeddings(model=embedding_model))
    chain, agent = ask_chain(llm, store), ask_agent(llm, store)
    print("chain:", chain["messages"][-1].text)
    print("agent:", agent["messages"][-1].text)
    return {"store": store, "chain": chain["messages"], "agent": agent["messages"]}


if __name__ == "__main__":
    main(*sys.argv[1:])
