"""Tokens per second of decoding, three programs interleaved in one run.

    python benchmarks/decode.py MODEL.gguf [--peer PYTHON] [--rounds 7] [--tokens 128] [--threads 2]

- engine: localllm's Engine, streaming greedy tokens of one sequence;
- bare:   lm_bench_loop of liblocalllm, llama_decode and argmax in C++ on the same library, same parameters;
- peer:   llama-cpp-python's low-level loop (eval, then numpy argmax of the logits), in the interpreter given by --peer.

Each program runs in a process of its own, kept alive; every round asks each of them once, in turn. Printed are medians and
the medians of the ratios within a round. `--golden FILE` writes the greedy tokens that all programs agreed on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nExplain in a few paragraphs how bread is baked.<|im_end|>\n<|im_start|>assistant\n"
)


def engine(model: str, threads: int, n_ctx: int) -> Any:
    import time

    from localllm import ContextConfig, Delta, Engine, Request, SamplingParams

    program = Engine(model, context=ContextConfig(n_ctx=n_ctx, n_threads=threads, parallel=1))
    prompt = tuple(program.model.tokenize(PROMPT, add_special=True, parse_special=True))

    def measure(n: int) -> tuple[list[int], float]:
        request = Request(prompt=prompt, max_tokens=n, sampling=SamplingParams(temperature=0))
        tokens: list[int] = []
        first = last = 0.0
        for event in program.stream(request):
            if isinstance(event, Delta):
                last = time.perf_counter()
                first = first or last
                tokens.extend(event.tokens)
        return tokens, (len(tokens) - 1) / (last - first)

    return measure


def bare(model: str, threads: int, n_ctx: int) -> Any:
    import ctypes

    from localllm.engine.config import ContextConfig, ModelConfig
    from localllm.engine.params import context_params, model_params
    from localllm.native.handles import Context, Model
    from localllm.native.library import load

    native = load()
    loaded = Model(model, model_params(native, ModelConfig()))
    config = ContextConfig(n_ctx=n_ctx, n_threads=threads, parallel=1)
    context = Context(loaded, context_params(native, config, 0))
    prompt = loaded.tokenize(PROMPT, add_special=True, parse_special=True)
    given = (ctypes.c_int32 * len(prompt))(*prompt)

    def measure(n: int) -> tuple[list[int], float]:
        chosen = (ctypes.c_int32 * n)()
        prefill, decode = ctypes.c_double(), ctypes.c_double()
        status = native.lm_bench_loop(context.pointer, given, len(prompt), n, chosen, ctypes.byref(prefill), ctypes.byref(decode))
        native.check(status)
        return list(chosen), (n - 1) / decode.value

    return measure


def peer(model: str, threads: int, n_ctx: int) -> Any:
    import time

    import llama_cpp
    import numpy

    # Flash attention as llama.cpp (and localllm) chooses by default: without it the rounding differs.
    program = llama_cpp.Llama(model, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False)
    prompt = program.tokenize(PROMPT.encode(), add_bos=True, special=True)
    n_vocab = program.n_vocab()

    def choose() -> int:
        logits = llama_cpp.llama_get_logits_ith(program.ctx, -1)
        return int(numpy.argmax(numpy.ctypeslib.as_array(logits, shape=(n_vocab,))))

    def measure(n: int) -> tuple[list[int], float]:
        program.reset()
        program.eval(prompt)
        tokens = [choose()]
        begin = time.perf_counter()
        while len(tokens) < n:
            program.eval(tokens[-1:])
            tokens.append(choose())
        return tokens, (n - 1) / (time.perf_counter() - begin)

    return measure


def serve(kind: str, model: str, threads: int, n_ctx: int) -> None:
    """The child: answers each line on standard input (a number of tokens) with one line of JSON."""
    measure = {"engine": engine, "bare": bare, "peer": peer}[kind](model, threads, n_ctx)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(int(line))), flush=True)


class Program:
    """A child process that measures when asked."""

    def __init__(self, python: str, kind: str, options: argparse.Namespace) -> None:
        command = [python, __file__, options.model, "--serve", kind, "--threads", str(options.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured program ended early; its message is above")
        return line

    def measure(self, n: int) -> tuple[list[int], float]:
        assert self.process.stdin is not None
        print(n, file=self.process.stdin, flush=True)
        tokens, rate = json.loads(self.read())
        return tokens, rate

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", help="a python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--serve", choices=["engine", "bare", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.threads, 1024)
        return
    pythons = {"engine": sys.executable, "bare": sys.executable} | ({"peer": options.peer} if options.peer else {})
    programs = {kind: Program(python, kind, options) for kind, python in pythons.items()}
    rates: dict[str, list[float]] = {kind: [] for kind in programs}
    answers: dict[str, list[int]] = {}
    for program in programs.values():
        program.measure(16)
    for _ in range(options.rounds):
        for kind, program in programs.items():
            answers[kind], rate = program.measure(options.tokens)
            rates[kind].append(rate)
    for program in programs.values():
        program.close()
    report(rates, answers, options.golden)


def report(rates: dict[str, list[float]], answers: dict[str, list[int]], golden: Path | None) -> None:
    for kind, values in rates.items():
        print(f"{kind:7s} {statistics.median(values):8.2f} tokens/s   ({min(values):.2f} to {max(values):.2f})")
    for kind in rates:
        if kind != "bare":
            ratios = [one / other for one, other in zip(rates[kind], rates["bare"], strict=True)]
            print(f"{kind}/bare   median {statistics.median(ratios):.3f}   ({min(ratios):.3f} to {max(ratios):.3f})")
    shortest = min(len(tokens) for tokens in answers.values())
    first = next(iter(answers.values()))
    same = all(tokens[:shortest] == first[:shortest] for tokens in answers.values())
    print(f"greedy tokens {'equal' if same else 'DIFFER'} over {shortest}")
    if golden and same:
        golden.write_text(json.dumps({"prompt": PROMPT, "tokens": first[:shortest]}) + "\n")


if __name__ == "__main__":
    main()
