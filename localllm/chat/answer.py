"""The text of an answer, as it grows, to typed deltas of a message."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Literal

from localllm.chat.prompt import Prompt
from localllm.chat.types import ChatDelta, ChatMessage, ChatResult, ToolCall, ToolCallDelta
from localllm.engine.request import Delta, Finished, Generation
from localllm.errors import TemplateError
from localllm.native.handles import Parser

# A parser reads all of an answer each time, so a long one is read when it has grown by this part of itself.
GROWTH = 64


class AnswerReader:
    """Reads one answer.

    Most steps continue a text that runs already, and have nothing in them that could end it: those are passed on as they are. The
    parser is asked about the others, and about the whole answer at the end, so that reading costs a long answer little.

    Args:
        prompt: Prompt, which says how the answer is to be read.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._parser = None if prompt.plain else Parser(prompt.parser)
        self._marks = prompt.marks
        self._text = ""
        self._n_parsed = 0
        self._n_shown = 0
        self._running: Literal["content", "reasoning", ""] = ""
        self._content = ""
        self._reasoning = ""
        self._calls: list[ToolCall] = []
        self._n_reasoning = 0
        self._n_unseen = 0  # tokens before anything can be shown: those of a mark, or of white space
        # A continued message begins with what the caller wrote: it is no part of the answer.
        self._skip = ""
        if self._parser and prompt.parser["is_continuation"]:
            self._skip = self._parser.parse("", is_partial=True)["content"]
            self._content = self._skip

    def read(self, event: Delta) -> ChatDelta | None:
        """What a step adds; None if nothing can be shown yet."""
        if self._parser is None:
            self._content += event.text
            return ChatDelta(content=event.text, logprobs=event.logprobs) if event.text or event.logprobs else None
        self._text += event.text
        delta = self._step(self._parser)
        self._n_unseen += len(event.tokens)
        thinks = self._reasoning and not self._calls and len(self._content) == len(self._skip)
        if delta.reasoning or thinks:
            self._n_reasoning += self._n_unseen
        if delta != ChatDelta() or thinks:
            self._n_unseen = 0
        delta = replace(delta, logprobs=event.logprobs)
        return delta if delta != ChatDelta() else None

    def finish(self, event: Finished) -> list[ChatDelta]:
        """The last deltas: what only the whole answer tells, then reason, usage and timings."""
        deltas = []
        if self._parser is not None:
            whole = event.reason == "stop"
            try:
                parsed = self._parser.parse(self._text, is_partial=not whole)
            except TemplateError:
                # Free text that began like a tool call and is none: it is the answer all the same.
                parsed = self._parser.parse(self._text, is_partial=True)
            delta = self._update(parsed)
            if delta != ChatDelta():
                deltas.append(delta)
            self._parser.close()
        reason = "tool_calls" if self._calls and event.reason == "stop" else event.reason
        usage = replace(event.usage, reasoning_tokens=self._n_reasoning)
        last = ChatDelta(finish_reason=reason, usage=usage, timings=event.timings, seed=event.seed, speculation=event.speculation)
        deltas.append(last)
        return deltas

    def _step(self, parser: Parser) -> ChatDelta:
        new = self._text[self._n_shown :]
        if self._running and self._marks.isdisjoint(new.encode()):
            # White space may belong to what ends the text.
            return ChatDelta() if not new or new[-1].isspace() else self._pass_on(new)
        if len(self._text) - self._n_parsed <= len(self._text) // GROWTH:
            return ChatDelta()
        delta = self._update(parser.parse(self._text, is_partial=True))
        self._n_parsed = self._n_shown = len(self._text)
        self._running = self._what_runs()
        return delta

    def _pass_on(self, new: str) -> ChatDelta:
        self._n_shown = len(self._text)
        if self._running == "content":
            self._content += new
            return ChatDelta(content=new)
        self._reasoning += new
        return ChatDelta(reasoning=new)

    def _what_runs(self) -> Literal["content", "reasoning", ""]:
        """Which text the answer so far ends in, with nothing held back."""
        content = self._content[len(self._skip) :]
        text = content or self._reasoning
        if self._calls or not text or not self._text.endswith(text[-GROWTH:]):
            return ""
        return "content" if content else "reasoning"

    def take(self, event: Delta | Finished) -> list[ChatDelta]:
        """The deltas that an event of the engine gives; raises as `finish` does."""
        if isinstance(event, Finished):
            return self.finish(event)
        delta = self.read(event)
        return [delta] if delta is not None else []

    def _update(self, parsed: dict[str, Any]) -> ChatDelta:
        content = _added(self._content, parsed["content"])
        reasoning = _added(self._reasoning, parsed["reasoning_content"])
        self._content += content
        self._reasoning += reasoning
        calls = tuple(
            change for index, call in enumerate(parsed["tool_calls"]) if (change := self._call_delta(index, call)) is not None
        )
        return ChatDelta(content, reasoning, calls)

    def _call_delta(self, index: int, call: dict[str, str]) -> ToolCallDelta | None:
        if index == len(self._calls):
            if not call["name"]:
                return None
            known = ToolCall(call["id"] or f"call_{secrets.token_hex(12)}", call["name"], call["arguments"])
            self._calls.append(known)
            return ToolCallDelta(index, known.id, known.name, known.arguments)
        known = self._calls[index]
        added = _added(known.arguments, call["arguments"])
        if not added:
            return None
        self._calls[index] = ToolCall(known.id, known.name, known.arguments + added)
        return ToolCallDelta(index, arguments=added)

    def message(self) -> ChatMessage:
        """The message read so far."""
        return ChatMessage(self._content[len(self._skip) :], self._reasoning, tuple(self._calls))


def _added(before: str, now: str) -> str:
    """What `now` has behind `before`. A parser may take back what it showed; shown text cannot be taken back."""
    return now[len(before) :] if now.startswith(before) else ""


def collect(reader: AnswerReader, deltas: list[ChatDelta]) -> ChatResult:
    """The whole answer that a reader has read in `deltas`."""
    last = deltas[-1]
    assert last.finish_reason is not None and last.usage is not None and last.timings is not None
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
    return ChatResult(reader.message(), last.finish_reason, last.usage, last.timings, last.seed, logprobs, last.speculation)


def stream_deltas(reader: AnswerReader, events: Generator[Delta | Finished, None, None]) -> Generator[ChatDelta, None, None]:
    """The deltas of an answer as they come. Closing the iterator closes `events`."""
    try:
        for event in events:
            yield from reader.take(event)
    finally:
        events.close()


def whole_answer(prompt: Prompt, answer: Generation) -> ChatResult:
    """An answer that came in one piece."""
    reader = AnswerReader(prompt)
    finished = Finished(answer.finish_reason, answer.usage, answer.timings, answer.seed, speculation=answer.speculation)
    events: list[Delta | Finished] = [*answer.deltas, finished]
    return collect(reader, [delta for event in events for delta in reader.take(event)])
