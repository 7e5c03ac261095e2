"""Documents in messages: the text of those that are one."""

from __future__ import annotations

from io import IOBase
from typing import Any

from llama_index.core.base.llms.types import DocumentBlock

from localllm.errors import InvalidRequestError

_REMEDY = "read it with one of LlamaIndex's readers, and give its text"
# Kinds of text whose names do not begin with "text/".
_TEXTS = frozenset(
    f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-ndjson", "x-sh")
)


def document(where: str, block: DocumentBlock) -> str:
    """The text of a document, under its title. What names no kind is text if it can be read as such.

    Only this machine is asked: a document that is a URL has to be fetched by whoever gives it.

    Raises:
        InvalidRequestError: It is no text, empty, or cannot be read; the message begins with `where`.
    """
    where = f"{where}: DocumentBlock"
    kind = (block.document_mimetype or "").partition(";")[0].strip()
    if kind and not _is_text(kind):
        raise InvalidRequestError(f"{where}: {kind} is no text; {_REMEDY}, or set document_mimetype")
    content = _content(where, block)
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        what = f"says that it is {kind}" if kind else "a document of unknown kind"
        raise InvalidRequestError(f"{where}: {what}, and is no UTF-8 ({error}); {_REMEDY}") from error
    if not kind and "\0" in text:
        raise InvalidRequestError(f"{where}: a document of unknown kind, and no text; {_REMEDY}, or set document_mimetype")
    return f"{block.title}:\n{text}" if block.title else text


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind.endswith(("+json", "+xml")) or kind in _TEXTS


def _content(where: str, block: DocumentBlock) -> str | bytes:
    if not isinstance(block.data, IOBase) and block.data is None and block.path is None:
        if not block.url:
            raise InvalidRequestError(f"{where}: has neither data nor path")
        if not block.url.startswith("data:"):
            raise InvalidRequestError(f"{where}: {block.url} is not fetched; fetch it, and give its content as data")
    elif block.data is not None and not block.data:
        raise InvalidRequestError(f"{where}: is empty; leave it out")
    try:
        content: Any = block.resolve_document().read()
    except OSError as error:
        raise InvalidRequestError(f"{where}: {block.path or 'its data'} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        why = "is empty; leave it out" if "zero bytes" in str(error) else f"cannot be read ({error})"
        raise InvalidRequestError(f"{where}: {why}") from error
    if not isinstance(content, (str, bytes)):
        raise InvalidRequestError(f"{where}: its data gives {type(content).__name__}, and neither text nor bytes")
    return content
