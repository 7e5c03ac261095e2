"""A ReAct agent, which reasons in plain text, kept to the form of it.

python cookbook/llama_index/react.py [MODEL]
"""

import asyncio
import sys
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, ReActAgent, ToolCallResult
from llama_index.llms.localllm import LocalLLM

# ReAct has a form, and small models lose it. An expression keeps every answer to it: a thought, then an action or an answer.
FORM = (
    r"Thought: [A-Za-z ,']{1,80}\.\n"
    r"(Action: multiply\nAction Input: \{\"a\": [0-9]{1,4}, \"b\": [0-9]{1,4}\}|Answer: [A-Za-z0-9 ,']{1,80}\.)"
)


def multiply(a: int, b: int) -> int:
    """Multiplies two integers."""
    return a * b


async def main(model: str = "qwen3-4b", form: str = FORM, **options: Any) -> tuple[AgentOutput, list[ToolCallResult]]:
    llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 200, "chat_options": {"regex": form}, **options})
    agent = ReActAgent(tools=[multiply], llm=llm, timeout=300)
    # After so many steps it has to answer with what it has.
    handler = agent.run("What is 12 times 34?", max_iterations=4, early_stopping_method="generate")
    calls = []
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            calls.append(event)
            print(f"{event.tool_name}({event.tool_kwargs}) -> {event.tool_output.content}")
    answer = await handler
    print(answer)
    return answer, calls


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
