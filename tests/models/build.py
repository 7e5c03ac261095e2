"""Tiny GGUF models for the tests, written from the recipes in ``recipes/`` with numpy and gguf alone.

python tests/models/build.py [--out DIR] [NAME ...]

A recipe holds a model's metadata, its tensors' shapes and types, and a rule for each tensor's weights (README.md).
The same recipe always gives the same bytes. A file's name ends in a fingerprint of its recipe and of this module, so a
file that exists is right and is not written again, and several test workers may build into one directory at once.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib.util
import json
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent
RECIPES = HERE / "recipes"
BUILT = HERE / "built"

#: numpy's type for each ggml type that a recipe's tensor may have as it is; the others are quantized from float32.
PLAIN_TYPES = {"f16": "f2", "f32": "f4", "f64": "f8", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8"}

Recipe = dict[str, Any]


class Changes(NamedTuple):
    """What to change in a recipe; see :func:`build`."""

    overrides: Mapping[str, Any] = {}
    drop: Sequence[str] = ()
    architecture: str | None = None
    tensors: Mapping[str, Any] = {}


#: Models that are another one with a change: name -> (name of the other, changes).
VARIANTS: dict[str, tuple[str, Changes]] = {
    "qwen3-one-layer": ("qwen3", Changes({"qwen3.block_count": 1}, ["blk.[1-3].*"])),
    "qwen3-no-template": ("qwen3", Changes(drop=["tokenizer.chat_template"])),
    "qwen3-suppress": ("qwen3", Changes({"tokenizer.ggml.suppress_tokens": list(range(0, 392, 2))})),
    "qwen3-vocab-only": ("qwen3", Changes(drop=["blk.*", "output.*", "output_norm.*", "token_embd.*"])),
    "foobar": ("qwen3-one-layer", Changes(architecture="foobar")),
    "qwen3-embedding": ("qwen3", Changes({"qwen3.pooling_type": 3, "tokenizer.ggml.add_eos_token": True})),
    "qwen3-reranker": (
        "qwen3",
        Changes(
            {
                "qwen3.pooling_type": 4,
                "qwen3.classifier.output_labels": ["yes", "no"],
                "tokenizer.chat_template.rerank": "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n",
            },
            tensors={"cls.output.weight": ["f16", [64, 2], {"normal": [0.0, 0.125]}]},
        ),
    ),
    "bert-classifier": (
        "bert-reranker",
        Changes(
            {"bert.classifier.output_labels": ["no", "maybe", "yes"]},
            ["cls.output.bias"],
            tensors={"cls.output.weight": ["f16", [64, 3], {"normal": [0.0, 0.125]}]},
        ),
    ),
    "qwen35-mtp-head": ("qwen35", Changes(drop=["blk.[0-3].*"])),
    "qwen35-no-mtp": (
        "qwen35",
        Changes(
            {"qwen35.block_count": 4, "qwen35.attention.recurrent_layers": [True, True, True, False]},
            ["qwen35.nextn_predict_layers", "blk.4.*"],
        ),
    ),
}


def names() -> list[str]:
    """The names that :func:`build` knows: the recipes, then the variants."""
    recipes = sorted(path.stem for path in RECIPES.glob("*.json") if not path.stem.startswith("vocab-"))
    return [*recipes, *VARIANTS]


def build(
    name: str,
    directory: Path = BUILT,
    *,
    overrides: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    architecture: str | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model ``name`` into ``directory`` unless it is there, and return its path.

    ``overrides`` sets metadata: key -> value, or key -> (type, value) with a recipe's type such as "uint32" or
    "[int32]"; a bare value keeps the key's type, or gets one from Python's. ``drop`` names metadata keys and tensors to
    leave out, as patterns of :mod:`fnmatch`; one that matches nothing is an error. ``architecture`` renames the
    architecture and the keys that begin with its name. ``tensors`` adds or replaces: name -> a recipe's [type, shape, rule].
    """
    return save(name, change(load(name), Changes(overrides or {}, drop, architecture, tensors or {})), directory)


def save(name: str, recipe: Recipe, directory: Path = BUILT) -> Path:
    """Write the model of ``recipe`` into ``directory`` under a name that begins with ``name``, unless it is there."""
    path = Path(directory) / f"{name}-{fingerprint(recipe)}.gguf"
    if not path.exists():
        write_atomically(path, lambda temporary: write(recipe, temporary))
    return path


def build_all(directory: Path = BUILT) -> dict[str, Path]:
    """Build every recipe and variant: name -> path."""
    return {name: build(name, directory) for name in names()}


def hostile(directory: Path = BUILT, groups: Sequence[str] = ("refused", "fatal")) -> dict[str, Path]:
    """Files with a fault each, made by damaging a sound model: what is wrong -> path.

    The groups are "refused" (llama.cpp gives an error), "fatal" (llama.cpp ends the process) and "odd" (llama.cpp loads
    the file); hostile.py lists the faults.
    """
    spec = importlib.util.spec_from_file_location("localllm_test_hostile", HERE / "hostile.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    paths = {}
    for fault, data in module.files(build("qwen3-one-layer", directory), groups).items():
        paths[fault] = path = Path(directory) / f"hostile-{fault}-{hashlib.sha256(data).hexdigest()[:10]}.gguf"
        if not path.exists():
            write_atomically(path, lambda temporary, data=data: temporary.write_bytes(data))
    return paths


def load(name: str) -> Recipe:
    """The recipe of ``name``, variant or not, with what it takes from vocabularies filled in."""
    if name in VARIANTS:
        base, changes = VARIANTS[name]
        return change(load(base), changes)
    path = RECIPES / f"{name}.json"
    if not path.exists():
        raise ValueError(f"no recipe {name!r}; there are {', '.join(names())}")
    recipe: Recipe = json.loads(path.read_text("utf-8"))
    for entry in recipe["metadata"].values():
        if isinstance(entry[1], dict):
            entry[1] = shared(entry[1])
    return recipe


def shared(reference: Mapping[str, Any]) -> Any:
    """The value of ``{"vocab": file, "part": key, "then": more}``: a part of a vocabulary, and more items after it."""
    vocabulary = json.loads((RECIPES / f"vocab-{reference['vocab']}.json").read_text("utf-8"))
    value = vocabulary[reference["part"]]
    return value + reference["then"] if "then" in reference else value


def change(recipe: Recipe, changes: Changes) -> Recipe:
    """A copy of ``recipe`` with ``changes`` applied: the drops, the overrides, the tensors, then the architecture's name."""
    metadata, tensors = dict(recipe["metadata"]), dict(recipe["tensors"])
    for pattern in changes.drop:
        doomed = [(table, key) for table in (metadata, tensors) for key in table if fnmatch.fnmatchcase(key, pattern)]
        if not doomed:
            raise ValueError(f"nothing to drop for {pattern!r}")
        for table, key in doomed:
            del table[key]
    for key, value in changes.overrides.items():
        metadata[key] = typed(value, metadata.get(key))
    tensors.update(changes.tensors)
    if changes.architecture is not None:
        old = metadata["general.architecture"][1] + "."
        new = changes.architecture + "."
        metadata = {new + k[len(old) :] if k.startswith(old) else k: v for k, v in metadata.items()}
        metadata["general.architecture"] = ["string", changes.architecture]
    return {**recipe, "metadata": metadata, "tensors": tensors}


def typed(value: Any, entry: Sequence[Any] | None) -> list[Any]:
    """An override as a recipe's ``[type, value]``; ``entry`` is what the key had before."""
    if isinstance(value, tuple):
        return list(value)
    if entry is not None:
        return [entry[0], value]
    if isinstance(value, list):
        return ["[int32]" if type(value[0]) is int else f"[{typed(value[0], None)[0]}]", value]
    kinds = {bool: "bool", int: "int32" if isinstance(value, int) and value < 0 else "uint32", float: "float32"}
    return [{**kinds, str: "string"}[type(value)], value]


def fingerprint(recipe: Recipe) -> str:
    """Ten hex digits that change with the recipe and with this module."""
    source = Path(__file__).read_bytes()
    return hashlib.sha256(json.dumps(recipe).encode() + source).hexdigest()[:10]


def write(recipe: Recipe, path: Path) -> None:
    """Write the model of ``recipe`` to ``path``."""
    metadata = recipe["metadata"]
    writer = gguf.GGUFWriter(path, "")  # it writes no architecture for "": the recipe's metadata have it
    writer.data_alignment = metadata.get("general.alignment", [None, writer.data_alignment])[1]
    for key, (kind, value) in metadata.items():
        value_type = gguf.GGUFValueType[kind.strip("[]").upper()]
        types = (gguf.GGUFValueType.ARRAY, value_type) if kind.startswith("[") else (value_type,)
        writer.add_key_value(key, value, *types)
    for name, (kind, shape, rule) in recipe["tensors"].items():
        values = weights(rule, shape, (recipe["seed"], zlib.crc32(name.encode())))
        add_tensor(writer, name, kind, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: gguf.GGUFWriter, name: str, kind: str, values: np.ndarray) -> None:
    """Add ``values`` as the ggml type ``kind``."""
    if kind in PLAIN_TYPES:
        writer.add_tensor(name, values.astype(f"<{PLAIN_TYPES[kind]}"))
    else:
        ggml_type = gguf.GGMLQuantizationType[kind.upper()]
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), ggml_type), raw_dtype=ggml_type)


def weights(rule: Mapping[str, Any], shape: Sequence[int], seed: tuple[int, ...]) -> np.ndarray:
    """The weights of one tensor by ``rule``; ``shape`` is in GGUF's order, the fastest dimension first."""
    dims = tuple(reversed(shape))
    if "values" in rule:
        return np.array(rule["values"]).reshape(dims)
    if "constant" in rule:
        return np.full(dims, rule["constant"])
    mean, std = rule["normal"]
    values = np.random.Generator(np.random.PCG64(seed)).normal(mean, std, dims)
    return np.clip(values, *rule["clip"]) if "clip" in rule else values


def write_atomically(path: Path, write_to: Any) -> None:
    """Call ``write_to`` with a temporary path beside ``path``, then rename it: nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    try:
        write_to(Path(temporary))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def main() -> None:
    """The command line: build the named models, or all and the hostile files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=BUILT, help="where to write (default: %(default)s)")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names())} or hostile; all by default")
    arguments = parser.parse_args()
    for name in arguments.names or [*names(), "hostile"]:
        if name == "hostile":
            paths = list(hostile(arguments.out, ("refused", "fatal", "odd")).values())
        else:
            paths = [build(name, arguments.out)]
        for path in paths:
            print(path.stat().st_size, path)


if __name__ == "__main__":
    main()
