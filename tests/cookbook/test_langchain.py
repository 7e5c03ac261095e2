"""The programs of cookbook/langchain, run with the embedded model: what they did, not only that they ran."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import runpy
import shutil
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("langchain")
pytest.importorskip("langgraph")
pytest.importorskip("langchain_classic")
pytest.importorskip("langchain_text_splitters")

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage

FOLDER = Path(__file__).parents[2] / "cookbook" / "langchain"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def load(name):
    """Imports a program by its name."""
    spec = importlib.util.spec_from_file_location(f"cookbook_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def program():
    with warnings.catch_warnings():
        yield load


def kinds(messages):
    return [type(message) for message in messages]


def test_an_agent_looks_up_what_it_is_asked_and_remembers(program, faster_smollm2, capsys):
    messages = program("agent").main(str(faster_smollm2))
    assert kinds(messages) == [HumanMessage, AIMessage, ToolMessage, AIMessage, HumanMessage, AIMessage]
    (call,) = messages[1].tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"city": "Paris"}
    assert messages[2].content == "The weather in Paris is sunny, 21 degrees." and messages[2].tool_call_id == call["id"]
    assert not messages[3].tool_calls and messages[3].text and messages[5].text
    # The second turn went on from the first one's prompt.
    assert messages[5].usage_metadata["input_token_details"]["cache_read"] > 50
    assert "umbrella" in capsys.readouterr().out


def test_both_strategies_give_an_object(program, faster_smollm2):
    module = program("structured_agent")
    states = module.main(str(faster_smollm2))
    for name, state in states.items():
        report = state["structured_response"]
        assert isinstance(report, module.Report) and report.city == "Paris" and report.degrees == 21, name
        looked = [message for message in state["messages"] if isinstance(message, ToolMessage) and message.name == "get_weather"]
        assert [message.content for message in looked] == ["Paris: sunny, 21 degrees"]
    by_tool = [call["name"] for message in states["tool"]["messages"] for call in getattr(message, "tool_calls", ())]
    assert by_tool == ["get_weather", "Report"]
    last = states["provider"]["messages"][-1]
    assert not last.tool_calls and module.Report.model_validate_json(last.text) == states["provider"]["structured_response"]


def test_the_loop_by_hand_calls_tools_and_then_answers(program, faster_smollm2):
    chunks, messages = program("tool_loop").main(str(faster_smollm2))
    assert kinds(messages) == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    (call,) = messages[1].tool_calls
    assert call["name"] == "add" and call["args"] == {"a": 3, "b": 4} and messages[2].content == "7"
    assert any(isinstance(chunk, ToolMessage) for chunk in chunks)
    pieces = [chunk for chunk in chunks if isinstance(chunk, AIMessageChunk)]
    assert len([piece for piece in pieces if piece.tool_call_chunks]) > 1, "the call came in one piece"
    assert "".join(piece.text for piece in pieces) == messages[3].text != ""


def test_several_calls_in_one_turn_are_all_answered(program):
    module = program("tool_loop")
    graph = module.build("smollm2")
    calls = [{"name": "add", "args": {"a": 1, "b": 2}, "id": "1"}, {"name": "multiply", "args": {"a": 3, "b": 4}, "id": "2"}]
    thread = {"configurable": {"thread_id": "x"}}
    graph.update_state(thread, {"messages": [HumanMessage("Both!"), AIMessage("", tool_calls=calls)]}, as_node="model")

    messages = asyncio.run(graph.ainvoke(None, thread))["messages"]
    assert [(message.tool_call_id, message.content) for message in messages if isinstance(message, ToolMessage)] == [
        ("1", "3"),
        ("2", "12"),
    ]
    assert isinstance(messages[-1], AIMessage) and messages[-1].text


def test_answers_come_from_what_was_found(program):
    module = program("rag")
    seen = module.main()
    pieces = [entry["text"] for entry in seen["store"].store.values()]
    assert len(pieces) >= 4 and all(len(piece) <= 120 for piece in pieces)
    found = seen["store"].similarity_search(module.QUESTION, k=2)
    assert "Readers may take home ten books" in "".join(document.page_content for document in found)
    assert kinds(seen["chain"]) == [HumanMessage, AIMessage] and seen["chain"][1].text
    assert kinds(seen["agent"]) == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    searched = seen["agent"][2]
    assert seen["agent"][1].tool_calls[0]["args"]["query"]
    assert len(searched.artifact) == 2 and searched.content == "\n\n".join(
        document.page_content for document in searched.artifact
    )
    # The model was given what was found: it is part of its prompt.
    assert seen["chain"][1].usage_metadata["input_tokens"] > sum(len(document.page_content.split()) for document in found)


def test_a_reranker_orders_what_vectors_found(program, models):
    module = program("rerank")
    found = module.main(str(models["bert-reranker"]), "smollm2")
    candidates = {document.page_content for document in found["vectors"]}
    assert found["vectors"][0].page_content == "Paris is the capital of France." and len(candidates) == 5
    ranked = found["reranker"]
    assert [document.page_content for document in found["cross-encoder"]] == [document.page_content for document in ranked]
    scores = [document.metadata["relevance_score"] for document in ranked]
    assert len(ranked) == 3 and scores == sorted(scores, reverse=True)
    assert {document.page_content for document in ranked} < candidates


def test_old_turns_are_summarised_when_they_outgrow_the_context(program, faster_smollm2):
    states = program("summarisation").main(str(faster_smollm2))
    assert [len(messages) for messages in states[:2]] == [2, 4]
    summarised = [messages for messages in states if messages[0].additional_kwargs.get("lc_source") == "summarization"]
    assert summarised and len(states[-1]) < 8
    assert "summary" in summarised[0][0].text.lower()
    assert states[-1][-2].text == "Who am I?" and states[-1][-1].text


def test_every_mode_of_streaming_shows_the_same(program, faster_smollm2):
    seen = program("streaming").main(str(faster_smollm2))
    # What has company in a batch is rounded otherwise, so the texts of two calls need not be the same.
    assert "".join(seen["v3"]["text"]) == seen["v3"]["message"].text
    assert all(len(pieces) > 10 for pieces in (seen["model"], seen["v3"]["text"], seen["async"]["model"], seen["async"]["text"]))
    assert [name for name, _ in itertools.groupby(seen["async"]["events"])] == [
        "on_chat_model_start",
        "on_chat_model_stream",
        "on_chat_model_end",
    ]
    graph = seen["graph"]
    assert [next(iter(update)) for update in graph["updates"]] == ["model", "tools", "model"]
    assert graph["custom"] == ["looking at Paris"]
    assert [len(value["messages"]) for value in graph["values"]] == [1, 2, 3, 4]
    streamed = "".join(chunk.text for chunk, _ in graph["messages"] if isinstance(chunk, AIMessageChunk))
    assert streamed == graph["values"][-1]["messages"][-1].text
    pieces = [chunk for chunk, _ in graph["messages"] if isinstance(chunk, AIMessageChunk) and chunk.tool_call_chunks]
    assert len(pieces) > 1
    called = seen["v3"]["called"].tool_calls
    assert [(call["name"], call["args"]) for call in called] == [("get_weather", {"city": "Paris"})]
    assert [next(iter(update)) for update in seen["async"]["graph"]] == ["model"]


def test_a_conversation_is_cut_to_what_fits(program):
    module = program("trimming")
    seen = module.main()
    assert kinds(seen["kept"]) == [SystemMessage, HumanMessage] and seen["kept"][-1] == module.CONVERSATION[-1]
    assert seen["tokens"] <= 60 and seen["answer"].usage_metadata["input_tokens"] == seen["tokens"]
    assert seen["answer"].text.startswith("The capital of France is Paris")
    assert len(module.main(max_tokens=90)["kept"]) > len(seen["kept"])
    assert module.main(max_tokens=1000)["kept"] == module.CONVERSATION


def test_kept_answers_are_not_computed_again(program):
    seen = program("caching").main()
    assert seen["second"].content == seen["first"].content and seen["second"].usage_metadata["total_cost"] == 0
    assert seen["n_requests"] == 3, "four questions, of which one had been answered before"
    assert seen["shorter"].usage_metadata["output_tokens"] == 4
    assert seen["usage"]["smollm2"]["output_tokens"] == 2 * seen["first"].usage_metadata["output_tokens"]
    assert seen["follow_up"].usage_metadata["input_token_details"]["cache_read"] > 30


@pytest.fixture(scope="module")
def configured(models, tmp_path_factory):
    path = shutil.copy(models["qwen3"], tmp_path_factory.mktemp("other"))
    return path, load("configurable").main("smollm2", path)


def test_what_is_configured_changes_the_answer(configured):
    _, seen = configured
    answers = seen["answers"]
    assert answers["as made"].startswith(answers["short"]) and len(answers["short"]) < len(answers["as made"])
    assert answers["other"] == answers["other again"] != answers["as made"]
    assert len(answers["alternative"]) < 30


def test_a_model_that_a_call_chose_stays_loaded(configured):
    path, seen = configured
    assert seen["loaded"].count(path) == 1


def test_twenty_questions_are_computed_together(program, faster_smollm2):
    seen = program("batch").main(str(faster_smollm2))
    assert len(seen["answers"]) == 20 and all(seen["answers"]) and seen["awaited"] == seen["answers"][:4]
    assert seen["together"] < 5 * seen["alone"]


def test_texts_are_continued(program, builder):
    marks = {f"tokenizer.ggml.fim_{part}_token_id": ("uint32", 5 + at) for at, part in enumerate(("pre", "suf", "mid"))}
    seen = program("completion").main("smollm2", str(builder.build("qwen3", overrides=marks)))
    assert seen["batch"] == [" Paris", " Rome"] and "".join(seen["stream"]) == " Paris"
    assert [len(group) for group in seen["several"]] == [2, 2] and seen["usage"]["completion_tokens"] > 4
    assert seen["filled"]


def test_answers_are_objects_whatever_the_way(program):
    module = program("structured_output")
    seen = module.main()
    for method in ("json_schema", "function_calling", "json_mode"):
        assert isinstance(seen[method], module.Person) and seen[method].age == 36, method
    assert seen["json_schema"].name == "Ada"
    assert seen["as _TypedDictMeta"] == seen["as dict"] == {"name": "Ada", "age": 36} == seen["stream"][-1]
    assert len(seen["stream"]) > 2
    assert set(seen["raw"]) == {"raw", "parsed", "parsing_error"} and seen["raw"]["parsing_error"] is None
    assert seen["raw"]["parsed"] == seen["json_schema"] == module.Person.model_validate_json(seen["raw"]["raw"].text)


def test_a_chain_falls_back_to_what_can_answer(program):
    seen = program("chain").main()
    assert seen["invoke"] == "The capital of France is Paris." == "".join(seen["stream"]) == seen["abatch"][0]
    assert len(seen["stream"]) > 5 and len(seen["abatch"]) == 2


def test_what_stands_around_an_agent_does_its_work(program):
    module = program("middleware")
    seen = module.main()
    assert kinds(seen["another model"]) == [HumanMessage, AIMessage]
    assert seen["another model"][-1].response_metadata["model_name"] == "smollm2"
    results = [message for message in seen["limits"] if isinstance(message, ToolMessage)]
    looked = [message for message in results if message.status == "success"]
    assert len(looked) == 2 and len(results) > 2 and "limit" in seen["limits"][-1].text
    asked, messages = seen["a person decides"]
    assert [(one["name"], one["args"]) for one in asked] == [("get_weather", {"city": "Paris"})]
    assert kinds(messages) == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    sent = seen["less is sent"]
    assert "ada@example.com" not in sent[0].text and "[REDACTED_EMAIL]" in sent[0].text
    # The result stays in the state, but the model was sent a shorter prompt than it would make.
    assert kinds(sent) == [HumanMessage, AIMessage, ToolMessage, AIMessage] and "sunny" in sent[2].content
    llm = module.ChatLocalLLM(model="smollm2")
    assert sent[-1].usage_metadata["input_tokens"] < llm.get_num_tokens_from_messages(sent[:-1])


def test_an_agent_plans_and_is_shown_the_tools_that_fit(program, faster_smollm2):
    seen = program("planning").main(str(faster_smollm2))
    todos = seen["a list"]["todos"]
    assert todos and all(set(each) == {"content", "status"} for each in todos)
    assert {each["status"] for each in todos} <= {"pending", "in_progress", "completed"}
    shown, state = seen["fitting tools"]
    # One of three, for both steps.
    assert len(shown) == 2 and len(set(shown)) == 1
    (call,) = state["messages"][1].tool_calls
    assert call["name"] == shown[0] and state["messages"][2].name == shown[0]


def test_an_agent_knows_who_asks_and_answers_with_an_object(program, faster_smollm2):
    module = program("real_world_agent")
    first, second = module.main(str(faster_smollm2))
    assert first["structured_response"] == module.Answer("Paris", 21) and second["structured_response"] == module.Answer(
        "Oslo", -3
    )
    looked = [message.content for message in second["messages"] if isinstance(message, ToolMessage)]
    assert looked == ["Paris, where it is 21 degrees", "Oslo, where it is -3 degrees"]
    assert second["messages"][: len(first["messages"])] == first["messages"]


def test_the_older_agent_calls_tools_too(program):
    messages = program("react_agent").main()
    assert kinds(messages) == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert messages[1].tool_calls[0]["args"] == {"a": 3, "b": 4} and messages[2].content == "7" and messages[3].text


def test_constructors_of_other_classes_are_understood(program):
    seen = program("migration").main()
    assert set(seen) == {"ChatLlamaCpp", "ChatOllama", "LlamaCpp", "OllamaEmbeddings"} and all(seen.values())


def test_a_graph_grades_what_it_found(program):
    steps = program("agentic_rag").main()
    names = [next(iter(step)) for step in steps]
    assert names[:2] == ["retrieve", "grade"] and names[-1] == "answer" and steps[-1]["answer"]["answer"]
    for step, after in itertools.pairwise(steps):
        if "grade" in step:
            n_tries = sum("retrieve" in earlier for earlier in steps[: steps.index(after)])
            assert ("rewrite" in after) == (step["grade"]["grade"] == "no" and n_tries < 2)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_take_the_model_by_argument_and_say_how_they_are_run(path, monkeypatch):
    text = path.read_text()
    assert f"python cookbook/langchain/{path.name} " in text.split('"""')[1]
    assert text.endswith('\n\nif __name__ == "__main__":\n    main(*sys.argv[1:])\n')
    assert f"`{path.name}`" in (FOLDER.parent / "README.md").read_text()


def test_a_program_runs_as_it_is_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trimming.py", "smollm2"])
    runpy.run_path(str(FOLDER / "trimming.py"), run_name="__main__")
    assert "Paris" in capsys.readouterr().out
