"""Prompts of exact lengths that differ from round to round."""

from __future__ import annotations

import random

from localllm.native.handles import Chat, Model

WORDS = ["river", "mountain", "window", "garden", "silver", "morning", "letter", "bridge", "candle", "winter", "stone", "harbour"]


def tokens(model: Model, seed: int, n: int, before: str = "") -> list[int]:
    """`n` tokens of words, after a text."""
    words = " ".join(random.Random(seed).choices(WORDS, k=n))
    found = model.tokenize(before + words, True, True)
    assert len(found) >= n
    return found[:n]


def plain(model: Model, text: str) -> list[int]:
    """Text in the middle of a prompt."""
    return model.tokenize(text, False, True)


# ChatML with tools as the Hermes and Qwen models have it: this template's text, not that of SmolLM2, which knows no tools.
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- if loop.first and tools %}
{{- '\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def tool(name: str, description: str, **parameters: str) -> dict[str, object]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool(
        "search_documents", "Searches the documents of the company.", query="What to look for.", since="Only newer ones: a date."
    ),
    tool(
        "read_document", "Reads one document, or a part of it.", identifier="As search_documents gives it.", pages="Such as 3-5."
    ),
    tool("send_message", "Sends a message to a colleague.", recipient="A name or an address.", text="What to say, in Markdown."),
    tool("book_room", "Books a meeting room.", room="The name of the room.", start="ISO 8601.", minutes="How long."),
]


def agents(model: Model, seed: int, n_system: int, n_agents: int) -> list[list[int]]:
    """Prompts of agents with one system prompt and the same tools, by a chat template.

    The words of the system prompt are such that `n_system` tokens or a few more are the same in all.
    """
    chat = Chat(None, TEMPLATE)

    def render(n_words: int) -> list[list[int]]:
        words = " ".join(random.Random(seed).choices(WORDS, k=n_words))
        system = {"role": "system", "content": f"You are an agent of the project {words}."}
        return [
            model.tokenize(
                chat.apply(
                    {
                        "messages": [system, {"role": "user", "content": f"{WORDS[at]}: what is the state of it?"}],
                        "tools": TOOLS,
                        "add_generation_prompt": True,
                        "now": 0,
                    }
                )["prompt"],
                True,
                True,
            )
            for at in range(n_agents)
        ]

    n_words = 1
    while shared(render(n_words)) < n_system:
        n_words += max(1, (n_system - shared(render(n_words))) // 2)
    return render(n_words)


def shared(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with."""
    n = 0
    for column in zip(*prompts, strict=False):
        if len(set(column)) > 1:
            break
        n += 1
    return n


def distinct(prompts: list[list[int]]) -> int:
    """Tokens to compute if no prefix is ever computed twice."""
    nodes: dict[tuple[int, int], int] = {}
    for prompt in prompts:
        node = 0
        for token in prompt:
            node = nodes.setdefault((node, token), len(nodes) + 1)
    return len(nodes)
