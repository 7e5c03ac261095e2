"""An agent that writes a list of what is to be done, and one that is shown only the tools that go with the question.

python cookbook/langchain/planning.py [MODEL]
"""

import sys

from langchain.agents import create_agent
from langchain.agents.middleware import LLMToolSelectorMiddleware, TodoListMiddleware, wrap_model_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return f"It is sunny in {city}."


@tool
def get_time(city: str) -> str:
    """The time in a city, now."""
    return f"It is noon in {city}."


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def once(name):
    """A model as small as the one of this program has to be told to call something; leave it out with a larger one."""

    @wrap_model_call
    def call_once(request, handler):
        called = any(isinstance(message, ToolMessage) for message in request.messages)
        return handler(request.override(tool_choice="none" if called else name))

    return call_once


def todo_list(llm: ChatLocalLLM) -> dict:
    """The list is a tool: its arguments keep to their types whatever the model is like."""
    agent = create_agent(llm, tools=[], middleware=[TodoListMiddleware(), once("write_todos")])
    return agent.invoke({"messages": [("user", "Plan a walk through Paris in two steps.")]})


def fitting_tools(llm: ChatLocalLLM) -> tuple[list[str], dict]:
    """A first question, answered with data, chooses among the tools; the agent is shown no others."""
    shown = []

    @wrap_model_call
    def note(request, handler):
        shown.extend(each.name for each in request.tools)
        return handler(request)

    selector = LLMToolSelectorMiddleware(max_tools=1)
    agent = create_agent(llm, tools=[get_weather, get_time, add], middleware=[selector, note, once("any")])
    return shown, agent.invoke({"messages": [("user", "How is the weather in Paris?")]})


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=256, repeat_penalty=1.1)
    seen = {"a list": todo_list(llm), "fitting tools": fitting_tools(llm)}
    print("to do:", seen["a list"].get("todos"))
    print("shown:", seen["fitting tools"][0], "-", seen["fitting tools"][1]["messages"][-1].text)
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
