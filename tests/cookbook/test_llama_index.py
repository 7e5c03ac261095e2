"""The programs of cookbook/llama_index, with tiny models and the embedded one, checked for what they did."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from llama_index.core import Settings

from localllm import LocalModel

PROGRAMS = Path(__file__).parents[2] / "cookbook" / "llama_index"
QUICK = {"max_tokens": 200, "model_options": {"n_threads": 1}}


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cookbook_{name}", PROGRAMS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def settings_as_before() -> Any:
    kept = vars(Settings).copy()
    yield
    vars(Settings).update(kept)
    if kept.get("_tokenizer") is None:
        import llama_index.core

        llama_index.core.global_tokenizer = None


def test_every_program_is_here():
    tested = {"starter", "two_agents", "react", "rag", "ingestion", "extraction", "evaluation"}
    assert {path.stem for path in PROGRAMS.glob("*.py")} == tested
    listed = (PROGRAMS.parent / "README.md").read_text()
    for path in PROGRAMS.glob("*.py"):
        text = path.read_text()
        assert f"`{path.name}`" in listed and f"python cookbook/llama_index/{path.name} " in text.split('"""')[1]
        assert text.endswith('\n\nif __name__ == "__main__":\n    asyncio.run(main(*sys.argv[1:]))\n')


async def test_starter(models, tmp_path):
    calculated, again, read = await program("starter").main(str(models["qwen3"]), str(models["bert"]), str(tmp_path), **QUICK)
    for answer in (calculated, again):
        (call, *_) = answer.tool_calls
        assert call.tool_name == "multiply" and set(call.tool_kwargs) == {"a", "b"}
        assert call.tool_output.raw_output == call.tool_kwargs["a"] * call.tool_kwargs["b"]
    assert read.tool_calls[0].tool_name == "search" and read.tool_calls[0].tool_output.content
    assert (tmp_path / "docstore.json").exists()


async def test_starter_with_a_model_that_knows_something(models, tmp_path):
    answers = await program("starter").main("smollm2", str(models["bert"]), str(tmp_path), max_tokens=40)
    (call, *_) = answers[0].tool_calls
    # Which numbers a model this small passes on can hang on a rounding.
    numbers = call.tool_kwargs
    assert set(numbers) == {"a", "b"} and float(call.tool_output.content) == numbers["a"] * numbers["b"]
    assert str(answers[0])


async def test_two_agents(models):
    answer = await program("two_agents").main(str(models["qwen3"]), **QUICK)
    (call,) = answer.tool_calls
    assert call.tool_name == "hand_over"
    assert answer.current_agent_name == call.tool_kwargs["to_agent"] in ("poet", "cook")
    assert str(answer)


@pytest.mark.parametrize("acts", [True, False])
async def test_react(models, acts):
    react = program("react")
    thought = r"Thought: [a-z]{1,9}\.\n"
    action = r'Action: multiply\nAction Input: \{"a": [0-9]{1,4}, "b": [0-9]{1,4}\}'
    form = thought + (action if acts else r"Answer: [a-z]{4,9}\.")
    answer, calls = await react.main(str(models["qwen3"]), form, **QUICK)
    if acts:
        assert 1 < len(calls) <= 4 and all(
            call.tool_output.raw_output == call.tool_kwargs["a"] * call.tool_kwargs["b"] for call in calls
        )
        assert str(answer)
    else:
        assert calls == [] and 5 <= len(str(answer)) <= 10


async def test_rag(models, capsys):
    paths = [str(models[name]) for name in ("qwen3", "bert", "bert-reranker")]
    answer, other = await program("rag").main(*paths, **QUICK)
    ranked = LocalModel(paths[2]).rerank(
        "What was the first computer bug?", [document.text for document in program("rag").DOCUMENTS]
    )
    for found in (answer, other):
        scores = [node.score for node in found.source_nodes]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert answer.source_nodes[0].text == program("rag").DOCUMENTS[ranked[0].index].text
    assert answer.response_txt and answer.response_txt in capsys.readouterr().out


async def test_ingestion(models):
    path = str(models["bert"])
    first, again, spawned, forked = await program("ingestion").main(str(models["qwen3"]), path, **{**QUICK, "max_tokens": 24})
    assert all(node.embedding and node.metadata["document_title"] for node in first)
    # Had they been split again, they would have other names.
    assert [node.node_id for node in again] == [node.node_id for node in first]
    texts = [node.text for node in first]
    vectors = LocalModel(path).embed(texts, instruction="search_document: ").vectors
    for nodes in (spawned, forked):
        assert [node.text for node in nodes] == texts
        for node, vector in zip(nodes, vectors, strict=True):
            assert sum(a * b for a, b in zip(node.embedding, vector, strict=True)) > 0.999


async def test_extraction(models):
    extraction = program("extraction")
    report, growing, answer = await extraction.main(str(models["qwen3"]), **QUICK)
    assert isinstance(report, extraction.Report) and isinstance(answer, extraction.Report)
    assert growing[-1] == report and len(growing) > 4 and all(partial.day for partial in growing)


async def test_evaluation(models):
    results = await program("evaluation").main(str(models["qwen3"]), model_options={"n_threads": 1, "parallel": 8})
    assert sorted(results) == ["faithful", "relevant"]
    judged = [result for each in results.values() for result in each]
    assert len(judged) == 4 and all(result.feedback in ("YES", "NO") for result in judged)
    assert all(result.passing == (result.feedback == "YES") for result in judged)
