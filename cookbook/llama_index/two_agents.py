"""Agents that share one model: the first hears what is wanted and hands over to the one who can do it.

python cookbook/llama_index/two_agents.py [MODEL]
"""

import asyncio
import sys
from typing import Any, Literal

from llama_index.core.agent.workflow import AgentOutput, AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.workflow import Context
from llama_index.llms.localllm import LocalLLM


async def hand_over(ctx: Context, to_agent: Literal["poet", "cook"]) -> str:
    """Hands over to the agent who can do what is wanted: the poet writes verses, the cook knows meals."""
    # LlamaIndex has a tool "handoff" of its own, for any name. Here the names are given, so no model can write another one.
    await ctx.store.set("next_agent", to_agent)
    return f"The {to_agent} goes on."


async def main(model: str = "qwen3-4b", **options: Any) -> AgentOutput:
    llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 100, **options})
    receptionist = FunctionAgent(
        name="receptionist",
        description="Hears what is wanted.",
        system_prompt="You hand over to the agent who can do what is wanted.",
        tools=[hand_over],
        initial_tool_choice="hand_over",
        allow_parallel_tool_calls=False,
        can_handoff_to=[],
        llm=llm,
    )
    others = [
        FunctionAgent(name=name, description=f"{does}.", system_prompt=f"You are a {name}. {does}.", can_handoff_to=[], llm=llm)
        for name, does in (("poet", "Writes two lines of verse"), ("cook", "Names a meal"))
    ]
    workflow = AgentWorkflow(agents=[receptionist, *others], root_agent="receptionist", timeout=300)
    handler = workflow.run(user_msg="Please write two lines about the sea.")
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            print(f"{event.tool_name}({event.tool_kwargs}) -> {event.tool_output.content}")
    answer: AgentOutput = await handler
    print(f"{answer.current_agent_name}: {answer}")
    return answer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
