"""What embedding models want before a text."""

from __future__ import annotations

import pytest

from localllm import Instructions, LocalModel
from localllm.embedding.instructions import known_instructions
from localllm.hub.gguf import Header

PASSAGES = "Represent this sentence for searching relevant passages: "
WEB = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def header(path="model.gguf", **metadata):
    return Header(path, 3, {f"general.{key}": value for key, value in metadata.items()}, (), 0, 0)


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("Nomic Embed Text V2 Moe", "search_query: ", "search_document: "),
        ("e5-small-v2", "query: ", "passage: "),
        ("Multilingual E5 Large", "query: ", "passage: "),
        ("multilingual-e5-large-instruct", WEB + " ", ""),
        ("E5 Mistral 7b Instruct", WEB + " ", ""),
        ("bge-small-en-v1.5", PASSAGES, ""),
        ("Bge Large En", PASSAGES, ""),
        ("bge-base-zh-v1.5", "为这个句子生成表示以用于检索相关文章：", ""),
        ("mxbai-embed-large-v1", PASSAGES, ""),
        ("snowflake-arctic-embed-m", PASSAGES, ""),
        ("snowflake-arctic-embed-m-v1.5", PASSAGES, ""),
        ("Snowflake Arctic Embed L v2.0", "query: ", ""),
        ("snowflake-arctic-embed2", "query: ", ""),
        ("Qwen3 Embedding 0.6b", WEB, ""),
        ("embeddinggemma-300m", "task: search result | query: ", "title: none | text: "),
        ("bge-m3", "", ""),
        ("all-MiniLM-L6-v2", "", ""),
        ("gte-large-en-v1.5", "", ""),
        ("SmolLM2 135M Instruct", "", ""),
        ("name5-x", "", ""),
        ("", "", ""),
    ],
)
def test_families_are_known_by_any_of_their_names(name, query, document):
    wanted = Instructions(query, document)
    assert known_instructions(header(name=name)) == wanted
    assert known_instructions(header(basename=name)) == wanted
    assert known_instructions(header(path=f"/some/folder/{name}-Q8_0.gguf", name=7)) == wanted


def test_a_folder_is_no_name_of_a_model():
    assert known_instructions(header(path="/models/e5-small/model.gguf")) == Instructions()


def test_a_model_tells_what_it_wants(builder):
    path = builder.build("bert", overrides={"general.name": "nomic-embed-text-v1.5"})
    model = LocalModel(path)
    assert model.instructions == Instructions("search_query: ", "search_document: ") and not model.loaded
    assert LocalModel("smollm2").instructions == Instructions()
