"""How much of a step is spent outside llama.cpp, with 1, 4 and 16 sequences that are all decoding.

    python benchmarks/overhead.py [MODEL] [--sequences 1 4 16] [--tokens 128] [--rounds 5] [--json FILE]

A step is from the end of one call of lm_run (llama_decode and sampling, in C++) to the end of the next; the share is what is left
of it without the call: planning, filling the batch, delivering, and whatever other threads of the process do meanwhile. Two ways
to take the tokens: "callback" is a sink on the engine's thread that keeps them, "streams" is one reading thread per sequence
(Engine.stream).
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import texts
from programs import Figures, arguments, open_vocabulary

from localllm import ContextConfig, Engine, Finished, Request, SamplingParams
from localllm.hub.resolve import resolve

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class Stopwatch:
    """Stands in for lm_run, and notes when each call began and ended and how many tokens and rows it had."""

    def __init__(self, engine: Engine) -> None:
        runner = engine._core.runner
        self.steps: list[tuple[float, float, int, int]] = []
        self.call, self.batch = runner.native.lm_run, runner._batch
        runner.native.lm_run = self

    def __call__(self, context: Any, batch: Any, rows: Any, n_rows: int) -> Any:
        begin = time.perf_counter()
        status = self.call(context, batch, rows, n_rows)
        self.steps.append((begin, time.perf_counter(), self.batch.n_tokens, n_rows))
        return status

    def shares(self, n: int) -> tuple[float, float]:
        """Medians over the steps that decode one token of each of `n` sequences: the share, and its seconds."""
        found = [
            (begin - before[1], end - before[1])
            for before, (begin, end, n_tokens, n_rows) in zip(self.steps, self.steps[1:], strict=False)
            if n_tokens == n_rows == n == before[2]
        ]
        return statistics.median(rest / step for rest, step in found), statistics.median(rest for rest, _ in found)


def callback(engine: Engine, requests: list[Request]) -> None:
    done = [threading.Event() for _ in requests]
    for request, event in zip(requests, done, strict=True):
        kept: list[Any] = []

        def sink(item: Any, kept: list[Any] = kept, event: threading.Event = event) -> None:
            kept.append(item)
            if isinstance(item, Finished):
                event.set()

        engine.submit(request, sink)
    for event in done:
        event.wait()


def streams(engine: Engine, requests: list[Request]) -> None:
    threads = [threading.Thread(target=lambda request=request: list(engine.stream(request))) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    vocabulary = open_vocabulary(options.model)
    most = max(options.sequences)
    figures = Figures()
    config = ContextConfig(n_ctx=most * (options.tokens + 64), parallel=most, n_threads=options.threads)
    with Engine(str(resolve(options.model)), context=config) as engine:
        watch = Stopwatch(engine)
        for at in range(options.rounds):
            for n in options.sequences:
                for way in (callback, streams):
                    seeds = range(at * most, at * most + n)
                    prompts = [tuple(texts.tokens(vocabulary, seed, 20)) for seed in seeds]
                    watch.steps.clear()
                    way(engine, [Request(prompt=prompt, max_tokens=options.tokens, sampling=GREEDY) for prompt in prompts])
                    share, rest = watch.shares(n)
                    figures.add(f"{n} sequences", way.__name__, percent=100 * share, microseconds=1e6 * rest)
    figures.print({"percent": "per cent of a step outside llama.cpp", "microseconds": "microseconds of it"}, base="callback")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
