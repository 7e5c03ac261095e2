"""An agent as an application has it: it knows who asks, answers with an object, and remembers what was said.

python cookbook/langchain/real_world_agent.py [MODEL]
"""

import sys
from dataclasses import dataclass

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_localllm import ChatLocalLLM
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


@dataclass
class Context:
    """What the application knows about who asks."""

    user_id: str


@dataclass
class Answer:
    """The weather, in one sentence."""

    city: str
    degrees: int


@tool
def get_my_city(runtime: ToolRuntime[Context]) -> str:
    """The city that the user lives in."""
    return "Paris, where it is 21 degrees" if runtime.context.user_id == "1" else "Oslo, where it is -3 degrees"


@wrap_model_call
def look_once(request, handler):
    """First the tool, then the answer, in each turn: a small model would go on looking for ever."""
    turn = request.messages[max(at for at, one in enumerate(request.messages) if isinstance(one, HumanMessage)) :]
    if any(isinstance(message, ToolMessage) for message in turn):
        return handler(request.override(tools=[]))
    return handler(request.override(response_format=None, tool_choice="any"))


def main(model: str = "smollm2") -> list:
    agent = create_agent(
        ChatLocalLLM(model=model, temperature=0, max_tokens=48),
        tools=[get_my_city],
        middleware=[look_once],
        context_schema=Context,
        # The model's profile says that it can write what a schema asks for, so that no tool is needed for it.
        response_format=Answer,
        # A checkpoint brings back no classes but those that it is told of.
        checkpointer=InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=[Answer])),
    )
    thread = {"configurable": {"thread_id": "1"}}
    states = [
        agent.invoke({"messages": [("user", question)]}, thread, context=Context(user_id=user))
        for question, user in (("How is the weather where I live?", "1"), ("And at my friend's?", "2"))
    ]
    for state in states:
        print(state["structured_response"])
    return states


if __name__ == "__main__":
    main(*sys.argv[1:])
