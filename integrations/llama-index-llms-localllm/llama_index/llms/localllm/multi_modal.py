"""The model for code that still asks for a MultiModalLLM: LocalLLM takes pictures in its messages itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    ImageBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager
from llama_index.core.multi_modal_llms import MultiModalLLM, MultiModalLLMMetadata
from llama_index.core.schema import ImageNode
from llama_index.llms.localllm.base import LocalLLM

from localllm.errors import InvalidRequestError


class LocalMultiModal(MultiModalLLM):
    """A MultiModalLLM that asks a LocalLLM.

    Args:
        model: as of LocalLLM; or a LocalLLM, which is used as it is.
        options: as of LocalLLM.

    Raises:
        InvalidRequestError: An option is unknown or out of range.
    """

    llm: LocalLLM = Field(description="The LLM that answers.")

    def __init__(self, model: str | LocalLLM = "", **options: Any) -> None:
        llm = options.pop("llm", None) or (model if isinstance(model, LocalLLM) else LocalLLM(model, **options))
        # Handlers hear of each call from the LLM; from here they would hear of it twice.
        super().__init__(llm=llm, callback_manager=CallbackManager())

    @property
    def rate_limiter(self) -> None:
        """None: the LLM has its own."""
        return None

    def to_payload(self) -> dict[str, Any]:
        """What events tell of the model."""
        payload: dict[str, Any] = self.llm.to_payload()
        return payload

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls the class."""
        return "LocalMultiModal"

    @property
    def metadata(self) -> MultiModalLLMMetadata:
        """Facts of the model, from the header of its file."""
        known = self.llm.metadata
        names = ("context_window", "num_output", "is_function_calling_model", "model_name", "is_chat_model")
        return MultiModalLLMMetadata(**{name: getattr(known, name) for name in names})

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answers messages; options as of LocalLLM."""
        response: ChatResponse = self.llm.chat(messages, **kwargs)
        return response

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Like `chat`, as it comes."""
        return self.llm.stream_chat(messages, **kwargs)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Like `chat`, for coroutines."""
        response: ChatResponse = await self.llm.achat(messages, **kwargs)
        return response

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Like `stream_chat`, for coroutines."""
        return await self.llm.astream_chat(messages, **kwargs)

    def complete(self, prompt: str, image_documents: Sequence[ImageNode | ImageBlock] = (), **kwargs: Any) -> CompletionResponse:
        """Answers a prompt about pictures."""
        return _completion(self.llm.chat(_messages(prompt, image_documents), **kwargs))

    def stream_complete(
        self, prompt: str, image_documents: Sequence[ImageNode | ImageBlock] = (), **kwargs: Any
    ) -> CompletionResponseGen:
        """Like `complete`, as it comes."""
        stream = self.llm.stream_chat(_messages(prompt, image_documents), **kwargs)
        return (_completion(response) for response in stream)

    async def acomplete(
        self, prompt: str, image_documents: Sequence[ImageNode | ImageBlock] = (), **kwargs: Any
    ) -> CompletionResponse:
        """Like `complete`, for coroutines."""
        return _completion(await self.llm.achat(_messages(prompt, image_documents), **kwargs))

    async def astream_complete(
        self, prompt: str, image_documents: Sequence[ImageNode | ImageBlock] = (), **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Like `stream_complete`, for coroutines."""
        stream = await self.llm.astream_chat(_messages(prompt, image_documents), **kwargs)
        return (_completion(response) async for response in stream)


def _messages(prompt: str, pictures: Sequence[ImageNode | ImageBlock]) -> list[ChatMessage]:
    """The pictures in their order, and the prompt behind them."""
    blocks = [_block(f"image_documents[{at}]", picture) for at, picture in enumerate(pictures)]
    return [ChatMessage(role=MessageRole.USER, blocks=[*blocks, TextBlock(text=prompt)])]


def _block(where: str, picture: Any) -> ImageBlock:
    if isinstance(picture, ImageBlock):
        return picture
    if not isinstance(picture, ImageNode):
        raise InvalidRequestError(f"{where}: must be an ImageBlock or an ImageNode, not {type(picture).__name__}")
    if picture.image:
        return ImageBlock(url=f"data:{picture.image_mimetype or 'image/png'};base64,{picture.image}")
    if path := picture.image_path or picture.metadata.get("file_path"):
        return ImageBlock(path=Path(path))
    if picture.image_url:
        return ImageBlock(url=picture.image_url)
    raise InvalidRequestError(f"{where}: has neither image nor image_path nor image_url")


def _completion(response: ChatResponse) -> CompletionResponse:
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        logprobs=response.logprobs,
        additional_kwargs=response.additional_kwargs,
    )
