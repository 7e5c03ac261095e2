"""Tools in every form and choice, and answers that are data."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

import jsonschema
import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from pydantic import BaseModel, Field, RootModel, field_validator
from pydantic.v1 import BaseModel as OldModel
from typing_extensions import TypedDict

from localllm.errors import GrammarError, InvalidRequestError


@pytest.fixture(scope="module")
def llm(tiny):
    """Its tokens are short, and it likes white space: data take many."""
    return ChatLocalLLM(model=tiny, temperature=0, max_tokens=400, n_threads=1)


SCHEMA = {
    "title": "answer",
    "description": "A choice.",
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
}


class Answer(BaseModel):
    """A choice."""

    n: Literal[1, 2] = Field(description="the number that is chosen")
    ok: bool


class OldAnswer(OldModel):
    """A choice."""

    n: Literal[1, 2]
    ok: bool


class AnswerDict(TypedDict):
    """A choice."""

    n: Annotated[Literal[1, 2], ..., "the number that is chosen"]
    ok: Annotated[bool, ..., "whether it is"]


@tool
def pick(n: Literal[1, 2]) -> str:
    """Pick a number."""
    return str(n)


def drop(n: Literal[1, 2]) -> str:
    """Drop a number."""
    return str(n)


class Uncertain(BaseModel):
    """A class that no schema describes."""

    n: Callable[[], int]


class Endless(TypedDict):
    """A part of itself, in a form that LangChain cannot follow."""

    kids: list[Endless]


ANTHROPIC = {"name": "find", "description": "Find a number.", "input_schema": SCHEMA}
OPENAI = {"type": "function", "function": {"name": "keep", "description": "Keep it.", "parameters": SCHEMA}}
TOOLS = [pick, drop, Answer, ANTHROPIC, OPENAI]
NAMES = ["pick", "drop", "Answer", "find", "keep"]


def test_tools_of_every_form(llm):
    bound = llm.bind_tools(TOOLS)
    assert [each["function"]["name"] for each in bound.kwargs["tools"]] == NAMES and "tool_choice" not in bound.kwargs
    assert llm.invoke("a", tools=TOOLS, tool_choice="drop").tool_calls[0]["name"] == "drop"
    strict = llm.bind_tools([pick, drop], strict=True).kwargs["tools"]
    assert all(each["function"]["strict"] and not each["function"]["parameters"]["additionalProperties"] for each in strict)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("any", NAMES),
        ("required", NAMES),
        (True, NAMES),
        ("pick", ["pick"]),
        ({"type": "function", "function": {"name": "keep"}}, ["keep"]),
        ({"type": "tool", "name": "find"}, ["find"]),
        ({"type": "any"}, NAMES),
        ("none", []),
        ({"type": "none"}, []),
        ("auto", None),
        (None, None),
        (False, None),
    ],
)
def test_every_choice_holds(llm, choice, names, streamed):
    bound = llm.bind_tools(TOOLS, tool_choice=choice)
    if streamed:
        message = None
        for chunk in bound.stream("a"):
            message = chunk if message is None else message + chunk
    else:
        message = bound.invoke("a")
    if not names:
        assert not (message.tool_calls if names == [] else message.invalid_tool_calls)
        return
    (call,) = message.tool_calls
    assert call["name"] in names and call["args"]["n"] in (1, 2) and call["id"] and not message.text
    assert message.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("tools", "choice", "word"),
    [
        ([pick], "drop", "no tool 'drop'"),
        ([pick], {"type": "function", "function": {"name": "drop"}}, "no tool 'drop'"),
        ([pick], 7, "tool_choice: 7"),
        ([], "any", "there are no tools"),
        ([7], None, r"tools\[0\]"),
        ([pick, {"type": "web_search"}], None, r"tools\[1\]: 'web_search' is a tool of a provider's server"),
        ("pick", None, "tools: must be a list"),
        ([{"type": "function"}], "any", r"tools\[0\]: must be .*function"),
        ([{"type": "function", "function": None}], "any", r"tools\[0\]: must be .*function"),
        ([{"type": "function", "function": "x"}], "any", r"tools\[0\]: must be .*function"),
        ([{"type": "function", "function": {}}], "any", r"tools\[0\]: a tool without a name"),
        ([{"title": 7, "type": "object"}], None, r"tools\[0\]: a tool without a name"),
        ([None], None, r"tools\[0\]"),
        ([functools.partial(drop, 1)], None, r"tools\[0\]"),
        ([Uncertain], None, r"tools\[0\]"),
        ([Endless], None, r"tools\[0\]: is a part of itself.*pydantic"),
        ([{"title": "a", "type": "object", "properties": {"a": {"enum": [Decimal(1)]}}}], None, r"tools\[0\]: cannot be written"),
    ],
)
def test_what_is_no_tool_or_choice_is_an_error_when_it_is_bound(llm, tools, choice, word):
    with pytest.raises(InvalidRequestError, match=word):
        llm.bind_tools(tools, tool_choice=choice)


def test_a_choice_of_the_model_is_for_calls_with_tools(llm):
    choosing = llm.model_copy(update={"chat_options": {"tool_choice": "any"}})
    assert choosing.invoke("a").content and choosing.bind_tools([pick]).invoke("a").tool_calls
    assert choosing.bind_tools([]).invoke("a").content


def test_several_calls_in_one_answer_have_ids_of_their_own(llm):
    bound = llm.bind_tools([pick], tool_choice="any", parallel_tool_calls=True)
    for seed in range(20):
        calls = bound.invoke("a", temperature=1.5, seed=seed).tool_calls
        if len(calls) > 1:
            break
    assert len(calls) > 1 and len({call["id"] for call in calls}) == len(calls)


def test_a_tools_result_goes_back_to_the_model(llm):
    bound = llm.bind_tools([pick])
    call = llm.bind_tools([pick], tool_choice="any").invoke("a")
    result = pick.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage) and bound.invoke([HumanMessage("a"), call, result]).content is not None


# ---- data

METHODS = ["json_schema", "function_calling", "json_mode"]
SCHEMAS = {
    "pydantic": (Answer, Answer),
    "pydantic v1": (OldAnswer, OldAnswer),
    "TypedDict": (AnswerDict, dict),
    "JSON schema": (SCHEMA, dict),
    "OpenAI function": ({"name": "answer", "description": "A choice.", "parameters": SCHEMA}, dict),
    "OpenAI tool": (OPENAI, dict),
    "OpenAI response_format": ({"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}, dict),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SCHEMAS)
def test_data_by_every_schema_and_method(llm, kind, method):
    schema, made = SCHEMAS[kind]
    for options in ({}, {"strict": True}, {"strict": False}):
        runnable = llm.with_structured_output(schema, method=method, **options)
        found = [runnable.invoke("a")]
        found.append(list(runnable.stream("a"))[-1])
        for one in found:
            assert isinstance(one, made)
            data = one if made is dict else one.dict() if made is OldAnswer else one.model_dump()
            assert data["n"] in (1, 2) and isinstance(data["ok"], bool)


async def test_data_arrive_in_parts(llm):
    runnable = llm.with_structured_output(SCHEMA)
    parts = [part async for part in runnable.astream("a")]
    assert len(parts) > 2 and parts[0] == {} and set(parts[-1]) == {"n", "ok"}


def test_raw_messages_and_errors_beside_the_data(llm):
    runnable = llm.with_structured_output(Answer, include_raw=True)
    found = runnable.invoke("a")
    assert isinstance(found["parsed"], Answer) and found["parsing_error"] is None and found["raw"].content
    cut = llm.model_copy(update={"max_tokens": 3}).with_structured_output(Answer, include_raw=True).invoke("a")
    assert cut["parsed"] is None and isinstance(cut["parsing_error"], OutputParserException)
    assert cut["raw"].response_metadata["finish_reason"] == "length"
    for method in ("json_schema", "function_calling", "json_mode"):
        with pytest.raises(OutputParserException, match="cut off"):
            llm.with_structured_output(SCHEMA, method=method).invoke("a", max_tokens=3)


class Refusing(BaseModel):
    """A class that no data please."""

    ok: bool

    @field_validator("ok")
    @classmethod
    def _refuse(cls, value):
        raise ValueError("never")


async def _streamed(runnable, **options):
    return [part async for part in runnable.astream("a", **options)]


@pytest.mark.parametrize("method", METHODS)
async def test_data_that_a_class_refuses_are_an_error_of_the_parser(llm, method):
    runnable = llm.with_structured_output(Refusing, method=method)
    for ask in (runnable.invoke, lambda input: list(runnable.stream(input))):
        with pytest.raises(OutputParserException, match="never") as found:
            ask("a")
        assert '"ok"' in found.value.llm_output
    with pytest.raises(OutputParserException, match="never"):
        await runnable.ainvoke("a")
    with pytest.raises(OutputParserException, match="never"):
        await _streamed(runnable)
    beside = llm.with_structured_output(Refusing, method=method, include_raw=True)
    whole = None
    for found in (beside.invoke("a"), await beside.ainvoke("a"), added(list(beside.stream("a"))), added(await _streamed(beside))):
        whole = whole or found["raw"].content or found["raw"].tool_calls[0]["args"]
        assert found["parsed"] is None and isinstance(found["parsing_error"], OutputParserException) and whole


def added(parts):
    return functools.reduce(lambda one, other: one + other, parts)


@pytest.mark.parametrize("method", METHODS)
async def test_options_of_a_call_count_beside_the_raw_message_too(llm, method):
    runnable = llm.with_structured_output(SCHEMA, method=method, include_raw=True)
    for found in (
        runnable.invoke("a", max_tokens=2),
        await runnable.ainvoke("a", max_tokens=2),
        added(list(runnable.stream("a", max_tokens=2))),
        added(await _streamed(runnable, max_tokens=2)),
    ):
        assert found["raw"].usage_metadata["output_tokens"] == 2 and found["parsed"] is None
        assert isinstance(found["parsing_error"], OutputParserException) and "cut off" in str(found["parsing_error"])
    for ask in (runnable.invoke, lambda input, **options: list(runnable.stream(input, **options))):
        with pytest.raises(InvalidRequestError, match="nonsense"):
            ask("a", nonsense=2)
    with pytest.raises(InvalidRequestError, match="nonsense"):
        await runnable.ainvoke("a", nonsense=2)
    with pytest.raises(InvalidRequestError, match="nonsense"):
        await _streamed(runnable, nonsense=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_raw_message_streams_and_its_data_follow(llm, method):
    parts = list(llm.with_structured_output(Answer, method=method, include_raw=True).stream("a"))
    assert len(parts) > 3 and all(set(part) == {"raw"} for part in parts[:-1])
    assert isinstance(parts[-1]["parsed"], Answer) and parts[-1]["parsing_error"] is None
    raw = added(parts)["raw"]
    data = raw.tool_calls[0]["args"] if method == "function_calling" else json.loads(raw.content)
    assert Answer.model_validate(data) == parts[-1]["parsed"]


def test_a_call_without_arguments_is_an_empty_object(llm):
    class Nothing(BaseModel):
        pass

    runnable = llm.with_structured_output(Nothing, method="function_calling")
    assert runnable.invoke("a") == Nothing() and list(runnable.stream("a"))[-1] == Nothing()


@pytest.mark.parametrize(
    ("schema", "options", "word"),
    [
        (SCHEMA, {"method": "magic"}, "method:"),
        (None, {}, "schema:"),
        (7, {}, "schema:"),
        (Uncertain, {}, "schema:"),
        (Endless, {}, "schema: is a part of itself.*pydantic"),
        ({"type": "json_schema", "json_schema": "foo"}, {}, "json_schema:"),
        ({"type": "json_schema", "json_schema": None}, {}, "json_schema:"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, {}, "json_schema:"),
        ({"type": "object", "properties": {"a": {"enum": [Decimal(1)]}}}, {}, "response_format: cannot be written as JSON"),
        ({"type": "object", "properties": {"a": {"default": datetime(2020, 1, 1)}}}, {}, "response_format: cannot be written"),
        (SCHEMA, {"temprature": 1}, "did you mean 'temperature'"),
    ],
)
def test_what_is_no_schema_is_an_error(llm, schema, options, word):
    with pytest.raises(InvalidRequestError, match=word):
        llm.with_structured_output(schema, **options).invoke("a")
    if schema is not None and not options:
        with pytest.raises(InvalidRequestError, match=word):
            llm.invoke("a", response_format=schema)


def test_a_schema_that_no_grammar_expresses_is_a_typed_error(llm):
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 2, "pattern": "a"}}}
    with pytest.raises(GrammarError, match="minLength"):
        llm.with_structured_output(schema).invoke("a")


def test_any_object_by_json_mode_without_a_schema(llm):
    assert isinstance(llm.with_structured_output(None, method="json_mode").invoke("a", seed=1, temperature=1), dict)


def test_the_model_is_told_the_schema_unless_it_is_not_to(llm):
    def shown(messages, **options):
        return llm._call(messages, None, options).messages

    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    (only,) = shown([HumanMessage("a")], response_format=schema)
    assert only["content"].startswith("a\n\n") and "A choice." in only["content"]
    first, last = shown([SystemMessage("s"), HumanMessage("a")], response_format=schema)
    assert "A choice." in first["content"] and last["content"] == "a"
    for options in ({"tell_schema": False}, {"tools": [pick], "tool_choice": "any"}):
        assert shown([HumanMessage("a")], response_format=schema, **options)[0]["content"] == "a"
    for value in (Answer, AnswerDict, SCHEMA):
        assert "enum" in shown([HumanMessage("a")], response_format=value)[0]["content"]


@pytest.mark.parametrize("value", [Answer, SCHEMA, {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}])
def test_a_response_format_for_one_call(llm, value):
    message = llm.invoke("a", response_format=value)
    assert Answer.model_validate_json(message.content).n in (1, 2)
    assert llm.invoke("a", format="json").content.strip().startswith("{")


def test_tools_and_a_schema_together_end_in_a_call_or_in_data(llm):
    """As create_agent asks with a ProviderStrategy."""
    for tools in ([pick], []):
        bound = llm.bind_tools(tools, tool_choice=None, response_format={"type": "json_schema", "schema": SCHEMA}, strict=True)
        for seed in range(4):
            message = bound.invoke("a", temperature=1.0, seed=seed)
            if not message.tool_calls:
                assert Answer.model_validate_json(message.content).n in (1, 2)


def test_a_thought_comes_before_the_data(thinker):
    message = thinker.with_structured_output(Answer, include_raw=True).invoke("a")
    assert message["parsed"].n in (1, 2) and message["raw"].additional_kwargs["reasoning_content"]


# ---- schemas that refer to themselves, and such that name no properties


class Tree(BaseModel):
    """A tree."""

    v: bool
    kids: list[Tree] | None = Field(max_length=1)


def plant(tree: Tree) -> str:
    """Plant a tree."""
    return str(tree)


MAP = {"title": "m", "type": "object", "additionalProperties": {"type": "integer"}, "required": ["k"]}
REFERENCE = {
    "title": "r",
    "$ref": "#/$defs/A",
    "$defs": {"A": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [MAP, REFERENCE], ids=lambda schema: schema["title"])
def test_data_satisfy_schemas_that_name_no_properties(llm, schema, method):
    for seed in range(2):
        data = llm.with_structured_output(schema, method=method).invoke("a", seed=seed, temperature=0.7)
        jsonschema.validate(data, schema)


def test_an_object_of_any_kind_is_no_call_without_arguments(llm):
    runnable = llm.with_structured_output({"type": "object", "required": ["k"]}, method="function_calling")
    parts = []
    with pytest.raises(OutputParserException, match="cut off"):
        for part in runnable.stream("a", max_tokens=60):
            parts.append(part)
    assert "k" in parts[-1]


@pytest.mark.parametrize("options", [{}, {"strict": True}])
@pytest.mark.parametrize("method", METHODS)
def test_data_of_a_class_that_is_a_part_of_itself(llm, method, options):
    for seed in range(2):
        found = llm.with_structured_output(Tree, method=method, **options).invoke("a", seed=seed, temperature=0.7, max_tokens=900)
        assert isinstance(found, Tree)


def test_arguments_of_tools_may_be_parts_of_themselves(llm):
    for tools in ([Tree], [plant], [tool(plant)]):
        for options in ({}, {"strict": True}):
            bound = llm.bind_tools(tools, tool_choice="any", **options)
            assert "'$ref': '#/$defs/Tree'" in str(bound.kwargs["tools"])
            (call,) = bound.invoke("a", seed=1, temperature=0.7, max_tokens=900).tool_calls
            Tree.model_validate(call["args"].get("tree", call["args"]))


@pytest.mark.parametrize("schema", [{"title": "list", "type": "array", "items": {"type": "integer"}}, RootModel[list[int]]])
def test_what_is_no_object_cannot_be_the_arguments_of_a_call(llm, schema):
    with pytest.raises(InvalidRequestError, match="of type 'array'.*'json_schema'"):
        llm.with_structured_output(schema, method="function_calling")
    with pytest.raises(InvalidRequestError, match="of type 'array'"):
        llm.bind_tools([schema])
    assert llm.with_structured_output(schema).invoke("a", max_tokens=900) is not None


def test_templates_are_shown_what_a_class_refers_to_and_no_titles(llm):
    class Leaf(BaseModel):
        title: str

    class Branch(BaseModel):
        """A branch."""

        leaf: Leaf = Field(description="what hangs on it")

    (made,) = llm.bind_tools([Branch]).kwargs["tools"]
    leaf = {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "description": "what hangs on it",
    }
    parameters = {"type": "object", "properties": {"leaf": leaf}, "required": ["leaf"]}
    assert made["function"] == {"name": "Branch", "description": "A branch.", "parameters": parameters}


def test_strict_holds_for_tools_as_openai_writes_them_and_is_said_once(llm):
    (made,) = llm.bind_tools([OPENAI], strict=True).kwargs["tools"]
    assert made["function"]["strict"] and made["function"]["parameters"]["additionalProperties"] is False
    assert "additionalProperties" not in OPENAI["function"]["parameters"]
    loose = {"type": "function", "function": {**OPENAI["function"], "strict": False}}
    with pytest.raises(InvalidRequestError, match="strict"):
        llm.bind_tools([loose], strict=True)
