"""Answers that are objects: every way to ask for them, every kind of schema, whole and while they come.

python cookbook/langchain/structured_output.py [MODEL]
"""

import sys
from typing import Annotated, TypedDict

from langchain_localllm import ChatLocalLLM
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


class PersonDict(TypedDict):
    """A person."""

    name: Annotated[str, ..., "The name"]
    age: Annotated[int, ..., "Age in years"]


TEXT = "Ada is 36 years old."


def main(model: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=64)
    seen = {}
    for method in ("json_schema", "function_calling", "json_mode"):
        question = TEXT + (" Answer as JSON with the keys name and age." if method == "json_mode" else "")
        seen[method] = llm.with_structured_output(Person, method=method).invoke(question)
    for schema in (PersonDict, Person.model_json_schema()):
        seen[f"as {type(schema).__name__}"] = llm.with_structured_output(schema).invoke(TEXT)
    seen["raw"] = llm.with_structured_output(Person, include_raw=True).invoke(TEXT)
    seen["stream"] = list(llm.with_structured_output(PersonDict).stream(TEXT))
    for name, value in seen.items():
        print(f"{name}: {value}")
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
