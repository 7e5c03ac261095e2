"""GGUF files without sense but with everything that a model manager looks at, written by the gguf package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

WIDTH, N_VOCAB = 256, 512
TOKENS = tuple(f"t{number}" for number in range(N_VOCAB))
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def model(
    path: Path,
    quant: str = "Q8_0",
    *,
    n_layers: int = 4,
    width: int = WIDTH,
    tokens: Sequence[str] = TOKENS,
    template: str = TEMPLATE,
    n_files: int = 1,
    seed: int = 0,
) -> list[Path]:
    """A dense model, in `n_files` files whose names then end as the names of shards do; gives their paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shapes = {"token_embd.weight": (len(tokens), width), "output.weight": (len(tokens), width)}
    for at in range(n_layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{at}.{name}.weight"] = (width, width)
    names = list(shapes)
    paths = []
    for number in range(n_files):
        part = path if n_files == 1 else path.with_name(f"{path.stem}-{number + 1:05d}-of-{n_files:05d}.gguf")
        writer = gguf.GGUFWriter(part, "llama")
        if number == 0:
            writer.add_name(path.stem)
            writer.add_string("general.license", "apache-2.0")
            writer.add_context_length(4096)
            writer.add_embedding_length(width)
            writer.add_block_count(n_layers)
            writer.add_feed_forward_length(width)
            writer.add_head_count(4)
            writer.add_head_count_kv(2)
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(list(tokens))
            if template:
                writer.add_chat_template(template)
        if n_files > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", n_files)
            writer.add_int32("split.tensors.count", len(names))
        for name in names[number::n_files]:
            add(writer, name, shapes[name], quant, seed)
        write(writer)
        paths.append(part)
    return paths


def projector(path: Path, width: int = WIDTH, quant: str = "F16") -> Path:
    """A projector whose outputs have this width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.has_vision_encoder", True)
    for key, value in (
        ("projection_dim", width),
        ("embedding_length", 64),
        ("feed_forward_length", 128),
        ("image_size", 64),
        ("patch_size", 16),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    add(writer, "mm.0.weight", (width, 64), quant)
    write(writer)
    return path


def adapter(path: Path) -> Path:
    """A LoRA adapter."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    add(writer, "blk.0.attn_q.weight.lora_a", (8, WIDTH), "F16")
    write(writer)
    return path


def add(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], quant: str, seed: int = 0) -> None:
    """A tensor of any type; its bytes depend on its name and the seed."""
    kind = gguf.GGMLQuantizationType[quant]
    values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    row = shape[-1] // values * n_bytes
    raw = np.random.default_rng([seed, *name.encode()]).integers(0, 256, (*shape[:-1], row), dtype=np.uint8)
    writer.add_tensor(name, raw, raw_dtype=kind)


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def split(whole: Path, stem: Path, n_files: int) -> list[Path]:
    """The tensors of a file dealt out to several, the metadata in the first of them."""
    reader = gguf.GGUFReader(whole)
    paths = []
    for number in range(n_files):
        path = stem.with_name(f"{stem.name}-{number + 1:05d}-of-{n_files:05d}.gguf")
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
        for key, found in reader.fields.items() if number == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                kind, sub = found.types[0], found.types[-1] if len(found.types) > 1 else None
                writer.add_key_value(key, found.contents(), kind, sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", n_files)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::n_files]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        write(writer)
        paths.append(path)
    return paths
