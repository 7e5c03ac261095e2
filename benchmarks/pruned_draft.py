"""A draft without training: a model without most of its blocks, and what it brings the whole one, beside drafts by n-grams.

    python benchmarks/pruned_draft.py [MODEL] [--keep 1 6 15] [--type Q4_0] [--tokens 128] [--rounds 5] [--threads 2]

Each draft is the first so many blocks of the model, with its vocabulary, its embeddings and its output, requantised. Measured as
`localllm bench` does, on its prompts, with the throttle and without it. The whole model is written in `--type`, too, unless that
is "".
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import gguf

from localllm import SpeculationConfig
from localllm.bench import Result, compare
from localllm.engine.config import SpeculationKind
from localllm.hub.resolve import resolve
from localllm.native.library import load

NGRAMS: tuple[SpeculationKind, ...] = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_BLOCK = re.compile(r"blk\.(\d+)\.")


def write_pruned(source: Path, target: Path, n_blocks: int) -> None:
    """Writes the first blocks of a model, with everything that is in no block.

    Args:
        source, target: GGUF files; the second one is written.
        n_blocks: int, blocks to keep.
    """
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        value = n_blocks if name == f"{architecture}.block_count" else field.contents()
        kind = field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        block = _BLOCK.match(tensor.name)
        if block is None or int(block[1]) < n_blocks:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_type(source: Path, target: Path, type_name: str) -> None:
    """Writes a model in another mixture of tensor types.

    Args:
        source, target: GGUF files; the second one is written.
        type_name: str, e.g. "Q4_0".
    """
    native = load()
    native.check(native.lm_quantize(os.fsencode(source), os.fsencode(target), type_name.encode(), 1, b"{}", None))


def drafts(source: Path, folder: Path, keep: Iterable[int], type_name: str) -> dict[int, Path]:
    """Pruned drafts of a model, by the number of their blocks."""
    files: dict[int, Path] = {}
    for n_blocks in keep:
        whole, files[n_blocks] = folder / f"first-{n_blocks}-whole.gguf", folder / f"first-{n_blocks}.gguf"
        write_pruned(source, whole, n_blocks)
        write_type(whole, files[n_blocks], type_name)
        whole.unlink()
    return files


def kinds(files: dict[int, Path], throttle: bool) -> dict[str, SpeculationConfig]:
    """What is compared: each draft, and each kind of n-grams."""
    models = {
        f"draft-simple, {n_blocks} blocks": SpeculationConfig(kind="draft-simple", draft=str(file), n_max=4, throttle=throttle)
        for n_blocks, file in files.items()
    }
    return {**models, **{kind: SpeculationConfig(kind=kind, throttle=throttle) for kind in NGRAMS}}


def line(found: Result, throttle: bool) -> str:
    """A row of the table."""
    if found.error is not None:
        raise found.error
    if found.speculation is None:
        return f"| plain decoding, {found.tokens_per_second:.1f} tokens/s | | | | | 1 | | |"
    each = " / ".join("" if one.ratio is None else f"{one.ratio:.2f}" for one in found.prompts)
    drafted, right = found.speculation.drafted_tokens, found.speculation.acceptance
    return (
        f"| {found.name} | {'yes' if throttle else 'no'} | {drafted} | {right:.0%} | {found.tokens_per_pass:.2f} "
        f"| {found.ratio:.2f} | {each} | {found.n_same} of {len(found.prompts)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help='a GGUF file, or "smollm2"')
    parser.add_argument("--keep", type=int, nargs="+", default=[1, 6, 15])
    parser.add_argument("--type", default="Q4_0", help='of the drafts and the model; "": the model as it is, drafts in Q4_0')
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    source = resolve(options.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = drafts(source, folder, options.keep, options.type or "Q4_0")
        target = folder / "target.gguf" if options.type else source
        if options.type:
            write_type(source, target, options.type)
        print(
            "| draft | throttle | drafted | right | tokens of a pass | ratio | prose / edit / table | same text |\n"
            + "|---" * 8
            + "|"
        )
        for throttle in (False, True):
            found = compare(
                target, kinds(files, throttle), n_tokens=options.tokens, n_rounds=options.rounds, n_ctx=2048,
                n_threads=options.threads,
            )  # fmt: skip
            for one in found.results:
                print(line(one, throttle), flush=True)


if __name__ == "__main__":
    main()
