"""The measured programs. Each runs in a process of its own, by whatever interpreter has its packages:

    PYTHON benchmarks/children.py KIND '{"model": ..., "n_ctx": ..., "parallel": ..., "threads": ..., "prefix_cache": ...}'

It says what its kernels were compiled for. Then it answers each line on standard input, an order {"prompts": [[token ids]],
"n_tokens", "cache", "stream", "boundaries"}, with a line of JSON: seconds until the last token of all answers ("seconds"),
seconds to the first token of each ("first"), prompt tokens computed ("computed"), and the tokens of each answer ("answers"). All
prompts of an order arrive together.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Ask = Callable[[dict[str, Any]], dict[str, Any]]
Measured = tuple[Ask, str]


def localllm(setup: dict[str, Any]) -> Measured:
    """localllm's engine."""
    import queue

    from localllm import ContextConfig, Delta, Engine, Request, SamplingParams
    from localllm.engine.request import Failed

    engine = Engine(
        setup["model"],
        context=ContextConfig(
            n_ctx=setup["n_ctx"],
            parallel=setup["parallel"],
            n_threads=setup["threads"],
            prefix_cache=setup.get("prefix_cache", True),
        ),
    )
    greedy = SamplingParams(temperature=0, ignore_eos=True)

    def ask(order: dict[str, Any]) -> dict[str, Any]:
        before = engine.stats().computed_tokens
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        begin = time.perf_counter()
        for at, prompt in enumerate(order["prompts"]):
            request = Request(
                prompt=tuple(prompt),
                max_tokens=order["n_tokens"],
                sampling=greedy,
                boundaries=tuple(order.get("boundaries", ())),
            )
            engine.submit(request, lambda event, at=at: events.put((at, event, time.perf_counter())))
        answers: list[list[int]] = [[] for _ in order["prompts"]]
        first = [0.0] * len(answers)
        n_open = len(answers)
        last = begin
        while n_open:
            at, event, now = events.get()
            if isinstance(event, Delta):
                last = now
                first[at] = first[at] or now - begin
                answers[at].extend(event.tokens)
            elif isinstance(event, Failed):
                raise event.error
            else:
                n_open -= 1
        # The last token of an answer is never computed.
        n_decoded = sum(len(answer) - 1 for answer in answers)
        computed = engine.stats().computed_tokens - before - n_decoded
        return {"seconds": last - begin, "first": first, "computed": computed, "answers": answers}

    return ask, engine.model.native.json_call("lm_build_info")["system_info"]


def bare(setup: dict[str, Any]) -> Measured:
    """No engine: all prompts in batches of n_batch tokens, then one batch per step with a token of every sequence."""
    from bare import BatchedLoop

    loop = BatchedLoop(setup["model"], setup["n_ctx"], setup["parallel"], setup["threads"])
    return loop.ask, loop.native.json_call("lm_build_info")["system_info"]


def llama_cpp_python(setup: dict[str, Any]) -> Measured:
    """llama-cpp-python's Llama.generate, one request after another."""
    import llama_cpp

    # Flash attention as llama.cpp (and all the others) choose by default; batches of the others' size.
    program = llama_cpp.Llama(
        setup["model"],
        n_ctx=setup["n_ctx"],
        n_batch=2048,
        n_threads=setup["threads"],
        n_threads_batch=setup["threads"],
        flash_attn=True,
        verbose=False,
    )
    counted, evaluate = [0], program.eval

    def counting(tokens: Any) -> None:
        counted[0] += len(tokens)
        evaluate(tokens)

    program.eval = counting

    def ask(order: dict[str, Any]) -> dict[str, Any]:
        counted[0] = 0
        answers, first = [], []
        begin = time.perf_counter()
        for prompt in order["prompts"]:
            if not order.get("cache", True):
                program.reset()
            answer: list[int] = []
            # It does not stop at an end-of-generation token; whoever takes its tokens does.
            for token in program.generate(prompt, temp=0, top_k=1):
                if not answer:
                    first.append(time.perf_counter() - begin)
                answer.append(token)
                if len(answer) == order["n_tokens"]:
                    break
            answers.append(answer)
        seconds = time.perf_counter() - begin
        computed = counted[0] - sum(len(answer) - 1 for answer in answers)
        return {"seconds": seconds, "first": first, "computed": computed, "answers": answers}

    return ask, llama_cpp.llama_print_system_info().decode()


def xllamacpp(setup: dict[str, Any]) -> Measured:
    """llama-server inside the process, asked over HTTP, with a thread and a connection per request."""
    import http.client
    import threading

    import xllamacpp as package

    params = package.CommonParams()
    params.model.path = setup["model"]
    params.n_ctx, params.n_parallel = setup["n_ctx"], setup["parallel"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup["threads"]
    params.kv_unified = True
    params.fit_params = False  # takes n_ctx as it is
    params.verbosity = 1
    server = package.Server(params)
    host = server.listening_address.removeprefix("http://")
    # The cheapest greedy choice that it has.
    fixed = {"temperature": 0, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "return_tokens": True}

    def complete(body: dict[str, Any], result: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection(host)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            result["error"] = response.read().decode(errors="replace")
        elif body["stream"]:
            for line in response:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    result.setdefault("first", time.perf_counter())
                    result.setdefault("tokens", []).extend(event["tokens"])
                    result["timings"] = event.get("timings")
        else:
            result.update(json.loads(response.read()))
        result["last"] = time.perf_counter()
        connection.close()

    # The server stops when nobody holds it.
    def ask(order: dict[str, Any], server: Any = server) -> dict[str, Any]:
        results: list[dict[str, Any]] = [{} for _ in order["prompts"]]
        shared = {
            **fixed,
            "n_predict": order["n_tokens"],
            "cache_prompt": order.get("cache", True),
            "stream": order.get("stream", True),
        }
        threads = [
            threading.Thread(target=complete, args=({**shared, "prompt": prompt}, result))
            for prompt, result in zip(order["prompts"], results, strict=True)
        ]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if "error" in result:
                raise SystemExit(f"xllamacpp: {result['error']}")
        return {
            "seconds": max(result["last"] for result in results) - begin,
            "first": [result.get("first", result["last"]) - begin for result in results],
            "computed": sum(result["timings"]["prompt_n"] for result in results),
            "answers": [result["tokens"] for result in results],
        }

    return ask, package.get_system_info()


KINDS: dict[str, Callable[[dict[str, Any]], Measured]] = {
    "localllm": localllm,
    "bare": bare,
    "llama-cpp-python": llama_cpp_python,
    "xllamacpp": xllamacpp,
}


def main() -> None:
    # What the libraries print goes to standard error: standard output is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ask, kernels = KINDS[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(kernels), file=answers, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            print(json.dumps(ask(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
