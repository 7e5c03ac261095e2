"""LocalLLM in the places where llama-index-core asks an LLM: what is built on it works as it stands."""

# Annotations stay objects here: LlamaIndex reads those of the functions that it makes tools of.

from pathlib import Path
from typing import Literal

import pytest
from llama_index.core import Document, MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.evaluation import CorrectnessEvaluator, PairwiseComparisonEvaluator
from llama_index.core.extractors import KeywordExtractor, QuestionsAnsweredExtractor, SummaryExtractor
from llama_index.core.llms import ChatMessage, LLMMetadata
from llama_index.core.memory import Memory
from llama_index.core.postprocessor import StructuredLLMRerank
from llama_index.core.program import FunctionCallingProgram, LLMTextCompletionProgram
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.selectors import PydanticSingleSelector
from llama_index.core.tools import ToolMetadata
from llama_index.llms.localllm import LocalLLM
from pydantic import BaseModel

TEXTS = ["Paris is in France.", "Rome is in Italy.", "Oslo is in Norway."]


class Place(BaseModel):
    """A place."""

    name: Literal["Paris", "Rome", "Oslo"]


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LocalLLM:
    return LocalLLM(tiny, temperature=0, max_tokens=24, model_options={"n_threads": 1})


@pytest.fixture(scope="module")
def index(llm):
    Settings.tokenizer = llm.tokenizer
    yield VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=MockEmbedding(8))
    Settings.tokenizer = None


WRITING = [mode for mode in ResponseMode if mode not in (ResponseMode.NO_TEXT, ResponseMode.CONTEXT_ONLY)]


@pytest.mark.parametrize("mode", WRITING)
async def test_every_way_to_write_an_answer(index, llm, mode):
    engine = index.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=3)
    assert str(engine.query("Where is Rome?")) and str(await engine.aquery("Where is Rome?"))


async def test_answers_that_are_objects(index, llm):
    enough = llm.model_copy(update={"max_tokens": 200})
    engine = index.as_query_engine(llm=enough.as_structured_llm(Place), similarity_top_k=2)
    assert isinstance(engine.query("Where is Rome?").response, Place)


@pytest.mark.parametrize("mode", [ChatMode.CONDENSE_PLUS_CONTEXT, ChatMode.CONTEXT, ChatMode.CONDENSE_QUESTION, ChatMode.SIMPLE])
async def test_chat_engines(index, llm, mode):
    engine = index.as_chat_engine(mode, llm=llm)
    assert str(engine.chat("Where is Rome?")) and str(await engine.achat("And Oslo?"))
    assert "".join(engine.stream_chat("And Paris?").response_gen)
    streamed = await engine.astream_chat("And Bergen?")
    assert "".join([text async for text in streamed.async_response_gen()])
    assert len(engine.chat_history) == 8


async def test_extractors(llm):
    nodes = [TextNode(text=text) for text in TEXTS]
    for extractor in (
        SummaryExtractor(llm=llm, show_progress=False),
        QuestionsAnsweredExtractor(llm=llm, questions=1, show_progress=False),
        KeywordExtractor(llm=llm, keywords=2, show_progress=False),
    ):
        found = await extractor.aextract(nodes)
        assert len(found) == 3 and all(found)


def test_a_selector_chooses(llm):
    chooser = llm.model_copy(update={"max_tokens": 400})
    choices = [ToolMetadata(name=name, description=f"Knows {name}.") for name in ("cities", "rivers")]
    (chosen,) = PydanticSingleSelector.from_defaults(llm=chooser).select(choices, "Where is Rome?").selections
    # To its schema the number is any number, and this model has random weights.
    assert isinstance(chosen.index, int) and isinstance(chosen.reason, str)


def test_a_reranking_llm_is_asked_for_objects(llm):
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.1) for text in TEXTS]
    reranker = StructuredLLMRerank(llm=llm.model_copy(update={"max_tokens": 1500}), top_n=2, choice_batch_size=3)
    assert reranker._document_relevance_list_cls
    assert len(reranker.postprocess_nodes(nodes, query_str="Where is Rome?")) <= 2


async def test_programs(llm):
    enough = llm.model_copy(update={"max_tokens": 200})
    by_call = FunctionCallingProgram.from_defaults(Place, "A place in {country}", llm=enough)
    assert isinstance(by_call(country="Italy"), Place) and isinstance(await by_call.acall(country="Italy"), Place)
    assert list(by_call.stream_call(country="Italy", llm_kwargs={"tool_choice": "required"}))
    told = LocalLLM(
        llm.model,
        temperature=0,
        max_tokens=60,
        model_options={"n_threads": 1},
        chat_options={"json_schema": Place.model_json_schema()},
    )
    by_text = LLMTextCompletionProgram.from_defaults(output_cls=Place, prompt_template_str="A place in {country}", llm=told)
    assert isinstance(by_text(country="Italy"), Place)


async def test_evaluators_that_parse_texts(llm):
    def judge(form: str) -> LocalLLM:
        return llm.model_copy(update={"chat_options": {"regex": form}, "max_tokens": 100})

    correct = await CorrectnessEvaluator(llm=judge(r"[1-5]\.0\n[a-z]{3,9}")).aevaluate("Where?", "Here.", reference="There.")
    assert 1 <= correct.score <= 5 and correct.feedback
    comparison = PairwiseComparisonEvaluator(llm=judge(r"\[\[[ABC]\]\]"), enforce_consensus=False)
    pair = await comparison.aevaluate("Where?", "Here.", second_response="There.", reference="Here.")
    assert pair.score in (0.0, 0.5, 1.0)


async def test_which_agent_is_made(llm):
    def place() -> str:
        """A place."""
        return "Rome"

    made = AgentWorkflow.from_tools_or_functions([place], llm=llm)
    assert isinstance(next(iter(made.agents.values())), FunctionAgent)
    plain = llm.model_copy(update={"is_function_calling_model": False})
    made = AgentWorkflow.from_tools_or_functions([place], llm=plain)
    assert isinstance(next(iter(made.agents.values())), ReActAgent)


async def test_an_agent_whose_answer_is_an_object(llm):
    agent = FunctionAgent(llm=llm.model_copy(update={"max_tokens": 100}), output_cls=Place, system_prompt="Name a place.")
    answer = await agent.run("Where?", memory=Memory.from_defaults(token_limit=3000, tokenizer_fn=llm.tokenizer))
    assert Place.model_validate(answer.structured_response)


async def test_an_agent_that_writes_code(llm):
    ran = []
    coder = llm.model_copy(update={"chat_options": {"regex": r"(<execute>\nprint\([0-9]\)\n</execute>|[a-z]{3,9}\.)"}})
    agent = CodeActAgent(code_execute_fn=lambda code: ran.append(code) or "1", llm=coder)
    try:
        assert str(await agent.run("Count.", max_iterations=3))
    except ValueError as error:  # a model of random weights may never end
        assert "max iterations" in str(error).lower()
    assert all(code.strip().startswith("print(") for code in ran)


def test_predictions_of_texts(llm):
    from llama_index.core.prompts import PromptTemplate

    prompt = PromptTemplate("Where is {place}?")
    assert llm.predict(prompt, place="Rome") and "".join(llm.stream(prompt, place="Rome"))
    assert isinstance(llm.metadata, LLMMetadata)
    assert llm.chat([ChatMessage(role="user", content="Where?")]).message.content
