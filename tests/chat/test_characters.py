"""Answers that are kept to something consist of whole characters, and have as many of them as they may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localllm import LocalModel
from localllm.chat.constraints.grammar import takes
from localllm.chat.prompt import ChatOptions, render
from localllm.native.handles import Chat

QUESTION = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "object", "properties": {"t": {"type": "string", "maxLength": 30}}, "required": ["t"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
PLAIN = "{{ messages[0].content }}"


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def model(request: Any, models: dict[str, Path]) -> Any:
    # With random weights every byte is as probable as another.
    with LocalModel(models[request.param], n_threads=1, n_ctx=640) as opened:
        yield opened


@pytest.mark.parametrize("form", ["schema", "call", "regex", "stream"])
def test_no_byte_of_an_answer_is_half_of_a_character(model, form):
    options = {"temperature": 1.0, "max_tokens": 240}
    written = []
    for seed in range(20):
        if form == "regex":
            written.append(model.chat(QUESTION, regex="[^b]{0,8}", seed=seed, **options).message.content)
            assert len(written[-1]) <= 8
        elif form == "call":
            answer = model.chat(QUESTION, tools=[TOOL], tool_choice="required", seed=seed, **options)
            written += [call.arguments for call in answer.message.tool_calls if answer.finish_reason != "length"]
        elif form == "schema":
            answer = model.chat(QUESTION, json_schema=SCHEMA, seed=seed, **options)
            written += [answer.message.content] if answer.finish_reason != "length" else []
        else:
            *deltas, last = model.stream_chat(QUESTION, json_schema=SCHEMA, seed=seed, **options)
            text = "".join(delta.content for delta in deltas)
            assert "\ufffd" not in text.rstrip("\ufffd")
            written += [text] if last.finish_reason != "length" else []
    assert len(written) > 4 and not any("\ufffd" in text for text in written)
    if form != "regex":
        assert all(len(json.loads(text)["t"]) <= 30 for text in written)
        assert any(not text.isascii() for text in written)


def test_half_of_a_character_is_given_where_a_grammar_wants_nothing_else(model):
    answer = model.chat(QUESTION, grammar=r'root ::= "a" [\uD800]', temperature=1.0, max_tokens=8, seed=1)
    assert answer.message.content == "a\ufffd\ufffd\ufffd" and answer.finish_reason == "stop"


WHOLE = ['"\\u00e9"', '"\\ud83d\\ude00"', '"\\uD7FF\\uE000"', '"\\uDBFF\\uDFFF"', '"\\\\ud800"', '"\\n\\""']
HALF = ['"\\ud800"', '"\\udc00"', '"\\ud83dx"', '"\\ud83d\\u0041"', '"\\uD83D\\uD83D"', '"\\ude00\\ud83d"']


@pytest.mark.parametrize("text", [*WHOLE, *HALF])
def test_an_escape_is_a_whole_character(text):
    guide = render(Chat(None, PLAIN), QUESTION, ChatOptions(json_schema={"type": "string"})).guide
    assert takes(str(guide["grammar"]), str(guide["generation_prompt"]) + text)[0] == (text in WHOLE)


def test_a_pair_of_escapes_is_one_character_of_those_that_a_schema_allows():
    options = ChatOptions(json_schema={"type": "string", "minLength": 2, "maxLength": 2})
    guide = render(Chat(None, PLAIN), QUESTION, options).guide
    grinning = "\\ud83d\\ude00"
    taken = [takes(str(guide["grammar"]), f'{guide["generation_prompt"]}"{grinning * n}"')[0] for n in (1, 2, 3)]
    assert taken == [False, True, False]


def test_a_grammar_of_the_callers_own_is_left_as_it_is():
    own = 'root ::= "u" [0-9a-fA-F]{4}'
    guide = render(Chat(None, PLAIN), QUESTION, ChatOptions(grammar=own)).guide
    assert takes(str(guide["grammar"]), f"{guide['generation_prompt']}ud800")[0]
