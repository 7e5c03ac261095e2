"""Answers on a terminal, one or many."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import Any, TextIO

from localllm.chat.types import ChatDelta
from localllm.engine.request import Delta, Finished, Timings, Usage
from localllm.errors import ContextOverflowError
from localllm.models import LocalModel

_HELP = """/clear   forget the conversation
/undo    take back the last question and its answer
/help    this list
/bye     leave (or Ctrl-D)
Ctrl-C stops an answer. \"\"\" begins and ends a message of several lines."""


def show_answer(deltas: Iterator[ChatDelta], verbose: bool) -> str:
    """Prints an answer as it comes, what the model thinks in grey. Returns its content."""
    content = ""
    thinking = False
    for delta in deltas:
        if delta.reasoning:
            _write(delta.reasoning, grey=True)
            thinking = True
        if delta.content:
            if thinking:
                _write("\n")
                thinking = False
            _write(delta.content)
            content += delta.content
        for call in delta.tool_calls:
            _write(f"\n{call.name}({call.arguments}" if call.name else call.arguments)
        if delta.finish_reason is not None:
            _write("\n")
            if verbose and delta.usage and delta.timings:
                _speed(delta.usage, delta.timings)
    return content


def show_text(events: Iterator[Delta | Finished], verbose: bool) -> None:
    """Prints a completion as it comes."""
    for event in events:
        if isinstance(event, Delta):
            _write(event.text)
        else:
            _write("\n")
            if verbose:
                _speed(event.usage, event.timings)


def converse(model: LocalModel, system: str | None, options: dict[str, Any], verbose: bool) -> None:
    """Reads questions and prints answers until the input ends."""
    _enable_line_editing()
    model.engine  # noqa: B018  weights are loaded before the first question is asked, so that errors come first
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while (question := _ask()) is not None:
        command = question.strip()
        if command in ("/bye", "/exit", "/quit"):
            return
        if command == "/clear":
            messages = list(start)
        elif command == "/undo":
            messages = messages[:-2] if len(messages) > len(start) else messages
        elif command in ("/help", "/?"):
            print(_HELP, file=sys.stderr)
        elif command.startswith("/") and command[1:].isalpha():
            print(f"unknown command {command}; /help lists them", file=sys.stderr)
        elif command:
            messages = _turn(model, messages, question, options, verbose)


def _turn(
    model: LocalModel, messages: list[dict[str, str]], question: str, options: dict[str, Any], verbose: bool
) -> list[dict[str, str]]:
    """One question and its answer; the conversation afterwards. A stopped answer stays in it as far as it came."""
    asked = [*messages, {"role": "user", "content": question}]
    shown = _Shown()
    try:
        stream = model.stream_chat(asked, **options)
        show_answer(shown.watch(stream), verbose)
    except KeyboardInterrupt:
        _write("\n")
        print("(stopped)", file=sys.stderr)
    except ContextOverflowError as error:
        print(f"{error} (/clear begins anew)", file=sys.stderr)
        return messages
    if not shown.text:
        return messages
    return [*asked, {"role": "assistant", "content": shown.text}]


class _Shown:
    """Remembers what went by, so that an interrupted answer is not lost."""

    def __init__(self) -> None:
        self.text = ""

    def watch(self, deltas: Generator[ChatDelta, None, None]) -> Iterator[ChatDelta]:
        try:
            for delta in deltas:
                self.text += delta.content
                yield delta
        finally:
            deltas.close()


def _ask() -> str | None:
    """The next question, None at the end of input. Ctrl-C at an empty prompt only gives a new prompt."""
    try:
        line = _line("> ")
        if line.startswith('"""'):
            lines = [line[3:]]
            while not lines[-1].rstrip().endswith('"""'):
                lines.append(_line(". "))
            line = "\n".join(lines).rstrip().removesuffix('"""')
        return line
    except EOFError:
        if sys.stdin.isatty():
            _write("\n")
        return None
    except KeyboardInterrupt:
        _write("\n")
        return ""


def _line(prompt: str) -> str:
    return input(prompt if sys.stdin.isatty() else "")


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  gives input() history and editing
    except ImportError:
        return


def _write(text: str, grey: bool = False, to: TextIO | None = None) -> None:
    out = to or sys.stdout
    out.write(f"\x1b[90m{text}\x1b[0m" if grey and out.isatty() else text)
    out.flush()


def _speed(usage: Usage, timings: Timings) -> None:
    decoded = max(usage.completion_tokens - 1, 0)
    print(
        f"{usage.prompt_tokens} prompt tokens in {timings.prefill_seconds:.2f} s, "
        f"{usage.completion_tokens} tokens in {timings.decode_seconds:.2f} s"
        + (f" ({decoded / timings.decode_seconds:.1f}/s)" if timings.decode_seconds > 0 else "")
        + (f", {usage.accepted_tokens} of {usage.drafted_tokens} drafted ones right" if usage.drafted_tokens else ""),
        file=sys.stderr,
    )
