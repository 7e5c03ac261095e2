"""All ways to see an answer come: of a model, of a graph, and as typed events (v3).

python cookbook/langchain/streaming.py [MODEL]
"""

import asyncio
import sys
import warnings

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core._api import LangChainBetaWarning
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langgraph.config import get_stream_writer

QUESTION = {"messages": [("user", "How is the weather in Paris?")]}
# stream_events(version="v3") is announced as a beta.
warnings.simplefilter("ignore", LangChainBetaWarning)


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: Name of the city.
    """
    get_stream_writer()(f"looking at {city}")
    return f"It is sunny in {city}."


@wrap_model_call
def look_first(request, handler):
    looked = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if looked else "any"))


def of_a_model(llm: ChatLocalLLM) -> list[str]:
    return [chunk.text for chunk in llm.stream("Count to five.")]


def of_a_graph(llm: ChatLocalLLM) -> dict:
    """One mode alone is stream_mode="updates"; of several at once each item says of which it is."""
    agent = create_agent(llm, tools=[get_weather], middleware=[look_first])
    seen = {"values": [], "updates": [], "messages": [], "custom": []}
    for mode, item in agent.stream(QUESTION, stream_mode=list(seen)):
        seen[mode].append(item)
    return seen


def as_events(llm: ChatLocalLLM) -> dict:
    """Text, thoughts and calls of tools, each as a stream of its own."""
    text = llm.stream_events("Count to five.", version="v3")
    calls = llm.bind_tools([get_weather], tool_choice="any").stream_events(QUESTION["messages"], version="v3")
    return {"text": list(text.text), "message": text.output, "calls": list(calls.tool_calls), "called": calls.output}


async def awaited(llm: ChatLocalLLM) -> dict:
    agent = create_agent(llm)
    stream = await llm.astream_events("Count to five.", version="v3")
    return {
        "model": [chunk.text async for chunk in llm.astream("Count to five.")],
        "events": [event["event"] async for event in llm.astream_events("Count to five.", version="v2")],
        "text": [piece async for piece in stream.text],
        "graph": [update async for update in agent.astream(QUESTION, stream_mode="updates")],
    }


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=40)
    seen = {"model": of_a_model(llm), "graph": of_a_graph(llm), "v3": as_events(llm), "async": asyncio.run(awaited(llm))}
    print("model:", "|".join(seen["model"]))
    print("graph:", *(list(update) for update in seen["graph"]["updates"]), *seen["graph"]["custom"])
    print("v3:", "|".join(seen["v3"]["text"]), seen["v3"]["called"].tool_calls)
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
