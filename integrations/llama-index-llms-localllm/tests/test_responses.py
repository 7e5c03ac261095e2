"""Answers to responses: blocks in their order, deltas that add up, counts where they are looked for."""

from __future__ import annotations

from llama_index.core.base.llms.types import TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.llms.localllm.responses import Growing, whole

from localllm import ChatDelta, ChatMessage, ChatResult, Timings, ToolCallDelta, Usage

USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)
TIMINGS = Timings(0.1, 0.2, 0.3)
DELTAS = [
    ChatDelta(reasoning="Let me "),
    ChatDelta(reasoning="see."),
    ChatDelta(content="I ask"),
    ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "f", '{"a": '),)),
    ChatDelta(tool_calls=(ToolCallDelta(0, arguments="1}"), ToolCallDelta(1, "call_2", "g", "{}"))),
    ChatDelta(finish_reason="tool_calls", usage=USAGE, timings=TIMINGS, seed=9),
]
MESSAGE = ChatMessage.of(DELTAS)


def test_a_whole_answer():
    response = whole(ChatResult(MESSAGE, "tool_calls", USAGE, TIMINGS, 9), "m")
    assert response.message.blocks == [
        ThinkingBlock(content="Let me see."),
        TextBlock(text="I ask"),
        ToolCallBlock(tool_call_id="call_1", tool_name="f", tool_kwargs={"a": 1}),
        ToolCallBlock(tool_call_id="call_2", tool_name="g", tool_kwargs={}),
    ]
    assert response.message.content == "I ask" and response.raw["model"] == "m" and response.raw["seed"] == 9
    assert response.raw["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    assert response.raw["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    assert response.raw["timings"] == {"queue_seconds": 0.1, "prefill_seconds": 0.2, "decode_seconds": 0.3}
    assert response.additional_kwargs == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def test_a_stream_comes_to_the_same():
    growing = Growing("m")
    items = [growing.add(delta) for delta in DELTAS]
    response = whole(ChatResult(MESSAGE, "tool_calls", USAGE, TIMINGS, 9), "m")
    assert items[-1].message == response.message
    assert "".join(item.delta for item in items) == "I ask"
    thoughts = [item.additional_kwargs.get("thinking_delta") for item in items]
    assert thoughts == ["Let me ", "see.", None, None, None, None]
    assert items[-1].raw["usage"] == response.raw["usage"] and all(item.raw["usage"] is None for item in items[:-1])
    assert items[3].message.blocks[-1].tool_kwargs == '{"a": '
    assert items[0].message.blocks[0] == ThinkingBlock(content="Let me ")


def test_nothing_at_all_is_an_answer_too():
    response = whole(ChatResult(ChatMessage(""), "stop", USAGE, TIMINGS, 9), "m")
    assert response.message.content == "" and response.message.additional_kwargs == {}
