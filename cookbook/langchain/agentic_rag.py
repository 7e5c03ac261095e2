"""A graph that checks what it has found: documents are graded, and the question is asked otherwise if they do not help.

python cookbook/langchain/agentic_rag.py [MODEL]
"""

import sys
from typing import Literal

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_localllm import ChatLocalLLM, LocalLLMEmbeddings
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

TEXTS = [
    "The library opens at nine in the morning.",
    "Readers may take home ten books.",
    "Scanners are free of charge.",
]


class Grade(BaseModel):
    """Whether a document helps to answer a question."""

    helps: Literal["yes", "no"] = Field(description="yes if the document answers the question")


class State(TypedDict, total=False):
    question: str
    documents: list[str]
    grade: str
    n_tries: int
    answer: str


def build(model: str, k: int = 1):
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=24)
    store = InMemoryVectorStore.from_texts(TEXTS, LocalLLMEmbeddings(model=model))

    def retrieve(state: State) -> State:
        found = store.similarity_search(state["question"], k=k)
        return {"documents": [document.page_content for document in found], "n_tries": state.get("n_tries", 0) + 1}

    def grade(state: State) -> State:
        question = f"Question: {state['question']}\nDocument: {state['documents'][0]}\nDoes it help?"
        return {"grade": llm.with_structured_output(Grade).invoke(question).helps}

    def rewrite(state: State) -> State:
        return {"question": llm.invoke(f"Ask this in other words: {state['question']}").text}

    def answer(state: State) -> State:
        return {"answer": llm.invoke(f"{state['documents'][0]}\n\n{state['question']}").text}

    def next_step(state: State) -> Literal["answer", "rewrite"]:
        return "answer" if state["grade"] == "yes" or state["n_tries"] == 2 else "rewrite"

    graph = StateGraph(State)
    for node in (retrieve, grade, rewrite, answer):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "grade")
    graph.add_conditional_edges("grade", next_step)
    graph.add_edge("rewrite", "retrieve")
    graph.add_edge("answer", END)
    return graph.compile()


def main(model: str = "smollm2") -> list:
    steps = list(build(model).stream({"question": "When does the library open?"}, stream_mode="updates"))
    for step in steps:
        print(step)
    return steps


if __name__ == "__main__":
    main(*sys.argv[1:])
