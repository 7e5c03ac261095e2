"""What embedding models want before a text, by family: their authors trained them with it, and GGUF files do not say."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localllm.hub.gguf import Header


@dataclass(frozen=True)
class Instructions:
    """Texts for `EmbedOptions.instruction`.

    Attributes:
        query: str, before what is searched with.
        document: str, before what is searched in.
    """

    query: str = ""
    document: str = ""


_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = Instructions("Represent this sentence for searching relevant passages: ")
# By the models' cards, for retrieval. The first pattern that fits a name counts; families that want nothing are not here.
_FAMILIES = (
    (r"nomic-embed-text", Instructions("search_query: ", "search_document: ")),
    (r"e5-.*instruct|e5-mistral", Instructions(_INSTRUCT + " ")),
    (r"(^|-)e5-", Instructions("query: ", "passage: ")),
    (r"bge-(small|base|large)-en", _PASSAGES),
    (r"bge-(small|base|large)-zh", Instructions("为这个句子生成表示以用于检索相关文章：")),
    (r"mxbai-embed-large", _PASSAGES),
    (r"arctic-embed(-.*v)?2", Instructions("query: ")),
    (r"arctic-embed", _PASSAGES),
    (r"qwen3-embedding", Instructions(_INSTRUCT)),
    (r"embeddinggemma|embedding-gemma", Instructions("task: search result | query: ", "title: none | text: ")),
)


def known_instructions(header: Header) -> Instructions:
    """What a model wants, by the names in its header and that of its file; empty for one that wants nothing or is not known.

    Args:
        header: Header.
    """
    names = (header.metadata.get("general.basename"), header.name, re.split(r"[/\\]", header.path)[-1])
    for name in names:
        plain = re.sub(r"[\s_]+", "-", name.lower()) if isinstance(name, str) else ""
        for pattern, found in _FAMILIES:
            if plain and re.search(pattern, plain):
                return found
    return Instructions()
