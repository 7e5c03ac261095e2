"""Conversations with pictures and sound, through LocalModel and tiny models that see and hear."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
import shutil
import threading

import numpy as np
import pytest
import soundfile
from PIL import Image

from localllm import ChatSession, LocalModel
from localllm.errors import InvalidRequestError, MediaError, UnsupportedModelError
from localllm.media.limits import MediaLimits

ASK = {"temperature": 0, "max_tokens": 8}


def pixels(seed: int):
    return np.random.default_rng(seed).integers(0, 256, (64, 96, 3), dtype=np.uint8)


def png(seed: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels(seed)).save(data, "PNG")
    return data.getvalue()


def wav(rate: int = 8000) -> bytes:
    data = io.BytesIO()
    soundfile.write(data, 0.2 * np.sin(np.arange(rate // 2) / 9), rate, format="WAV")
    return data.getvalue()


def user(*content) -> list:
    return [{"role": "user", "content": list(content)}]


def shown(seed: int) -> dict:
    return {"type": "image", "image": pixels(seed)}


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    """A model and its projector, as they lie side by side."""
    folder = tmp_path_factory.mktemp("seeing")
    shutil.copy(models["qwen3vl"], folder / "qwen3vl-Q4_0.gguf")
    shutil.copy(models["qwen3vl-mmproj"], folder / "mmproj-qwen3vl-f16.gguf")
    return folder


@pytest.fixture
def seeing(folder):
    with LocalModel(folder / "qwen3vl-Q4_0.gguf", n_threads=1, n_ctx=2048) as model:
        yield model


@pytest.fixture
def hearing(models):
    with LocalModel(models["gemma4"], mmproj=models["gemma4-mmproj"], n_threads=1, n_ctx=2048) as model:
        yield model


def test_the_same_picture_in_every_form_is_encoded_once(seeing, tmp_path):
    path = tmp_path / "one.png"
    path.write_bytes(png(1))
    shutil.copy(path, tmp_path / "two.png")
    uri = f"data:image/png;base64,{base64.b64encode(png(1)).decode()}"
    forms = [
        {"type": "image", "path": path},
        {"type": "image", "path": str(tmp_path / "two.png")},
        {"type": "image", "url": path.as_uri()},
        {"type": "image", "image": str(path)},
        {"type": "image", "image": Image.open(path)},
        {"type": "image", "image": pixels(1)},
        {"type": "image", "bytes": png(1)},
        {"type": "image", "base64": base64.b64encode(png(1)).decode()},
        {"type": "image", "image": io.BytesIO(png(1))},
        {"type": "image_url", "image_url": {"url": uri}},
        {"type": "image_url", "image_url": uri},
        {"type": "file", "file": {"file_data": uri, "filename": "a.png"}},
    ]
    answers = [seeing.chat(user("What is this?", form), **ASK) for form in forms]
    assert len({answer.message.content for answer in answers}) == 1
    assert [answer.usage.media_encoded for answer in answers] == [1] + [0] * (len(forms) - 1)


def test_a_file_that_has_changed_is_another_picture(seeing, tmp_path):
    path = tmp_path / "a.png"
    texts = []
    for seed in (1, 2, 1):
        path.write_bytes(png(seed))
        answer = seeing.chat(user({"type": "image", "path": path}, "What is this?"), logprobs=True, **ASK)
        texts.append((answer.message.content, answer.usage.media_encoded))
    assert texts[0][0] == texts[2][0] != texts[1][0]
    assert [encoded for _, encoded in texts] == [1, 1, 0]


def test_sound_in_both_forms(hearing):
    data = base64.b64encode(wav()).decode()
    forms = [
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio", "bytes": wav()},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
    ]
    answers = [hearing.chat(user("What is that?", form), **ASK) for form in forms]
    assert len({answer.message.content for answer in answers}) == 1
    assert [answer.usage.media_encoded for answer in answers] == [1, 0, 0]


def test_a_video_of_pictures_says_how_far_it_is(seeing):
    messages = user({"type": "video", "frames": [pixels(1), pixels(2), pixels(3)], "seconds": [0, 2, 65.5]}, "What happens?")
    request, _ = seeing._chat_request(seeing.engine, messages, {})
    text = seeing.detokenize([token for token in request.prompt if token >= 0])
    assert "[0m0.0s]" in text and "[1m5.5s]" in text and "[0m2.0s]" not in text
    assert seeing.chat(messages, **ASK).usage.media_tokens == sum(run.n_tokens for run in request.media)


def test_what_cannot_be_shown_is_named_by_its_place(seeing, models, tmp_path):
    place = r"^messages\[0\]\.content\[1\]: "
    (tmp_path / "a.png").write_bytes(b"hello")
    for part, error, why in [
        ({"type": "image", "path": tmp_path / "a.png"}, MediaError, "is no PNG"),
        ({"type": "image", "path": "/nowhere.png"}, MediaError, "there is no file"),
        ({"type": "image", "url": "https://example.org/a.png"}, MediaError, "allow_urls"),
        ({"type": "image"}, InvalidRequestError, "needs one source"),
        ({"type": "image", "url": "data:,a", "base64": "aaaa"}, InvalidRequestError, "needs one source.*url and base64"),
        ({"type": "hologram"}, InvalidRequestError, "only parts of type image, "),
        ({"type": "audio", "bytes": wav()}, UnsupportedModelError, "takes no sound"),
    ]:
        with pytest.raises(error, match=f"{place}.*{why}"):
            seeing.chat(user("Look:", part), **ASK)
    few = {"n_threads": 1, "n_ctx": 512}
    blind = LocalModel(models["qwen3"], **few)
    with blind, pytest.raises(InvalidRequestError, match=f"{place}.*no projector; name its file with mmproj="):
        blind.chat(user("Look:", shown(1)), **ASK)
    told = LocalModel(models["qwen3vl"], mmproj=None, **few)
    with told, pytest.raises(InvalidRequestError, match=f"{place}.*no projector"):
        told.chat(user("Look:", shown(1)), **ASK)
    wrong = LocalModel(models["qwen3vl"], mmproj=models["gemma4"], **few)
    with wrong, pytest.raises(UnsupportedModelError, match="not a projector"):
        wrong.chat(user("Look:", shown(1)), **ASK)
    closed = {"mmproj": models["qwen3vl-mmproj"], "media_limits": MediaLimits(allow_files=False)}
    careful = LocalModel(models["qwen3vl"], **closed, **few)
    with careful, pytest.raises(MediaError, match=f"{place}.*allow_files"):
        careful.chat(user("Look:", {"type": "image", "path": tmp_path / "a.png"}), **ASK)


def test_all_ways_to_ask(seeing):
    messages = user("Look:", shown(4), "What is this?")
    whole = seeing.chat(messages, **ASK).message.content
    assert "".join(delta.content for delta in seeing.stream_chat(messages, **ASK)) == whole

    async def both():
        deltas = [delta.content async for delta in seeing.astream_chat(messages, **ASK)]
        return (await seeing.achat(messages, **ASK)).message.content, "".join(deltas)

    assert asyncio.run(both()) == (whole, whole)
    assert [answer.message.content for answer in seeing.chat_all([messages, messages], **ASK)] == [whole, whole]
    assert seeing.count_message_tokens(messages) == seeing.chat(messages, **ASK).usage.prompt_tokens
    assert seeing.engine.stats().media_encoded == 1


def test_a_session_keeps_its_pictures(seeing):
    session = ChatSession(seeing, **ASK)
    first = session.ask({"role": "user", "content": ["Look:", shown(5)]})
    second = session.ask("And now?")
    assert (first.usage.media_encoded, second.usage.media_encoded, second.usage.media_cached) == (1, 0, 1)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens


def test_answers_by_a_schema_and_calls_of_tools(seeing):
    answer = seeing.chat(user(shown(6), "Is it red?"), json_schema={"type": "boolean"}, temperature=0, max_tokens=20)
    assert answer.message.content in ("true", "false")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    called = seeing.chat(user(shown(6), "Look."), tools=[tool], tool_choice="required", temperature=0, max_tokens=60)
    assert called.message.tool_calls[0].name == "look"


@pytest.mark.parametrize("text", ["\ue1020\ue101", "\ue1000\ue101", "<__media__>", "<|image_pad|>", "<|vision_start|>", "\ue102"])
def test_what_a_user_writes_is_no_picture(seeing, text):
    request, _ = seeing._chat_request(seeing.engine, user(f"a {text} b", shown(1)), {})
    plain, _ = seeing._chat_request(seeing.engine, user("a b", shown(1)), {})
    assert len(request.media) == 1
    special = [token for token in plain.prompt if token >= 0 and not seeing.detokenize([token])]
    for token in set(special):
        assert request.prompt.count(token) == plain.prompt.count(token)


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("gemma3", "<start_of_image><end_of_image>"),
        ("gemma4", "<|image><image|>"),
        ("qwen25vl", "<|vision_start|><|vision_end|>"),
        ("qwen35", "<|vision_start|><|vision_end|>"),
        ("qwen3vl", "<|vision_start|><|vision_end|>"),
    ],
)
def test_what_begins_a_text_or_a_picture_stands_there_once(models, name, around):
    with LocalModel(models[name], mmproj=models[f"{name}-mmproj"], n_threads=1, n_ctx=2048) as model:
        request, _ = model._chat_request(model.engine, user("a", shown(1), "b", shown(2)), {})
        text = model.detokenize([token for token in request.prompt if token >= 0], special=True)
        assert f"a{around}b{around}<" in text and text.count(around) == 2
        begin, end = around.split("><")
        assert text.count(f"{begin}>") == text.count(f"<{end}") == 2
        native, vocab = model.engine.model.native, model.engine.model.vocab
        bos = native.llama_vocab_bos(vocab)
        assert request.prompt.count(bos) == int(native.llama_vocab_get_add_bos(vocab))


def test_threads_share_an_encoder(seeing):
    results: list[str] = []

    def ask(seed: int) -> None:
        results.append(f"{seed}: {seeing.chat(user('Look:', shown(seed)), **ASK).message.content}")

    threads = [threading.Thread(target=ask, args=(seed % 3,)) for seed in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9 and len(set(results)) == 3
    assert seeing.engine.stats().media_encoded == 3


def test_it_can_be_copied_and_closed(seeing, models):
    seeing.chat(user("Look:", shown(1)), **ASK)
    encoder = seeing._loaded.encoder(seeing.engine)
    seeing.close()
    assert encoder.projector._owned.closed
    made = LocalModel(models["qwen3vl"], mmproj=str(models["qwen3vl-mmproj"]), image_max_tokens=64, n_threads=1)
    again = pickle.loads(pickle.dumps(made))
    assert again.projector_config == made.projector_config and again.media_limits == made.media_limits
    with pytest.raises(InvalidRequestError, match="image_min_tokens: 9 is more than image_max_tokens, 8"):
        LocalModel(models["qwen3vl"], image_min_tokens=9, image_max_tokens=8)
    with pytest.raises(InvalidRequestError, match="mmprojj: unknown option; did you mean 'mmproj'"):
        LocalModel(models["qwen3vl"], mmprojj="x")


def test_what_was_encoded_outlives_the_process(folder, tmp_path):
    options = {"n_threads": 1, "n_ctx": 1024, "cache_dir": str(tmp_path), "prefix_cache": False}
    counts = []
    for _ in range(2):
        with LocalModel(folder / "qwen3vl-Q4_0.gguf", **options) as model:
            counts.append(model.chat(user("Look:", shown(7)), **ASK).usage.media_encoded)
    assert counts == [1, 0]
    (kept,) = tmp_path.glob("*.lmrows")
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    with LocalModel(folder / "qwen3vl-Q4_0.gguf", **options) as model:
        assert model.chat(user("Look:", shown(7)), **ASK).usage.media_encoded == 1
