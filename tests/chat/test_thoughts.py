"""Thoughts: apart from the answer, as long as they may be, whatever else the answer has to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from localllm import ChatMessage, LocalModel, Request, SamplingParams, Usage
from localllm.errors import InvalidRequestError

TEMPLATES = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
ASK = [{"role": "user", "content": "Why is the sky blue?"}]
MESSAGE = " That is enough."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    },
}
KINDS = {
    "text": {},
    "choice": {"choice": ["yes", "no"]},
    "data": {"json_schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
    "call": {"tools": [TOOL], "tool_choice": "required"},
}
# Their prompts begin the thought. In this vocabulary the marks are several tokens, and melt into what stands around them.
OPEN = ["Bielik-11B-v3.0-Instruct", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "Qwen-QwQ-32B"]


@pytest.fixture(scope="module", params=OPEN)
def thinker(request, faster_smollm2):
    template = (TEMPLATES / f"{request.param}.jinja").read_text()
    with LocalModel(faster_smollm2, n_ctx=4096, parallel=2, chat_template=template) as model:
        yield model


def ask(model: LocalModel, streamed: bool, **options) -> tuple[ChatMessage, str | None, Usage | None]:
    options = {"temperature": 0, "max_tokens": 120, **options}
    if not streamed:
        answer = model.chat(ASK, **options)
        return answer.message, answer.finish_reason, answer.usage
    deltas = list(model.stream_chat(ASK, **options))
    return ChatMessage.of(deltas), deltas[-1].finish_reason, deltas[-1].usage


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0, 5])
def test_a_thought_ends_when_its_budget_is_used_up(thinker, kind, budget, streamed):
    message = MESSAGE if budget else ""
    said, reason, _ = ask(thinker, streamed, reasoning_budget=budget, reasoning_budget_message=message, **KINDS[kind])

    assert said.reasoning.strip().endswith(message.strip())
    thought = said.reasoning.strip().removesuffix(message.strip())
    # Tokens of a text by itself may be one more than those it was written with.
    assert thinker.count_tokens(thought) <= budget + 1
    assert "think" not in thought + said.content[:20]
    if kind == "choice":
        assert said.content in ("yes", "no")
    elif kind == "call":
        assert [call.name for call in said.tool_calls] == ["get_weather"] and not said.content
    elif kind == "data":
        assert reason == "length" or '"ok"' in said.content


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_thought_that_is_cut_off_is_no_answer(thinker, kind, streamed):
    said, reason, usage = ask(thinker, streamed, max_tokens=3, **KINDS[kind])

    assert reason == "length"
    assert (said.content, said.tool_calls) == ("", ())
    assert said.reasoning.strip()
    assert usage.reasoning_tokens == 3


def test_every_thought_of_an_answer_has_its_own_budget(thinker):
    thought = '"<think>" [a-z ]* "</think>"'
    guide = {
        "grammar": f'root ::= "Well. " {thought} " So: " {thought} "Yes."',
        "reasoning_start": "<think>",
        "reasoning_ends": ["</think>"],
        "reasoning_budget_tokens": 1,
        "reasoning_budget_message": " stop",
    }
    prompt = tuple(thinker.tokenize("Once upon a time"))
    answer = thinker.engine.generate(
        Request(prompt=prompt, max_tokens=100, sampling=SamplingParams(temperature=0), grammar=guide)
    )

    thoughts = re.fullmatch(r"Well. <think>(.*) stop</think> So: <think>(.*) stop</think>Yes.", answer.text)
    assert thoughts, answer.text
    assert all(0 < thinker.count_tokens(one) <= 2 for one in thoughts.groups())


def test_logprobs_and_drafts_go_with_a_budget(thinker, faster_smollm2):
    options = {"reasoning_budget": 5, "reasoning_budget_message": MESSAGE, "logprobs": True}
    with LocalModel(faster_smollm2, n_ctx=4096, chat_template=thinker.chat_template, speculation="ngram-simple") as drafting:
        for model in (drafting, thinker):
            for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 1, "sampled_probs": True}):
                answer = model.chat(ASK, max_tokens=40, **sampling, **options)
                assert answer.message.reasoning.strip().endswith(MESSAGE.strip())
                assert len(answer.logprobs) == answer.usage.completion_tokens
                if "sampled_probs" in sampling:
                    end = next(at for at, entry in enumerate(answer.logprobs) if entry.piece.strip() == b"enough")
                    assert answer.logprobs[end].logprob == 0.0, "there was no choice"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"reasoning_budget": -1}, "reasoning_budget"),
        ({"reasoning_budget": 2.5}, "reasoning_budget"),
        ({"reasoning_budget": True}, "reasoning_budget"),
        ({"reasoning_budget": 5, "reasoning_budget_message": 7}, "reasoning_budget_message"),
        ({"reasoning_budget_message": "Stop."}, "needs a reasoning_budget"),
        ({"reasoning_budget": 5}, "marks no thoughts"),
    ],
)
def test_budgets_that_mean_nothing_are_errors(options, word):
    with LocalModel("smollm2") as model, pytest.raises(InvalidRequestError, match=word):
        model.count_message_tokens(ASK, **options)
