"""What the prefix cache saves: prompt tokens computed, and time to first token.

    python benchmarks/prefix.py [MODEL] [--hybrid MODEL] [--peer-xllamacpp PYTHON] [--rounds 5] [--json FILE]

- turn:     a chat of 1,500 tokens, continued by its answer and a short question; "turn, hybrid" is the same with --hybrid, whose
            state cannot be cut;
- document: eight questions about one document of 1,160 tokens, arriving together, 16 tokens of answer each;
- agents:   eight agents with one system prompt of 600 tokens with tools, arriving together, 16 tokens of answer each.

"cold" computes everything: localllm without a prefix cache, xllamacpp with `cache_prompt` false in each request. All are asked in
turn, round by round; the time to the first token is the median over the requests of an order; every round has texts of its own.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import texts
from programs import Figures, Program, in_turn, open_vocabulary, peer_arguments, running

from localllm.hub.resolve import resolve

HYBRID = Path(__file__).parent.parent / "tests/models/trained/tiny-trained-qwen35.gguf"
KINDS: dict[str, dict[str, Any]] = {
    "localllm": {},
    "localllm cold": {"prefix_cache": False},
    "xllamacpp": {},
    "xllamacpp cold": {},
}
TITLES = {
    "computed": "prompt tokens computed",
    "of_distinct": "prompt tokens computed, by distinct ones",
    "first": "seconds to the first token",
    "seconds": "seconds for all",
}


def ask(name: str, program: Program, prompts: list[list[int]], n_tokens: int, **order: Any) -> dict[str, Any]:
    return program.ask(prompts, n_tokens, cache="cold" not in name, **order)


def record(figures: Figures, case: str, name: str, result: dict[str, Any], n_distinct: int) -> None:
    figures.add(
        case,
        name,
        computed=result["computed"],
        of_distinct=result["computed"] / n_distinct,
        first=statistics.median(result["first"]),
        seconds=result["seconds"],
    )


def turn(options: argparse.Namespace, reference: str, case: str, figures: Figures) -> None:
    vocabulary = open_vocabulary(reference)
    end, header = (texts.plain(vocabulary, text) for text in ("<|im_end|>\n", "<|im_start|>assistant\n"))
    question = texts.plain(vocabulary, "<|im_start|>user\nAnd then?")
    with running(options, KINDS, {"model": str(resolve(reference)), "n_ctx": 4096, "parallel": 2}) as programs:
        for at in range(options.rounds + 1):
            words = texts.tokens(vocabulary, at, options.history - len(end) - len(header), "<|im_start|>user\n")
            history = [*words, *end, *header]
            starts = [len(words) + len(end)]  # where messages begin
            for name in in_turn(programs, at):
                # The answer is the program's own: nobody computes what it has not said.
                answer = ask(name, programs[name], [history], 8, boundaries=starts)["answers"][0]
                said = [*history, *answer, *end]
                prompt = [*said, *question, *end, *header]
                more = [*starts, len(said), len(said) + len(question) + len(end)]
                result = ask(name, programs[name], [prompt], 8, boundaries=more)
                if at:  # round 0 warms up
                    record(figures, case, name, result, len(prompt))


def together(options: argparse.Namespace, figures: Figures) -> None:
    vocabulary = open_vocabulary(options.model)
    with running(options, KINDS, {"model": str(resolve(options.model)), "n_ctx": 12288, "parallel": 8}) as programs:
        for name, program in programs.items():
            ask(name, program, [texts.tokens(vocabulary, 0, 64)], 8)
        for at in range(options.rounds):
            document = texts.tokens(vocabulary, 100 + at, options.document)
            questions = [texts.plain(vocabulary, f"\nQuestion {n}: what of the {texts.WORDS[n]}?") for n in range(8)]
            about_it = [document + question for question in questions]
            agents = texts.agents(vocabulary, 200 + at, options.system, 8)
            for case, prompts in (("document", about_it), ("agents", agents)):
                for name in in_turn(programs, at):
                    record(figures, case, name, ask(name, programs[name], prompts, 16), texts.distinct(prompts))


def main() -> None:
    parser = peer_arguments(__doc__)
    parser.add_argument("--hybrid", default=str(HYBRID), help="a GGUF file of a hybrid or recurrent model")
    parser.add_argument("--history", type=int, default=1500, help="tokens of the chat before its second turn")
    parser.add_argument("--document", type=int, default=1160, help="tokens of the document")
    parser.add_argument("--system", type=int, default=600, help="tokens of the agents' system prompt")
    parser.add_argument("--only", choices=["turn", "hybrid", "together"], help="one part of it")
    options = parser.parse_args()
    figures = Figures()
    if options.only in (None, "turn"):
        turn(options, options.model, "turn", figures)
    if options.only in (None, "hybrid"):
        turn(options, options.hybrid, "turn, hybrid", figures)
    if options.only in (None, "together"):
        together(options, figures)
    figures.print(TITLES, base="localllm")
    for case, programs in figures.values.items():
        if "xllamacpp cold" in programs:
            ratio = figures.ratio(case, "xllamacpp", "xllamacpp cold", "first")
            print(f"{case}: xllamacpp / xllamacpp cold, seconds to the first token: {ratio:.3f}")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
