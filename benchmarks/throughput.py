"""Eight chats at once: tokens per second of localllm, of the bare batched loop, and of peers.

    python benchmarks/throughput.py [MODEL] [--peer-lcp PYTHON] [--peer-xllamacpp PYTHON] [--rounds 5] [--json FILE]

- decode: prompts of 20 tokens that all differ, 128 tokens of answer each;
- mixed:  prompts of 200 tokens, 64 tokens of answer each.

The figure is tokens of all answers by the seconds from the first request to the last token, prompts included. "localllm cold" has
no prefix cache, so its cells hold nothing of earlier rounds. llama-cpp-python takes the requests one after another.
"""

from __future__ import annotations

import itertools

import texts
from programs import Figures, in_turn, open_vocabulary, peer_arguments, running

from localllm.hub.resolve import resolve

CASES = {"decode": (20, 128), "mixed": (200, 64)}


def main() -> None:
    parser = peer_arguments(__doc__)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="tokens of each answer, in all cases")
    parser.add_argument("--only", choices=list(CASES), help="one case")
    options = parser.parse_args()
    vocabulary = open_vocabulary(options.model)
    kinds = {"localllm": {}, "localllm cold": {"prefix_cache": False}, "bare": {}, "llama-cpp-python": {}, "xllamacpp": {}}
    setup = {"model": str(resolve(options.model)), "n_ctx": 512 * options.chats, "parallel": options.chats}
    figures = Figures()
    # Each prompt begins with a token of its own, so that nothing can be shared.
    first = itertools.count(256)
    with running(options, kinds, setup) as programs:
        for program in programs.values():
            program.ask([texts.tokens(vocabulary, 0, 20)], 8)
        for case, (n_prompt, n_tokens) in CASES.items():
            if options.only not in (None, case):
                continue
            n_tokens = options.tokens or n_tokens
            for at in range(options.rounds):
                prompts = [[next(first), *texts.tokens(vocabulary, seed, n_prompt)[1:]] for seed in range(options.chats)]
                for name in in_turn(programs, at):
                    result = programs[name].ask(prompts, n_tokens, stream=False)
                    rate = options.chats * n_tokens / result["seconds"]
                    figures.add(case, name, rate=rate, computed=result["computed"])
    figures.print({"rate": "tokens/s", "computed": "prompt tokens computed"}, base="localllm")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
