"""A long prompt that another process has computed: time to first token from the disk tier against computing it again.

    python benchmarks/restart.py [MODEL] [--prompt 1500] [--rounds 5] [--json FILE]

Each round has a text and an empty `cache_dir` of its own, and three processes, one after another:

- write:     computes the prompt, and ends when its state is on disk;
- restored:  asks the same, with the same `cache_dir`;
- recompute: asks the same, without one.

Both of the latter have answered a short request before, so that the weights are in memory. The file has just been written: it
comes from the operating system's page cache, not from the disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import texts
from programs import Figures, arguments, open_vocabulary

from localllm import ContextConfig, Delta, Engine, Request, SamplingParams
from localllm.hub.resolve import resolve

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def measure(engine: Engine, prompt: list[int]) -> dict[str, float]:
    begin, first = time.perf_counter(), 0.0
    before = engine.stats().computed_tokens
    for event in engine.stream(Request(prompt=tuple(prompt), max_tokens=8, sampling=GREEDY)):
        if isinstance(event, Delta):
            first = first or time.perf_counter() - begin
    return {"first": first, "seconds": time.perf_counter() - begin, "computed": engine.stats().computed_tokens - before - 7}


def wait_for_files(engine: Engine, folder: Path) -> float:
    """Until nothing is left to be written; returns the size of all files."""
    while engine._core.residents.next_to_store() is not None:
        time.sleep(0.05)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def child(role: str, order: dict[str, Any]) -> dict[str, float]:
    begin = time.perf_counter()
    folder = "" if role == "recompute" else order["cache_dir"]
    config = ContextConfig(n_ctx=4096, parallel=2, n_threads=order["threads"], cache_dir=folder)
    with Engine(order["model"], context=config) as engine:
        loaded = time.perf_counter() - begin
        if role != "write":
            measure(engine, order["warm_up"])
        result = measure(engine, order["prompt"])
        if role == "write":
            result["mebibytes"] = wait_for_files(engine, Path(folder)) / 2**20
    return {**result, "load": loaded}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--prompt", type=int, default=1500, help="tokens")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, json.load(sys.stdin))))
        return
    vocabulary = open_vocabulary(options.model)
    figures = Figures()
    for at in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            order = {
                "model": str(resolve(options.model)),
                "threads": options.threads,
                "cache_dir": folder,
                "warm_up": texts.tokens(vocabulary, 1000 + at, 24),
                "prompt": texts.tokens(vocabulary, at, options.prompt),
            }
            for role in ("write", "restored", "recompute"):
                command = [sys.executable, __file__, "--child", role]
                done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(f"{role} failed:\n{done.stderr}")
                figures.add("restart", role, **json.loads(done.stdout))
    titles = {
        "first": "seconds to the first token",
        "computed": "prompt tokens computed",
        "load": "seconds to load the model and open the cache",
        "mebibytes": "MiB on disk",
    }
    figures.print(titles, base="restored")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
