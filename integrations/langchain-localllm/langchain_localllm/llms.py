"""LocalLLM: a LangChain model that continues texts, over localllm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseLLM, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.outputs import GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import ConfigDict, Field, PrivateAttr, model_validator
from typing_extensions import Self

from langchain_localllm import batching
from langchain_localllm.completions import as_chunk, as_result, whole
from langchain_localllm.errors import model_errors
from langchain_localllm.handles import ApiKey, Handles
from langchain_localllm.options import ALIASES, LOADING, NO_PART_OF_ANSWERS, SAMPLING, check_request, dealt, of_call
from langchain_localllm.profiles import adapter_identities
from langchain_localllm.version import __version__
from localllm import LocalModel, SamplingParams
from localllm.errors import InvalidRequestError
from localllm.options import split

_OWN = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop", "suffix", "n", "timeout")
_STEERING = ("loras", "control_vectors")
_OF_LANGCHAIN = ("callbacks", "tags", "metadata", "run_name", "run_id")


class LocalLLM(BaseLLM):
    """Text completion by a GGUF model inside this Python process.

    What is asked goes to the model as it is: no chat template is applied. For conversations take `ChatLocalLLM`.

    Setup:
        Install `langchain-localllm`, and name a model: a GGUF file, a repository of the Hugging Face Hub
        (`"org/repo:Q4_K_M"`, fetched when it is first used), a name of the catalog, or `"smollm2"`.

        ```bash
        pip install -U langchain-localllm
        ```

    Key init args - completion params:
        temperature: float
            0 always takes the most probable token; `None` leaves localllm's default, as with all of these.
        top_p, top_k, min_p: float, int, float
            How many candidates are left to choose from.
        seed: int
            Makes answers repeatable; `None` for a random one.
        max_tokens: int
            Most tokens of an answer, 256 unless given; `None` until the model stops or the context is full.
        stop: list of str
            Texts that end an answer. They are not part of it. `stop` of a call takes their place.
        n: int
            Answers to each prompt, computed together.
        timeout: float
            Seconds after which a call is stopped and fails with a RequestTimeoutError; `None`: never.
        suffix: str
            What stands behind the gap that the answer is to fill. The model must have been made for that.
        sampling: dict
            Further fields of `localllm.SamplingParams`. They may also be given by themselves: `repeat_penalty=1.1`.
        streaming: bool
            Tell callbacks about tokens as they come, also when the whole answer is asked for.

    Key init args - client params:
        model: str
            The model.
        model_options: dict
            How it is loaded: fields of `localllm.ModelConfig` and `localllm.ContextConfig`, `keep_alive` (seconds), `pinned`,
            `offline`. They may also be given by themselves: `n_ctx=8192`, `n_gpu_layers=20`.
        api_key: str
            Token of the Hugging Face Hub, for private and gated models; `None`: what HF_TOKEN says, or `hf auth login` has kept.
            No text of the object shows it, and no dump has it, but pickles do.
        loras, control_vectors: list
            Adapters: paths, (path, scale) pairs, or objects of localllm.

    Instantiate:
        ```python
        from langchain_localllm import LocalLLM

        llm = LocalLLM(model="smollm2", temperature=0, max_tokens=32)
        ```

        That loads nothing. Weights are loaded by the first call, and once per process for all objects that name the same file.
        The names that `LlamaCpp` and `OllamaLLM` use for options (`model_path`, `num_ctx`, `num_predict`, ...) are understood.

    Invoke:
        ```python
        llm.invoke("The capital of France is")
        ```

    Stream:
        ```python
        for text in llm.stream("The capital of France is"):
            print(text, end="")
        ```

        Breaking off stops the work.

    Async:
        ```python
        await llm.ainvoke("The capital of France is")
        ```

        Native: no thread waits for the answer, and cancelling the task stops the work.

    Batch:
        ```python
        llm.batch(["One, two,", "Monday, Tuesday,"])
        ```

        All prompts are computed together.

    Fill in the middle:
        ```python
        coder = LocalLLM(model="bartowski/Qwen2.5-Coder-1.5B-GGUF", temperature=0)
        coder.invoke("def add(a, b):\\n    return ", suffix="\\n\\nprint(add(1, 2))\\n")
        ```
    """

    # Errors would show all that was given, the token, too.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = 256
    stop: list[str] | None = None
    n: int = Field(default=1, ge=1)
    suffix: str | None = None
    timeout: float | None = None
    streaming: bool = False
    sampling: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    loras: list[Any] = Field(default_factory=list)
    control_vectors: list[Any] = Field(default_factory=list)
    api_key: ApiKey = None
    handles: Handles = Field(default_factory=Handles, exclude=True, repr=False)

    # What a call says otherwise; in the object that answers this call.
    _call: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _sort_options(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("grammar_path") is not None:
            values = {**values, "grammar": _text_of(values["grammar_path"])}
            del values["grammar_path"]
        return dealt(values, cls.model_fields, {"model_options": LOADING, "sampling": SAMPLING})

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        """Wrong values are errors here and not at the first call."""
        split(self.sampling, SamplingParams)
        check_request({name: value for name, value in self._options(None, {}).items() if name not in ("n", "suffix")})
        _ = self.local_model
        return self

    @model_validator(mode="after")
    def _set_localllm_version(self) -> Self:
        self._add_version("langchain-localllm", __version__)
        return self

    # ---- what it is

    @property
    def _llm_type(self) -> str:
        return "localllm"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """All that an answer depends on: caches go by it."""
        local = self._local(self._call)
        steering = {name: used for name in _STEERING if (used := getattr(local, name))}
        options = self._options(None, self._call)
        files = {"file": local.file_identity, "adapters": adapter_identities(local, options)}
        said = {"model": local.reference, "model_options": self.model_options, **steering, **options, **files}
        return {name: value for name, value in said.items() if name not in NO_PART_OF_ANSWERS}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "localllm"
        if stops := self._options(stop, kwargs).get("stop"):
            params["ls_stop"] = stops
        return params

    @property
    def local_model(self) -> LocalModel:
        """The localllm.LocalModel that answers."""
        return self._local({})

    def _local(self, call: Mapping[str, Any]) -> LocalModel:
        steering = {name: getattr(self, name) for name in _STEERING}
        return self.handles.get(_of_call(call).get("model", self.model), {**steering, **self.model_options}, self.api_key)

    def close(self) -> None:
        """Frees what was loaded, unless others use it. The next call loads it again."""
        self.handles.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- tokens

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, by the model's own vocabulary."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        with model_errors():
            return self.local_model.tokenize(text)

    def get_num_tokens(self, text: str) -> int:
        """How many tokens a text has, by the model's own vocabulary."""
        return len(self.get_token_ids(text))

    # ---- answers

    def _options(self, stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a call for localllm."""
        own = {name: value for name in _OWN if (value := getattr(self, name)) is not None}
        options = {**self.sampling, **own, **_of_call(call)}
        options.pop("model", None)
        if stop is not None:
            options["stop"] = stop
        logprobs = options.get("logprobs")
        if logprobs is not None and not isinstance(logprobs, bool):
            # OpenAI's completions and LlamaCpp say by a number how many candidates they want to see.
            options |= {"logprobs": True, "n_probs": logprobs}
        return options

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)
        n = options.pop("n")
        if self.streaming and run_manager and len(prompts) == 1 and n == 1:
            chunks = list(self._stream(prompts[0], stop, run_manager, **kwargs))
            return whole(chunks)
        with model_errors():
            local = self._local(kwargs)
            return as_result(local.complete_all(prompts, n=n, **options), n, local)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)
        n = options.pop("n")
        if self.streaming and run_manager and len(prompts) == 1 and n == 1:
            chunks = [chunk async for chunk in self._astream(prompts[0], stop, run_manager, **kwargs)]
            return whole(chunks)
        with model_errors():
            local = self._local(kwargs)
            return as_result(await local.acomplete_all(prompts, n=n, **options), n, local)

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        with model_errors():
            local = self._local(kwargs)
            events = local.stream_complete(prompt, **self._stream_options(stop, kwargs))
            try:
                for event in events:
                    chunk = as_chunk(event, local)
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
            finally:
                events.close()

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        with model_errors():
            local = self._local(kwargs)
            events = local.astream_complete(prompt, **self._stream_options(stop, kwargs))
            try:
                async for event in events:
                    chunk = as_chunk(event, local)
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
            finally:
                await events.aclose()

    def _stream_options(self, stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
        options = self._options(stop, call)
        if (n := options.pop("n")) != 1:
            raise InvalidRequestError(f"n: a stream has one answer, not {n}; use generate or batch for several")
        return options

    # ---- what LangChain leaves out

    def generate(self, prompts: list[str], stop: list[str] | None = None, *args: Any, **kwargs: Any) -> LLMResult:
        """As of BaseLLM; what a call says otherwise is part of what its answer is cached under."""
        with model_errors():
            return super(LocalLLM, self._asked(kwargs)).generate(prompts, self.stop if stop is None else stop, *args, **kwargs)

    async def agenerate(self, prompts: list[str], stop: list[str] | None = None, *args: Any, **kwargs: Any) -> LLMResult:
        """As `generate`, for coroutines."""
        stop = self.stop if stop is None else stop
        with model_errors():
            return await super(LocalLLM, self._asked(kwargs)).agenerate(prompts, stop, *args, **kwargs)

    def _asked(self, kwargs: Mapping[str, Any]) -> Self:
        call = {name: value for name, value in kwargs.items() if name not in _OF_LANGCHAIN}
        if not call:
            return self
        asked = self.model_copy()
        asked._call = call
        return asked

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """All inputs at once, or "max_concurrency" at a time. With `return_exceptions` one that fails harms no other."""
        if return_exceptions:
            return batching.run(lambda: self.abatch(inputs, config, return_exceptions=True, **kwargs))
        batching.limit(get_config_list(config, len(inputs)))
        return super().batch(inputs, config, **kwargs)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """As `batch`, for coroutines."""
        if return_exceptions:
            return await batching.in_order(batching.answers(self, inputs, config, True, kwargs), len(inputs))
        batching.limit(get_config_list(config, len(inputs)))
        return await super().abatch(inputs, config, **kwargs)

    batch_as_completed = batching.batch_as_completed
    abatch_as_completed = batching.abatch_as_completed


def _of_call(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call by our names; `max_tokens=None` says that there is no limit."""
    return of_call(kwargs, ALIASES, {"max_tokens"})


def _text_of(path: Any) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise InvalidRequestError(f"grammar_path: {path} cannot be read ({error})") from error
