"""From answers to data: objects of texts and calls, whole and while they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import Generation
from langchain_core.runnables import Runnable, RunnableGenerator, ensure_config
from langchain_core.runnables.utils import AddableDict
from langchain_core.utils.pydantic import is_basemodel_subclass

from langchain_localllm.jsontext import written


def parsed(model: Runnable[Any, AIMessage], schema: Any, *, by_call: bool, include_raw: bool) -> Runnable[Any, Any]:
    """A model whose answers are parsed. It is the first step, so that options of a call reach it.

    Args:
        model: Runnable that answers by the schema.
        schema: a pydantic class, whose objects are made; else dicts are.
        by_call: bool, the data are the arguments of a tool call.
        include_raw: bool, give a dict of the message ("raw"), the object ("parsed") and what went wrong ("parsing_error"). In a
            stream the message comes in chunks, and the others at its end.
    """
    is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: BaseOutputParser[Any] = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
    parse = _read(parser, by_call) | parser
    return model | (_beside(parse) if include_raw else parse)


def _read(parser: BaseOutputParser[Any], by_call: bool) -> Runnable[AIMessage, AIMessage]:
    """A step that gives messages of the data alone, and refuses what a parser of streams lets pass."""

    def read(messages: Iterator[AIMessage]) -> Iterator[AIMessage]:
        reading = _Reading(parser, by_call)
        for message in messages:
            yield reading.of(message)
        yield from reading.end()

    async def aread(messages: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
        reading = _Reading(parser, by_call)
        async for message in messages:
            yield reading.of(message)
        for message in reading.end():
            yield message

    return RunnableGenerator(read, aread)


class _Reading:
    """What has been read of one answer."""

    def __init__(self, parser: BaseOutputParser[Any], by_call: bool) -> None:
        self.parser = parser
        self.by_call = by_call
        self.text = ""
        self.streamed = False
        self.called = False

    def of(self, message: AIMessage) -> AIMessage:
        """The data in a message or chunk.

        Raises:
            OutputParserException: The answer was cut off. Half of it would be taken for a whole one: parsers close what is open.
        """
        if message.response_metadata.get("finish_reason") == "length":
            raise OutputParserException(
                "the answer was cut off before its data were whole: raise max_tokens, or n_ctx if that is full",
                llm_output=str(message.text),
            )
        text = self._arguments(message) if self.by_call else str(message.text)
        self.text += text
        if isinstance(message, AIMessageChunk):
            self.streamed = True
            return AIMessageChunk(content=text)
        return AIMessage(content=text)

    def end(self) -> Iterator[AIMessage]:
        """What is missing of a stream: a call may come without arguments.

        Raises:
            OutputParserException: The data of a stream are none, or a class refuses them; the parser passes over it.
        """
        if not self.streamed:
            return
        if self.called and not self.text:
            self.text = "{}"
            yield AIMessageChunk(content=self.text)
        self.parser.parse_result([Generation(text=self.text)])

    def _arguments(self, message: AIMessage) -> str:
        if isinstance(message, AIMessageChunk):
            self.called = self.called or bool(message.tool_call_chunks)
            return "".join(chunk["args"] or "" for chunk in message.tool_call_chunks)
        if message.tool_calls:
            return written(message.tool_calls[0]["args"], "arguments")
        return "".join(call["args"] or "" for call in message.invalid_tool_calls[:1])


def _beside(parse: Runnable[Any, Any]) -> Runnable[AIMessage, dict[str, Any]]:
    """A step that gives messages, and beside them what was made of them or why that failed."""

    def beside(messages: Iterator[AIMessage]) -> Iterator[dict[str, Any]]:
        whole: Any = None
        for message in messages:
            yield AddableDict(raw=message)
            whole = message if whole is None else whole + message
        try:
            found = parse.invoke(whole, ensure_config())
        except Exception as error:
            yield AddableDict(parsed=None, parsing_error=error)
        else:
            yield AddableDict(parsed=found, parsing_error=None)

    async def abeside(messages: AsyncIterator[AIMessage]) -> AsyncIterator[dict[str, Any]]:
        whole: Any = None
        async for message in messages:
            yield AddableDict(raw=message)
            whole = message if whole is None else whole + message
        try:
            found = await parse.ainvoke(whole, ensure_config())
        except Exception as error:
            yield AddableDict(parsed=None, parsing_error=error)
        else:
            yield AddableDict(parsed=found, parsing_error=None)

    return RunnableGenerator(beside, abeside)
