"""Calls that are bound keep to their schemas, whatever the model would rather write: in every family's format, or in ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from localllm import LocalModel
from localllm.chat.constraints.grammar import takes
from localllm.chat.prompt import ChatOptions, Prompt, render
from localllm.errors import InvalidRequestError
from localllm.native.handles import Chat

TEMPLATES = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
QUESTION = {"role": "user", "content": "How is the weather?"}
# The first is one that formats with texts between tags can keep to, the second is not.
PLAIN = {"days": {"type": "integer"}, "note": {"type": "string"}}
LISTED = {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
KINDS_OF_SCHEMAS = {"plain": PLAIN, "listed": LISTED}
OURS = "A call is a JSON object between tags"
# What stands around a text for the user.
FRAMES = (
    "{}",
    "</think>\n\n{}",
    "<|END_THINKING|><|START_TEXT|>{}",
    "<|START_RESPONSE|>{}<|END_RESPONSE|>",
    "<|channel|>final<|message|>{}",
)


def tool(properties: dict[str, Any], name: str = "get_weather", *, strict: Any = None) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    function = {"name": name, "description": "Says it.", "parameters": parameters}
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def asked(name: str, *tools: dict[str, Any], **options: Any) -> Prompt:
    return render(Chat(None, source(name)), [QUESTION], ChatOptions(tools=tools, **options))


@cache
def strictly(name: str, kind: str) -> Prompt:
    return asked(name, tool(KINDS_OF_SCHEMAS[kind], strict=True))


def can_write(prompt: Prompt, text: str) -> bool:
    grammar, before = prompt.guide["grammar"], prompt.guide["generation_prompt"]
    return any(takes(grammar, before + frame.format(text))[0] for frame in FRAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS_OF_SCHEMAS)
def test_a_strict_tool_binds_the_answer_from_its_first_token_on(name, kind):
    prompt, properties = strictly(name, kind), KINDS_OF_SCHEMAS[kind]
    assert prompt.guide["grammar_lazy"] is False
    assert can_write(prompt, "It is <b>fine</b> {today}."), "it need not call"
    if OURS in prompt.text:
        good = {"days": 3, **({"note": "x"} if properties is PLAIN else {"city": "Rome"})}
        in_order = json.dumps({key: good[key] for key in properties})
        for text, allowed in ((in_order, True), (in_order.replace("3", "true"), False), ("{}", False)):
            call = f'<tool_call>\n{{"name": "get_weather", "arguments": {text}}}\n</tool_call>'
            assert can_write(prompt, f"Well. {call}") is allowed


def test_most_families_keep_their_own_format():
    ours = {kind: [name for name in NAMES if OURS in strictly(name, kind).text] for kind in KINDS_OF_SCHEMAS}
    assert len(ours["plain"]) < 22 and len(ours["listed"]) < 40, ours


# One of each kind of format, and whether its calls begin with a mark that the tiny model has as one token.
KINDS = {
    "Apertus-8B-Instruct": False,
    "ByteDance-Seed-OSS": False,
    "GLM-4.6": True,
    "HuggingFaceTB-SmolLM3-3B": True,
    "mistralai-Mistral-Nemo-Instruct-2407": False,
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": True,
    "Qwen-Qwen3-0.6B": True,
    "Qwen3-Coder": True,
    "Qwen3.5-4B": True,
    "deepseek-ai-DeepSeek-V3.2": False,
    "google-gemma-2-2b-it": True,
    "meta-llama-Llama-3.1-8B-Instruct": True,
    "openbmb-MiniCPM5-1B": True,
    "openai-gpt-oss-120b": False,
}
NO_THOUGHTS: dict[str, Any] = {"enable_thinking": False}
# These think all the same, and random thoughts have no end.
THINKING: dict[str, dict[str, Any]] = {name: {"reasoning_budget": 8} for name in ("ByteDance-Seed-OSS", "openai-gpt-oss-120b")}
SHORT = {
    "days": {"type": "integer", "minimum": 1, "maximum": 40},
    "open": {"type": "boolean"},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
}


@pytest.fixture(params=KINDS, scope="module")
def tiny(request, models):
    """A tiny model with random weights, which writes whatever it is not kept from, with a real template."""
    with LocalModel(str(models["qwen3"]), n_ctx=8192, n_threads=1, chat_template=source(request.param)) as model:
        yield request.param, model


def checked(answer: Any, *properties: dict[str, Any]) -> None:
    assert answer.finish_reason == "tool_calls", answer
    (call,) = answer.message.tool_calls
    schemas = [tool(each)["function"]["parameters"] for each in properties]
    jsonschema.validate(json.loads(call.arguments), {"anyOf": schemas}, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("seed", range(3))
def test_random_tokens_under_the_grammar_are_valid_calls(tiny, seed):
    name, model = tiny
    tools = [tool(SHORT), tool({}, "stop")]
    begins = {token: 60.0 for text in ("<tool_call>", "\n") for token in model.tokenize(text)}
    options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_tokens": 800, **THINKING.get(name, NO_THOUGHTS)}
    checked(model.chat([QUESTION], tools=tools, tool_choice="required", **options), SHORT, {})
    if KINDS[name]:
        strict = [tool(SHORT, strict=True), tool({}, "stop", strict=True)]
        checked(model.chat([QUESTION], tools=strict, logit_bias=begins, **options), SHORT, {})


def test_required_arguments_are_kept_to_where_the_family_does_not():
    # This family's own grammar lets a call leave out arguments.
    assert OURS in asked("openbmb-MiniCPM5-1B", tool(PLAIN), tool_choice="required").text
    relaxed = tool(PLAIN)
    relaxed["function"]["parameters"]["required"] = []
    assert OURS not in asked("openbmb-MiniCPM5-1B", relaxed, tool_choice="required").text


def test_what_is_said_beside_the_properties_is_kept_to():
    either = {"anyOf": [{"properties": PLAIN, "required": ["days"]}, {"properties": PLAIN, "required": ["note"]}]}
    function = {"name": "look", "parameters": {"type": "object", **either}}
    for name in ("Qwen3-Coder", "GLM-4.6", "Qwen-Qwen3-0.6B"):
        prompt = asked(name, {"type": "function", "function": function}, tool_choice="required")
        for arguments, allowed in (('{"note": "x"}', True), ("{}", False)):
            call = f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
            assert can_write(prompt, call) is allowed, name


def test_only_strict_tools_decide_on_the_format():
    lax, strict = tool(LISTED), tool(PLAIN, "note_it", strict=True)
    prompt = asked("Qwen3-Coder", lax, strict)
    assert OURS not in prompt.text and prompt.guide["grammar_lazy"] is False
    assert OURS in asked("Qwen3-Coder", tool(LISTED, strict=True), tool(PLAIN, "note_it")).text
    for strictness in (None, False):
        assert asked("Qwen3-Coder", tool(LISTED, strict=strictness)).guide["grammar_lazy"] is True


@pytest.mark.parametrize("strict", [1, "true", [], 0])
def test_strict_is_true_or_false(strict):
    with pytest.raises(InvalidRequestError, match=r"tools\[1\]\.function\.strict: must be True or False"):
        asked("Qwen-Qwen3-0.6B", tool(PLAIN), tool(PLAIN, "other", strict=strict))
    with pytest.raises(InvalidRequestError, match=r'tools\[0\]\.strict: belongs into "function"'):
        asked("Qwen-Qwen3-0.6B", {**tool(PLAIN), "strict": True})
