"""The loop of an agent by hand: a graph of a model and its tools, with several calls in one turn, and a memory.

python cookbook/langchain/tool_loop.py [MODEL]
"""

import asyncio
import sys

from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def build(model: str):
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=64)
    tools = [add, multiply]
    calling = llm.bind_tools(tools, tool_choice="any")

    async def call_model(state: MessagesState) -> dict:
        # Calls first, then the answer; a larger model needs no such help: llm.bind_tools(tools) alone would do.
        counted = any(isinstance(message, ToolMessage) for message in state["messages"])
        return {"messages": [await (llm if counted else calling).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


async def run(model: str) -> tuple[list, list]:
    graph = build(model)
    thread = {"configurable": {"thread_id": "1"}}
    question = {"messages": [("user", "What is 3 plus 4?")]}
    chunks = []
    async for chunk, _ in graph.astream(question, thread, stream_mode="messages"):
        chunks.append(chunk)
        print(chunk.text if isinstance(chunk, AIMessageChunk) else f"[{chunk.name}: {chunk.content}]\n", end="", flush=True)
    print()
    return chunks, graph.get_state(thread).values["messages"]


def main(model: str = "smollm2") -> tuple[list, list]:
    return asyncio.run(run(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
