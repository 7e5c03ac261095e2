"""ChatLocalLLM: a LangChain chat model over localllm."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import ConfigDict, Field, model_validator

from langchain_localllm import answers, batching, options, structured
from langchain_localllm.calls import Call, as_openai, prepared
from langchain_localllm.errors import model_errors
from langchain_localllm.handles import ApiKey, Handles
from langchain_localllm.profiles import adapter_identities, profile_of
from langchain_localllm.tools import chosen_tool, openai_tools
from langchain_localllm.version import __version__
from localllm import ContextConfig, LocalModel
from localllm.media.limits import MediaLimits


class ChatLocalLLM(BaseChatModel):
    """A GGUF model, run by llama.cpp inside this Python process.

    Setup:
        Install the package; there is no server to start, and no key to have.

        ```bash
        pip install langchain-localllm
        ```

    Key init args, completion:
        model: str, a model of the Hub ("org/repo:Q4_K_M"), a path, a name ("smollm2") or "ollama:NAME". (`model_path` as well.)
        temperature, top_p, top_k, min_p, seed, repeat_penalty, presence_penalty, frequency_penalty: as of
            localllm.SamplingParams; None: its defaults.
        max_tokens: int, most tokens of an answer; None: until the model ends it or the context is full. (`num_predict`.)
        stop: list of str, texts that end an answer, besides the model's own.
        logprobs: bool; top_logprobs: int, log-probabilities of the tokens, in `response_metadata["logprobs"]`.
        reasoning: bool, whether a model that can think does; its thoughts are never part of the text.
        reasoning_budget: int, most tokens of a thought.
        streaming: bool, True: `invoke` streams as well, for callbacks that want each token.
        tell_schema: bool, put the JSON schema of a structured answer into the prompt; its grammar holds anyway.
        sampling: dict, further fields of localllm.SamplingParams.
        chat_options: dict, further fields of localllm.ChatOptions, e.g. {"parallel_tool_calls": True}; a "tool_choice" holds for
            calls with tools.

    Key init args, loading (these never load anything by themselves):
        n_ctx: int or "auto", tokens of the context, shared by all calls (4096). (`num_ctx`.)
        parallel: int, calls that are computed together (4).
        n_gpu_layers: int, "all" or "auto"; n_threads: int.
        keep_alive: float, seconds without a call after which the weights are freed; None: never.
        chat_template: str, Jinja text instead of the file's own, or the name of another one in the file.
        loras, control_vectors: lists of paths, (path, scale) pairs, or localllm.Loras and ControlVectors.
        model_options: dict, further fields of localllm.ModelConfig and ContextConfig, and of LocalModel.
        api_key: str, token of the Hugging Face Hub, for private and gated models; None: what HF_TOKEN says, or `hf auth login`
            has kept. No text of the object shows it, and no dump has it, but pickles do. (`token`.)

    Key init args, calls:
        timeout: float, seconds after which a call is stopped and fails with a RequestTimeoutError; None: never.
        max_retries: int, how often a call is tried again that finds the engine's queue full (`max_queue`), after pauses that grow
            from 0.1 to 1 second and are part of the `timeout`.

    What is a field of one of the dicts may be given by itself as well: `ChatLocalLLM(model="smollm2", n_batch=512)`. An unknown
    name is an error that says which was meant.

    Instantiate:
        ```python
        from langchain_localllm import ChatLocalLLM

        llm = ChatLocalLLM(model="smollm2", temperature=0, max_tokens=256)
        ```

    Invoke:
        ```python
        llm.invoke([("system", "You are a translator."), ("human", "Say 'river' in French.")])
        ```

    Stream:
        ```python
        for chunk in llm.stream("Count to five."):
            print(chunk.text, end="")
        ```

    Async:
        ```python
        await llm.ainvoke("Hello")
        await llm.abatch(["Hello", "Hi"])
        ```

        Native: no threads wait for answers. Cancelling a task, or leaving a stream, stops the work.

    Tool calling:
        ```python
        llm.bind_tools([get_weather], tool_choice="any").invoke("How is the weather in Paris?").tool_calls
        ```

    Structured output:
        ```python
        llm.with_structured_output(Joke).invoke("Tell me a joke about cats.")
        ```

    Usage and response metadata:
        ```python
        message.usage_metadata  # input_tokens, output_tokens, cache_read, reasoning
        message.response_metadata  # finish_reason, model_name, model_provider, token_usage, timings (seconds), seed
        ```
    """

    # Errors would show all that was given, the token, too.
    model_config = ConfigDict(populate_by_name=True, extra="forbid", hide_input_in_errors=True)

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning: bool | None = None
    reasoning_budget: int | None = None
    streaming: bool | None = None
    tell_schema: bool = True
    timeout: float | None = None
    max_retries: int | None = None
    n_ctx: int | str | None = None
    parallel: int | None = None
    n_gpu_layers: int | str | None = None
    n_threads: int | None = None
    keep_alive: float | None = None
    chat_template: str | None = None
    loras: list[Any] = Field(default_factory=list)
    control_vectors: list[Any] = Field(default_factory=list)
    sampling: dict[str, Any] = Field(default_factory=dict)
    chat_options: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    api_key: ApiKey = None

    # Handles, by what they were made with: a copy with other fields (model_copy) must not answer with the original's model.
    handles: Handles = Field(default_factory=Handles, exclude=True, repr=False)

    def __init__(self, model: Any = None, **kwargs: Any) -> None:
        super().__init__(**({"model": model} if model is not None else {}), **kwargs)

    @model_validator(mode="before")
    @classmethod
    def _deal_options(cls, values: Any) -> Any:
        """Each option goes where it belongs; unknown ones are errors."""
        return options.dealt(values, cls.model_fields, options.HOMES)

    @model_validator(mode="after")
    def _check_options(self) -> ChatLocalLLM:
        """Wrong values are errors here and not at the first call."""
        options.tries(self.max_retries)
        options.check_request(self._defaults())
        self._handle(self.model)
        return self

    @model_validator(mode="after")
    def _set_localllm_version(self) -> ChatLocalLLM:
        self._add_version("langchain-localllm", __version__)
        return self

    # ---- what it is

    @property
    def _llm_type(self) -> str:
        return "localllm-chat"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        made = {name: value for name, value in options.loading(self).items() if name not in options.NO_PART_OF_ANSWERS}
        return {"model": self.model, **made, **self._defaults(), "tell_schema": self.tell_schema}

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        return super()._get_invocation_params(stop=self.stop if stop is None else stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # The key of answers that are kept: other files under the same names answer otherwise, and so do schemas.
        with model_errors():
            reference, _, tell, asked = self._asked(stop, kwargs)
            handle = self._handle(reference)
            parts = {
                **options.loading(self),
                **as_openai(asked),
                "model": reference,
                "files": [handle.file_identity, *adapter_identities(handle, asked)],
                "tell_schema": tell,
                "output_version": self.output_version,
                "_type": self._llm_type,
            }
        said = {name: value for name, value in parts.items() if name not in options.NO_PART_OF_ANSWERS}
        return json.dumps(said, sort_keys=True, default=repr)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop or None, **kwargs)
        params["ls_provider"] = answers.PROVIDER
        return params

    def _resolve_model_profile(self) -> ModelProfile | None:
        made = options.loading(self)
        n_ctx = made.get("n_ctx", ContextConfig.n_ctx)
        limits = made.get("media_limits") or MediaLimits()
        return profile_of(
            self.model,
            n_ctx=n_ctx,
            max_tokens=self.max_tokens,
            template=self.chat_template,
            mmproj=made.get("mmproj", "auto"),
            urls=limits.allow_urls,
        )

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        return answers.added(llm_outputs)

    # ---- the model behind it

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        return self._handle(self.model)

    def close(self) -> None:
        """Lets go of the weights; they are freed unless others use them. The next call loads them again."""
        self.handles.close()

    def _handle(self, reference: str) -> LocalModel:
        return self.handles.get(reference, options.loading(self), self.api_key)

    # ---- tokens

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens in the model's own vocabulary."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        with model_errors():
            return self.local_model.tokenize(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """How many tokens the prompt of a conversation has, all that the template and the tools add included.

        Messages that the template refuses by themselves, as parts of a conversation, count as their texts, thoughts, and the
        names and arguments of their calls.

        Args:
            messages: as of `invoke`.
            tools: as of `bind_tools`.
        """
        with model_errors():
            return self._call(messages, None, {"tools": tools} if tools else {}).n_tokens() if messages else 0

    # ---- tools and data

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Binds tools.

        Args:
            tools: functions, pydantic classes, TypedDicts, BaseTools, or dicts as OpenAI or Anthropic write them.
            tool_choice: "auto", "none", "any" or "required" or True (some tool must be called), the name of the one that must be
                called, or {"type": "function", "function": {"name": ...}}.
            strict: bool, the arguments keep to the schema in free calls, too; those of required calls always do.
            parallel_tool_calls: bool, allow several calls in one answer.
            kwargs: options of calls.

        Raises:
            InvalidRequestError: One of them is no tool, or the choice names none of them.
        """
        with model_errors():
            converted = openai_tools(tools, strict)
            choice = chosen_tool(tool_choice, converted)
        bound = {"tool_choice": choice, "parallel_tool_calls": parallel_tool_calls}
        return self.bind(tools=converted, **{name: value for name, value in bound.items() if value is not None}, **kwargs)

    def with_structured_output(
        self,
        schema: structured.Schema | None = None,
        *,
        method: structured.Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A runnable whose answers are data.

        Whatever the method, the grammar sees to it that the answer satisfies the schema; a model that thinks does so first.

        Args:
            schema: a pydantic class (2 or 1), a TypedDict, a JSON schema, or a function as OpenAI writes it. None: any JSON
                object ("json_mode").
            method: "json_schema": the answer is JSON, and the model is told the schema; "function_calling": it is the call of a
                tool, and the schema that of an object; "json_mode": the answer is JSON, and the model is told nothing that you
                do not tell it.
            include_raw: bool, give {"raw": message, "parsed": object, "parsing_error": what went wrong}.
            strict: bool, True: all properties are required and, where properties are named, no others allowed.
            kwargs: options of calls, e.g. `tools`.

        Raises:
            InvalidRequestError: The schema or the method is none, or a call is asked for and the schema is none of an object.
            OutputParserException: When called: the answer was cut off, or pydantic's own checks refuse it.
        """
        with model_errors():
            return structured.runnable(self, schema, method, include_raw=include_raw, strict=strict, **kwargs)

    # ---- calls

    def _defaults(self) -> dict[str, Any]:
        """The options of a call that says nothing."""
        return options.defaults(self)

    def _asked(self, stop: list[str] | None, kwargs: Mapping[str, Any]) -> tuple[str, int, bool, dict[str, Any]]:
        """What a call means: the model, how often it is tried, whether the schema is told, and its options."""
        asked = options.of_call(kwargs)
        reference = asked.pop("model", self.model)
        tries = options.tries(asked.pop("max_retries", self.max_retries))
        tell = asked.pop("tell_schema", self.tell_schema)
        if stop is not None:
            asked["stop"] = stop
        return reference, tries, tell, {**self._defaults(), **asked}

    def _call(self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]) -> Call:
        reference, tries, tell, asked = self._asked(stop, kwargs)
        return prepared(self._handle(reference), reference, messages, asked, tries, tell)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with model_errors():
            call = self._call(messages, stop, kwargs)
            answer = call.tried(lambda asked: call.model.chat(call.messages, **asked))
            return answers.chat_result(answer, call.name)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with model_errors():
            call = self._call(messages, stop, kwargs)
            answer = await call.atried(lambda asked: call.model.achat(call.messages, **asked))
            return answers.chat_result(answer, call.name)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with model_errors():
            call = self._call(messages, stop, kwargs)
            deltas = call.tried(lambda asked: call.model.stream_chat(call.messages, **asked))
            chunks = answers.Chunks(call.name)
            try:
                for chunk in (chunk for delta in deltas for chunk in chunks.of(delta)):
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
            finally:
                deltas.close()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with model_errors():
            call = self._call(messages, stop, kwargs)
            chunks, deltas = answers.Chunks(call.name), call.adeltas()
            try:
                async for delta in deltas:
                    for chunk in chunks.of(delta):
                        if run_manager:
                            await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                        yield chunk
            finally:
                await deltas.aclose()

    # ---- many calls

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Answers to all inputs, which the engine computes in shared batches. No thread waits for each of them.

        Args:
            inputs: as of `invoke`.
            config: one for all, or one for each; "max_concurrency" of the first limits how many are under way.
            return_exceptions: bool, errors stand among the answers. Else the first one ends all others.
            kwargs: options of the calls.

        Raises:
            InvalidRequestError: "max_concurrency" is less than 1; or what a call raises.
        """
        return batching.run(lambda: self.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs))

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Like `batch`, for coroutines; cancelling it stops them all."""
        answers = batching.answers(self, inputs, config, return_exceptions, kwargs)
        return await batching.in_order(answers, len(inputs))

    batch_as_completed = batching.batch_as_completed
    abatch_as_completed = batching.abatch_as_completed
