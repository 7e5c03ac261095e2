"""What can be put around an agent's model: other models, limits, a person who decides, and a look at what is sent.

python cookbook/langchain/middleware.py [MODEL]
"""

import sys

from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ToolCallLimitMiddleware,
    wrap_model_call,
)
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

QUESTION = {"messages": [("user", "How is the weather in Paris?")]}


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: Name of the city.
    """
    return f"It is sunny in {city}. " + "There is nothing else to say about the sky. " * 5


@wrap_model_call
def always_look(request, handler):
    return handler(request.override(tool_choice="any"))


@wrap_model_call
def look_first(request, handler):
    looked = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if looked else "any"))


def another_model(llm: ChatLocalLLM) -> list:
    """A model that is missing is not tried again, since that would not help: the next one answers."""
    missing = ChatLocalLLM(model="no-such-model.gguf")
    agent = create_agent(missing, middleware=[ModelFallbackMiddleware(llm), ModelRetryMiddleware(max_retries=3)])
    return agent.invoke({"messages": [("user", "Hello!")]})["messages"]


def limits(llm: ChatLocalLLM) -> list:
    """An agent that would look for ever."""
    few = [ToolCallLimitMiddleware(run_limit=2), ModelCallLimitMiddleware(run_limit=4)]
    return create_agent(llm, tools=[get_weather], middleware=[always_look, *few]).invoke(QUESTION)["messages"]


def a_person_decides(llm: ChatLocalLLM) -> tuple[list, list]:
    """The call waits until somebody has said yes."""
    asking = HumanInTheLoopMiddleware(interrupt_on={"get_weather": True})
    agent = create_agent(llm, tools=[get_weather], middleware=[look_first, asking], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    waiting = agent.invoke(QUESTION, thread)["__interrupt__"]
    done = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)
    return waiting[0].value["action_requests"], done["messages"]


def less_is_sent(llm: ChatLocalLLM) -> list:
    """Addresses are taken out, and long results of tools are cleared, counted by the model's own tokenizer."""
    edit = ClearToolUsesEdit(trigger=60, keep=0, placeholder="[cleared]")
    clear = ContextEditingMiddleware(edits=[edit], token_count_method="model")
    agent = create_agent(llm, tools=[get_weather], middleware=[PIIMiddleware("email"), clear, look_first])
    return agent.invoke({"messages": [("user", "I am ada@example.com. How is the weather in Paris?")]})["messages"]


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=32)
    seen = {
        "another model": another_model(llm),
        "limits": limits(llm),
        "a person decides": a_person_decides(llm),
        "less is sent": less_is_sent(llm),
    }
    for name, messages in seen.items():
        print(f"{name}: {messages[-1]}")
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
