"""Texts that are not the application's own: whatever they look like, they hold no special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.errors import InvalidRequestError, TemplateError

# Around the number of a text, or of a picture or sound, within a rendered prompt.
_OPEN, _CLOSE, _SHOW = "\ue100", "\ue101", "\ue102"
_MARK = re.compile(f"([{_OPEN}{_SHOW}])([0-9]+){_CLOSE}")
# llama.cpp's word for a part that no template is to touch.
MARKER = "media_marker"
_OWN = re.compile(f"[{_OPEN}{_SHOW}]")


@dataclass(frozen=True)
class Shown:
    """A part of a prompt that is no text: what the caller's `look` has made of a part of a message."""

    medium: Any


class Quotes:
    """What looks like special tokens in messages and tools, taken out while a template renders them.

    System messages are the application's own word, and so is the template. All else is text: what users say and tools give back,
    and what the model has written itself, which may be what a user asked it to repeat.

    Args:
        special: pattern of the special tokens' texts; None: there are none.
        shows: bool, whether messages have pictures or sound, so that nobody else may write what stands for them.

    Attributes:
        media: what is shown between the texts, in the order of the messages.
    """

    def __init__(self, special: re.Pattern[str] | None, *, shows: bool = False) -> None:
        # What looks like one of our marks is no mark either.
        self._special = re.compile(f"{special.pattern}|{_OWN.pattern}") if special else _OWN if shows else None
        self._numbers: dict[str, int] = {}
        self.media: list[Any] = []

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message, as `messages.check_messages` gives it, with numbers in the places of what looks like special tokens.

        Raises:
            InvalidRequestError: The arguments of a call are nested too deeply.
        """
        if isinstance(message["content"], list):
            message = {**message, "content": [self._show(part) for part in message["content"]]}
        if self._special is None:
            return message
        try:
            return self._message(message)
        except RecursionError as error:
            raise InvalidRequestError("messages: the arguments of a call are nested too deeply") from error

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """A tool as the model is shown it: names and descriptions often come from somewhere else."""
        return tool if self._special is None else {**tool, "function": self._tree(tool["function"])}

    def parts(self, prompt: str) -> tuple[tuple[str, bool] | Shown, ...]:
        """A rendered prompt in (text, trusted) parts, with the texts in their places again, and what is shown in its.

        Raises:
            TemplateError: Something that is to be shown is not in the prompt.
        """
        texts = list(self._numbers)
        parts: list[tuple[str, bool] | Shown] = []
        at, shown = 0, set()
        for match in _MARK.finditer(prompt) if texts or self.media else ():
            kind, number = match.group(1), int(match.group(2))
            if number < len(texts if kind == _OPEN else self.media):
                parts.append((prompt[at : match.start()], True))
                parts.append((texts[number], False) if kind == _OPEN else Shown(self.media[number]))
                shown.update([number] if kind == _SHOW else [])
                at = match.end()
        if missing := set(range(len(self.media))) - shown:
            raise TemplateError(f"the template leaves {len(missing)} of {len(self.media)} pictures or sounds out of the prompt")
        return tuple(part for part in [*parts, (prompt[at:], True)] if isinstance(part, Shown) or part[0])

    def _show(self, part: dict[str, Any]) -> dict[str, Any]:
        if "medium" not in part:
            return part
        self.media.append(part["medium"])
        return {"type": MARKER, "text": f"{_SHOW}{len(self.media) - 1}{_CLOSE}"}

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "system":
            return self._system(message)
        quoted = {name: self._tree(value) for name, value in message.items() if name not in ("role", "content", "tool_calls")}
        quoted.update(role=message["role"], content=self._content(message["content"]))
        if "tool_calls" in message:
            quoted["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return quoted

    def _mark(self, text: str) -> str:
        # The same for the same text: templates compare names.
        return f"{_OPEN}{self._numbers.setdefault(text, len(self._numbers))}{_CLOSE}"

    def _text(self, text: str) -> str:
        assert self._special is not None
        return self._special.sub(lambda match: self._mark(match.group()), text)

    def _tree(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._tree(key): self._tree(entry) for key, entry in value.items()}
        if isinstance(value, Sequence):
            return [self._tree(entry) for entry in value]
        return value

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self._text(content)
        assert self._special is not None
        if any(part["type"] == MARKER for part in content):
            apart = self._mark("")
            return [part if part["type"] == MARKER else {**part, "text": self._text(part["text"]) + apart} for part in content]
        texts = [part["text"] for part in content]
        marked = [self._text(text) for text in texts]
        if len(self._special.findall("".join(texts))) != sum(len(self._special.findall(text)) for text in texts):
            # What one part begins and the next one ends is no special token either: an empty text holds them apart.
            marked = [text + self._mark("") for text in marked]
        return [{**part, "text": text} for part, text in zip(content, marked, strict=True)]

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        quoted: dict[str, Any] = self._tree(call)
        # Templates read the arguments: what JSON writes in another way comes out of them as it is meant.
        arguments = json.loads(call["function"]["arguments"])
        marked = self._tree(arguments)
        text = call["function"]["arguments"] if marked == arguments else json.dumps(marked, ensure_ascii=False)
        quoted["function"]["arguments"] = text
        return quoted

    def _system(self, message: dict[str, Any]) -> dict[str, Any]:
        """A system message; the summary that a session has put at its end is the model's."""
        summary, content = message.get("summary"), message["content"]
        if not isinstance(summary, str) or not summary or not content:
            return message
        if isinstance(content, str):
            own = content.removesuffix(summary)
            return {**message, "content": own + self._text(content[len(own) :])}
        return {**message, "content": [*content[:-1], {**content[-1], "text": self._text(content[-1]["text"])}]}
