"""A conversation that outgrows its context: what is old is summarised in time, by the model itself.

python cookbook/langchain/summarisation.py [MODEL]
"""

import sys

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_localllm import ChatLocalLLM
from langgraph.checkpoint.memory import InMemorySaver


def main(model: str = "smollm2") -> list:
    # The middleware reads the length of the context from the model's profile, and counts by its tokenizer.
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=16, n_ctx=512)
    summarise = SummarizationMiddleware(
        llm,
        trigger=("fraction", 0.2),
        keep=("messages", 2),
        token_counter=llm.get_num_tokens_from_messages,
        summary_prompt="Summarise in one sentence:\n{messages}",
    )
    agent = create_agent(llm, middleware=[summarise], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    states = []
    for question in ("My name is Ada.", "I live in Oslo.", "I like chess.", "Who am I?"):
        states.append(agent.invoke({"messages": [("user", question)]}, thread)["messages"])
        print(f"{len(states[-1])} messages, {llm.get_num_tokens_from_messages(states[-1])} tokens")
    for message in states[-1]:
        message.pretty_print()
    return states


if __name__ == "__main__":
    main(*sys.argv[1:])
