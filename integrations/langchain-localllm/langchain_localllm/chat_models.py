"""ChatLocalLLM: a LangChain chat model over localllm."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from langchain_localllm.messages import message_from, messages_to_openai, response_metadata, usage_metadata
from localllm import ChatDelta, ContextConfig, LocalModel, ModelConfig, SamplingParams
from localllm import ChatResult as LocalChatResult
from localllm.errors import InvalidRequestError

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")


class ChatLocalLLM(BaseChatModel):
    """A chat model that runs a GGUF file inside this Python process.

    Constructing it is cheap: weights are loaded at the first call, once per process for all instances with the same file and
    `model_options`. Sync and async calls go to the engine natively and are batched with whatever else it is doing.

    Args:
        model: path of a GGUF file, or "smollm2".
        temperature, top_p, top_k, min_p, seed, max_tokens, stop: as in localllm; None leaves localllm's default.
        sampling: further fields of localllm.SamplingParams.
        model_options: fields of localllm.ModelConfig and localllm.ContextConfig, e.g. {"n_ctx": 8192}.
        chat_template: Jinja text instead of the file's own.
        chat_options: fields of localllm.ChatOptions, e.g. {"enable_thinking": False}.
        loras: LoRA adapters: paths, (path, scale) pairs, or localllm.Loras. A call may name others (`invoke(..., loras=[...])`).
        control_vectors: control vectors: paths, (path, scale) pairs, or localllm.ControlVectors.
    """

    model_config = ConfigDict(populate_by_name=True, extra="forbid")

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    chat_template: str | None = None
    chat_options: dict[str, Any] = Field(default_factory=dict)
    loras: list[Any] = Field(default_factory=list)
    control_vectors: list[Any] = Field(default_factory=list)

    _local: LocalModel | None = PrivateAttr(default=None)
    _local_made_with: tuple[Any, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_options(cls, values: Any) -> Any:
        """Says where an option belongs, or which one was meant."""
        for name in set(values) - set(cls.model_fields) if isinstance(values, dict) else ():
            for home, kinds in (("model_options", (ModelConfig, ContextConfig)), ("sampling", (SamplingParams,))):
                if any(name in kind.__dataclass_fields__ for kind in kinds):
                    raise InvalidRequestError(f"{name}: give it as {home}={{{name!r}: ...}}")
            near = difflib.get_close_matches(name, cls.model_fields, n=1)
            raise InvalidRequestError(f"{name}: unknown option" + (f"; did you mean {near[0]!r}?" if near else ""))
        return values

    @model_validator(mode="after")
    def _check_options(self) -> ChatLocalLLM:
        """Wrong values are errors here and not at the first call."""
        own = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        SamplingParams(**{**self.sampling, **own})
        self._make_local()
        return self

    @property
    def _llm_type(self) -> str:
        return "localllm"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        local = self.local_model
        steering = {"loras": local.loras, "control_vectors": local.control_vectors}
        return {"model": self.model, **{name: used for name, used in steering.items() if used}, **self._request_options(None, {})}

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        # A copy with other fields (model_copy) must not answer with the model of the original.
        steering = repr((self.loras, self.control_vectors))
        made_with = (self.model, self.chat_template, tuple(sorted(self.model_options.items())), steering)
        if self._local is None or self._local_made_with != made_with:
            self._local = self._make_local()
            self._local_made_with = made_with
        return self._local

    def _make_local(self) -> LocalModel:
        return LocalModel(
            self.model,
            chat_template=self.chat_template,
            loras=self.loras,
            control_vectors=self.control_vectors,
            **self.model_options,
        )

    def bind_tools(
        self, tools: Any, *, tool_choice: str | bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Binds tools.

        Args:
            tools: functions, pydantic classes, BaseTools or OpenAI-style dicts.
            tool_choice: "auto", "none", "any"/"required"/True (some tool must be called).
        """
        converted = [convert_to_openai_tool(tool) for tool in _each(tools)]
        if tool_choice is not None and tool_choice is not False:
            kwargs["tool_choice"] = "required" if tool_choice in ("any", True) else tool_choice
        return super().bind(tools=converted, **kwargs)

    def _request_options(self, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = {name: value for name in (*_SAMPLING, "max_tokens") if (value := getattr(self, name)) is not None}
        options = {**self.sampling, **own, **self.chat_options, **kwargs}
        stops = stop if stop is not None else self.stop
        if stops:
            options["stop"] = stops
        return options

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(self.local_model.chat(messages_to_openai(messages), **self._request_options(stop, kwargs)), self.model)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = await self.local_model.achat(messages_to_openai(messages), **self._request_options(stop, kwargs))
        return _result(answer, self.model)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for delta in self.local_model.stream_chat(messages_to_openai(messages), **self._request_options(stop, kwargs)):
            chunk = _chunk(delta, self.model)
            if run_manager:
                run_manager.on_llm_new_token(str(chunk.text), chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        deltas = self.local_model.astream_chat(messages_to_openai(messages), **self._request_options(stop, kwargs))
        async for delta in deltas:
            chunk = _chunk(delta, self.model)
            if run_manager:
                await run_manager.on_llm_new_token(str(chunk.text), chunk=chunk)
            yield chunk


def _each(tools: Any) -> list[dict[str, Any] | type | Any | BaseTool]:
    return list(tools)


def _result(answer: LocalChatResult, model: str) -> ChatResult:
    message = message_from(answer)
    message.response_metadata = response_metadata(answer.finish_reason, model, answer.logprobs)
    message.usage_metadata = usage_metadata(answer.usage)
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(delta: ChatDelta, model: str) -> ChatGenerationChunk:
    message = AIMessageChunk(
        content=delta.content,
        additional_kwargs={"reasoning_content": delta.reasoning} if delta.reasoning else {},
        tool_call_chunks=[
            {
                "type": "tool_call_chunk",
                "index": call.index,
                "id": call.id or None,
                "name": call.name or None,
                "args": call.arguments,
            }
            for call in delta.tool_calls
        ],
    )
    if delta.finish_reason is not None and delta.usage is not None:
        message.response_metadata = response_metadata(delta.finish_reason, model, ())
        message.usage_metadata = usage_metadata(delta.usage)
        message.chunk_position = "last"
    return ChatGenerationChunk(message=message)
