"""Time to the first token of a conversation about pictures: what the two caches save.

    python benchmarks/pictures.py [MODEL] [--rounds 5] [--threads 2] [--json FILE]

Turn 1 shows a picture, turn 2 another one, turn 3 asks about both. Four ways to run the same model take turns: with both caches,
without that of what was encoded, without that of prefixes, and without either. The projector has random weights, at the size of
SigLIP's base encoder and 448 pixels, 64 tokens for each picture: what it says is noise, what it costs is not.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from programs import arguments
from synthetic_drafts import random_tensor, write_gguf

from localllm import LocalModel
from localllm.hub.resolve import resolve
from localllm.media.content import Image

WAYS: dict[str, dict[str, Any]] = {
    "both": {},
    "no media cache": {"media_ram_bytes": 0},
    "no prefix cache": {"prefix_cache": False},
    "neither": {"prefix_cache": False, "media_ram_bytes": 0},
}
SIDE, PATCH, WIDTH, N_FF, N_LAYERS, N_HEADS = 448, 14, 768, 3072, 12, 12


def write_projector(path: Path, n_embd: int) -> None:
    """A projector of the type gemma3 with random weights."""
    layer = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH), "attn_out": (WIDTH, WIDTH),
        "ffn_up": (WIDTH, N_FF), "ffn_down": (N_FF, WIDTH), "ln1": (WIDTH,), "ln2": (WIDTH,),
    }  # fmt: skip
    tensors = [
        random_tensor("mm.input_projection.weight", (n_embd, WIDTH), "F16"),
        random_tensor("mm.soft_emb_norm.weight", (WIDTH,), "F32"),
        random_tensor("v.patch_embd.weight", (PATCH, PATCH, 3, WIDTH), "F16"),
        random_tensor("v.patch_embd.bias", (WIDTH,), "F32"),
        random_tensor("v.position_embd.weight", (WIDTH, (SIDE // PATCH) ** 2), "F32"),
        random_tensor("v.post_ln.weight", (WIDTH,), "F32"),
        random_tensor("v.post_ln.bias", (WIDTH,), "F32"),
    ]
    for at in range(N_LAYERS):
        for name, shape in layer.items():
            tensors.append(random_tensor(f"v.blk.{at}.{name}.weight", shape, "F16" if len(shape) > 1 else "F32"))
            tensors.append(random_tensor(f"v.blk.{at}.{name}.bias", shape[-1:], "F32"))
    keys = {
        "general.type": "mmproj", "clip.has_vision_encoder": True, "clip.projector_type": "gemma3", "clip.use_gelu": True,
        "clip.vision.projection_dim": n_embd, "clip.vision.image_size": SIDE, "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH, "clip.vision.feed_forward_length": N_FF, "clip.vision.block_count": N_LAYERS,
        "clip.vision.attention.head_count": N_HEADS, "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": [0.5, 0.5, 0.5], "clip.vision.image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    write_gguf(path, "clip", keys, tensors)


def turns(seed: int) -> list[list[dict[str, Any]]]:
    """Three conversations, each of which goes on from the one before; answers are made up, so that all ways read the same."""
    random = np.random.default_rng(seed)
    first, second = (Image(random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(2))
    answer = {"role": "assistant", "content": "It is a field of many colours, without any order that could be told."}
    asked = [
        {"role": "user", "content": [{"type": "image", "image": first}, "Describe this picture at length, please."]},
        {"role": "user", "content": ["And this one?", {"type": "image", "image": second}, "Describe it as well."]},
        {"role": "user", "content": "What do the two have in common, and in what do they differ?"},
    ]
    return [asked[:1], [asked[0], answer, asked[1]], [asked[0], answer, asked[1], answer, asked[2]]]


def first_token_seconds(model: LocalModel, messages: list[dict[str, Any]]) -> float:
    begin = time.perf_counter()
    stream = model.stream_chat(messages, temperature=0, max_tokens=4)
    next(stream)
    seconds = time.perf_counter() - begin
    for _ in stream:
        pass
    return seconds


def main() -> None:
    options = arguments(__doc__, rounds=5).parse_args()
    path = resolve(options.model)
    with tempfile.TemporaryDirectory() as folder:
        with LocalModel(path) as model:
            n_embd = model.header.embedding_length
        projector = Path(folder) / "mmproj.gguf"
        write_projector(projector, n_embd)
        common = {"mmproj": str(projector), "n_threads": options.threads}
        # With contexts of one size they would share an engine, and what that keeps.
        models = {way: LocalModel(path, n_ctx=2048 + at, **common, **WAYS[way]) for at, way in enumerate(WAYS)}
        for model in models.values():
            first_token_seconds(model, turns(0)[0])  # loads everything
        seconds: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for number in range(1, options.rounds + 1):
            for way, model in models.items():
                seconds[way].append([first_token_seconds(model, messages) for messages in turns(number)])
        encoded = {way: model.engine.stats().media_encoded for way, model in models.items()}
        for model in models.values():
            model.close()
    print(f"{'':16} {'turn 1':>8} {'turn 2':>8} {'turn 3':>8}   of 'neither', by turn      encoded")
    for way, rounds in seconds.items():
        medians = [statistics.median(one[turn] for one in rounds) for turn in range(3)]
        ratios = [
            statistics.median(one[turn] / other[turn] for one, other in zip(rounds, seconds["neither"], strict=True))
            for turn in range(3)
        ]
        shown = " ".join(f"{value:8.3f}" for value in medians)
        print(f"{way:16} {shown}   {' '.join(f'{ratio:7.2f}' for ratio in ratios)}   {encoded[way]:8}")
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "encoded": encoded}))


if __name__ == "__main__":
    main()
