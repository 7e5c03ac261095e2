"""Objects and tools of classes as people write them."""

# Annotations stay objects here: LlamaIndex reads those of the functions that it makes tools of.
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.localllm import CutAnswerError, LocalLLM
from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, ValidationError

from localllm.errors import GrammarError, InvalidRequestError

PROMPT = PromptTemplate("Something.")
Tag = Literal["red", "green", "blue"]


class Tagged(BaseModel):
    """What has tags."""

    tags: set[Tag] = Field(min_length=1, max_length=6, json_schema_extra={"x-widget": "chips"})
    code: Annotated[str, Field(pattern="^[a-z]{2}$", max_length=8)]


class Even(BaseModel):
    """An even number."""

    n: Annotated[int, Field(ge=1, le=1, multiple_of=2)]


class Renamed(BaseModel):
    """Fields that are called otherwise where they are written."""

    first: Annotated[str, Field(min_length=4, max_length=8)] = Field(validation_alias="firstName")
    last: Annotated[str, Field(max_length=8)] = Field(validation_alias=AliasChoices(AliasPath("names", 0), "lastName"))
    age: int = Field(alias="the age", ge=1, le=9)
    size: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LocalLLM:
    return LocalLLM(tiny, temperature=0, max_tokens=400, model_options={"n_threads": 1})


async def objects(llm: LocalLLM, cls: type[BaseModel], **options: Any) -> list[Any]:
    """An object in all four forms, each with what it was on the way."""
    return [
        [llm.structured_predict(cls, PROMPT, options)],
        [await llm.astructured_predict(cls, PROMPT, options)],
        list(llm.stream_structured_predict(cls, PROMPT, options)),
        [item async for item in await llm.astream_structured_predict(cls, PROMPT, options)],
    ]


async def test_what_a_grammar_cannot_express_of_a_class_is_for_the_class_to_check(llm):
    for items in await objects(llm, Tagged):
        assert isinstance(items[-1], Tagged)
    with pytest.raises(ValidationError, match="multiple of 2"):
        llm.structured_predict(Even, PROMPT)
    with pytest.raises(GrammarError, match="uniqueItems"):  # nobody would check what answers this
        llm.chat(PROMPT.format_messages(), json_schema=Tagged.model_json_schema())


def test_so_it_is_with_tools(llm):
    def paint(tags: set[Tag], strokes: Annotated[int, Field(json_schema_extra={"x-unit": "piece"})]) -> str:
        """Paints."""
        return f"{set(tags) <= {'red', 'green', 'blue'}} {type(strokes).__name__}"

    tool = FunctionTool.from_defaults(paint)
    assert llm.predict_and_call([tool], "Paint.", tool_required=True).response == "True int"
    assert llm.chat_with_tools([tool], "Paint.", tool_choice="auto", max_tokens=2).message is not None


@pytest.mark.parametrize("form", [2, 3])
async def test_what_is_called_otherwise_where_it_is_written_is_never_blank(llm, form):
    items = (await objects(llm, Renamed))[form]
    whole = items[-1]
    assert isinstance(whole, Renamed) and len(items) > 2
    for item in items[:-1]:
        assert item.first and whole.first.startswith(item.first) and not item.model_extra
        assert item.last is None or whole.last.startswith(item.last)
    assert any(item.last for item in items[:-1]) and any(item.age == whole.age for item in items[:-1])


async def test_what_it_took_is_counted_also_where_the_object_was_cut_or_fails(tiny):
    for cls, error in ((Renamed, CutAnswerError), (Even, ValidationError)):
        counts = []
        for form in range(4):
            counter = TokenCountingHandler()
            options = {"model_options": {"n_threads": 1}, "callback_manager": CallbackManager([counter])}
            llm = LocalLLM(tiny, temperature=0, max_tokens=5 if cls is Renamed else 100, **options)
            with pytest.raises(error):
                await _form(llm, cls, form)
            counts.append((counter.prompt_llm_token_count, counter.completion_llm_token_count))
        assert len(set(counts)) == 1 and counts[0][1] > 0


async def _form(llm: LocalLLM, cls: type[BaseModel], form: int) -> Any:
    if form == 0:
        return llm.structured_predict(cls, PROMPT)
    if form == 1:
        return await llm.astructured_predict(cls, PROMPT)
    if form == 2:
        return list(llm.stream_structured_predict(cls, PROMPT))
    return [item async for item in await llm.astream_structured_predict(cls, PROMPT)]


@pytest.mark.parametrize("cls", [dict, "Renamed", Renamed.model_construct(), None, list[Renamed]])
@pytest.mark.parametrize("form", range(4))
async def test_what_is_no_class_is_told_so(llm, cls, form):
    with pytest.raises(InvalidRequestError, match="^output_cls: must be a pydantic class, not"):
        await _form(llm, cls, form)


async def test_lists_as_a_whole(llm):
    for items in await objects(llm, RootModel[Annotated[list[Tag], Field(min_length=1, max_length=2)]]):
        assert 1 <= len(items[-1].root) <= 2
