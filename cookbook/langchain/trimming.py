"""A conversation cut to what fits, counted by the model's own tokenizer and template.

python cookbook/langchain/trimming.py [MODEL]
"""

import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langchain_localllm import ChatLocalLLM

CONVERSATION = [
    SystemMessage("You are a helpful assistant."),
    HumanMessage("What is the capital of Norway?"),
    AIMessage("The capital of Norway is Oslo."),
    HumanMessage("And of Denmark?"),
    AIMessage("That is Copenhagen."),
    HumanMessage("What is the capital of France?"),
]


def main(model: str = "smollm2", max_tokens: int = 60) -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=16)
    trimmer = trim_messages(max_tokens=max_tokens, token_counter=llm, strategy="last", include_system=True, start_on="human")
    kept = trimmer.invoke(CONVERSATION)
    answer = (trimmer | llm).invoke(CONVERSATION)
    for message in [*kept, answer]:
        message.pretty_print()
    return {"kept": kept, "answer": answer, "tokens": llm.get_num_tokens_from_messages(kept)}


if __name__ == "__main__":
    main(*sys.argv[1:])
