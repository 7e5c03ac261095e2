"""One KV cache for all sequences against one for each: decoding speed of the bare batched loop.

    python benchmarks/unified.py [MODEL] [--sequences 1 4 8] [--contexts 64 1000] [--tokens 32] [--rounds 5] [--json FILE]

Both have the same number of cells in all. In a unified cache the attention of each sequence passes over the cells of all of them
and masks the others'; in a split one it sees its own. Only a unified one lets sequences share cells, or take more than a part.
"""

from __future__ import annotations

import time

import texts
from bare import BatchedLoop
from programs import Figures, arguments, open_vocabulary

from localllm.engine.config import ModelConfig
from localllm.engine.params import model_params
from localllm.hub.resolve import resolve
from localllm.native.handles import Model
from localllm.native.library import load


def rate(loop: BatchedLoop, n_prompt: int, n: int, n_tokens: int) -> float:
    begin = time.perf_counter()
    loop.decode([n_prompt] * n, n_tokens, [[] for _ in range(n)])
    return n * n_tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 1000], help="tokens that each sequence has before")
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    vocabulary = open_vocabulary(options.model)
    model = Model(str(resolve(options.model)), model_params(load(), ModelConfig()))
    figures = Figures()
    cells = max(options.contexts) + (options.rounds + 1) * options.tokens
    for n in options.sequences:
        loops = {name: BatchedLoop(model, n * cells, n, options.threads, name == "unified") for name in ("unified", "split")}
        for n_prompt in options.contexts:
            prompts = [texts.tokens(vocabulary, seed, n_prompt) for seed in range(n)]
            for loop in loops.values():
                for row in loop.rows:
                    row.max_tokens = 2**31 - 1
                loop.prefill(prompts)
            for at in range(options.rounds):
                for name in ("split", "unified") if at % 2 else ("unified", "split"):
                    # Each round goes on where the last one ended.
                    speed = rate(loops[name], n_prompt + at * options.tokens, n, options.tokens)
                    figures.add(f"{n} sequences of {n_prompt} tokens", name, rate=speed)
        for loop in loops.values():
            loop.close()
    figures.print({"rate": "tokens/s"}, base="unified")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
