"""LocalLLM: LlamaIndex's LLM over localllm."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from llama_index.core.base.llms.generic_utils import (
    achat_to_completion_decorator,
    astream_chat_response_to_completion_response,
    chat_to_completion_decorator,
    prompt_to_messages,
    stream_chat_response_to_completion_response,
)
from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_prompt
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.localllm import facts as known
from llama_index.llms.localllm.messages import late_system_as_user, says_late, to_openai
from llama_index.llms.localllm.options import (
    SAMPLING,
    adapters,
    is_bound,
    plain,
    require_known,
    require_sound,
    usual,
    with_plain_tools,
)
from llama_index.llms.localllm.responses import text, whole
from llama_index.llms.localllm.streams import (
    agrow,
    agrow_object,
    agrow_text,
    astream_told,
    awith_work,
    grow,
    grow_object,
    grow_text,
    stream_told,
    with_work,
)
from llama_index.llms.localllm.structured import Model, ended, parsed, started, with_schema
from llama_index.llms.localllm.tools import calls_of, tools_to_openai
from llama_index_instrumentation import get_dispatcher
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from localllm import ControlVector, LocalModel, Lora, asking
from localllm.chat.constraints.loosening import loosened
from localllm.chat.prompt import ChatOptions
from localllm.chat.texts import require_text
from localllm.engine import checks
from localllm.errors import InvalidRequestError, TemplateError
from localllm.offloop import in_thread, in_turn
from localllm.options import identifying, with_key

dispatcher = get_dispatcher(__name__)

_UNUSED = {
    "messages_to_prompt": (None, generic_prompt),
    "completion_to_prompt": (None, default_completion_to_prompt),
    "query_wrapper_prompt": (None,),
}


class LocalLLM(FunctionCallingLLM):
    """An LLM that runs a GGUF file inside this Python process.

    Constructing it is cheap: weights are loaded at the first call, once per process for all instances with the same file and
    `model_options`. Calls of all instances and coroutines share the engine's batches; async calls never block the loop, and a
    task that is cancelled or a generator that is closed stops the work.

    Args:
        model: a path of a GGUF file, a name ("smollm2", "qwen3-4b"), or a model of the Hub ("org/repo:Q4_K_M").
        context_window: int, tokens of a prompt and its answer, localllm's `n_ctx`; None: localllm's default.
        temperature, top_p, top_k, min_p, seed, max_tokens: as in localllm; None leaves localllm's default.
        stop: list of str, texts that end an answer. They do not count where an answer has to be something (an object, a required
            call, by a pattern), unless the call itself gives them.
        sampling: further fields of localllm.SamplingParams.
        model_options: further options of localllm.LocalModel, e.g. {"parallel": 8, "keep_alive": 300}.
        chat_template: Jinja text instead of the file's own, or the name of another one in the file.
        chat_options: fields of localllm.ChatOptions for every chat, e.g. {"enable_thinking": False}.
        loras: LoRA adapters: paths, (path, scale) pairs, or localllm.Loras.
        control_vectors: control vectors: paths, (path, scale) pairs, or localllm.ControlVectors.
        is_function_calling_model: bool, what `metadata` says; None: whether there is a chat template.
        api_key: token of the Hugging Face Hub, for private and gated models (`token` in `model_options` as well); None: HF_TOKEN.
        schema_in_prompt: bool, structured answers: the model is shown the schema that its answer is kept to.
        system_prompt, output_parser, pydantic_program_mode, callback_manager, rate_limiter: as LlamaIndex's LLM has them.

    Every call takes the same options by keyword, and those of localllm's `chat` and `complete` (`json_schema`, `regex`,
    `choice`, `tools`, `tool_choice`, `priority`, ...), instead of the LLM's own.

    Raises:
        InvalidRequestError: An option is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    context_window: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = Field(default=None, strict=True)
    stop: list[str] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    chat_template: str | None = None
    chat_options: dict[str, Any] = Field(default_factory=dict)
    loras: list[Any] = Field(default_factory=list)
    control_vectors: list[Any] = Field(default_factory=list)
    is_function_calling_model: bool | None = None
    schema_in_prompt: bool = True
    # Of no part of what describes an LLM: that is shown, logged and kept.
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)

    _local: LocalModel | None = PrivateAttr(default=None)
    _local_made_with: tuple[Any, ...] = PrivateAttr(default=())
    _facts: known.Facts | None = PrivateAttr(default=None)

    # A model that is missing may have been given by another class's name for it, and then the error tells ours.
    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        for name, values in _UNUSED.items():
            if not any(options.get(name) is value for value in values):
                raise InvalidRequestError(f"{name}: the model's own chat template is used; give another one as chat_template")
        require_known(options, type(self).model_fields)
        super().__init__(model=checks.path("model", model), **with_plain_tools(with_key(options)))
        # Wrong values are errors here, and not at the first call.
        require_sound(self.chat_options)
        asking.request((0,), self._options({}))
        self._make_local()

    @field_validator("loras", "control_vectors", mode="before")
    @classmethod
    def _plain_adapters(cls, given: Any) -> Any:
        if given is not None and not isinstance(given, (list, tuple)):
            raise InvalidRequestError(f"loras, control_vectors: must be lists, not {type(given).__name__}")
        return [plain(one) for one in given or ()]

    @classmethod
    def class_name(cls) -> str:
        return "LocalLLM"

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """All that answers depend on: the options, and a fingerprint of the files that are on this machine.

        An ingestion cache finds what an LLM, or an extractor that has one, has made of nodes by it. How a model is run
        (`n_threads`, `keep_alive` and the like) is no part of it.
        """
        data: dict[str, Any] = super().custom_model_dump(handler, info)
        if "model_options" in data:
            data["model_options"] = identifying(self.model_options)
        return {**data, "fingerprint": known.fingerprint(self.local_model)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> LocalLLM:
        """What `to_dict` has described, with options that it leaves open; of the files it reads what is there now."""
        made: LocalLLM = super().from_dict({name: value for name, value in data.items() if name != "fingerprint"}, **kwargs)
        return made

    # ---- the model

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        # A copy with other fields (model_copy) must not answer with the model of the original.
        made_with = (
            self.model,
            self.context_window,
            self.chat_template,
            *map(repr, (self.model_options, self.loras, self.control_vectors)),
            self.api_key,
        )
        local = self._local
        if local is None or self._local_made_with != made_with:
            local = self._make_local()
            self._local, self._local_made_with, self._facts = local, made_with, None
        return local

    def _make_local(self) -> LocalModel:
        options = dict(self.model_options)
        for name in sorted(options.keys() & type(self).model_fields.keys()):
            raise InvalidRequestError(f"model_options: {name} is an option of the LLM itself; give it by its name")
        if self.context_window is not None and options.setdefault("n_ctx", self.context_window) != self.context_window:
            raise InvalidRequestError("context_window: model_options has another n_ctx; give one of them")
        return LocalModel(
            self.model,
            chat_template=self.chat_template,
            loras=adapters(self.loras, Lora),
            control_vectors=adapters(self.control_vectors, ControlVector),
            token=self.api_key.get_secret_value() if self.api_key else None,
            **options,
        )

    def close(self) -> None:
        """Lets go of what was loaded, as `LocalModel.close`; the next call loads again."""
        if self._local is not None:
            self._local.close()

    @property
    def metadata(self) -> LLMMetadata:
        """Facts from the header of the model's file; neither weights nor vocabulary are loaded, nothing is fetched.

        The first time reads the header. Of a model that has still to be fetched it says what is likely.

        Raises:
            ModelError: There is no such model, or its file is damaged.
        """
        return self._metadata(self._known_facts() or known.presumed(self.local_model))

    def to_payload(self) -> dict[str, Any]:
        """What events say of this LLM; reads nothing, since it is asked for on the loop."""
        local = self.local_model
        return {"class_name": self.class_name(), **self._metadata(self._facts or known.presumed(local)).model_dump()}

    def _known_facts(self) -> known.Facts | None:
        local = self.local_model
        # "auto" is decided when the model is loaded.
        if self._facts is None or local.context_config.n_ctx == "auto":
            self._facts = known.facts(local)
        return self._facts

    def _metadata(self, facts: known.Facts) -> LLMMetadata:
        calls = self.is_function_calling_model
        return LLMMetadata(
            context_window=facts.context_window,
            # An answer may be longer; but LlamaIndex leaves prompts the rest, and there has to be one.
            num_output=min(self.max_tokens or min(DEFAULT_NUM_OUTPUTS, facts.context_window // 4), facts.context_window // 2),
            is_chat_model=facts.has_template,
            is_function_calling_model=facts.has_template if calls is None else calls,
            model_name=self.model,
        )

    @property
    def tokenizer(self) -> Any:
        """Text to token ids, for `Settings.tokenizer`, splitters and memories; can be pickled.

        What looks like a special token is text, as it is in a prompt.
        """
        return functools.partial(self.local_model.tokenize, parse_special=False)

    # ---- what is asked

    def _own(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The options of a call: its own, and of the LLM those that it leaves open."""
        own = self._own(("max_tokens", "stop"))
        return {**own, **kwargs} if "sampling" in kwargs else {**self.sampling, **self._own(SAMPLING), **own, **kwargs}

    @staticmethod
    def _ended(options: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Options of a call without the stops of the LLM where an answer has to be something."""
        spoils = "stop" not in kwargs and is_bound(options)
        return {name: value for name, value in options.items() if not spoils or name != "stop"}

    def _continued(self, prompt: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of localllm's `complete`."""
        return {"prompt": prompt, **self._ended(self._options(kwargs), kwargs)}

    def _asked(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options for localllm; reads the header, and documents in messages."""
        self._known_facts()
        asked = to_openai(messages)
        options = {**usual(self.chat_options, kwargs), **self._options(kwargs)}
        if options.get("tools") is not None:
            options["tools"] = tools_to_openai(options["tools"])
        else:
            options.pop("tools", None)
        options = self._ended(options, kwargs)
        if says_late(asked):
            # Agents end with such a message, which many templates refuse.
            told = {name: value for name, value in options.items() if name in ChatOptions.__dataclass_fields__}
            try:
                self.local_model.render(asked, **told)
            except TemplateError:
                asked = late_system_as_user(asked)
        return asked, options

    async def _aasked(
        self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        # Until something is loaded, it may have to be fetched.
        return await (in_turn if self.local_model.loaded else in_thread)(self._asked, messages, kwargs)

    # ---- chat

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answers messages; options as of the class. Raises what `LocalModel.chat` raises."""
        return self._chat(messages, **kwargs)

    @stream_told(llm_chat_callback())
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Like `chat`, in steps: each item is the message so far and, as `delta`, what was added. Closing it stops the work."""
        return self._stream_chat(messages, **kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Like `chat`, for coroutines; cancelling the task stops the work."""
        return await self._achat(messages, **kwargs)

    @astream_told(llm_chat_callback())
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Like `stream_chat`, for coroutines."""
        return await self._astream_chat(messages, **kwargs)

    # The same, of which nobody is told: a completion tells of itself.

    def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        asked, options = self._asked(messages, kwargs)
        return whole(self.local_model.chat(asked, **options), self.model)

    def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        asked, options = self._asked(messages, kwargs)
        return grow(self.local_model.stream_chat(asked, **options), self.model)

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        asked, options = await self._aasked(messages, kwargs)
        return whole(await self.local_model.achat(asked, **options), self.model)

    async def _astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        asked, options = await self._aasked(messages, kwargs)
        return agrow(self.local_model.astream_chat(asked, **options), self.model)

    # ---- completion

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answers a text as the user's message; with `formatted` continues it as it is, without the chat template.

        Raises:
            What `LocalModel.chat` or `LocalModel.complete` raise.
        """
        if not formatted:
            return chat_to_completion_decorator(self._chat)(_text(prompt), **kwargs)
        return text(self.local_model.complete(**self._continued(prompt, kwargs)), self.model)

    @stream_told(llm_completion_callback())
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Like `complete`, in steps, as `stream_chat`."""
        if not formatted:
            chat = self._stream_chat(prompt_to_messages(_text(prompt)), **kwargs)
            return with_work(stream_chat_response_to_completion_response(chat), chat)
        return grow_text(self.local_model.stream_complete(**self._continued(prompt, kwargs)), self.model)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Like `complete`, for coroutines."""
        if not formatted:
            return await achat_to_completion_decorator(self._achat)(_text(prompt), **kwargs)
        return text(await self.local_model.acomplete(**self._continued(prompt, kwargs)), self.model)

    @astream_told(llm_completion_callback())
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Like `stream_complete`, for coroutines."""
        if not formatted:
            chat = await self._astream_chat(prompt_to_messages(_text(prompt)), **kwargs)
            return awith_work(astream_chat_response_to_completion_response(chat), chat)
        return agrow_text(self.local_model.astream_complete(**self._continued(prompt, kwargs)), self.model)

    # ---- tools

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments for `chat`. A `tool_choice` that is not None says what has to be called, else `tool_required` does.

        Where neither does, and where several calls are not asked for, `chat_options` of the LLM count.
        """
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        usual = "required" if tool_required else self.chat_options.get("tool_choice", "auto")
        choice = kwargs.pop("tool_choice", None) or usual
        several = allow_parallel_tool_calls or self.chat_options.get("parallel_tool_calls", False)
        return {
            "messages": messages,
            "tools": tools_to_openai(tools),
            "tool_choice": choice,
            "parallel_tool_calls": several,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls that a response asks for, also of a stream's item, whose last call may still be written.

        Args:
            response: ChatResponse.
            error_on_no_tool_call: bool, no calls are an error.

        Raises:
            NoToolCallError: There are none.
            InvalidRequestError: An option is unknown.
        """
        require_known(kwargs, ("error_on_no_tool_call",))
        return calls_of(response, error_on_no_tool_call)

    # ---- objects

    @dispatcher.span
    def structured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Model:
        """An object as the answer to a prompt; a grammar keeps it to the schema of its class, after any thoughts.

        Args:
            output_cls: a pydantic class.
            prompt: PromptTemplate.
            llm_kwargs: options of the call.
            prompt_args: the template's variables.

        Raises:
            CutAnswerError: `max_tokens` or the context was used up before the object was complete.
            ValidationError: The object fails a check that only the class has.
            What `chat` raises.
        """
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            found: Model = super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return found
        started(output_cls, prompt, prompt_args)
        messages, options = self._for_object(output_cls, prompt, llm_kwargs, prompt_args)
        return ended(parsed(self.chat(messages, **options), output_cls))

    @dispatcher.span
    async def astructured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Model:
        """Like `structured_predict`, for coroutines."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            found: Model = await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return found
        started(output_cls, prompt, prompt_args)
        messages, options = self._for_object(output_cls, prompt, llm_kwargs, prompt_args)
        return ended(parsed(await self.achat(messages, **options), output_cls))

    @dispatcher.span
    def stream_structured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Generator[Model | FlexibleModel, None, None]:
        """Like `structured_predict`; yields the object as it grows, each time that something of it is new.

        Before it satisfies its class, an item has the fields that were written, and None for the others; none is blank. The last
        item is of the class.
        """
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            yield from super().stream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return
        started(output_cls, prompt, prompt_args)
        messages, options = self._for_object(output_cls, prompt, llm_kwargs, prompt_args)
        yield from grow_object(self.stream_chat(messages, **options), output_cls)

    @dispatcher.span
    async def astream_structured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> AsyncGenerator[Model | FlexibleModel, None]:
        """Like `stream_structured_predict`, for coroutines: awaiting it gives an async generator."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return await super().astream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        started(output_cls, prompt, prompt_args)
        messages, options = self._for_object(output_cls, prompt, llm_kwargs, prompt_args)
        return agrow_object(await self.astream_chat(messages, **options), output_cls)

    def _for_object(
        self, output_cls: type[BaseModel], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None, prompt_args: dict[str, Any]
    ) -> tuple[list[ChatMessage], dict[str, Any]]:
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        schema = output_cls.model_json_schema()
        if self.schema_in_prompt:
            messages = with_schema(messages, schema)
        return messages, {**(llm_kwargs or {}), "json_schema": loosened(schema)}


def _text(prompt: Any) -> str:
    # LlamaIndex makes an empty message of what is no text.
    require_text("prompt", prompt)
    text: str = prompt
    return text
