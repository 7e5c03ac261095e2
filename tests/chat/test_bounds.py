"""Templates come inside of files that somebody else made: none ends the process, or keeps it busy for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localllm.chat.prompt import ChatOptions, render
from localllm.errors import TemplateError
from localllm.native.handles import Chat

ASK = [{"role": "user", "content": "Hello."}]
HOSTILE = {
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "two macros without end": "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "fewer parentheses": "{{ " + "(" * 1_900 + "1" + ")" * 1_900 + " }}",
    "lists": "{{ " + "[" * 1_900 + "]" * 1_900 + " }}",
    "conditions": "{% if true %}" * 20_000 + "{% endif %}" * 20_000,
    "alternatives": "{% if false %}" + "{% elif false %}" * 20_000 + "{% endif %}",
    "nots": "{{ " + "not " * 50_000 + "1 }}",
    "sums": "{{ 1" + " + 1" * 50_000 + " }}",
    "filters": "{{ 'x'" + " | upper" * 50_000 + " }}",
    "a loop of loops": "{% for i in range(30000) %}{% for j in range(30000) %}{% endfor %}{% endfor %}x",
    "a long loop": "{% for x in range(1000000000) %}a{% endfor %}",
    "a long text": "{{ 'x' * 100000000000 }}",
    "texts that double": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "texts that grow": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s | replace('x', 'xxx') %}"
    "{% endfor %}{{ n.s }}",
    "lists that double": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}x",
    "two megabytes": "x" * (2 << 20),
}
PROGRAM = """
import resource, sys
sys.path.insert(0, {folder!r})
from test_bounds import HOSTILE, attempt
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
print(attempt(HOSTILE[{name!r}]))
"""


def attempt(template: str) -> str:
    try:
        render(Chat(None, template), ASK, ChatOptions())
    except TemplateError as error:
        return str(error)
    return "rendered"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_an_error(name, request):
    program = PROGRAM.format(folder=str(request.path.parent), name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-400:]
    assert any(word in done.stdout for word in ("steps", "nested", "more than", "rendered")), done.stdout


def test_after_a_hostile_template_the_next_one_works():
    assert "itself without end" in attempt(HOSTILE["a macro without end"])
    assert attempt("{% for m in messages %}{{ m.content }}{% endfor %}") == "rendered"


def test_a_long_conversation_is_far_from_the_limit():
    template = "{% for m in messages %}{% for c in range(20) %}{{ m.role }}{% endfor %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 200}] * 2_000
    prompt = render(Chat(None, template), messages, ChatOptions())
    assert prompt.text.count("word") == 400_000


def test_a_template_that_refuses_says_its_own_words():
    with pytest.raises(TemplateError, match="Only one turn, please"):
        render(Chat(None, "{% if messages | length > 1 %}{{ raise_exception('Only one turn, please') }}{% endif %}x"),
               [*ASK, {"role": "assistant", "content": "Yes?"}, *ASK], ChatOptions())  # fmt: skip


def test_parameters_without_a_type_do_not_stop_a_template_that_wants_one():
    from pathlib import Path

    source = (Path(__file__).parents[2] / "vendor/llama.cpp/models/templates/ByteDance-Seed-OSS.jinja").read_text()
    parameters = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    prompt = render(Chat(None, source), ASK, ChatOptions(tools=[tool], tool_choice="required"))
    assert "get_weather" in prompt.text and "Paris" in str(prompt.guide["grammar"])
