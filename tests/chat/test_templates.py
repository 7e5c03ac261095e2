"""Real chat templates: what they write for an answer is what is read back from one, whole or in pieces."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.chat.answer import AnswerReader, collect
from localllm.chat.constraints.grammar import takes
from localllm.chat.prompt import ChatOptions, Prompt, render
from localllm.chat.types import ChatMessage, ChatResult
from localllm.engine.request import Delta, Finished, Timings, Usage
from localllm.native.handles import Chat

# The pinned source comes with the templates of many models.
TEMPLATES = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
# JSON between tags, JSON lists, tagged arguments, Python calls, functions as keys, channels, our own format.
FAMILIES = [
    "Apertus-8B-Instruct",
    "ByteDance-Seed-OSS",
    "GLM-4.6",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "LFM2.5-8B-A1B",
    "MiMo-VL",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-4.0",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_news")
]
# What comes before the answer proper: the end of a thought that the prompt has begun, or the channel of the answer.
OPENINGS = {
    "Qwen3.5-4B": "</think>\n\n",
    "deepseek-ai-DeepSeek-V3.1": "</think>",
    "deepseek-ai-DeepSeek-V3.2": "</think>",
    "openai-gpt-oss-120b": "<|channel|>final<|message|>",
}
QUESTION = {"role": "user", "content": "What is new?"}
PARIS = {"id": "call11111", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'}}
ROME = {"id": "call22222", "type": "function", "function": {"name": "get_news", "arguments": '{"city": "Rome", "days": 1}'}}
ANSWERS: dict[str, dict[str, Any]] = {
    "content": {"content": "Hello there."},
    "call": {"content": "", "tool_calls": [PARIS]},
    "calls": {"content": "", "tool_calls": [PARIS, ROME]},
    "thought": {"content": "Hello there.", "reasoning_content": "Let me see."},
    "thought and call": {"content": "", "reasoning_content": "Let me see.", "tool_calls": [PARIS]},
}


@cache
def chat(name: str) -> Chat:
    return Chat(None, (TEMPLATES / f"{name}.jinja").read_text())


def asked(name: str, kind: str, **options: Any) -> Prompt:
    return render(chat(name), [QUESTION], ChatOptions(tools=TOOLS, parallel_tool_calls=kind == "calls", **options))


@cache
def written(name: str, kind: str) -> str | None:
    """An answer as the template itself writes it into the history, from the generation prompt on; None: it does not."""
    prompt = asked(name, kind)

    def turn(answer: dict[str, Any]) -> str | None:
        history = [QUESTION, {"role": "assistant", **answer}]
        request = {"messages": history, "tools": TOOLS, "add_generation_prompt": False, "reasoning_format": "auto"}
        request["parallel_tool_calls"] = kind == "calls"
        whole = chat(name).apply(request)["prompt"]
        return whole[len(prompt.text) :] if whole.startswith(prompt.text) else None

    text, plain = turn(ANSWERS[kind]), turn(ANSWERS["content"])
    if text is None:
        return None
    # What ends a turn ends every turn; the sampler never gives it.
    end = plain.partition("Hello there.")[2] if plain else ""
    return text.removesuffix(end).removesuffix("<|call|>")


def read(prompt: Prompt, pieces: list[str]) -> ChatResult:
    reader = AnswerReader(prompt)
    events = [*(Delta(piece, (1,)) for piece in pieces), Finished("stop", Usage(1, len(pieces)), Timings(0, 0, 0), 0)]
    deltas = [delta for event in events for delta in reader.take(event)]
    result = collect(reader, deltas)
    assert ChatMessage.of(deltas) == result.message
    for at, call in enumerate(result.message.tool_calls):
        named = [change.name for delta in deltas for change in delta.tool_calls if change.index == at and change.name]
        assert named == [call.name]
    return result


def meant(kind: str, result: ChatResult) -> None:
    answer = ANSWERS[kind]
    calls = [(call.name, json.loads(call.arguments)) for call in result.message.tool_calls]
    wanted = [call["function"] for call in answer.get("tool_calls", ())]
    assert calls == [(function["name"], json.loads(function["arguments"])) for function in wanted]
    assert result.message.content.strip() == answer["content"]
    assert result.message.reasoning.strip() == answer.get("reasoning_content", "")
    assert result.finish_reason == ("tool_calls" if calls else "stop")
    assert len({call.id for call in result.message.tool_calls}) == len(calls)


def readable(name: str, kind: str) -> bool:
    """Whether a template writes such an answer into the history as a model would: some leave out what was thought, begin each
    answer with a thought, or take one call at a time."""
    text = written(name, kind)
    if text is None or (kind == "calls" and "Rome" not in text):
        return False
    return "thought" not in kind or "Let me see." in text


def test_most_templates_write_most_answers():
    found = {kind: [name for name in FAMILIES if readable(name, kind)] for kind in ANSWERS}
    assert len(found["content"]) >= 18 and len(found["call"]) >= 18 and len(found["calls"]) >= 16
    assert len(found["thought and call"]) >= 5, found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_template_writes_is_read_back(name, kind):
    text = written(name, kind)
    if not readable(name, kind) or text is None:
        return
    prompt = asked(name, kind)
    meant(kind, read(prompt, [text]))
    meant(kind, read(prompt, list(text)))


@given(st.data())
@settings(max_examples=300)
def test_pieces_do_not_matter(data):
    name, kind = data.draw(st.sampled_from([(name, kind) for name in FAMILIES for kind in ANSWERS if readable(name, kind)]))
    text = written(name, kind)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    prompt = asked(name, kind)
    whole, parts = read(prompt, [text]).message, read(prompt, pieces).message
    assert (whole.content, whole.reasoning) == (parts.content, parts.reasoning)
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [
        (call.name, call.arguments) for call in parts.tool_calls
    ]


# Their grammars let a call have any arguments, so that calls which have to be valid are in our format.
OURS = ("LFM2.5-8B-A1B",)
OUR_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'


def written_by_force(name: str) -> str | None:
    return OUR_CALL if name in OURS else written(name, "call")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call_is_all_that_can_be_written(name):
    prompt = asked(name, "call", tool_choice="required")
    grammar, before = prompt.guide["grammar"], prompt.guide["generation_prompt"]
    text = written_by_force(name)
    if text is not None:
        assert takes(grammar, before + text.rstrip())[0] or takes(grammar, before + text)[0]
    assert not takes(grammar, before + "Hello there. I would rather talk than call anything.")[0]
    named = asked(name, "call", tool_choice="get_news").guide["grammar"]
    if text is not None:
        assert not takes(named, before + text)[0], "another tool was chosen"


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_to_choose_stands_alone(name):
    prompt = render(chat(name), [QUESTION], ChatOptions(choice=["yes", 'no "way"']))
    grammar, before = prompt.guide["grammar"], prompt.guide["generation_prompt"]
    frame = OPENINGS.get(name, "")
    assert takes(grammar, f'{before}{frame}no "way"')[0] and not takes(grammar, f"{before}{frame}maybe")[0]
    assert read(prompt, [f"{frame}yes"]).message.content == "yes"


@pytest.mark.parametrize("name", FAMILIES)
def test_with_tools_and_a_schema_the_answer_is_a_call_or_data(name):
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}, "required": ["x"]}
    prompt = asked(name, "call", json_schema=schema)
    grammar, before = prompt.guide["grammar"], prompt.guide["generation_prompt"]
    frame = OPENINGS.get(name, "")
    good, bad = (frame + json.dumps({"x": x}) for x in (3, 2))
    assert takes(grammar, before + good)[0] and not takes(grammar, before + bad)[0]
    assert read(prompt, [good]).message.content == '{"x": 3}'
    if (text := written_by_force(name)) is not None:
        assert takes(grammar, before + text.rstrip())[0] or takes(grammar, before + text)[0]
        meant("call", read(prompt, [text]))


def test_messages_in_a_row_suit_a_template_that_wants_turns():
    messages = [
        {"role": role, "content": role[0]} for role in ("system", "system", "user", "user", "assistant", "assistant", "user")
    ]
    for name in FAMILIES:
        text = render(chat(name), messages, ChatOptions()).text
        assert "u" in text, name


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_a_required_call_keeps_to_its_schema_with_every_template(name):
    properties = {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}, "note": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": ["city", "days", "note"]}
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Says it.", "parameters": parameters}}
    prompt = render(chat(name), [QUESTION], ChatOptions(tools=[tool], tool_choice="required"))
    # Formats that would take any text for the city make way for ours.
    assert "Paris" in prompt.guide["grammar"] and "Rome" in prompt.guide["grammar"]
    assert "get_weather" in prompt.text
