"""What drafting by n-grams saves where an answer repeats its prompt, and what it costs where it does not.

    python benchmarks/speculation.py MODEL.gguf [--q4-0] [--rounds 7] [--threads 2] [--kinds ngram-map-k ngram-mod]

- edit:  a configuration file again with one value changed: most of the answer stands in the prompt;
- code:  a Python file again, up to a function that is to be added; small models change more than they were asked to;
- prose: a free answer, in which n-grams seldom help and must not hurt.

One engine for each kind and one without, in one process, asked in turn round by round, without prefix caches. Printed are medians
of tokens per second of the answer, and medians of the ratios to the engine without drafts within a round. `--q4-0` makes a Q4_0
copy of the model first (in a temporary folder), whose prompts are computed faster in relation to single tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
from pathlib import Path

from localllm import ContextConfig, Engine, Generation, Request, SamplingParams, SpeculationConfig
from localllm.native.bindings import llama as llama_h
from localllm.native.library import load

FILE = """[server]
host = "127.0.0.1"
port = 8080
workers = 4
timeout_seconds = 30
max_body_bytes = 1048576
log_level = "info"
log_file = "/var/log/app/server.log"

[database]
url = "postgresql://app:secret@db.example.org:5432/app"
pool_size = 10
max_overflow = 20
pool_timeout_seconds = 15
echo = false

[cache]
backend = "redis"
url = "redis://cache.example.org:6379/0"
default_ttl_seconds = 600
prefix = "app:"

[mail]
host = "smtp.example.org"
port = 587
user = "mailer"
use_tls = true
from_address = "no-reply@example.org"
"""
EDIT = (
    f"Original file config.toml:\n\n```toml\n{FILE}```\n\nThe same file config.toml with port 9090:\n\n"
    '```toml\n[server]\nhost = "127.0.0.1"\nport = 9090\n'
)
CODE_FILE = '''def load_orders(path):
    """Reads the orders of a day."""
    orders = []
    with open(path) as file:
        for line in file:
            number, customer, amount = line.split(",")
            orders.append({"number": int(number), "customer": customer, "amount": float(amount)})
    return orders


def total(orders):
    """Adds up the amounts of all orders."""
    result = 0.0
    for order in orders:
        result += order["amount"]
    return result


def by_customer(orders):
    """Groups the orders by customer."""
    groups = {}
    for order in orders:
        groups.setdefault(order["customer"], []).append(order)
    return groups
'''
CODE = (
    "<|im_start|>user\nAdd a main function at the end of this file, and write the whole file again.\n\n"
    f"```python\n{CODE_FILE}```<|im_end|>\n<|im_start|>assistant\nHere is the whole file again:\n\n```python\n"
)
PROSE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nTell me about the history of the city of Rome.<|im_end|>\n<|im_start|>assistant\n"
)


def requantized(path: str, folder: str) -> str:
    """A Q4_0 copy."""
    native = load()
    params = native.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = llama_h.LLAMA_FTYPE_MOSTLY_Q4_0, True, 2
    copy = str(Path(folder) / "q4_0.gguf")
    if native.llama_model_quantize(path.encode(), copy.encode(), ctypes.byref(params)):
        raise SystemExit(f"{path} could not be quantised")
    return copy


def measure(path: str, kinds: list[str], n_match: int, n_rounds: int, n_threads: int) -> None:
    tasks = {"edit": (EDIT, ("```",), 400), "code": (CODE, ("```", "def main"), 400), "prose": (PROSE, (), 300)}
    engines = {
        kind: Engine(
            path,
            context=ContextConfig(
                n_ctx=2048,
                parallel=1,
                n_threads=n_threads,
                prefix_cache=False,
                speculation=SpeculationConfig(kind=kind, n_match=n_match) if kind != "none" else "none",
            ),
        )
        for kind in ["none", *kinds]
    }
    for task, (text, stop, max_tokens) in tasks.items():
        request = Request(
            prompt=tuple(engines["none"].model.tokenize(text, True, True)),
            max_tokens=max_tokens,
            stop=stop,
            sampling=SamplingParams(temperature=0),
        )
        rounds: list[dict[str, Generation]] = []
        for _ in range(n_rounds + 1):
            rounds.append({kind: engine.generate(request) for kind, engine in engines.items()})
        del rounds[0]  # warm-up
        for kind in engines:
            answers = [each[kind] for each in rounds]
            speeds = [speed(answer) for answer in answers]
            ratio = statistics.median(speed(each[kind]) / speed(each["none"]) for each in rounds)
            last, usage = answers[-1], answers[-1].usage
            same = "same text" if last.tokens == rounds[-1]["none"].tokens else "other text"
            print(
                f"{task:6s} {kind:14s} {statistics.median(speeds):7.1f} tokens/s   ratio {ratio:.2f}   "
                f"{usage.completion_tokens} tokens, drafted {usage.drafted_tokens}, right {usage.accepted_tokens}, {same}"
            )
    for engine in engines.values():
        engine.close()


def speed(answer: Generation) -> float:
    return (len(answer.tokens) - 1) / answer.timings.decode_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--q4-0", action="store_true", help="measure a Q4_0 copy of the model")
    parser.add_argument("--kinds", nargs="+", default=["ngram-map-k"])
    parser.add_argument("--n-match", type=int, default=SpeculationConfig().n_match)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = requantized(options.model, folder) if options.q4_0 else options.model
        measure(path, options.kinds, options.n_match, options.rounds, options.threads)


if __name__ == "__main__":
    main()
