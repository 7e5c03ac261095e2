"""LocalModel: a reference and options, and what one does with a model."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from localllm import asking
from localllm.asking import Messages
from localllm.chat.answer import AnswerReader, collect, stream_deltas, whole_answer
from localllm.chat.messages import shows_media
from localllm.chat.prompt import ChatOptions, Prompt, render
from localllm.chat.texts import require_whole_characters
from localllm.chat.types import ChatDelta, ChatResult
from localllm.embedding import ranking
from localllm.embedding.instructions import Instructions, known_instructions
from localllm.embedding.ranking import Ranked, RankOptions
from localllm.embedding.texts import EmbedOptions
from localllm.embedding.texts import prepare as prepare_texts
from localllm.embedding.vectors import Embeddings
from localllm.engine import checks
from localllm.engine.config import ContextConfig, ModelConfig, SamplingParams
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.request import Delta, Finished, Generation, Request
from localllm.engine.steering import ControlVector, Lora, adapters
from localllm.errors import InvalidRequestError
from localllm.files import write_atomically
from localllm.hub.gguf import Header
from localllm.loaded import Loaded, Terms
from localllm.media.encoder import ProjectorConfig
from localllm.media.eyes import Eyes
from localllm.media.limits import MediaLimits
from localllm.native.handles import Model
from localllm.offloop import in_thread, in_turn
from localllm.options import split
from localllm.residency.placement import Placement

File = str | os.PathLike[str]


class LocalModel:
    """A model on this machine. Cheap to make: weights are loaded at the first use, and shared within the process.

    Two LocalModels with the same file and the same loading options use one engine, whose requests are batched together; it
    is closed when the last of them is closed or collected. Chat, vectors and scores of a file share its weights.

    Args:
        reference: a model of the Hub ("org/repo:Q4_K_M"), which is fetched at its first use unless it is on this machine; a path
            to a GGUF file; a name ("smollm2", "qwen3-4b"); a model that Ollama has fetched ("ollama:name").
        chat_template: a Jinja template instead of the file's own: its text, a Path of a file that holds it, a word: the name of
            another one in the GGUF ("tool_use", say; `header.chat_templates` has them). None: the file's usual one.
        loras: LoRA adapters for every request that names none of its own: paths, (path, scale) pairs, or Loras. The weights stay
            as they are and shared; what was computed with other adapters is never mixed up. Not for vectors and scores.
        control_vectors: the same of control vectors: paths, (path, scale) pairs, or ControlVectors.
        keep_alive: float, seconds without a request after which weights and context are freed; the next use loads them again, and
            answers the same. 0: as soon as nothing is under way. None: they stay for as long as the handle does. Of several
            handles that share an engine, the one that keeps it longest counts.
        pinned: bool, when idle it does not make way for other models (see `localllm.set_memory_budget`).
        check_memory: bool, loading what does not fit the free memory is a DoesNotFitError, before anything is allocated. Weights
            that are mapped from their file do not count there: what of them does not fit is read again and again.
        offline: bool, ask no network; None: what HF_HUB_OFFLINE says.
        token: str, the Hub's, for a model that is private or gated; None: HF_TOKEN, else what `hf auth login` has kept.
        media_limits: MediaLimits of pictures, sounds and videos that are shown to it; None: the usual ones, which fetch nothing
            from the network.
        options: fields of ModelConfig, ContextConfig and ProjectorConfig, e.g. `n_ctx=8192, parallel=8, n_threads=4`.

    Raises:
        InvalidRequestError: An option is unknown or out of range.
    """

    def __init__(
        self,
        reference: str | os.PathLike[str],
        *,
        chat_template: str | os.PathLike[str] | None = None,
        loras: Sequence[File | tuple[File, float] | Lora] | None = None,
        control_vectors: Sequence[File | tuple[File, float] | ControlVector] | None = None,
        keep_alive: float | None = None,
        pinned: bool = False,
        check_memory: bool = True,
        offline: bool | None = None,
        token: str | None = None,
        media_limits: MediaLimits | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(reference, (str, os.PathLike)):
            raise InvalidRequestError(f"reference: must be a path or a name, not {type(reference).__name__}")
        self.reference = checks.path("reference", reference)
        self.chat_template = _template_text(chat_template)
        self.loras: tuple[Lora, ...] = adapters("loras", loras, Lora)
        self.control_vectors: tuple[ControlVector, ...] = adapters("control_vectors", control_vectors, ControlVector)
        self.terms = Terms(keep_alive, pinned, check_memory)
        if offline is not None and not isinstance(offline, bool):
            raise InvalidRequestError(f"offline: must be True, False or None, not {offline!r}")
        self.offline = offline
        if token is not None and not isinstance(token, str):
            raise InvalidRequestError(f"token: must be text or None, not {type(token).__name__}")
        self.token = token
        if media_limits is not None and not isinstance(media_limits, MediaLimits):
            raise InvalidRequestError(f"media_limits: must be MediaLimits or None, not {type(media_limits).__name__}")
        self.media_limits = media_limits or MediaLimits()
        others = ("chat_template", "loras", "control_vectors", "offline", "token", "media_limits", *vars(self.terms))
        kinds = (ModelConfig, ContextConfig, ProjectorConfig)
        model_options, context_options, projector_options = split(options, *kinds, others=others)
        self.model_config = ModelConfig(**model_options)
        self.context_config = ContextConfig(**context_options)
        self.projector_config = ProjectorConfig(**projector_options)
        configs = (self.model_config, self.context_config)
        self._loaded = Loaded(self.reference, *configs, self.chat_template, self.terms, self.projector_config, offline, token)

    def __repr__(self) -> str:
        return f"LocalModel({self.reference!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or the same model in another process: what it was made with, without what it has loaded.
        names = ("loras", "control_vectors", "offline", "token", "media_limits")
        named = {**{name: getattr(self, name) for name in names}, **vars(self.projector_config)}
        return _remake, (self.reference, self.chat_template, self.model_config, self.context_config, named, self.terms)

    # ---- facts, from the file's header alone

    @property
    def path(self) -> Path:
        """The GGUF file.

        Raises:
            ModelNotFoundError: The reference means none.
        """
        return self._loaded.path

    @property
    def header(self) -> Header:
        """Metadata and tensor table of the file; needs neither weights nor the native library.

        Raises:
            ModelError: The file cannot be read.
        """
        return self._loaded.header

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digits that tell the file from others, of the same name, too; reads 4 MiB of it at most, and no more often
        than the file changes. What is kept under it, vectors say, is right for as long as the file is the same.

        Raises:
            ModelError: The file cannot be read.
        """
        return self._loaded.fingerprint

    @property
    def file_identity(self) -> tuple[str, int, int] | None:
        """Path, size (bytes) and time of change (ns) of the file that answers; None: it is not on this machine.

        That is the one whose weights are loaded, also after another has taken its place, or else the one that would be loaded.

        Answers that are kept under it are of that file.
        """
        return self._loaded.file_identity()

    @property
    def placement(self) -> Placement | None:
        """How it was loaded last: context, layers on GPUs, memory, and why; None: it was not. Says what "auto" came to.

        `n_ctx="auto"` is the length that the model was trained for, or as many tokens of it as leave a tenth of the free memory
        (256 MiB at least) to others, the weights counted in; 512 at least. Models that are idle and not pinned make way for it.
        Once decided it does not grow while the handle lives.
        `n_gpu_layers="auto"` is what llama.cpp's own fitting chooses, which also chooses the context where there is a GPU.
        """
        return self._loaded.placement

    # ---- life

    @property
    def engine(self) -> Engine:
        """The engine; loads the weights if nobody in this process has.

        With `keep_alive`, or when others need the memory, it may be closed whenever no request is under way: ask for it anew each
        time. It stays for some seconds after it was asked for.

        Raises:
            DoesNotFitError: There is not enough memory; the message says what would help.
            ModelError: The file cannot be loaded.
            NativeLibraryError: The native libraries cannot be used.
        """
        return self._loaded.engine

    @property
    def embedder(self) -> Embedder:
        """What makes vectors; the weights are those of the engine if both are used. Raises as `engine` does."""
        return self._loaded.embedder(rank=False)

    @property
    def ranker(self) -> Embedder:
        """What makes scores. Raises as `engine` does, UnsupportedModelError if the model has no classification head."""
        return self._loaded.embedder(rank=True)

    @property
    def vocabulary(self) -> Model:
        """The native model as far as tokens and templates need it: the vocabulary alone while no weights are loaded.

        Raises:
            ModelError: The file cannot be loaded.
            NativeLibraryError: The native libraries cannot be used.
        """
        return self._loaded.vocabulary

    @property
    def loaded(self) -> bool:
        """Whether this handle has loaded its weights."""
        return bool(self._loaded)

    def close(self) -> None:
        """Lets go of what was loaded; the weights are freed unless another LocalModel uses them. The next use loads again.

        If its file is being fetched, that ends: whoever waits for it gets a DownloadCancelledError, and the next use goes on
        from what has come.
        """
        self._loaded.let_go()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- tokens: these load the vocabulary, not the weights

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Text to token ids.

        Args:
            text: str.
            add_special: bool, add what the model wants around a text (BOS, EOS).
            parse_special: bool, recognise special tokens written in the text.

        Raises:
            InvalidRequestError: It is no text, or has half of a character.
        """
        require_whole_characters("text", text)
        return self.vocabulary.tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Token ids to text; `special`: with the text of special tokens. Bytes that are no text become U+FFFD."""
        return self.vocabulary.detokenize(tokens, special).decode("utf-8", errors="replace")

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, by itself."""
        return len(self.tokenize(text))

    def count_message_tokens(self, messages: Messages, **options: Any) -> int:
        """How many tokens a conversation's prompt has, everything that the template and tools add included.

        Args:
            messages: as of `chat`.
            options: as of `chat`; tools and what else the template is told count.
        """
        if not shows_media(messages):
            request, _ = asking.conversation(self.vocabulary, self._loaded.template, messages, options)
            return len(request.prompt)
        with self._loaded.engine_lease() as lease:
            request, _ = self._chat_request(lease.value, messages, options)
        return len(request.prompt)

    def context_left(self, messages: Messages, **options: Any) -> int:
        """How many tokens an answer to a conversation may have; negative if its prompt is too long already."""
        return self.engine.limit - self.count_message_tokens(messages, **options)

    # ---- text

    def complete(self, prompt: str, **options: Any) -> Generation:
        """Continues a text.

        Args:
            prompt: str, as it is: no chat template is applied.
            options: `suffix` (a text: the answer is what belongs between it and the prompt, and special tokens written in the two
                are letters), `max_tokens`, `stop`, `priority`, `timeout` (seconds), `context_shift`, `speculate`, `loras`
                and `control_vectors` (lists in place of those that the model was made with; [] for none), and fields of
                SamplingParams (or `sampling=SamplingParams(...)`).

        Raises:
            InvalidRequestError: An option is wrong.
            ContextOverflowError: The prompt does not fit the context.
            UnsupportedModelError: There is a suffix, and the model's vocabulary has no tokens for filling in the middle.
            ModelError: The model, or an adapter, cannot be loaded.
        """
        with self._loaded.engine_lease() as lease:
            return lease.value.generate(self._completion(lease.value.model, prompt, options))

    def stream_complete(self, prompt: str, **options: Any) -> Generator[Delta | Finished, None, None]:
        """Like `complete`; yields Deltas and, last, a Finished. Closing the iterator stops the work."""
        # From here on the engine's own request keeps it.
        with self._loaded.engine_lease() as lease:
            return lease.value.stream(self._completion(lease.value.model, prompt, options))

    async def acomplete(self, prompt: str, **options: Any) -> Generation:
        """Like `complete`, for coroutines."""
        with await self._loaded.aengine_lease() as lease:
            request = await in_turn(self._completion, lease.value.model, prompt, options)
            return await lease.value.agenerate(request)

    async def astream_complete(self, prompt: str, **options: Any) -> AsyncGenerator[Delta | Finished, None]:
        """Like `stream_complete`, for coroutines."""
        with await self._loaded.aengine_lease() as lease:
            events = lease.value.astream(await in_turn(self._completion, lease.value.model, prompt, options))
            try:
                async for event in events:
                    yield event
            finally:
                await events.aclose()

    def complete_all(self, prompts: Sequence[str], *, n: int = 1, **options: Any) -> list[Generation]:
        """Continues several texts, each n times, in shared batches; what texts have in common is computed once.

        Args:
            prompts: texts.
            n: int, answers to each of them; with a `seed`, the k-th answer has `seed + k`.
            options: as of `complete`.

        Returns:
            n answers to the first text, then those to the second, and so on.
        """
        with self._loaded.engine_lease() as lease:
            return lease.value.generate_all(self._completions(lease.value.model, prompts, n, options))

    async def acomplete_all(self, prompts: Sequence[str], *, n: int = 1, **options: Any) -> list[Generation]:
        """Like `complete_all`, for coroutines."""
        with await self._loaded.aengine_lease() as lease:
            requests = await in_thread(self._completions, lease.value.model, prompts, n, options)
            return await lease.value.agenerate_all(requests)

    def _completions(self, model: Model, prompts: Sequence[str], n: int, options: dict[str, Any]) -> list[Request]:
        if isinstance(prompts, str):
            raise InvalidRequestError("prompts: must be a list of texts; `complete` takes one")
        return [
            request
            for prompt in checks.items("prompts", prompts)
            for request in self._completion(model, prompt, options).repeated(n)
        ]

    def _completion(self, model: Model, prompt: str, options: dict[str, Any]) -> Request:
        return asking.completion(model, prompt, self._steered(options))

    def _steered(self, options: dict[str, Any]) -> dict[str, Any]:
        return asking.steered(options, self.loras, self.control_vectors)

    # ---- chat

    def chat(self, messages: Messages, **options: Any) -> ChatResult:
        """Answers a conversation.

        Args:
            messages: OpenAI-style, e.g. [{"role": "user", "content": "Hello"}]; a ChatMessage of an earlier answer may stand
                among them as it is. A last message of the assistant is continued.
            options: fields of ChatOptions (`tools`, `tool_choice`, `json_schema`, `choice`, `enable_thinking`, ...),
                `max_tokens`, `stop`, `priority`, `timeout` (seconds), `context_shift`, `speculate`, `loras`, `control_vectors`,
                and fields of SamplingParams (or `sampling=SamplingParams(...)`).

        Returns:
            ChatResult; `.message.content` is the text.

        Raises:
            InvalidRequestError: A message or option is wrong.
            GrammarError: A schema, pattern or grammar cannot be used.
            TemplateError: The template refuses the messages.
            ContextOverflowError: The conversation does not fit the context.
            RequestTimeoutError: There was no whole answer within `timeout` seconds.
            ModelError: The model, or an adapter, cannot be loaded.
        """
        with self._loaded.engine_lease() as lease:
            request, prompt = self._chat_request(lease.value, messages, options)
            reader = AnswerReader(prompt)
            deltas: list[ChatDelta] = []
            for event in lease.value.stream(request):
                deltas.extend(reader.take(event))
            return collect(reader, deltas)

    def stream_chat(self, messages: Messages, **options: Any) -> Generator[ChatDelta, None, None]:
        """Like `chat`; yields ChatDeltas as they come, the last one with the reason and usage.

        Arguments are checked at once. Closing the iterator stops the work.
        """
        with self._loaded.engine_lease() as lease:
            request, prompt = self._chat_request(lease.value, messages, options)
            return stream_deltas(AnswerReader(prompt), lease.value.stream(request))

    async def achat(self, messages: Messages, **options: Any) -> ChatResult:
        """Like `chat`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        with await self._loaded.aengine_lease() as lease:
            request, prompt = await in_turn(self._chat_request, lease.value, messages, options)
            reader = AnswerReader(prompt)
            deltas: list[ChatDelta] = []
            async for event in lease.value.astream(request):
                deltas.extend(reader.take(event))
            return collect(reader, deltas)

    async def astream_chat(self, messages: Messages, **options: Any) -> AsyncGenerator[ChatDelta, None]:
        """Like `stream_chat`, for coroutines."""
        with await self._loaded.aengine_lease() as lease:
            request, prompt = await in_turn(self._chat_request, lease.value, messages, options)
            reader = AnswerReader(prompt)
            events = lease.value.astream(request)
            try:
                async for event in events:
                    for delta in reader.take(event):
                        yield delta
            finally:
                await events.aclose()

    def chat_all(self, conversations: Sequence[Messages], *, n: int = 1, **options: Any) -> list[ChatResult]:
        """Answers several conversations, each n times, in shared batches; what they have in common is computed once.

        Args:
            conversations: lists of messages as of `chat`.
            n: int, answers to each of them; with a `seed`, the k-th answer has `seed + k`.
            options: as of `chat`.

        Returns:
            n answers to the first conversation, then those to the second, and so on.
        """
        with self._loaded.engine_lease() as lease:
            requests, prompts = self._chat_requests(lease.value, conversations, n, options)
            answers = lease.value.generate_all(requests)
        return [whole_answer(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    async def achat_all(self, conversations: Sequence[Messages], *, n: int = 1, **options: Any) -> list[ChatResult]:
        """Like `chat_all`, for coroutines."""
        with await self._loaded.aengine_lease() as lease:
            requests, prompts = await in_thread(self._chat_requests, lease.value, conversations, n, options)
            answers = await lease.value.agenerate_all(requests)
        return [whole_answer(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    def _chat_requests(
        self, engine: Engine, conversations: Sequence[Messages], n: int, options: dict[str, Any]
    ) -> tuple[list[Request], list[Prompt]]:
        pairs = [self._chat_request(engine, messages, options) for messages in checks.items("conversations", conversations)]
        requests = [each for request, _ in pairs for each in request.repeated(n)]
        return requests, [prompt for _, prompt in pairs for _ in range(n)]

    def render(self, messages: Messages, **options: Any) -> str:
        """The prompt that the template makes of messages; `options` are fields of ChatOptions."""
        return render(self._loaded.template, messages, ChatOptions(**split(options, ChatOptions)[0])).text

    # ---- saved states

    def save_state(self, prompt: str | Messages, path: File | None = None, **options: Any) -> bytes:
        """The computed state of a text or conversation, to go on from it later, also in another process.

        Args:
            prompt: a text as of `complete`, or messages as of `chat`.
            path: a file to write it to, replaced as a whole; None: only return it.
            options: as of `complete` or `chat`; only what changes the prompt or its state matters.

        Returns:
            bytes for `load_state`.

        Raises:
            StateError: It cannot be saved (`prefix_cache=False`, or no room).
            LocalLLMError: As `complete` or `chat`.
        """
        file = None if path is None else Path(checks.path("path", path))
        options.setdefault("sampling", SamplingParams(temperature=0))
        with self._loaded.engine_lease() as lease:
            model = lease.value.model
            if isinstance(prompt, str):
                request = self._completion(model, prompt, options)
            else:
                request, _ = self._chat_request(lease.value, prompt, options)
            data = lease.value.save_state(request)
        if file is not None:
            write_atomically(file, data, sync=True)
        return data

    def load_state(self, state: bytes | bytearray | memoryview | File, **options: Any) -> int:
        """Makes a saved state resident: prompts that begin alike go on from it.

        Args:
            state: bytes of `save_state`, or the file that it wrote.
            options: `loras` and `control_vectors`, as when it was saved.

        Returns:
            int, tokens of the state.

        Raises:
            InvalidRequestError: `state` is neither bytes nor a path, or an option is wrong.
            StateError: It is damaged, or belongs to another model, other options or adapters; the message says which. Nothing
                is changed then.
            OSError: The file cannot be read.
        """
        data = state if isinstance(state, (bytes, bytearray, memoryview)) else Path(checks.path("state", state)).read_bytes()
        with self._loaded.engine_lease() as lease:
            return len(lease.value.load_state(data, asking.request((0,), self._steered(options))))

    def _chat_request(self, engine: Engine, messages: Messages, options: dict[str, Any]) -> tuple[Request, Prompt]:
        eyes = Eyes(self.reference, lambda: self._loaded.encoder(engine), self.media_limits)
        return asking.conversation(engine.model, self._loaded.template, messages, self._steered(options), eyes)

    # ---- vectors and scores

    @property
    def instructions(self) -> Instructions:
        """What this model wants before a query and before a document that are embedded for a search, as far as it is known.

        Raises:
            ModelError: The file cannot be read.
        """
        return known_instructions(self._loaded.header)

    def embed(self, texts: str | Sequence[str], **options: Any) -> Embeddings:
        """Vectors of texts, in their order. Texts share batches, also those of other calls at the same time.

        A text may have as many tokens as the model was trained for, at most `n_ctx`. An empty text is embedded if the model puts
        special tokens around texts (BERT does), else it is an error. What else is in a batch changes about the fourth digit of a
        vector's numbers; where that is too much, open the model with `flash_attention="off"`.

        Args:
            texts: str or a list of them.
            options: fields of EmbedOptions: `pooling`, `normalize`, `instruction`, `dimensions`, `truncate`.

        Returns:
            Embeddings; `.vectors` is a list of lists of floats.

        Raises:
            InvalidRequestError: An argument is wrong, or a text has no tokens; the message names it, e.g. "texts[3]". Or the
                model was made with adapters, which vectors are computed without.
            ContextOverflowError: A text is too long.
            UnsupportedModelError: The model gives no vectors, or is a reranker and no pooling is named.
            ModelError: The model cannot be loaded.
        """
        chosen = self._embed_options(options)
        with self._loaded.embedder_lease(rank=False) as lease:
            request, finish = prepare_texts(lease.value, texts, chosen)
            return finish(lease.value.run(request) if request else None)

    async def aembed(self, texts: str | Sequence[str], **options: Any) -> Embeddings:
        """Like `embed`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        chosen = self._embed_options(options)
        with await self._loaded.aembedder_lease(rank=False) as lease:
            request, finish = await in_thread(prepare_texts, lease.value, texts, chosen)
            return await in_thread(finish, await lease.value.arun(request) if request else None)

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None, truncate: bool = False) -> list[Ranked]:
        """Documents in the order of their relevance to a query, by a reranker (a model with a classification head).

        Args:
            query: str.
            documents: list of str.
            top_n: int, only so many of the best; None: all.
            truncate: bool, cut documents that are too long together with the query.

        Returns:
            list of Ranked, best first; `.index` is the place in `documents`.

        Raises:
            InvalidRequestError: An argument is wrong, or the model was made with adapters.
            ContextOverflowError: A document is too long together with the query, or the query alone is.
            UnsupportedModelError: The model has no classification head.
            ModelError: The model cannot be loaded.
        """
        options = self._rank_options(top_n, truncate)
        with self._loaded.embedder_lease(rank=True) as lease:
            request, finish = ranking.prepare(lease.value, query, documents, options)
            return finish(lease.value.run(request) if request else None)

    async def arerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """Like `rerank`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        options = self._rank_options(top_n, truncate)
        with await self._loaded.aembedder_lease(rank=True) as lease:
            request, finish = await in_thread(ranking.prepare, lease.value, query, documents, options)
            return await in_thread(finish, await lease.value.arun(request) if request else None)

    def score(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> list[Ranked]:
        """How relevant documents are to queries, pair by pair, by a reranker; all pairs share batches.

        Args:
            pairs: list of (query, document).
            truncate: bool, cut documents that are too long together with their query.

        Returns:
            list of Ranked, in the order of the pairs; `.index` is the place of each.

        Raises:
            As `rerank`; messages name the pair, e.g. "pairs[3]".
        """
        options = self._rank_options(None, truncate)
        with self._loaded.embedder_lease(rank=True) as lease:
            request, finish = ranking.prepare_pairs(lease.value, pairs, options)
            return finish(lease.value.run(request) if request else None)

    async def ascore(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> list[Ranked]:
        """Like `score`, for coroutines: the loop is never blocked, cancelling the task stops the work."""
        options = self._rank_options(None, truncate)
        with await self._loaded.aembedder_lease(rank=True) as lease:
            request, finish = await in_thread(ranking.prepare_pairs, lease.value, pairs, options)
            return await in_thread(finish, await lease.value.arun(request) if request else None)

    def _embed_options(self, options: dict[str, Any]) -> EmbedOptions:
        chosen = EmbedOptions(**split(options, EmbedOptions)[0])
        self._require_no_adapters()
        return chosen

    def _rank_options(self, top_n: int | None, truncate: bool) -> RankOptions:
        options = RankOptions(top_n=top_n, truncate=truncate)
        self._require_no_adapters()
        return options

    def _require_no_adapters(self) -> None:
        for name, given in (("loras", self.loras), ("control_vectors", self.control_vectors)):
            if any(one.scale for one in given):
                raise InvalidRequestError(
                    f"{name}: vectors and scores are computed without adapters; ask a LocalModel made without them, which shares "
                    "the weights"
                )


def _remake(
    reference: str, chat_template: str | None, model: ModelConfig, context: ContextConfig, named: dict[str, Any], terms: Terms
) -> LocalModel:
    return LocalModel(reference, chat_template=chat_template, **named, **vars(terms), **vars(model), **vars(context))


def _template_text(template: str | os.PathLike[str] | None) -> str | None:
    if template is None or isinstance(template, str):
        return template
    if not isinstance(template, os.PathLike):
        raise InvalidRequestError(f"chat_template: must be text or a Path, not {type(template).__name__}")
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"chat_template: {os.fspath(template)} cannot be read ({error})") from error
