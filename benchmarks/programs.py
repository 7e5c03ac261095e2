"""Starts the measured programs of children.py, asks them in turn, and reports medians and medians of ratios."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.engine.config import ModelConfig
from localllm.engine.params import model_params
from localllm.hub.resolve import resolve
from localllm.native.handles import Model
from localllm.native.library import find_library_dir, load

HERE = Path(__file__).parent


def arguments(doc: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help='a GGUF file, or "smollm2"')
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for every figure of every round")
    return parser


def peer_arguments(doc: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """The shared options, and the interpreters of the peers."""
    parser = arguments(doc, rounds)
    parser.add_argument("--peer-lcp", metavar="PYTHON", help="a python that has llama-cpp-python")
    parser.add_argument("--peer-xllamacpp", metavar="PYTHON", help="a python that has xllamacpp")
    return parser


def open_vocabulary(reference: str) -> Model:
    """A model's tokenizer, without its weights."""
    return Model(str(resolve(reference)), model_params(load(), ModelConfig(vocab_only=True)))


class Program:
    """A child process that answers orders."""

    def __init__(self, python: str, kind: str, setup: dict[str, Any], environment: dict[str, str] | None = None) -> None:
        # One way to wait for all: localllm sets this itself, and on a machine that is not idle it decides everything.
        variables = {"GOMP_SPINCOUNT": "1000", **os.environ, **(environment or {})}
        command = [python, str(HERE / "children.py"), kind, json.dumps(setup)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        self.kernels: str = self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured program ended early; its message is above")
        return json.loads(line)

    def ask(self, prompts: list[list[int]], n_tokens: int, **order: Any) -> dict[str, Any]:
        """Asks all prompts at once and checks that each answer has exactly `n_tokens` tokens."""
        assert self.process.stdin is not None
        print(json.dumps({"prompts": prompts, "n_tokens": n_tokens, **order}), file=self.process.stdin, flush=True)
        result: dict[str, Any] = self._read()
        lengths = [len(answer) for answer in result["answers"]]
        if lengths != [n_tokens] * len(prompts):
            raise SystemExit(f"{self.process.args!r} gave answers of {lengths} tokens, not of {n_tokens}")
        return result

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def running(options: argparse.Namespace, kinds: dict[str, dict[str, Any]], setup: dict[str, Any]) -> Iterator[dict[str, Program]]:
    """The programs of `kinds` (a name, and what its set-up has beyond `setup`) whose interpreters are given.

    A name is a kind of children.py, perhaps with more words after it: "localllm cold".
    """
    pythons = {
        "localllm": sys.executable,
        "bare": sys.executable,
        "llama-cpp-python": getattr(options, "peer_lcp", None),
        "xllamacpp": getattr(options, "peer_xllamacpp", None),
    }
    with contextlib.ExitStack() as stack:
        environment = {"LLAMA_CPP_LIB_PATH": stack.enter_context(tempfile.TemporaryDirectory())}
        _link_libraries(Path(environment["LLAMA_CPP_LIB_PATH"]))
        programs: dict[str, Program] = {}
        for name, more in kinds.items():
            kind = name.split()[0]
            if python := pythons[kind]:
                programs[name] = Program(python, kind, {"threads": options.threads, **setup, **more}, environment)
                stack.callback(programs[name].close)
                print(f"{name}: {programs[name].kernels}", file=sys.stderr)
        yield programs


def _link_libraries(folder: Path) -> None:
    """localllm's libraries by llama.cpp's names, so that llama-cpp-python runs on the same kernels.

    Under their own names as well: they find each other beside themselves.
    """
    for library in find_library_dir().glob("*localllm-*"):
        (folder / library.name).symlink_to(library.resolve())
        (folder / library.name.replace("localllm-", "")).symlink_to(library.resolve())


def in_turn(programs: dict[str, Program], round_number: int) -> list[str]:
    """The order of one round: everybody is first once."""
    names = list(programs)
    start = round_number % len(names)
    return names[start:] + names[:start]


@dataclass
class Figures:
    """What was measured: by case, program and quantity, one value per round."""

    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, case: str, program: str, **quantities: float | None) -> None:
        for name, value in quantities.items():
            if value is not None:
                self.values.setdefault(case, {}).setdefault(program, {}).setdefault(name, []).append(value)

    def ratio(self, case: str, program: str, other: str, quantity: str) -> float:
        """The median over the rounds of the ratio within a round."""
        ones, others = self.values[case][program][quantity], self.values[case][other][quantity]
        return statistics.median(one / two for one, two in zip(ones, others, strict=True))

    def print(self, quantities: dict[str, str], base: str) -> None:
        """One table in Markdown: medians with their extremes, and the median ratios of `base` to each program.

        Args:
            quantities: the name of each quantity to show, and the head of its column.
            base: the program that is set in relation to the others.
        """
        heads = ["case", "program"]
        for title in quantities.values():
            heads += [title, f"{base} / it"]
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
        for case, programs in self.values.items():
            for program in sorted(programs, key=lambda name: name != base):
                values, cells = programs[program], [case, program]
                for quantity in quantities:
                    series = values.get(quantity, [])
                    related = series and program != base and quantity in programs.get(base, {})
                    cells += [_summary(series), f"{self.ratio(case, base, program, quantity):.3f}" if related else ""]
                print("| " + " | ".join(cells) + " |")

    def write(self, path: Path | None, options: argparse.Namespace) -> None:
        """All values as JSON, with the options they were measured with."""
        if path:
            facts = {"options": {key: str(value) for key, value in vars(options).items()}, "build": build()}
            path.write_text(json.dumps({**facts, "values": self.values}, indent=1) + "\n")


def build() -> Any:
    return load().json_call("lm_build_info")


def _summary(series: list[float]) -> str:
    if not series:
        return ""
    figures = statistics.median(series), min(series), max(series)
    middle, low, high = (f"{value:.0f}" if value >= 1000 else f"{value:.3g}" for value in figures)
    return middle if low == high else f"{middle} ({low} to {high})"
