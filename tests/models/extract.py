"""Turn a GGUF file into a recipe for build.py, to add a family: any readable GGUF file will do.

    python tests/models/extract.py FILE [--name NAME] [--vocab VOCAB] [--seed N] [--recipes DIR]

The recipe keeps every metadata key with its type, and every tensor's name, shape and type. Weights become a rule that
gives weights like them (see :func:`rule`). Long values go to vocab-VOCAB.json (VOCAB is NAME by default), unless a
vocabulary that is there already has them. ``general.name`` becomes NAME, since a converter's name for a tiny model says
nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

RECIPES = Path(__file__).resolve().parent / "recipes"
LONG_STRING, LONG_LIST = 200, 50  # so many characters or items go to a vocabulary
FEW = 8  # a tensor of so few weights, or of so few different ones, is listed


def extract(path: Path, name: str, vocab: str, seed: int, recipes: Path) -> Path:
    """Write the recipe ``name`` of the GGUF file ``path`` into ``recipes``; returns its path."""
    reader = gguf.GGUFReader(path)
    metadata = {key: entry(field) for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    if "general.name" in metadata:
        metadata["general.name"][1] = name
    share(metadata, vocab, recipes)
    tensors = {t.name: [t.tensor_type.name.lower(), [int(n) for n in t.shape], rule(t)] for t in reader.tensors}
    target = recipes / f"{name}.json"
    target.write_text(dump({"seed": seed, "metadata": metadata, "tensors": tensors}), "utf-8")
    return target


def entry(field: gguf.ReaderField) -> list[Any]:
    """``[type, value]`` of a metadata field; an array's type is its items' in brackets."""
    kind = field.types[0]
    if kind is not gguf.GGUFValueType.ARRAY:
        return [kind.name.lower(), shortest(field.contents(), kind)]
    item = gguf.GGUFValueType(int(field.parts[3][0]))  # parts: key's length, key, type, items' type, count, items
    return [f"[{item.name.lower()}]", [shortest(value, item) for value in field.contents()]]


def shortest(value: Any, kind: gguf.GGUFValueType) -> Any:
    """A float32 as the shortest decimal that gives the same float32; other values as they are."""
    return float(str(np.float32(value))) if kind is gguf.GGUFValueType.FLOAT32 else value


def share(metadata: dict[str, list[Any]], vocab: str, recipes: Path) -> None:
    """Replace long values by references to vocabularies, and write those that none has to vocab-``vocab``.json."""
    known = {p.stem[len("vocab-") :]: json.loads(p.read_text("utf-8")) for p in sorted(recipes.glob("vocab-*.json"))}
    for key, item in metadata.items():
        value = item[1]
        if not isinstance(value, (str, list)) or len(value) < (LONG_STRING if isinstance(value, str) else LONG_LIST):
            continue
        found = next((ref for name, parts in known.items() if (ref := refer(value, name, key, parts.get(key)))), None)
        if found is None:
            if key in known.setdefault(vocab, {}):
                raise SystemExit(f"vocab-{vocab}.json has another {key}: name a new one with --vocab")
            known[vocab][key] = value
            found = {"vocab": vocab, "part": key}
        item[1] = found
    if vocab in known:
        (recipes / f"vocab-{vocab}.json").write_text(dump_table(known[vocab]) + "\n", "utf-8")


def refer(value: Any, vocab: str, key: str, part: Any) -> dict[str, Any] | None:
    """A reference to ``part`` of a vocabulary, if that is ``value`` or a list that begins it."""
    if value == part:
        return {"vocab": vocab, "part": key}
    if isinstance(value, list) and isinstance(part, list) and part and value[: len(part)] == part:
        return {"vocab": vocab, "part": key, "then": value[len(part) :]}
    return None


def rule(tensor: gguf.ReaderTensor) -> dict[str, Any]:
    """How to make weights like this tensor's.

    The constant, if they are all alike; the list of them, if they are few, of few values or integers; else normal with
    their mean and deviation, where a mean that chance explains is 0, and clipped to their range if they have one sign.
    """
    if np.issubdtype(tensor.data.dtype, np.signedinteger):
        return {"values": tensor.data.ravel().tolist()}
    data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).ravel()
    lowest, highest = (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)
    if lowest == highest:
        return {"constant": short(lowest)}
    if data.size <= FEW or (data.size <= FEW * FEW and np.unique(data).size <= FEW):
        return {"values": [short(float(x)) for x in data]}
    mean, std = float(data.mean(dtype=np.float64)), float(data.std(dtype=np.float64))
    by_chance = abs(mean) < 4 * std / data.size**0.5
    normal: dict[str, Any] = {"normal": [0.0 if by_chance else short(mean), short(std)]}
    return {**normal, "clip": [short(lowest), short(highest)]} if lowest * highest > 0 else normal


def short(number: float) -> float:
    """Four digits: as many as a random tensor's statistics are worth."""
    return float(f"{number:.4g}")


def dump(recipe: dict[str, Any]) -> str:
    """The recipe as JSON with a line for each key and each tensor."""
    body = ",\n".join(
        f"{json.dumps(key)}: {dump_table(value) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in recipe.items()
    )
    return "{\n" + body + "\n}\n"


def dump_table(table: dict[str, Any]) -> str:
    """A JSON object with a line for each member."""
    lines = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in table.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="name of the recipe (default: the file's)")
    parser.add_argument("--vocab", help="vocabulary for long values that none has (default: the recipe's name)")
    parser.add_argument("--seed", type=int, help="seed of the weights (default: the recipe's, if it is there, or 1)")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="where to write (default: %(default)s)")
    arguments = parser.parse_args()
    name = arguments.name or arguments.file.stem
    old = arguments.recipes / f"{name}.json"
    seed = arguments.seed or (json.loads(old.read_text("utf-8"))["seed"] if old.exists() else 1)
    print(extract(arguments.file, name, arguments.vocab or name, seed, arguments.recipes))


if __name__ == "__main__":
    main()
