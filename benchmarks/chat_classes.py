"""LangChain's chat classes: what ours costs over the engine, and 40 answers that are awaited together.

    python benchmarks/chat_classes.py [MODEL] [--tokens 64] [--parallel 8] [--threads 2] [--rounds 31] [--json FILE]

- overhead: tokens per second of ChatLocalLLM.stream and of engine.stream, one stream of each in every round, in turn; the same
  prompt, which both find in the prefix cache.
- together: 40 ainvokes at once: batches decoded, answers in each of them, and how late a coroutine comes round meanwhile that
  sleeps for a millisecond again and again.
- references: the same of ChatOllama over a server, and of ChatLlamaCpp over a module, which wait for 10 ms for each of 16 tokens
  and do nothing else. What is told is how many calls they let be under way. Each is left out if it is not installed
  (pip install langchain-ollama langchain-community).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_localllm import ChatLocalLLM
from loops import print_stalls, stalls
from programs import arguments

from localllm.engine.request import Finished, Request, SamplingParams

QUESTION = "Tell me about the sea."
N_CALLS = 40
N_STUB_TOKENS = 16
STUB_SECONDS = 0.01


# ---- overhead


def overhead(llm: ChatLocalLLM, n_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second in each round, by the class and by the engine under it."""
    model = llm.local_model
    prompt = tuple(model.tokenize(model.render([{"role": "user", "content": QUESTION}]), add_special=False, parse_special=True))
    request = Request(prompt=prompt, sampling=SamplingParams(temperature=0, ignore_eos=True), max_tokens=n_tokens)

    def by_class() -> int:
        usage: Any = None
        for chunk in llm.stream(QUESTION, max_tokens=n_tokens, ignore_eos=True):
            usage = chunk.usage_metadata or usage
        return int(usage["output_tokens"])

    def by_engine() -> int:
        *_, last = model.engine.stream(request)
        assert isinstance(last, Finished)
        return last.usage.completion_tokens

    ways = {"ChatLocalLLM.stream": by_class, "engine.stream": by_engine}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else reversed(list(ways)):
            start = time.perf_counter()
            n = ways[name]()
            if n != n_tokens:
                raise SystemExit(f"{name} gave {n} tokens, not {n_tokens}")
            if number:  # the first round loads the model and fills the prefix cache
                rates[name].append(n / (time.perf_counter() - start))
    return rates


# ---- together


async def forty(llm: BaseChatModel) -> None:
    await asyncio.gather(*(llm.ainvoke(f"{QUESTION} {number}") for number in range(N_CALLS)))


async def together(llm: ChatLocalLLM, n_tokens: int) -> dict[str, Any]:
    engine = llm.local_model.engine
    bound = llm.model_copy(update={"max_tokens": n_tokens, "sampling": {"ignore_eos": True}})
    idle = await stalls(lambda: asyncio.sleep(1))
    before = engine.stats().n_steps
    late = await stalls(lambda: forty(bound))
    n_steps = engine.stats().n_steps - before
    return {"n_steps": n_steps, "answers_in_a_batch": N_CALLS * n_tokens / n_steps, "idle": idle, "late": late}


# ---- references


class UnderWay:
    """Counts calls that are under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def stub_module(under_way: UnderWay) -> types.ModuleType:
    """A module `llama_cpp` as far as ChatLlamaCpp needs one."""

    class Llama:
        def __init__(self, model_path: str, **_: Any) -> None:
            pass

        def create_chat_completion(self, **_: Any) -> Iterator[dict[str, Any]]:
            with under_way:
                for number in range(N_STUB_TOKENS):
                    time.sleep(STUB_SECONDS)
                    end = "stop" if number == N_STUB_TOKENS - 1 else None
                    yield {"id": "1", "choices": [{"index": 0, "delta": {"content": "sea "}, "finish_reason": end}]}

    module = types.ModuleType("llama_cpp")
    vars(module).update(Llama=Llama, LlamaGrammar=object)
    return module


def serve() -> None:
    """A server as far as ChatOllama needs one; prints its port, and at the end of its input how many calls were under way."""
    under_way = UnderWay()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.end_headers()
            with under_way:
                for number in range(N_STUB_TOKENS):
                    time.sleep(STUB_SECONDS)
                    done = number == N_STUB_TOKENS - 1
                    item = {"model": "stub", "message": {"role": "assistant", "content": "sea "}, "done": done}
                    self.wfile.write(json.dumps({**item, **({"done_reason": "stop"} if done else {})}).encode() + b"\n")
                    self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 100

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    print(under_way.most, flush=True)


def ollama() -> dict[str, Any]:
    from langchain_ollama import ChatOllama

    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        llm = ChatOllama(model="stub", base_url=f"http://127.0.0.1:{process.stdout.readline().strip()}")
        late = asyncio.run(stalls(lambda: forty(llm)))
        process.stdin.close()
        return {"most": int(process.stdout.readline()), "late": late}


def llama_cpp() -> dict[str, Any]:
    from langchain_community.chat_models import ChatLlamaCpp

    under_way = UnderWay()
    sys.modules["llama_cpp"] = stub_module(under_way)
    llm = ChatLlamaCpp(model_path="stub")
    late = asyncio.run(stalls(lambda: forty(llm)))
    return {"most": under_way.most, "late": late}


def references() -> dict[str, dict[str, Any]]:
    made = {"ChatOllama": ("langchain_ollama", ollama), "ChatLlamaCpp": ("langchain_community", llama_cpp)}
    return {name: measure() for name, (module, measure) in made.items() if importlib.util.find_spec(module)}


def main() -> None:
    parser = arguments(__doc__, rounds=31)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream; of each of the 40 answers a quarter")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help="what this program starts itself with")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    llm = ChatLocalLLM(model=options.model, temperature=0, n_threads=options.threads, parallel=options.parallel)
    with contextlib.closing(llm):
        rates = overhead(llm, options.tokens, options.rounds)
        figures: dict[str, Any] = {"rates": rates, "together": asyncio.run(together(llm, options.tokens // 4))}
    figures["references"] = references()
    for name, each in rates.items():
        print(f"{name:22} {statistics.median(each):7.1f} tokens/s ({min(each):.1f} to {max(each):.1f})")
    ratios = [ours / engine for ours, engine in zip(*rates.values(), strict=True)]
    print(f"{'ratio':22} {statistics.median(ratios):7.3f}          ({min(ratios):.3f} to {max(ratios):.3f})")
    ours = figures["together"]
    print(f"{N_CALLS} ainvokes: {ours['n_steps']} batches, {ours['answers_in_a_batch']:.1f} answers in each")
    for name, each in figures["references"].items():
        print(f"{N_CALLS} ainvokes of {name} over a stub: {each['most']} under way at most")
    late = {"ChatLocalLLM, nothing else to do": ours["idle"], f"ChatLocalLLM, {N_CALLS} ainvokes": ours["late"]}
    print_stalls({**late, **{f"{name} over a stub": each["late"] for name, each in figures["references"].items()}})
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
