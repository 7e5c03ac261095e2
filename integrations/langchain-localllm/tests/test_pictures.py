"""Pictures and sound in messages, in every form, with a tiny model that has a projector."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_localllm import ChatLocalLLM
from PIL import Image

from localllm.errors import InvalidRequestError, MediaError
from localllm.media.limits import MediaLimits


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def encoded(seed: int) -> str:
    return base64.b64encode(png(seed)).decode()


@pytest.fixture(scope="module")
def seeing(models):
    return ChatLocalLLM(
        model=str(models["qwen3vl"]),
        temperature=0,
        max_tokens=8,
        n_threads=1,
        n_ctx=2048,
        logprobs=True,
        model_options={"mmproj": str(models["qwen3vl-mmproj"])},
    )


def forms(path) -> list[dict]:
    uri = f"data:image/png;base64,{encoded(1)}"
    return [
        {"type": "image", "base64": encoded(1), "mime_type": "image/png"},
        {"type": "image", "url": uri},
        {"type": "image", "url": path.as_uri()},
        {"type": "image", "source_type": "base64", "data": encoded(1), "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": uri, "detail": "low"}},
        {"type": "image_url", "image_url": uri},
        {"type": "input_image", "image_url": uri},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(1)}},
        {"type": "file", "base64": encoded(1), "mime_type": "image/png"},
        {"type": "file", "file": {"file_data": uri, "filename": "a.png"}},
    ]


def test_every_form_of_a_picture_is_the_same_picture(seeing, tmp_path):
    path = tmp_path / "a picture.png"
    path.write_bytes(png(1))
    before = seeing.local_model.engine.stats()
    answers = [
        seeing.invoke([HumanMessage([{"type": "text", "text": "What is this?"}, form, {"type": "text", "text": "Say it."}])])
        for form in forms(path)
    ]
    assert len({answer.content for answer in answers}) == 1
    stats = seeing.local_model.engine.stats()
    assert stats.media_encoded - before.media_encoded == 1
    assert stats.media_cached - before.media_cached == len(answers) - 1


async def test_streams_tools_and_data(seeing):
    shown = HumanMessage(["Look:", {"type": "image", "base64": encoded(2), "mime_type": "image/png"}])
    whole = seeing.invoke([shown])
    chunks = [chunk async for chunk in seeing.astream([shown])]
    assert "".join(chunk.content for chunk in chunks) == whole.content
    call = {"name": "draw", "args": {}, "id": "c1", "type": "tool_call"}
    result = ToolMessage([{"type": "image", "base64": encoded(3), "mime_type": "image/png"}], tool_call_id="c1")
    before = seeing.local_model.engine.stats().media_encoded
    await seeing.ainvoke([HumanMessage("Draw."), AIMessage("", tool_calls=[call]), result])
    assert seeing.local_model.engine.stats().media_encoded == before + 1
    schema = {"title": "size", "type": "object", "properties": {"wide": {"type": "boolean"}}, "required": ["wide"]}
    found = seeing.model_copy(update={"max_tokens": 40}).with_structured_output(schema)
    assert isinstance(found.invoke([shown])["wide"], bool)


def test_what_the_profile_says(seeing, models):
    profile = seeing.profile
    assert profile["image_inputs"] and profile["image_tool_message"] and not profile["audio_inputs"]
    assert not profile["image_url_inputs"]
    hearing = ChatLocalLLM(model=str(models["gemma4"]), model_options={"mmproj": str(models["gemma4-mmproj"])})
    assert hearing.profile["audio_inputs"]
    fetching = seeing.model_copy(update={"model_options": {**seeing.model_options, "media_limits": MediaLimits(allow_urls=True)}})
    assert fetching._resolve_model_profile()["image_url_inputs"]


def test_what_cannot_be_seen_is_named(seeing):
    with pytest.raises(MediaError, match=r"^messages\[0\]\.content\[1\]: an image block"):
        seeing.invoke([HumanMessage(["Look:", {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"}])])
    with pytest.raises(MediaError, match="allow_urls"):
        seeing.invoke([HumanMessage([{"type": "image", "url": "https://example.org/a.png"}])])
    with pytest.raises(InvalidRequestError, match="file_id 'f1', which means nothing on this machine"):
        seeing.invoke([HumanMessage([{"type": "image", "file_id": "f1"}])])
