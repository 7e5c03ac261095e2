"""Drafts by trained models: how much of them is right, and what a pass costs.

    python benchmarks/drafts.py [--n-max 5] [--sequences 1 4 8 16] [--rounds 3]

The tiny trained models of tests/models/trained: a hybrid target with its heads and four drafts, and a dense one with DFlash and
LiLiCorr. 64 tokens, greedy, without the throttle, measured as `localllm bench` does: on the prompts that no draft was trained
beside (the heads: prompts.json; the dense target: path_prompts.json, n_max 7).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from localllm import SpeculationConfig
from localllm.bench import Result, compare

TRAINED = Path(__file__).parents[1] / "tests" / "models" / "trained"
HYBRID, DENSE = TRAINED / "tiny-trained-qwen35.gguf", TRAINED / "lilicorr" / "target-00001-of-00002.gguf"
N_TOKENS = 64


def hybrid(n_max: int) -> dict[str, SpeculationConfig]:
    kinds = {"EAGLE-3": "eagle3", "EAGLE-3, reduced vocabulary": "eagle3-d2t", "DSpark": "dspark", "DFlash": "dflash"}
    files = {name: str(TRAINED / f"tiny-trained-qwen35-{kind}.gguf") for name, kind in kinds.items()}
    return {name: SpeculationConfig(kind="auto", draft=file, n_max=n_max, throttle=False) for name, file in files.items()}


def dense() -> dict[str, SpeculationConfig]:
    draft, head = str(DENSE.with_name("dflash.gguf")), str(DENSE.with_name("lilicorr-head.gguf"))
    return {
        "DFlash, dense target": SpeculationConfig(kind="auto", draft=draft, n_max=7, throttle=False),
        "LiLiCorr, dense target": SpeculationConfig(kind="auto", draft=draft, head=head, n_max=7, throttle=False),
    }


def cases(n_max: int) -> list[tuple[Path, dict[str, SpeculationConfig], list[str]]]:
    """Targets, with what drafts for them and their prompts."""
    heldout, prompts = (json.loads((TRAINED / f"{name}.json").read_text()) for name in ("heldout", "prompts"))
    paths = json.loads(DENSE.with_name("path_prompts.json").read_text())["prompts"]
    heads = {"MTP": SpeculationConfig(kind="draft-mtp", n_max=n_max, throttle=False)}
    return [(HYBRID, heads, prompts), (HYBRID, hybrid(n_max), heldout), (DENSE, dense(), [one["text"] for one in paths])]


def line(n_sequences: int, n_prompts: int, found: Result) -> str:
    if found.error is not None:
        raise found.error
    stats = found.speculation
    assert stats is not None
    seconds = (stats.draft_seconds, stats.verify_seconds, stats.rollback_seconds)
    each = "  ".join(f"{one / stats.n_passes * 1e6:7.0f}" for one in seconds)
    same = f"{found.n_same:>2} of {n_prompts}"
    right = f"{stats.acceptance:.3f}  {found.tokens_per_pass:.3f}"
    return f"{found.name:<28}{n_sequences:>3}  {same}  {right}  {each}  {found.ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-max", type=int, default=5)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        "draft, sequences, same text, right, tokens of a pass, microseconds of a pass in draft, verify, rollback; ratio to plain"
    )
    for n in options.sequences:
        for target, speculations, prompts in cases(options.n_max):
            found = compare(
                target, speculations, prompts=prompts, n_tokens=N_TOKENS, n_rounds=options.rounds, parallel=n, raw=True,
                n_ctx=512 * n, n_threads=1,
            )  # fmt: skip
            for one in found.results[1:]:
                print(line(n, len(prompts), one))


if __name__ == "__main__":
    main()
