"""What the prefix cache saves: prompt tokens computed, and time to first token.

    python benchmarks/prefix.py MODEL.gguf [--rounds 5] [--threads 2]

- turn:     the second turn of a chat of about 1,500 tokens, warm against cold (prefix_cache=False);
- document: eight questions about one document of about 1,160 tokens, arriving together, with and without the cache;
- agents:   eight agents with one system prompt of about 600 tokens, arriving together, likewise.

Both engines live in this process and are asked in turn, round by round; every round has texts of its own. Printed are medians and
the medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import queue
import random
import statistics
import time
from typing import Any

from localllm import ContextConfig, Delta, Engine, Finished, Request, SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
WORDS = ["river", "mountain", "window", "garden", "silver", "morning", "letter", "bridge", "candle", "winter", "stone", "harbour"]


def text(seed: int, n_words: int) -> str:
    """Words that differ from round to round."""
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


class Counter:
    """Counts the tokens that an engine computes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.n_tokens = engine, 0
        runner = engine._core.runner
        run = runner.run

        def counting(chunks: Any) -> Any:
            self.n_tokens += sum(chunk.n_tokens for chunk in chunks)
            return run(chunks)

        runner.run = counting  # type: ignore[method-assign]

    def ask(self, prompts: list[str], n_tokens: int) -> tuple[int, float, float]:
        """All prompts at once. Prompt tokens computed, seconds to the first token of the first one, seconds for all."""
        self.n_tokens = 0
        requests = [
            Request(prompt=tuple(self.engine.model.tokenize(prompt, True, True)), max_tokens=n_tokens, sampling=GREEDY)
            for prompt in prompts
        ]
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        begin = time.perf_counter()
        for request in requests:
            self.engine.submit(request, lambda event: events.put((event, time.perf_counter())))
        first, open_requests, last = 0.0, len(requests), begin
        while open_requests:
            event, last = events.get()
            if isinstance(event, Delta):
                first = first or last
            elif isinstance(event, Finished):
                open_requests -= 1
            else:
                raise event.error
        return self.n_tokens - len(requests) * (n_tokens - 1), first - begin, last - begin


def turn(counter: Counter, seed: int) -> tuple[int, float, float]:
    history = f"<|im_start|>user\n{text(seed, 1100)}<|im_end|>\n<|im_start|>assistant\n"
    counter.ask([history], 8)
    return counter.ask([f"{history}Well.<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"], 8)


def together(counter: Counter, seed: int, n_words: int, n_tokens: int) -> tuple[int, float, float]:
    document = text(seed, n_words)
    return counter.ask([f"{document}\nQuestion {n}: {WORDS[n]}?" for n in range(8)], n_tokens)


CASES = {
    "turn": turn,
    "document": lambda counter, seed: together(counter, seed, 850, 16),
    "agents": lambda counter, seed: together(counter, seed, 440, 16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engines = {
        name: Engine(
            options.model,
            context=ContextConfig(n_ctx=12288, parallel=8, n_threads=options.threads, prefix_cache=name == "warm"),
        )
        for name in ("warm", "cold")
    }
    counters = {name: Counter(engine) for name, engine in engines.items()}
    for case, run in CASES.items():
        results: dict[str, list[tuple[int, float, float]]] = {name: [] for name in counters}
        for round_number in range(options.rounds):
            for name, counter in counters.items():
                results[name].append(run(counter, 1000 * list(CASES).index(case) + round_number))
        for name, rows in results.items():
            computed, first, whole = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{case:9s} {name:5s} {computed:7.0f} prompt tokens  first token {first:7.3f} s  all {whole:7.3f} s")
        for place, what in ((0, "computed"), (1, "first token"), (2, "all")):
            ratios = [one[place] / other[place] for one, other in zip(results["warm"], results["cold"], strict=True)]
            print(f"{case:9s} warm/cold {what}: {statistics.median(ratios):.3f}")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
