"""The speed that is expected of a model, from its header and rates of this machine, against the speed that is measured.

    python benchmarks/rates.py MODEL.gguf [--types Q4_0,Q8_0] [--rounds 7] [--threads 2] [--json FILE]

The model itself and versions of it in other types, written into a temporary folder. Each round takes them in turn: the rates of
the types that one is made of, its prefill and decode by the bare loop (`lm_bench_loop`), and the rates once more, so that all of
it comes from the same seconds; expected is the mean of what both say. Printed are medians over the rounds, and how busy other
programs have kept the machine meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.params import context_params, model_params
from localllm.hub.gguf import Header, read_header
from localllm.hub.speed import Rates, TypeRate, expected
from localllm.machine import others_seconds
from localllm.native.handles import Context, Model
from localllm.native.library import load

PROMPT_TOKENS, ANSWER_TOKENS = 512, 33
NEAR_TOKENS = 16


class Version:
    """One model, loaded."""

    def __init__(self, path: Path, threads: int) -> None:
        self.header: Header = read_header(path)
        self.model = Model(str(path), model_params(load(), ModelConfig(n_gpu_layers=0)))
        config = ContextConfig(n_ctx=1024, n_threads=threads, parallel=1)
        self.context = Context(self.model, context_params(load(), config, 0))

    def measure(self, n_prompt: int) -> tuple[float, float]:
        """Tokens per second of prompt and answer."""
        prompt = (ctypes.c_int32 * n_prompt)(*(300 + at * 7 % 2000 for at in range(n_prompt)))
        answer = (ctypes.c_int32 * ANSWER_TOKENS)()
        prefill, decode = ctypes.c_double(), ctypes.c_double()
        arguments = (self.context.pointer, prompt, n_prompt, ANSWER_TOKENS, answer, ctypes.byref(prefill), ctypes.byref(decode))
        load().check(load().lm_bench_loop(*arguments))
        return n_prompt / prefill.value, (ANSWER_TOKENS - 1) / decode.value


def measured_rates(names: list[str], threads: int) -> Rates:
    native = load()
    found = [native.json_call("lm_speed_matrix", name.encode(), threads) for name in names]
    types = [TypeRate(one["type"], one["repacked"], one["flops_per_second"], one["bytes_per_second"]) for one in found]
    return Rates(types=tuple(types), n_threads=threads, **native.json_call("lm_speed_layer", threads))


def one_round(versions: dict[str, Version], threads: int) -> dict[str, dict[str, float]]:
    known = {entry["type"] for entry in load().json_call("lm_speed_types")}
    found = {}
    for name, version in versions.items():
        types = sorted(known & {tensor.type for tensor in version.header.tensors})
        before = measured_rates(types, threads)
        prefill, decode = version.measure(PROMPT_TOKENS)
        _, decode_near = version.measure(NEAR_TOKENS)
        said = [expectation(version.header, rates) for rates in (before, measured_rates(types, threads))]
        found[name] = {
            "prefill": prefill,
            "decode": decode,
            "short decode": decode_near,
            **{f"{what} expected": statistics.mean(one[what] for one in said) for what in said[0]},
        }
    return found


def expectation(header: Header, rates: Rates) -> dict[str, float]:
    speed, near = (expected(header, rates, n_tokens=n_tokens) for n_tokens in (PROMPT_TOKENS, NEAR_TOKENS))
    return {
        "prefill": speed.prefill_tokens_per_second,
        "decode": speed.decode_tokens_per_second,
        "short decode": near.decode_tokens_per_second,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", default="Q4_0,Q8_0", help="mixtures to write the model in, too")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {read_header(options.model).quantization: options.model}
        for name in filter(None, options.types.split(",")):
            paths[name] = Path(folder) / f"{name}.gguf"
            arguments = (os.fsencode(options.model), os.fsencode(paths[name]), name.encode(), options.threads, b"{}", None)
            load().check(load().lm_quantize(*arguments))
        versions = {name: Version(path, options.threads) for name, path in paths.items()}
        one_round(versions, options.threads)
        rounds: list[dict[str, Any]] = []
        for _ in range(options.rounds):
            before, start = others_seconds(), os.times().elapsed
            figures = one_round(versions, options.threads)
            rounds.append({"others": (others_seconds() - before) / (os.times().elapsed - start), **figures})
    report(list(versions), rounds)
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1) + "\n")


def report(names: list[str], rounds: list[dict[str, Any]]) -> None:
    others = [one["others"] for one in rounds]
    print(f"other programs kept {statistics.median(others):.2f} CPUs busy ({min(others):.2f} to {max(others):.2f})")
    print(f"{'':22s}{'measured':>10s}{'expected':>10s}{'expected / measured, by medians and by round':>50s}")
    for name in names:
        for what in ("prefill", "decode", "short decode"):
            real = [one[name][what] for one in rounds]
            said = [one[name][f"{what} expected"] for one in rounds]
            ratios = [one / other for one, other in zip(said, real, strict=True)]
            middle, middle_said = statistics.median(real), statistics.median(said)
            print(f"{name:8s}{what:14s}{middle:10.1f}{middle_said:10.1f}{middle_said / middle:12.2f}", end="")
            print(f"     {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
