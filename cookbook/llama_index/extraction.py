"""Facts from a text as typed objects, whole and while they are written.

python cookbook/llama_index/extraction.py [MODEL]
"""

import asyncio
import sys
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.localllm import LocalLLM
from pydantic import BaseModel, Field

TEXT = "Anna baked two loaves of bread on Monday and sold them in Oslo."


class Item(BaseModel):
    """Something that was made."""

    name: str = Field(description="What it is.", pattern="^[a-z ]{3,20}$")
    count: int = Field(description="How many there are.", ge=1, le=99)


class Report(BaseModel):
    """What happened."""

    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    items: list[Item] = Field(min_length=1, max_length=2)


async def main(model: str = "qwen3-4b", **options: Any) -> tuple[Report, list[Any], Report]:
    llm = LocalLLM(model, **{"temperature": 0, "max_tokens": 200, **options})
    prompt = PromptTemplate("What happened? {text}")

    report = await llm.astructured_predict(Report, prompt, text=TEXT)
    print(report)

    growing = []
    async for partial in await llm.astream_structured_predict(Report, prompt, text=TEXT):
        growing.append(partial)
        print(partial)

    answer = await llm.as_structured_llm(Report).achat([ChatMessage(role="user", content=f"What happened? {TEXT}")])
    return report, growing, answer.raw


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
