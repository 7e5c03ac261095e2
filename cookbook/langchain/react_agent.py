"""LangGraph's older ready-made agent, which many programs still use.

python cookbook/langchain/react_agent.py [MODEL]
"""

import sys
import warnings

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from langgraph.prebuilt import create_react_agent
from langgraph.warnings import LangGraphDeprecatedSinceV10

warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def main(model: str = "smollm2") -> list:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=40)

    def choose(state, runtime):
        """Count first, then answer; for a larger model `llm` itself is enough."""
        counted = any(isinstance(message, ToolMessage) for message in state["messages"])
        return llm.bind_tools([add], tool_choice="none" if counted else "any")

    agent = create_react_agent(choose, tools=[add])
    messages = agent.invoke({"messages": [("user", "What is 3 plus 4?")]})["messages"]
    for message in messages:
        message.pretty_print()
    return messages


if __name__ == "__main__":
    main(*sys.argv[1:])
