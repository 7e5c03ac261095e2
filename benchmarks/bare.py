"""llama.cpp's bare batched loop over localllm's bindings: no engine, nothing per request. The most an engine can reach."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from localllm.engine.config import ContextConfig, ModelConfig, SamplingParams
from localllm.engine.params import context_params, model_params, sampler_options
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Context, Model, Sampler
from localllm.native.library import load

N_BATCH = 2048


class BatchedLoop:
    """A context with one batch; sequence n of an order is sequence n of the context.

    Args:
        model: str or Model, a GGUF file, or one that is loaded.
        n_ctx: int, KV cells in all.
        parallel: int, most sequences.
        threads: int.
        unified: bool, one KV cache for all sequences, or `n_ctx / parallel` cells for each.
    """

    def __init__(self, model: str | Model, n_ctx: int, parallel: int, threads: int, unified: bool = True) -> None:
        self.native = load()
        self.model = model if isinstance(model, Model) else Model(model, model_params(self.native, ModelConfig()))
        params = context_params(self.native, ContextConfig(n_ctx=n_ctx, parallel=parallel, n_threads=threads, n_batch=N_BATCH), 0)
        params.kv_unified = unified
        params.n_outputs_max = parallel
        self.context = Context(self.model, params)
        options = sampler_options(SamplingParams(temperature=0, ignore_eos=True), n_ctx)
        # One for each sequence, as lm_step wants them; kept alive here.
        self.samplers = [Sampler(self.model, options) for _ in range(parallel)]
        self.rows = (localllm_h.lm_row * parallel)()
        self.chosen = [(llama_h.llama_token * 1)() for _ in range(parallel)]
        for row, sampler, chosen in zip(self.rows, self.samplers, self.chosen, strict=True):
            row.sampler, row.tokens, row.ignore_eog = sampler.pointer, chosen, True
        self._make_batch()

    def _make_batch(self) -> None:
        self.tokens: Any = (llama_h.llama_token * N_BATCH)()
        self.positions: Any = (llama_h.llama_pos * N_BATCH)()
        self.sequences: Any = (llama_h.llama_seq_id * N_BATCH)()
        self.outputs: Any = (ctypes.c_int8 * N_BATCH)()
        pointer, step = ctypes.POINTER(llama_h.llama_seq_id), ctypes.sizeof(llama_h.llama_seq_id)
        start = ctypes.addressof(self.sequences)
        self.pointers = (pointer * N_BATCH)(*(ctypes.cast(start + at * step, pointer) for at in range(N_BATCH)))
        self.batch = llama_h.llama_batch(
            n_tokens=0,
            token=self.tokens,
            embd=None,
            pos=self.positions,
            n_seq_id=(ctypes.c_int32 * N_BATCH)(*([1] * N_BATCH)),
            seq_id=self.pointers,
            logits=self.outputs,
        )

    def prefill(self, prompts: list[list[int]]) -> None:
        """Empties the cache and computes all prompts; leaves the first token of each answer in `chosen`."""
        self.native.llama_memory_clear(self.context.memory, False)
        work = [
            (token, position, at, position == len(prompt) - 1)
            for at, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for start in range(0, len(work), N_BATCH):
            part = work[start : start + N_BATCH]
            columns = zip(*part, strict=True)
            for array, column in zip((self.tokens, self.positions, self.sequences, self.outputs), columns, strict=True):
                array[: len(part)] = column
            ends = [(index, at) for index, (_, _, at, is_last) in enumerate(part) if is_last]
            rows = (ctypes.POINTER(localllm_h.lm_row) * max(1, len(ends)))()
            for place, (index, at) in enumerate(ends):
                self.rows[at].index = index
                rows[place] = ctypes.pointer(self.rows[at])
            self._run(len(part), rows, len(ends))

    def decode(self, lengths: list[int], n_steps: int, answers: list[list[int]]) -> None:
        """Takes `n_steps` steps with the token in `chosen` of every sequence, whose positions begin at `lengths`."""
        n = len(lengths)
        self.sequences[:n] = range(n)
        self.outputs[:n] = [1] * n
        rows = (ctypes.POINTER(localllm_h.lm_row) * n)(*(ctypes.pointer(self.rows[at]) for at in range(n)))
        for at in range(n):
            self.rows[at].index = at
        tokens, chosen = self.tokens, self.chosen
        for step in range(n_steps):
            self.positions[:n] = [length + step for length in lengths]
            tokens[:n] = [one[0] for one in chosen[:n]]
            self._run(n, rows, n)
            for answer, one in zip(answers, chosen, strict=False):
                answer.append(one[0])

    def _run(self, n_tokens: int, rows: Any, n_rows: int) -> None:
        self.batch.n_tokens = n_tokens
        self.native.check(self.native.lm_run(self.context.pointer, ctypes.byref(self.batch), rows, n_rows))

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Answers an order of children.py."""
        prompts, n_tokens = order["prompts"], order["n_tokens"]
        for row in self.rows:
            row.max_tokens = n_tokens + 1
        begin = time.perf_counter()
        self.prefill(prompts)
        first = time.perf_counter() - begin
        answers = [[one[0]] for one in self.chosen[: len(prompts)]]
        self.decode([len(prompt) for prompt in prompts], n_tokens - 1, answers)
        seconds = time.perf_counter() - begin
        computed = sum(len(prompt) for prompt in prompts)
        return {"seconds": seconds, "first": [first] * len(prompts), "computed": computed, "answers": answers}

    def close(self) -> None:
        self.context.close()
