"""Conversations that keep their messages, and fit into the context."""

from __future__ import annotations

import asyncio
import json
import threading
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import ChatMessage, ChatSession, DropOldest, LocalModel, Lora, SamplingParams, Summarise, ToolCall
from localllm.chat.prompt import ChatOptions, render
from localllm.chat.session import CUT, _whole_calls
from localllm.chat.trimming import with_summary, without_summary
from localllm.errors import ClosedError, ContextOverflowError, InvalidRequestError, LocalLLMError
from localllm.native.handles import Chat

GREEDY = {"temperature": 0, "max_tokens": 8}
TEMPLATES = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does it.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "minLength": 40}}, "required": ["a"]},
    },
}


@pytest.fixture(scope="module")
def tiny(models):
    """A model whose template reads the arguments of calls."""
    with LocalModel(models["qwen3"], n_ctx=512, parallel=2, n_threads=1) as model:
        yield model


def deep() -> list[Any]:
    """Lists within lists, more than Python goes into."""
    value: list[Any] = []
    for _ in range(100000):
        value = [value]
    return value


def said(n_turns: int, text: str = "word " * 4) -> list[dict[str, Any]]:
    """Messages of so many turns, numbered."""
    return [
        message
        for turn in range(n_turns)
        for message in ({"role": "user", "content": f"{turn}: {text}"}, {"role": "assistant", "content": "Yes."})
    ]


@pytest.fixture(scope="module")
def model():
    with LocalModel("smollm2", n_ctx=512, parallel=2) as model:
        yield model


def roles(session: ChatSession) -> list[str]:
    return [message["role"] for message in session.messages]


def test_each_turn_computes_only_what_is_new(model):
    session = ChatSession(model, "You are a helpful assistant.", **GREEDY)
    first = session.ask("What is the capital of France?")
    second = session.ask("And of Italy?")
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]
    assert session.messages[2]["content"] == first.message.content
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
    assert model.chat(session.messages[:-1], **GREEDY).message.content == second.message.content


def test_streams_and_coroutines_keep_what_was_said(model):
    session = ChatSession(model, **GREEDY)
    text = "".join(delta.content for delta in session.stream("Name a colour."))
    assert session.messages[-1] == {"role": "assistant", "content": text}
    stream = session.stream("Tell me a long story.", max_tokens=100)
    said = next(delta.content for delta in stream if delta.content)
    stream.close()
    assert session.messages[-1]["content"] == said and roles(session) == ["user", "assistant"] * 2

    async def awaited() -> None:
        await session.aask("Name an animal.")
        async for _ in session.astream("Name a city."):
            pass

    asyncio.run(awaited())
    assert roles(session) == ["user", "assistant"] * 4
    session.undo()
    assert roles(session) == ["user", "assistant"] * 3


def test_a_turn_that_fails_changes_nothing(model):
    session = ChatSession(model, **GREEDY)
    session.ask("Hello.")
    before = list(session.messages)
    for bad in ({"temperature": -1}, {"colour": "red"}):
        with pytest.raises(LocalLLMError):
            session.ask("Hello again.", **bad)
    with pytest.raises(ContextOverflowError):
        session.ask("word " * 600)
    assert session.messages == before


def test_a_stream_that_fails_changes_nothing(models):
    with LocalModel(models["qwen3"], n_ctx=480, n_threads=1) as model:
        session = ChatSession(model, temperature=0, ignore_eos=True)
        stream = session.stream("x")
        next(stream)
        model.engine.close()
        with pytest.raises(ClosedError):
            list(stream)
        assert session.messages == []


def test_the_oldest_turns_are_dropped_when_the_context_is_full(tiny):
    session = ChatSession(tiny, "Be brief.", policy=DropOldest(), **GREEDY)
    for number in range(12):
        session.ask(f"Number {number}: " + "word " * 15)
    assert roles(session)[0] == "system" and "Number 11" in session.messages[-2]["content"]
    assert 2 < len(session.messages) < 20 and tiny.count_message_tokens(session.messages[:-1]) <= 512
    with pytest.raises(ContextOverflowError, match="the newest turn has"):
        session.ask("word " * 600)
    few = ChatSession(tiny, messages=session.messages, policy=DropOldest(keep_turns=1), **GREEDY)
    few.ask("word " * 60)
    assert roles(few) == ["system", "user", "assistant"]


def test_a_tools_result_is_never_left_without_its_call(tiny):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "user", "content": "word " * 5},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "word " * 5},
        {"role": "assistant", "content": "Done."},
    ]
    session = ChatSession(tiny, messages=turn * 6, policy=DropOldest(), **GREEDY)
    session.ask("Thanks.")
    assert roles(session)[:4] == ["user", "assistant", "tool", "assistant"] and len(session.messages) % 4 == 2


def test_old_turns_are_summarised_by_the_model(model):
    session = ChatSession(model, "Be brief.", policy=Summarise(keep_turns=1, max_tokens=24), **GREEDY)
    for number in range(6):
        session.ask(f"Number {number}: " + "word " * 80)
    assert roles(session)[:2] == ["system", "user"]
    assert session.messages[0]["content"].startswith("Be brief.\n\nEarlier in this conversation: ")
    assert model.count_message_tokens(session.messages) <= 512


@pytest.mark.parametrize("system", ["You are kind.", ""])
def test_a_summary_takes_the_place_of_the_one_before(tiny, system):
    session = ChatSession(tiny, system, policy=Summarise(keep_turns=1, max_tokens=30), temperature=0, ignore_eos=True)
    summaries = set()
    for number in range(14):
        session.ask(f"question {number} " + "bla " * 10, max_tokens=40)
        session = ChatSession.from_json(tiny, session.to_json(), policy=session.policy)
        summaries.add(session.messages[0].get("summary"))
        assert roles(session).count("system") <= 1
        assert sum(str(message["content"]).count("Earlier in this conversation: ") for message in session.messages) <= 1
        assert tiny.count_message_tokens(session.messages[:-1]) <= 512
    assert len(summaries) > 2 and session.messages[0].get("summary") and session.messages[0]["content"].startswith(system)


@pytest.mark.parametrize(
    "head",
    [
        [],
        [{"role": "system", "content": "Be brief."}],
        [{"role": "developer", "content": [{"type": "text", "text": "Be"}]}, {"role": "system", "content": "brief."}],
    ],
)
def test_a_summary_can_be_taken_off_again(head):
    summarised = with_summary(head, "All is well.")
    assert len(summarised) == max(1, len(head))
    assert without_summary(summarised) == (head, "All is well.")
    again = [{**summarised[0], "content": "Other."}, *summarised[1:]]
    assert without_summary(again) == ([{"role": summarised[0]["role"], "content": "Other."}, *head[1:]], "")


def test_the_newest_turn_goes_before_a_summary(tiny):
    """What cannot be summarised, or leaves no room for the summary, is left out all the same."""
    big, small = "word " * 80, "word " * 10
    for messages, asked in ((said(2, big), small), (said(6, small), "word " * 110), (said(2, "word " * 200), small)):
        session = ChatSession(tiny, messages=messages, policy=Summarise(max_tokens=4000), **GREEDY)
        assert session.ask(asked).usage.prompt_tokens <= 512
        assert session.messages[-2]["content"] == asked


class Kind(str, Enum):
    SHORT = "brief"


class Counting:
    """A LocalModel that notes how long the conversations are whose tokens are counted."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.counted: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def count_message_tokens(self, messages: Any, **options: Any) -> int:
        self.counted.append(len(messages))
        return self._model.count_message_tokens(messages, **options)


def test_a_long_conversation_is_shortened_with_few_looks_at_it(tiny):
    counting = Counting(tiny)
    session = ChatSession(counting, "Be brief.", messages=said(300), policy=DropOldest(), **GREEDY)
    session.ask("x")
    kept = session.messages[:-1]
    assert len(counting.counted) < 20 and sum(counting.counted) < 1000
    assert tiny.count_message_tokens(kept) <= 504 < tiny.count_message_tokens([kept[0], *said(300)[-len(kept) :], kept[-1]])


@pytest.mark.parametrize("n_turns", range(1, 12))
def test_as_many_turns_stay_as_fit(tiny, n_turns):
    head = [{"role": "system", "content": "x"}]
    turns = said(12)
    room = tiny.count_message_tokens([*head, *turns[-2 * n_turns :]])
    for spare, n_kept in ((0, n_turns), (1, n_turns), (-1, max(1, n_turns - 1))):
        assert DropOldest().shorten(tiny, [*head, *turns], room + spare, {}) == [*head, *turns[-2 * n_kept :]]


@pytest.mark.parametrize("options", [{"max_tokens": 4096}, {"max_tokens": 512}, {"reserve_tokens": 4096}])
@pytest.mark.parametrize("policy", [DropOldest(), Summarise(max_tokens=4)])
def test_an_answer_of_any_length_may_be_asked_for(tiny, policy, options):
    session = ChatSession(tiny, "Be brief.", messages=said(30), policy=policy, temperature=0, stop=["\n", " "], **options)
    session.ask("x")
    assert len(session.messages) >= 5
    # The newest turn may take what was reserved, as it may without a policy.
    assert session.ask("word " * 80).usage.prompt_tokens > 256


def test_what_is_too_long_is_named(tiny):
    for system, message in (("word " * 600, "x"), ("x", "word " * 600)):
        with pytest.raises(
            ContextOverflowError, match=r"session: the newest turn has \d+ tokens together with the system messages"
        ):
            ChatSession(tiny, system, policy=DropOldest(), **GREEDY).ask(message)


# ---- calls that were cut off


def cut_by_length(session: ChatSession) -> None:
    result = session.ask("call it", tool_choice="required", max_tokens=70)
    assert result.finish_reason == "length" and result.message.tool_calls


def cut_in_the_name(session: ChatSession) -> None:
    result = session.ask("call it", tool_choice="required", max_tokens=5)
    assert result.finish_reason == "length" and result.message == ChatMessage("")


def cut_by_closing(session: ChatSession) -> None:
    stream = session.stream("call it", tool_choice="required")
    assert any(delta.tool_calls for delta in stream)
    stream.close()


def cut_by_closing_in_a_task(session: ChatSession) -> None:
    async def run() -> None:
        stream = session.astream("call it", tool_choice="required")
        async for delta in stream:
            if delta.tool_calls:
                break
        await stream.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("cut", [cut_by_length, cut_in_the_name, cut_by_closing, cut_by_closing_in_a_task])
def test_a_call_that_was_cut_off_does_not_stay(tiny, cut):
    session = ChatSession(tiny, tools=[TOOL], temperature=0)
    cut(session)
    assert roles(session) == ["user", "assistant"] and session.messages[-1]["content"] == CUT
    assert "tool_calls" not in session.messages[-1]
    session.ask("Go on.", max_tokens=2)
    ChatSession.from_json(tiny, session.to_json()).ask("And on.", max_tokens=2)
    assert roles(session) == ["user", "assistant"] * 2


def test_a_whole_call_stays(tiny):
    session = ChatSession(tiny, tools=[TOOL], temperature=0)
    result = session.ask("call it", tool_choice="required", max_tokens=300)
    assert result.finish_reason == "tool_calls" and session.messages[-1] == result.message.to_openai()
    session.ask({"role": "tool", "tool_call_id": result.message.tool_calls[0].id, "content": "Done."}, max_tokens=2)
    assert roles(session) == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("ended", "arguments", "kept"),
    [
        (False, '{"a": 1}', '{"a": 1}'), (False, "{}", "{}"), (False, "", None), (False, '{"a', None), (False, "[" * 99999, None),
        (True, "", "{}"), (True, '{"a": 1}', '{"a": 1}'), (True, "[1]", None), (True, "no", None),
        (True, '{"a": 1e999}', None), (True, '{"a": NaN}', None), (True, '{"a": ' + "9" * 5000 + "}", None),
    ],
)  # fmt: skip
def test_calls_are_kept_whole_or_not_at_all(ended, arguments, kept):
    whole = ToolCall("1", "f", '{"b": 2}')
    calls = () if kept is None else (ToolCall("2", "g", kept),)
    assert _whole_calls(ChatMessage("", "", (whole, ToolCall("2", "g", arguments))), ended=ended).tool_calls == (whole, *calls)
    alone = _whole_calls(ChatMessage("", "Hm.", (ToolCall("2", "g", arguments),)), ended=ended)
    assert alone == ChatMessage(CUT if kept is None else "", "Hm.", calls)
    with_text = _whole_calls(ChatMessage("I'll see.", "", (ToolCall("2", "g", arguments),)), ended=ended)
    assert with_text == ChatMessage("I'll see.", "", calls)


@pytest.mark.parametrize(
    "family",
    ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "mistralai-Ministral-3-14B-Reasoning-2512", "google-gemma-2-2b-it", "GLM-4.6"],
)
def test_what_is_kept_of_a_call_suits_real_templates(tiny, family):
    (path,) = [path for path in TEMPLATES.glob("*.jinja") if path.stem == family]
    kept = _whole_calls(ChatMessage("", "", (ToolCall("1", "f", '{"a": "x'),)), ended=False)
    messages = [{"role": "user", "content": "x"}, kept, {"role": "user", "content": "y"}]
    assert CUT in render(Chat(tiny.vocabulary, path.read_text()), messages, ChatOptions(tools=[TOOL])).text


# ---- coroutines


class Patient:
    """A policy that is done when the loop has gone round often enough meanwhile."""

    def __init__(self) -> None:
        self.rounds = 0
        self.goal: int | None = None
        self.enough = threading.Event()

    async def tick(self) -> None:
        while True:
            self.rounds += 1
            if self.goal is not None and self.rounds >= self.goal:
                self.enough.set()
            await asyncio.sleep(0)

    def shorten(self, model: Any, messages: Any, room: int, options: Any) -> Any:
        self.goal = self.rounds + 1000
        assert self.enough.wait(20), "the loop stood still"
        return messages[-1:]


@pytest.mark.parametrize("how", ["aask", "astream"])
def test_the_loop_goes_on_while_a_conversation_is_shortened(tiny, how):
    policy = Patient()
    session = ChatSession(tiny, messages=said(40), policy=policy, **GREEDY)

    async def run() -> None:
        ticking = asyncio.ensure_future(policy.tick())
        if how == "aask":
            await session.aask("x")
        else:
            async for _ in session.astream("x"):
                pass
        ticking.cancel()

    asyncio.run(run())
    assert policy.rounds >= 1000 and roles(session) == ["user", "assistant"]


class Endless(Counting):
    """A LocalModel whose answers never end by themselves."""

    def __init__(self, model: LocalModel) -> None:
        super().__init__(model)
        self.asked: list[str] = []
        self.n_stopped = 0

    async def achat(self, messages: Any, **options: Any) -> Any:
        self.asked.append(messages[-1]["content"])
        try:
            await asyncio.Event().wait()
        finally:
            self.n_stopped += 1


def test_cancelling_stops_a_summary(tiny):
    model, policy = Endless(tiny), Summarise()
    session = ChatSession(model, messages=said(40), policy=policy, **GREEDY)

    async def run() -> None:
        asking = asyncio.ensure_future(session.aask("x"))
        while not model.asked:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    assert (model.asked, model.n_stopped, session.messages) == ([policy.instruction], 1, said(40))


def test_summaries_are_the_same_in_coroutines(tiny):
    one, other = (ChatSession(tiny, messages=said(40), policy=Summarise(max_tokens=8), **GREEDY) for _ in range(2))
    asyncio.run(other.aask("x"))
    one.ask("x")
    assert one.messages == other.messages and one.messages[0]["role"] == "system"


# ---- files


def test_a_session_goes_on_from_its_file(model, tmp_path):
    session = ChatSession(model, "You are a helpful assistant.", **GREEDY)
    session.ask("Wie heißt du?")
    session.save(tmp_path / "chat.json")
    again = ChatSession.load(model, tmp_path / "chat.json")
    assert (again.messages, again.options) == (session.messages, session.options)
    assert again.ask("And of Italy?").message == session.ask("And of Italy?").message
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize(
    "options",
    [
        {"reserve_tokens": 700},
        {"logit_bias": {5: -1.0, 7: float("-inf")}, "stop": ("a", "b")},
        {"logit_bias": ((5, -1.0),), "seed": np.int64(3), "top_p": np.float32(0.5)},
        {"sampling": SamplingParams(temperature=0, logit_bias={3: float("-inf")}), "max_tokens": 3},
        {"loras": [Path("/a.gguf"), ("/b.gguf", 0.5)], "control_vectors": ["/c.gguf"]},
        {
            "json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}},
            "template_kwargs": {"localllm:tuple": [(1,), None]},
        },
        {"tools": (TOOL,), "tool_choice": "none"},
        {"template_kwargs": {"a": Kind.SHORT, 5: {(1, 2): [Fraction(1, 2)]}, "n": 2**4000}},
    ],
    ids=lambda options: "-".join(options),
)
def test_everything_comes_back_from_a_file(tiny, tmp_path, options):
    messages = [
        {"role": "user", "content": ({"type": "text", "text": "größer 🦙"},), "number": 1.5},
        ChatMessage("", "Hm.", (ToolCall("1", "f", '{"a": 1}'),)),
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    session = ChatSession(tiny, "Be brief.", messages=messages, **options)
    session.save(tmp_path / "chat.json")
    json.loads((tmp_path / "chat.json").read_text("utf-8"), parse_constant=pytest.fail)
    again = ChatSession.load(tiny, tmp_path / "chat.json")
    assert (again.messages, again.options, again.reserve_tokens) == (session.messages, session.options, session.reserve_tokens)
    assert [(type(value), name) for name, value in again.options.items() if not isinstance(value, (int, float))] == [
        (type(value), name) for name, value in session.options.items() if not isinstance(value, (int, float, np.number))
    ]
    assert again.to_json() == session.to_json()
    if "loras" in options:
        assert again.options["loras"] == (Lora("/a.gguf"), Lora("/b.gguf", 0.5))


@pytest.mark.parametrize(
    ("messages", "options", "place"),
    [
        ([{"role": "user", "content": "a\ud800"}], {}, r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "text", "text": {1}}]}], {}, r"messages\[0\]\.content\[0\]\.text"),
        ([], {"template_kwargs": {"a": Fraction(1, 3)}}, r"options\.template_kwargs\.a"),
        ([{"role": "user", "content": "x", "n": [1, 10**5000]}], {}, r"messages\[0\]\.n\[1\]"),
        ([], {"template_kwargs": {"a": object()}}, r"options\.template_kwargs\.a"),
        ([], {"template_kwargs": {"a": {(object(),): 1}}}, r"options\.template_kwargs\.a"),
        ([{"role": "user", "content": "x", "deep": deep()}], {}, "nested"),
    ],
)
def test_what_cannot_be_saved_is_named(tiny, tmp_path, messages, options, place):
    session = ChatSession(tiny, messages=messages, **options)
    for save in (session.to_json, lambda: session.save(tmp_path / "chat.json")):
        with pytest.raises(InvalidRequestError, match=f"session: .*{place}"):
            save()
    assert list(tmp_path.iterdir()) == []


def file(**parts: Any) -> str:
    return json.dumps({"format": "localllm-session-1", "messages": [], **parts})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "no JSON"), ("{", "no JSON"), ("[]", "format"), ("[" * 100000, "nested"), ('{"a":' * 100000, "nested"),
        (json.dumps({"format": "other", "messages": []}), "format"), (json.dumps({"messages": []}), "format"),
        (file(messages=5), "messages"), (file(messages=None), "messages"), (file(messages={}), "messages"),
        (file(messages=[5]), r"messages\[0\]"), (file(messages=["ab"]), r"messages\[0\]"),
        (file(messages=[{"role": "user", "content": "x"}, {"role": "wizard"}]), r"messages\[1\]\.role"),
        (file(messages=[{"role": []}]), r"messages\[0\]\.role"), (file(messages=[{}]), r"messages\[0\]\.role"),
        (file(options=[1]), "options"), (file(options=None), "options"), (file(options={"policy": 1}), r"options\.policy"),
        (file(options={"model": 1}), r"options\.model"), (file(options={"messages": [1]}), r"options\.messages"),
        (file(options={"system": "x"}), r"options\.system"), (file(options={"reserve_tokens": 1}), r"options\.reserve_tokens"),
        (file(options={"temprature": 1}), r"options\.temprature.*temperature"), (file(options={"top_p": 7}), r"options\.top_p"),
        (file(sampling={}), "sampling: no part"),
        (file(reserve_tokens="x"), "reserve_tokens"), (file(reserve_tokens=-1), "reserve_tokens"),
        (file(options={"sampling": {"localllm:SamplingParams": {"top": 1}}}), r"options\.sampling"),
        (file(options={"sampling": {"localllm:SamplingParams": {"top_p": 7}}}), r"options\.sampling"),
        (file(options={"loras": {"localllm:tuple": [{"localllm:Lora": {}}]}}), r"options\.loras\[0\]"),
        (file(options={"top_p": {"localllm:float": "x"}}), r"options\.top_p"),
        (file(options={"top_p": {"localllm:eval": "1"}}), r"options\.top_p"),
        (file(options={"localllm:dict": [[1, 2]]}), "options"), (file(options={"localllm:dict": [[[], 2]]}), "options"),
    ],
)  # fmt: skip
def test_damage_is_named_by_its_place(tiny, tmp_path, text, place):
    with pytest.raises(InvalidRequestError, match=f"^session: .*{place}"):
        ChatSession.from_json(tiny, text)
    (tmp_path / "chat.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=f"^session: .*chat.json: .*{place}"):
        ChatSession.load(tiny, tmp_path / "chat.json")


def test_a_file_that_is_no_text(tiny, tmp_path):
    (tmp_path / "chat.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="chat.json: this is no text"):
        ChatSession.load(tiny, tmp_path / "chat.json")
    for text in (b"{}", None, 5):
        with pytest.raises(InvalidRequestError, match="session: must be text"):
            ChatSession.from_json(tiny, text)
    with pytest.raises(OSError):
        ChatSession.load(tiny, tmp_path)


# ---- what is given


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"temprature": 1}, "temprature: unknown option.*temperature"), ({"temperature": -1}, "temperature"),
        ({"max_tokens": "x"}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": True}, "max_tokens"),
        ({"reserve_tokens": "x"}, "reserve_tokens"), ({"reserve_tokens": -1}, "reserve_tokens"), ({"system": 5}, "system"),
        ({"reserve_tokens": True}, "reserve_tokens"), ({"policy": DropOldest}, "policy"), ({"policy": "drop"}, "policy"),
        ({"messages": "ab"}, "messages"), ({"messages": 5}, "messages"), ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [None]}, r"messages\[0\]"), ({"messages": [{"role": "wizard"}]}, r"messages\[0\]\.role"),
        ({"loras": "a.gguf"}, "loras"), ({"enable_thinking": 1}, "enable_thinking"), ({"stop": 5}, "stop"),
    ],
)  # fmt: skip
def test_a_session_knows_at_once_what_is_wrong(tiny, arguments, named):
    with pytest.raises(InvalidRequestError, match=f"^{named}"):
        ChatSession(tiny, **arguments)


@pytest.mark.parametrize("message", [5, None, b"x", [5], [None], [{"role": "wizard", "content": "x"}], {"content": "x"}, {}])
def test_a_message_of_another_kind(tiny, message):
    session = ChatSession(tiny, **GREEDY)
    with pytest.raises(InvalidRequestError, match="^message"):
        session.ask(message)
    assert session.messages == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        *((lambda value=value: DropOldest(value), "keep_turns") for value in (0, -1, "x", True, 1.5)),
        *((lambda value=value: Summarise(value), "keep_turns") for value in (0, -1, None, "x")),
        *((lambda value=value: Summarise(max_tokens=value), "max_tokens") for value in (0, -1, None, "x")),
        *((lambda value=value: Summarise(instruction=value), "instruction") for value in ("", " ", None, 5)),
    ],
)
def test_policies_know_what_is_wrong(make, named):
    with pytest.raises(InvalidRequestError, match=f"^{named}"):
        make()


def test_answers_as_they_were_given_are_messages(tiny):
    answer = ChatMessage("Yes.")
    session = ChatSession(tiny, messages=[{"role": "user", "content": "x"}, answer], **GREEDY)
    session.ask([{"role": "user", "content": "y"}, answer, {"role": "user", "content": "z"}])
    session.messages.append(answer)
    assert ChatSession.from_json(tiny, session.to_json()).messages[-1] == answer.to_openai()
    session.ask("Go on.")
    assert session.messages[1] == session.messages[3] == session.messages[6] == answer.to_openai()
    session.ask(answer)
    assert roles(session)[-2:] == ["assistant", "assistant"]
