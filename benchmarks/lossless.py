"""Whether speculation leaves the text as it is: greedy answers of quantised models, plain and guessed ahead, alone and together.

    python benchmarks/lossless.py [MODEL] [--types Q4_0 Q4_1 Q8_0] [--type-v f16 bf16] [--kinds ...] [--tokens 128]
    python benchmarks/lossless.py [MODEL] [--types ...] [--type-v ...] --rows | --cost

The model is written in each type. Plain decoding of one text after another is what everything is held against: plain decoding of
four texts at once, prompts computed in pieces of 32 tokens, and each kind of draft, alone and for four texts at once, without the
throttle. Printed are how many texts part, at which of their tokens, and how far apart in log-probability the two best tokens were
there in plain decoding. `--rows` shows instead by how much logits differ between tokens that are decoded one by one and together,
`--cost` how fast the bare loop is with each type of the cache, in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from pruned_draft import NGRAMS, drafts, write_type
from texts import WORDS

from localllm import LocalModel, SpeculationConfig
from localllm.engine.batch import Batch
from localllm.engine.config import ContextConfig, ModelConfig, SpeculationKind
from localllm.engine.params import context_params, model_params
from localllm.engine.request import Generation
from localllm.hub.resolve import resolve
from localllm.native.handles import Context, Model
from localllm.native.library import load

N_CTX, TOGETHER = 6144, 4
# Shorter and longer than what llama.cpp's attention shares out among its threads (from 257 cells on).
PREFIXES = (100, 700)
ROWS = (2, 4, 8, 33, 80)
COST_PROMPTS, ANSWER_TOKENS = (64, 512, 2048), 65
QUESTIONS = (
    "Why is the sky blue?",
    "Tell a story about a lighthouse.",
    "How does a sailing ship go against the wind?",
    "What is bread made of?",
    "Write a poem about winter.",
    "Explain what a prime number is.",
    "Name ten rivers of Europe.",
    "How do bees make honey?",
)


def prompts() -> list[str]:
    """24 texts: questions, files to write again with one change, and tables to sort; the longest have about 500 tokens."""
    asked = list(QUESTIONS)
    for at in range(8):
        random, n_lines = Random(at), 4 + 5 * at
        lines = [f"{random.choice(WORDS)}_{line} = {random.randrange(1000)}" for line in range(n_lines)]
        asked.append("Write this file again, with 7 for the first value:\n\n```toml\n" + "\n".join(lines) + "\n```")
        rows = [f"| {random.choice(WORDS)} | {random.randrange(100, 1000)} |" for _ in range(4 + 3 * at)]
        asked.append("Sort this table by number:\n\n| name | number |\n|---|---|\n" + "\n".join(rows))
    return asked


@dataclass(frozen=True)
class Parting:
    """Where a text leaves that of plain decoding.

    Attributes:
        token: int, its place in the answer, from 0.
        gap: float, by which the log-probabilities of the two best tokens differed there in plain decoding.
    """

    token: int
    gap: float


def parting(plain: Generation, other: Generation) -> Parting | None:
    """Where two answers part, if they do."""
    for at, (one, two) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
        if one != two:
            best, second = plain.logprobs[at].top[:2]
            return Parting(at, best.logprob - second.logprob)
    return None


def answers(path: Path, texts: Sequence[str], n_tokens: int, **options: Any) -> list[Generation]:
    """Greedy answers, as many at a time as the model computes together."""
    n = options.setdefault("parallel", 1)
    with LocalModel(path, n_ctx=N_CTX, prefix_cache=False, **options) as model:
        asked = [model.render([{"role": "user", "content": text}]) for text in texts]
        groups = [asked[start : start + n] for start in range(0, len(asked), n)]
        found = [model.complete_all(group, max_tokens=n_tokens, temperature=0, n_probs=2, logprobs=True) for group in groups]
    return [one for group in found for one in group]


def ways(draft: Path, kinds: Sequence[SpeculationKind]) -> dict[str, dict[str, Any]]:
    """Options of a LocalModel by what they try."""
    found: dict[str, dict[str, Any]] = {
        f"plain, {TOGETHER} at once": {"parallel": TOGETHER},
        "plain, prompts in pieces": {"n_batch": 32, "n_ubatch": 32},
    }
    for kind in kinds:
        speculation = SpeculationConfig(kind=kind, draft=str(draft) if kind == "draft-simple" else "", throttle=False)
        found[kind] = {"speculation": speculation}
        found[f"{kind}, {TOGETHER} at once"] = {"speculation": speculation, "parallel": TOGETHER}
    return found


def line(name: str, plain: Sequence[Generation], found: Sequence[Generation]) -> str:
    """A row of the table."""
    parted = [one for one in map(parting, plain, found) if one is not None]
    drafted = sum(one.usage.drafted_tokens for one in found)
    share = f"{sum(one.usage.accepted_tokens for one in found) / drafted:.0%} of {drafted}" if drafted else ""
    if not parted:
        return f"| {name} | 0 of {len(plain)} | | | {share} |"
    places, gaps = [one.token for one in parted], [one.gap for one in parted]
    return (
        f"| {name} | {len(parted)} of {len(plain)} | {statistics.median(places):.0f} ({min(places)} to {max(places)}) "
        f"| {statistics.median(gaps):.3f} ({min(gaps):.3f} to {max(gaps):.3f}) | {share} |"
    )


def texts_table(files: dict[str, Path], draft: Path, options: argparse.Namespace) -> None:
    texts = prompts()[: options.prompts]
    print("| model | parted | at token | gap of the two best | drafts right |\n" + "|---" * 5 + "|")
    for name, path in files.items():
        for type_v in options.type_v:
            common = {"type_v": type_v, "n_threads": options.threads}
            plain = answers(path, texts, options.tokens, **common)
            for way, more in ways(draft, options.kinds).items():
                found = answers(path, texts, options.tokens, **common, **more)
                print(line(f"{name}, type_v={type_v}: {way}", plain, found), flush=True)


# ---- logits of rows


class Rows:
    """A context that decodes the same tokens of one sequence again and again, more or fewer of them at a time.

    Args:
        path: the model's file.
        context: ContextConfig.
        model: ModelConfig.
    """

    def __init__(self, path: Path, context: ContextConfig, model: ModelConfig) -> None:
        self.native = load()
        self.model = Model(str(path), model_params(self.native, model))
        self.context = Context(self.model, context_params(self.native, context, 0))
        self.n_vocab: int = self.native.llama_vocab_n_tokens(self.model.vocab)

    def decode(self, tokens: Sequence[int], position: int) -> np.ndarray[Any, Any]:
        """Logits of each of some tokens: float32 [token, vocabulary]."""
        batch = Batch(len(tokens), output=True)
        batch.n_tokens = batch.put(0, tokens, position, 0)
        self.native.check(self.native.lm_decode(self.context.pointer, batch.reference))
        get = self.native.llama_get_logits_ith
        return np.stack(
            [np.ctypeslib.as_array(get(self.context.pointer, at), (self.n_vocab,)).copy() for at in range(len(tokens))]
        )

    def differences(self, tokens: Sequence[int], n_prefix: int, rows: Sequence[int]) -> list[float]:
        """The largest difference of a logit between tokens that are decoded one by one and so many together.

        Args:
            tokens: ids, more than `n_prefix` and the most rows.
            n_prefix: int, tokens before them, which are decoded first.
            rows: numbers of tokens in a batch.
        """
        self.native.llama_memory_seq_rm(self.context.memory, 0, 0, -1)
        self.decode(tokens[:n_prefix], 0)
        single = np.concatenate([self.decode(tokens[at : at + 1], at) for at in range(n_prefix, n_prefix + max(rows))])
        found = []
        for n in rows:
            assert self.native.llama_memory_seq_rm(self.context.memory, 0, n_prefix, -1)
            together = self.decode(tokens[n_prefix : n_prefix + n], n_prefix)
            found.append(float(np.abs(together - single[:n]).max()))
        return found

    def close(self) -> None:
        self.context.close()
        self.model.close()


def rows_table(files: dict[str, Path], options: argparse.Namespace) -> None:
    print("| model | repacked | type_v | threads | cells before | " + " | ".join(f"{n} rows" for n in ROWS) + " |")
    print("|---" * (5 + len(ROWS)) + "|")
    for name, path in files.items():
        for repacked in (True, False):
            for type_v in options.type_v:
                context = ContextConfig(n_ctx=1024, parallel=1, n_threads=options.threads, type_v=type_v)
                rows = Rows(path, context, ModelConfig(use_extra_buffers=repacked))
                tokens = rows.model.tokenize(" ".join(Random(0).choices(WORDS, k=1024)), True, False)
                for n_prefix in PREFIXES:
                    found = rows.differences(tokens, n_prefix, ROWS)
                    cells = " | ".join(f"{one:.2g}" for one in found)
                    print(f"| {name} | {repacked} | {type_v} | {options.threads} | {n_prefix} | {cells} |", flush=True)
                rows.close()


# ---- what it costs


def speeds(context: Context, n_prompt: int) -> tuple[float, float]:
    """Tokens per second of a prompt, and of an answer to it."""
    prompt = (ctypes.c_int32 * n_prompt)(*(300 + at * 7 % 2000 for at in range(n_prompt)))
    answer, prefill, decode = (ctypes.c_int32 * ANSWER_TOKENS)(), ctypes.c_double(), ctypes.c_double()
    arguments = (context.pointer, prompt, n_prompt, ANSWER_TOKENS, answer, ctypes.byref(prefill), ctypes.byref(decode))
    load().check(load().lm_bench_loop(*arguments))
    return n_prompt / prefill.value, (ANSWER_TOKENS - 1) / decode.value


def cost_table(files: dict[str, Path], options: argparse.Namespace) -> None:
    base, *others = options.type_v
    print(
        f"| model | type_v | prompt | prefill, tokens/s | ratio to {base} | decode, tokens/s | ratio to {base} |\n"
        + "|---" * 7
        + "|"
    )
    for name, path in files.items():
        model = Model(str(path), model_params(load(), ModelConfig()))
        configs = {kind: ContextConfig(n_ctx=4096, parallel=1, n_threads=options.threads, type_v=kind) for kind in options.type_v}
        contexts = {kind: Context(model, context_params(load(), config, 0)) for kind, config in configs.items()}
        for n_prompt in COST_PROMPTS:
            # The first round is for the buffers.
            rounds = [{kind: speeds(one, n_prompt) for kind, one in contexts.items()} for _ in range(options.rounds + 1)][1:]
            for kind in (base, *others):
                cells = []
                for at in range(2):
                    cells.append(f"{statistics.median(one[kind][at] for one in rounds):.1f}")
                    cells.append(f"{statistics.median(one[kind][at] / one[base][at] for one in rounds):.2f}")
                print(f"| {name} | {kind} | {n_prompt} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help='a GGUF file, or "smollm2"')
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q4_1", "Q8_0"])
    parser.add_argument("--type-v", nargs="+", default=["f16", "bf16"], help="of the cache; see README.md")
    parser.add_argument("--kinds", nargs="+", default=[*NGRAMS, "draft-simple"])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=int, default=6, help="blocks of the draft for draft-simple")
    parser.add_argument("--rounds", type=int, default=7, help="of --cost")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    source = resolve(options.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {type_name: folder / f"{type_name}.gguf" for type_name in options.types}
        for type_name, path in files.items():
            write_type(source, path, type_name)
        if options.rows:
            rows_table(files, options)
        elif options.cost:
            cost_table(files, options)
        else:
            texts_table(files, drafts(source, folder, [options.keep], "Q4_0")[options.keep], options)


if __name__ == "__main__":
    main()
