"""Pictures and sound in blocks, with a tiny model that has a projector."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from llama_index.core.base.llms.types import AudioBlock, ChatMessage, ImageBlock, TextBlock
from llama_index.core.schema import ImageNode
from llama_index.llms.localllm import LocalLLM, LocalMultiModal
from PIL import Image

from localllm.errors import InvalidRequestError, MediaError


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def seeing(builder):
    options = {"mmproj": str(builder.build("qwen3vl-mmproj")), "n_threads": 1, "n_ctx": 2048}
    return LocalLLM(model=str(builder.build("qwen3vl")), temperature=0, max_tokens=8, model_options=options)


async def test_every_form_of_a_picture_is_the_same_picture(seeing, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png(11))
    forms = [
        ImageBlock(image=png(11)),
        ImageBlock(path=path),
        ImageBlock(image=io.BytesIO(png(11))),
        ImageBlock(url=path.as_uri()),
    ]
    # Who else uses the model in this process shares its engine.
    before = seeing.local_model.engine.stats().media_encoded
    texts = []
    for form in forms:
        messages = [ChatMessage(role="user", blocks=[TextBlock(text="What is this?"), form, TextBlock(text="Say it.")])]
        texts += [seeing.chat(messages).message.content, (await seeing.achat(messages)).message.content]
        texts += [list(seeing.stream_chat(messages))[-1].message.content]
    assert len(set(texts)) == 1
    assert seeing.local_model.engine.stats().media_encoded == before + 1


def test_what_cannot_be_seen_or_heard_is_named(seeing, tiny):
    sound = ChatMessage(role="user", blocks=[TextBlock(text="x"), AudioBlock(audio=b"abc", format="wav")])
    with pytest.raises(Exception, match=r"messages\[0\]\.blocks\[1\]: AudioBlock: the projector of .* takes no sound"):
        seeing.chat([sound])
    with pytest.raises(MediaError, match=r"^messages\[0\]\.blocks\[0\]: ImageBlock"):
        seeing.chat([ChatMessage(role="user", blocks=[ImageBlock(image=b"hello")])])
    blind = LocalLLM(model=str(tiny))
    with pytest.raises(InvalidRequestError, match=r"^messages\[0\]\.blocks\[0\]: ImageBlock: .* no projector; name its file"):
        blind.chat([ChatMessage(role="user", blocks=[ImageBlock(image=png(1))])])


async def test_where_a_multi_modal_llm_is_asked_for(seeing, tmp_path):
    model = LocalMultiModal(seeing)
    path = tmp_path / "a.png"
    path.write_bytes(png(1))
    forms = [ImageBlock(image=png(1)), ImageNode(image_path=str(path)), ImageNode(image=base64.b64encode(png(1)).decode())]
    expected = seeing.chat([ChatMessage(role="user", blocks=[forms[0], TextBlock(text="What is this?")])]).message.content
    for form in forms:
        assert model.complete("What is this?", [form]).text == expected
        assert (await model.acomplete("What is this?", [form])).text == expected
        assert list(model.stream_complete("What is this?", [form]))[-1].text == expected
        streamed = [each async for each in await model.astream_complete("What is this?", [form])]
        assert "".join(each.delta for each in streamed) == streamed[-1].text == expected
    messages = [ChatMessage(role="user", content="Hello")]
    assert model.chat(messages).message.content == (await model.achat(messages)).message.content
    assert list(model.stream_chat(messages))[-1].message.content == model.chat(messages).message.content
    assert [each async for each in await model.astream_chat(messages)][-1].message.content == model.chat(messages).message.content
    assert model.metadata.model_name == seeing.metadata.model_name and model.metadata.is_chat_model
    with pytest.raises(InvalidRequestError, match=r"^image_documents\[0\]: has neither"):
        model.complete("What?", [ImageNode()])
    with pytest.raises(InvalidRequestError, match="unknown option|nonsense"):
        LocalMultiModal("smollm2", nonsense=1)
