"""An agent with a tool and a memory: it looks the weather up, and still knows about it in the next turn.

python cookbook/langchain/agent.py [MODEL]
"""

import sys

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langgraph.checkpoint.memory import InMemorySaver

WEATHER = {"paris": "sunny, 21 degrees", "oslo": "snow, -3 degrees"}


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: Name of the city.
    """
    return f"The weather in {city} is {WEATHER.get(city.lower(), 'unknown')}."


@wrap_model_call
def look_first(request, handler):
    """Small models like to answer from memory. As long as nothing was looked up, they must; then they must answer."""
    looked = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if looked else "any"))


def main(model: str = "smollm2") -> list:
    agent = create_agent(
        ChatLocalLLM(model=model, temperature=0, max_tokens=40),
        tools=[get_weather],
        system_prompt="You are a helpful assistant. Answer in one short sentence.",
        middleware=[look_first],
        checkpointer=InMemorySaver(),
    )
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": [("user", "How is the weather in Paris?")]}, thread)
    state = agent.invoke({"messages": [("user", "Do I need an umbrella there?")]}, thread)
    for message in state["messages"]:
        message.pretty_print()
    return state["messages"]


if __name__ == "__main__":
    main(*sys.argv[1:])
