"""What a LiLiCorr head costs beside the draft whose candidates it chooses from, at the sizes of the published draft for Qwen3-8B.

    python benchmarks/lilicorr.py [--type Q8_0] [--head-type F16] [--sequences 1 2] [--threads 2] [--rounds 5] [--json FILE]

The files have random weights and are written into a temporary folder (2.3 GB with Q8_0), which is removed at the end. In each
round a few new tokens are taken in, and a draft is asked for. With random weights the candidates hardly change from draft to
draft, so their embeddings are known to the head, as most are in a real text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_drafts import Sizes, write_draft, write_target

from localllm.engine.batch import Batch
from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.native.follower import DraftRequest, Follower
from localllm.native.handles import Context, Model
from localllm.native.library import load

N_CONTEXT = 48  # tokens of each sequence before the first draft
N_NEWS = 3  # tokens between two rounds
PHASES = ("draft_us", "candidates_us", "head_us")


class Drafting:
    """A target and its draft, following random texts."""

    def __init__(self, target: Model, draft: Model, options: argparse.Namespace, sizes: Sizes, n: int, place: str) -> None:
        native = load()
        config = ContextConfig(n_ctx=1024 * n, n_threads=options.threads, parallel=n)
        own = context_params(native, config, 0)
        self.target = Context(target, own)
        other = context_params(native, config, 0)
        other.ctx_other, other.n_outputs_max_per_seq = self.target.pointer, sizes.block
        self.draft = Context(draft, other)
        kind = {"kind": "draft-lilicorr", "candidates": place, "n_max": sizes.block - 1}
        self.follower = Follower(self.target, self.draft, kind, n)
        self.native, self.n, self.sizes = native, n, sizes
        self.batch, self.texts = Batch(2048, output=False), [[1] for _ in range(n)]
        self.random = np.random.default_rng(1)
        self.take_in(N_CONTEXT)

    def take_in(self, n_tokens: int) -> None:
        at = 0
        for slot, text in enumerate(self.texts):
            begin = len(text) - 1
            text += self.random.integers(0, self.sizes.n_vocab, n_tokens).tolist()
            at = self.batch.put(at, text[begin:-1], begin, slot)
            self.batch.outputs[at - 1 : at] = b"\1"
        self.batch.n_tokens = at
        self.native.check(self.native.lm_decode(self.target.pointer, self.batch.reference))
        self.follower.follow(self.batch.reference)
        self.batch.outputs[0:at] = bytes(at)

    def propose(self) -> dict[str, float]:
        """Milliseconds of each phase."""
        before = self.follower.times()
        drafts = self.follower.propose([DraftRequest(slot, len(text) - 1, text[-1], 99) for slot, text in enumerate(self.texts)])
        if [len(draft) for draft in drafts] != [self.sizes.block - 1] * self.n:
            raise SystemExit(f"drafts of {[len(draft) for draft in drafts]} tokens")
        after = self.follower.times()
        return {name: (getattr(after, name) - getattr(before, name)) / 1000 for name in PHASES}

    def close(self) -> None:
        self.follower.close()
        self.draft.close()
        self.target.close()


def measure(target: Model, draft: Model, options: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    found = []
    for n in options.sequences:
        for place in ("host", "graph"):
            drafting = Drafting(target, draft, options, sizes, n, place)
            drafting.propose()  # buffers are made, weights are in memory
            for _ in range(options.rounds):
                drafting.take_in(N_NEWS)
                found.append({"sequences": n, "candidates": place, **drafting.propose()})
            drafting.close()
    return found


def report(rounds: list[dict[str, Any]]) -> None:
    print("| sequences | candidates | draft, ms | candidates, ms | head, ms | head / draft | with candidates / draft |")
    print("|---|---|---|---|---|---|---|")
    cases = dict.fromkeys((row["sequences"], row["candidates"]) for row in rounds)
    for case in cases:
        rows = [row for row in rounds if (row["sequences"], row["candidates"]) == case]
        times = [f"{statistics.median(row[name] for row in rows):.2f}" for name in PHASES]
        head = [row["head_us"] / row["draft_us"] for row in rows]
        both = [(row["head_us"] + row["candidates_us"]) / row["draft_us"] for row in rows]
        print("|", " | ".join([*map(str, case), *times, share(head), share(both)]), "|")


def share(values: list[float]) -> str:
    return f"{statistics.median(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", default="Q8_0", choices=["F16", "Q8_0"], help="of target and draft")
    parser.add_argument("--head-type", default="F16", choices=["F32", "F16", "Q8_0"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path, help="a file for every figure of every round")
    options = parser.parse_args()
    sizes = Sizes()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        paths = [Path(folder) / name for name in ("target.gguf", "draft.gguf")]
        write_target(paths[0], sizes, options.type)
        write_draft(paths[1], sizes, options.type, options.head_type)
        print(f"{sum(path.stat().st_size for path in paths) / 1e9:.1f} GB written", file=sys.stderr)
        target, draft = (Model(str(path), model_params(load(), ModelConfig()), any_kind=True) for path in paths)
        rounds = measure(target, draft, options, sizes)
    report(rounds)
    if options.json:
        options.json.write_text(json.dumps({"sizes": asdict(sizes), "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
