"""How much of a long streamed answer goes into reading it: text, thoughts, data and calls, as tokens come one by one.

    python benchmarks/parsing.py [MODEL] [--tokens 4000] [--rounds 3] [--threads 2] [--json FILE]

The share is the time within AnswerReader, which asks llama.cpp's parser, of the time of the whole answer. The templates are those
of families whose answers have to be parsed; the model is whichever is given, and grammars see to it that it goes on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from programs import Figures, arguments

from localllm import LocalModel
from localllm.chat.answer import AnswerReader

TEMPLATES = Path(__file__).parents[1] / "vendor" / "llama.cpp" / "models" / "templates"
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 2000}
TOOL = {
    "type": "function",
    "function": {
        "name": "keep",
        "description": "Keeps a list of words.",
        "parameters": {"type": "object", "properties": {"words": WORDS}, "required": ["words"], "additionalProperties": False},
    },
}
# What is asked for, and with which family's template.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text beside tools": ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"tools": [TOOL], "ignore_eos": True}),
    "a thought": ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"ignore_eos": True}),
    "data": ("Qwen-Qwen3-0.6B", {"json_schema": WORDS}),
    "a call": ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"tools": [TOOL], "tool_choice": "required"}),
}


class Watched(AnswerReader):
    """An AnswerReader that notes how long it takes."""

    seconds = 0.0

    def take(self, event: Any) -> Any:
        begin = time.perf_counter()
        try:
            return super().take(event)
        finally:
            Watched.seconds += time.perf_counter() - begin


def measure(model: LocalModel, n_tokens: int, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds of reading and of the whole of an answer."""
    import localllm.models as models

    models.AnswerReader, before = Watched, models.AnswerReader
    Watched.seconds = 0.0
    begin = time.perf_counter()
    try:
        question = [{"role": "user", "content": "Write down all words that you know."}]
        last = list(model.stream_chat(question, max_tokens=n_tokens, temperature=0.8, seed=1, **options))[-1]
    finally:
        models.AnswerReader = before
    assert last.usage is not None
    if last.usage.completion_tokens != n_tokens:
        raise SystemExit(f"the answer has {last.usage.completion_tokens} tokens, not {n_tokens}")
    return Watched.seconds, time.perf_counter() - begin


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--tokens", type=int, default=4000)
    options = parser.parse_args()
    figures = Figures()
    for _ in range(options.rounds):
        for name, (family, asked) in CASES.items():
            template = (TEMPLATES / f"{family}.jinja").read_text()
            with LocalModel(
                options.model, chat_template=template, n_ctx=options.tokens + 2048, n_threads=options.threads
            ) as model:
                reading, whole = measure(model, options.tokens, asked)
            figures.add(name, "localllm", percent=100 * reading / whole, milliseconds=1e3 * reading)
    figures.print({"percent": "per cent of the answer's time", "milliseconds": "milliseconds of it"}, base="localllm")
    figures.write(options.json, options)


if __name__ == "__main__":
    main()
