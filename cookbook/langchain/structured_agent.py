"""An agent whose answer is an object: by a tool (ToolStrategy), or written as JSON under a grammar (ProviderStrategy).

python cookbook/langchain/structured_agent.py [MODEL]
"""

import sys
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from pydantic import BaseModel, Field


class Report(BaseModel):
    """The weather in a city."""

    city: str = Field(description="Name of the city")
    sky: Literal["sunny", "cloudy", "rain", "snow"]
    degrees: int = Field(description="Degrees Celsius", ge=-50, le=50)


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: Name of the city.
    """
    return f"{city}: sunny, 21 degrees"


@wrap_model_call
def look_once(request, handler):
    """First the tool, then the report: a small model would go on looking for ever."""
    looked = any(isinstance(message, ToolMessage) for message in request.messages)
    if looked:
        return handler(request.override(tools=[]))
    return handler(request.override(response_format=None, tool_choice="any"))


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=96)
    states = {}
    for name, strategy in {"tool": ToolStrategy(Report), "provider": ProviderStrategy(Report, strict=True)}.items():
        agent = create_agent(llm, tools=[get_weather], middleware=[look_once], response_format=strategy)
        states[name] = agent.invoke({"messages": [("user", "How is the weather in Paris?")]})
        print(name, states[name]["structured_response"])
    return states


if __name__ == "__main__":
    main(*sys.argv[1:])
