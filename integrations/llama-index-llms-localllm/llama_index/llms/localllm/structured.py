"""Answers that are objects: what the model is told, and what is made of its text."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, TextBlock
from llama_index.core.instrumentation.events.llm import (
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictInProgressEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.program.utils import FlexibleModel, create_flexible_model
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.localllm.errors import CutAnswerError
from llama_index.llms.localllm.partial import PartialJson
from llama_index_instrumentation import get_dispatcher
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from localllm.errors import InvalidRequestError

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

dispatcher = get_dispatcher(__name__)


def with_schema(messages: list[ChatMessage], schema: dict[str, Any]) -> list[ChatMessage]:
    """Messages that also tell the model the schema, at the end of what the system says.

    The grammar alone keeps an answer to the schema; but what a field is for stands only in its description.
    """
    told = f"Answer with a JSON object that satisfies this schema:\n{json.dumps(schema, ensure_ascii=False)}"
    if messages and messages[0].role == MessageRole.SYSTEM:
        first, rest = messages[0], messages[1:]
        blocks = [*first.blocks, TextBlock(text=f"\n\n{told}")]
        return [first.model_copy(update={"blocks": blocks}), *rest]
    return [ChatMessage(role=MessageRole.SYSTEM, content=told), *messages]


def parsed(response: ChatResponse, output_cls: type[Model]) -> Model:
    """The object that an answer is.

    Raises:
        CutAnswerError: The answer ended before it was complete.
        ValidationError: It does not satisfy what only the class checks: a validator in Python, say.
    """
    text = response.message.content or ""
    if response.raw is not None and response.raw["choices"][0]["finish_reason"] == "length":
        usage = response.raw["usage"]
        n_tokens, n_thought = usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
        thought = f" ({n_thought} of them thoughts, which chat_options={{'reasoning_budget': ...}} limits)" if n_thought else ""
        raise CutAnswerError(
            f"{output_cls.__name__}: the answer was cut after {n_tokens} tokens{thought}, before the object was complete; raise "
            f"max_tokens, or context_window if that is not set. It ends with {text[-40:]!r}"
        )
    if _is_cut(text):
        raise CutAnswerError(
            f"{output_cls.__name__}: the answer ended before the object was complete: a text of `stop` was in it, or it was "
            f"stopped. It ends with {text[-40:]!r}"
        )
    return output_cls.model_validate_json(text)


def _is_cut(text: str) -> bool:
    """Whether a text is no JSON: all that a grammar lets through is some, or the beginning of it."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return True
    except (ValueError, RecursionError):  # too long a number, too deep: the class has its own word for that
        return False
    return False


class GrowingObject(Generic[Model]):
    """The object that a stream of responses is becoming.

    Args:
        output_cls: its class.

    Attributes:
        now: what it is; None while there is nothing of it.
    """

    def __init__(self, output_cls: type[Model]) -> None:
        self._output_cls = output_cls
        self._partial_cls = create_flexible_model(output_cls)
        aliases = {_written_as(name, field): name for name, field in output_cls.model_fields.items()}
        self._fields = {key: name for key, name in aliases.items() if key not in output_cls.model_fields}
        self._json = PartialJson()
        self._last: ChatResponse | None = None
        self.now: Model | FlexibleModel | None = None

    def add(self, response: ChatResponse) -> bool:
        """Whether a response has made something new of it.

        Until it satisfies its class it is an object that has the fields which were written, and None for the others.
        """
        self._json.add(response.delta or "")
        self._last = response
        is_last = response.raw is not None and response.raw["choices"][0]["finish_reason"]
        return not is_last and self._is_new(self._so_far())

    def end(self) -> bool:
        """Whether that there are no more responses has made something new of it: now it is of the class.

        Raises:
            As `parsed`.
        """
        return self._last is not None and self._is_new(parsed(self._last, self._output_cls))

    def _is_new(self, now: Model | FlexibleModel | None) -> bool:
        if now is None or now == self.now:
            return False
        self.now = now
        return True

    def _so_far(self) -> Model | FlexibleModel | None:
        value = self._json.value
        if not value:
            return None
        try:
            return self._output_cls.model_validate(value)
        except Exception:  # of the class's own validators, too, which need not expect half of an object
            return self._partial(value)

    def _partial(self, value: Any) -> FlexibleModel | None:
        # What is no object (of a RootModel) has no fields that could be missing.
        if not isinstance(value, dict):
            return None
        return self._partial_cls.model_validate({self._fields.get(key, key): each for key, each in value.items()})


def _written_as(name: str, field: FieldInfo) -> str:
    """What a field is called in its class's schema: a path into what is written has no name there, and is passed over."""
    given = field.validation_alias
    choices = given.choices if isinstance(given, AliasChoices) else [given]
    return next((choice for choice in choices if isinstance(choice, str)), name)


def started(output_cls: type[BaseModel], prompt: PromptTemplate, prompt_args: dict[str, Any]) -> None:
    """Tells those that listen that an object is asked for.

    Raises:
        InvalidRequestError: It would be of no pydantic class.
    """
    if not isinstance(output_cls, type(BaseModel)):
        raise InvalidRequestError(f"output_cls: must be a pydantic class, not {output_cls!r}")
    event = LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=prompt_args)
    dispatcher.event(event)


def progressed(now: Model | FlexibleModel) -> Model | FlexibleModel:
    """Tells those that listen what the object is now."""
    dispatcher.event(LLMStructuredPredictInProgressEvent(output=now))
    return now


def ended(output: T) -> T:
    """Tells those that listen what the object is."""
    dispatcher.event(LLMStructuredPredictEndEvent(output=output))
    return output
