"""localllm's LiLiCorr head against the one of nvidia-modelopt, which trains them: the same scores, and how long both take.

    python benchmarks/lilicorr_parity.py [--threads 2] [--rounds 9] [--json FILE]

Needs torch and nvidia-modelopt >= 0.48.0rc1 in the same environment. Both get the same random weights and inputs, one block at a
time, in F32 on the CPU. The scores are bounded by the head's scale of 8; a difference above 1e-5 ends the program with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# localllm sets this itself, but torch comes first: two pools of threads that spin for each other's cores measure nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numpy as np
from synthetic_drafts import NewTensor, write_gguf

from localllm.convert.lilicorr import attention_bias
from localllm.convert.lilicorr_config import LilicorrConfig
from localllm.convert.lilicorr_names import head_names, head_shapes
from localllm.native.lilicorr import Block, LilicorrHead, candidates

try:
    import torch
    from modelopt.torch.speculative.plugins.modeling_lilicorr import LiLiCorrHead
except ImportError as error:
    sys.exit(f"{error}\ninstall torch and nvidia-modelopt>=0.48.0rc1 (a pre-release) beside localllm to run this")

LIMIT = 1e-5
N_VOCAB = 2000
CASES = {
    "narrow": {"width": 96, "hidden": 64, "block": 8, "n_candidates": 4, "layers": 2, "heads": 4},
    "as wide as the draft": {"width": 96, "hidden": 96, "block": 5, "n_candidates": 4, "layers": 1, "heads": 4},
    "one candidate": {"width": 64, "hidden": 32, "block": 4, "n_candidates": 1, "layers": 1, "heads": 2},
    "published": {"width": 4096, "hidden": 1024, "block": 16, "n_candidates": 8, "layers": 2, "heads": 8},
}


def configuration(width: int, hidden: int, block: int, n_candidates: int, layers: int, heads: int) -> LilicorrConfig:
    """The draft's own sizes, which the head does not see, are some."""
    return LilicorrConfig(
        width=width, n_layers=5, n_ff=1, n_heads=1, n_kv_heads=1, head_width=1, n_context=1, rms_eps=1e-6, rope_theta=1e4,
        block=block, mask_token=0, target_layers=(0,), conv_taps=0, conv_group=0, hidden=hidden, n_candidates=n_candidates,
        n_lattice_layers=layers, n_lattice_heads=heads, n_mlp=2 * hidden, n_factors=hidden, vector_eps=1e-4, logit_scale=8.0,
    )  # fmt: skip


def random_head(config: LilicorrConfig, seed: int) -> Any:
    """modelopt's head with no weight at zero and no norm at one, so that no term of the formulas drops out."""
    torch.manual_seed(seed)
    head = LiLiCorrHead(
        model_hidden_size=config.width, hidden_size=config.hidden, num_layers=config.n_lattice_layers,
        num_heads=config.n_lattice_heads, mlp_ratio=2.0, block_size=config.block, candidate_topk=config.n_candidates,
        factor_dim=config.n_factors, rms_norm_eps=config.rms_eps, vector_eps=config.vector_eps, logit_scale=config.logit_scale,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for name, values in head.named_parameters():
            noise = torch.randn_like(values)
            values.copy_(
                1 + 0.3 * noise if "norm.weight" in name else noise * (values.shape[-1] ** -0.5 if values.dim() == 2 else 0.3)
            )
    return head.requires_grad_(False)


def write_head(path: Path, config: LilicorrConfig, state: dict[str, np.ndarray]) -> None:
    names, shapes = head_names(config), head_shapes(config)
    keys = {
        "dflash.block_size": config.block,
        "dflash.embedding_length": config.width, "dflash.block_count": config.n_layers,
        "dflash.attention.layer_norm_rms_epsilon": config.rms_eps, "lilicorr.hidden_size": config.hidden,
        "lilicorr.candidate_topk": config.n_candidates, "lilicorr.num_heads": config.n_lattice_heads,
        "lilicorr.num_layers": config.n_lattice_layers, "lilicorr.factor_dim": config.n_factors,
        "lilicorr.mlp_hidden_size": config.n_mlp, "lilicorr.vector_eps": config.vector_eps,
        "lilicorr.logit_scale": config.logit_scale,
    }  # fmt: skip
    arrays = {theirs: state[name.removeprefix("lilicorr.")].reshape(shapes[name]) for theirs, name in names.items()}
    arrays["lilicorr.attention_bias.bias"] = attention_bias(state["relative_slot_bias"], state["same_slot_bias"], config)
    write_gguf(path, "lilicorr-head", keys, [tensor(name, array) for name, array in arrays.items()])


def tensor(name: str, array: np.ndarray) -> NewTensor:
    return NewTensor(name, array.shape[::-1], "F32", lambda: np.ascontiguousarray(array, np.float32))


def scores_of(head: Any, table: Any, ids: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    def batched(values: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values))[None, None]

    start, pair = head(
        candidate_token_ids=batched(ids.astype(np.int64)), candidate_log_probs=batched(block.logprobs),
        pass_hidden=batched(block.hidden), embed_tokens=table, anchor_hidden=batched(block.anchor[None]),
    )  # fmt: skip
    start, pair = head.compose_log_factors(start_scores=start, pair_scores=pair)
    return start.numpy().reshape(-1), pair.numpy().reshape(-1, ids.shape[-1], ids.shape[-1])


def milliseconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - begin)


def compare(sizes: dict[str, int], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = configuration(**sizes)
    theirs = random_head(config, seed=1)
    path = folder / "head.gguf"
    write_head(path, config, {name: values.numpy() for name, values in theirs.state_dict().items()})
    ours = LilicorrHead(path, n_threads=options.threads)
    table = torch.nn.Embedding(N_VOCAB, config.width).requires_grad_(False)
    random = np.random.default_rng(1)
    worst, times = 0.0, []
    for _ in range(options.rounds):
        logits = (3 * random.normal(size=(config.n_slots, N_VOCAB))).astype(np.float32)
        ids, logprobs = candidates(logits, config.n_candidates)
        hidden = random.normal(size=(config.n_slots, config.width)).astype(np.float32)
        anchor = random.normal(size=config.width).astype(np.float32)
        block = Block(logprobs, table.weight.numpy()[ids], hidden, anchor)
        (mine,) = ours.score([block])
        start, pair = scores_of(theirs, table, ids, block)
        worst = max(worst, float(np.abs(mine.start - start).max()), float(np.abs(mine.pair - pair).max(initial=0)))
        times.append((milliseconds(partial(ours.score, [block])), milliseconds(partial(scores_of, theirs, table, ids, block))))
    ours.close()
    return {"difference": worst, "milliseconds": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="a file for every figure of every round")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| head | largest difference | localllm, ms | modelopt, ms | modelopt / localllm |")
    print("|---|---|---|---|---|")
    found = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, sizes in CASES.items():
            found[name] = compare(sizes, options, Path(folder))
            ours, theirs = zip(*found[name]["milliseconds"], strict=True)
            ratio = statistics.median(b / a for a, b in found[name]["milliseconds"])
            times = f"{statistics.median(ours):.2f} | {statistics.median(theirs):.2f} | {ratio:.2f}"
            print(f"| {name} | {found[name]['difference']:.1e} | {times} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if max(case["difference"] for case in found.values()) > LIMIT:
        raise SystemExit(f"the scores differ by more than {LIMIT}")


if __name__ == "__main__":
    main()
