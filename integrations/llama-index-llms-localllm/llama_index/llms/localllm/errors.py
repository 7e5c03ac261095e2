"""Errors about answers, beside those of localllm.errors."""

from __future__ import annotations

from localllm.errors import LocalLLMError


class NoToolCallError(LocalLLMError, ValueError):
    """An answer was expected to call a tool and does not; `tool_required=True` makes every answer do so."""


class CutAnswerError(LocalLLMError, ValueError):
    """A structured answer ended before its object was complete, by `max_tokens`, the end of the context, or a `stop`."""
