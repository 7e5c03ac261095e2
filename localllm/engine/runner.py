"""Carries a planned batch through llama.cpp: one native call, whatever the number of sequences."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localllm.engine.batch import Batch, RowBatch
from localllm.engine.cache.lookup import common_prefix
from localllm.engine.cache.radix import Entry
from localllm.engine.cache.resident import Action
from localllm.engine.config import ContextConfig, SpeculationConfig
from localllm.engine.media import MediaRun
from localllm.engine.params import context_params, sampler_options
from localllm.engine.places import Places
from localllm.engine.request import TokenLogprob, TopToken
from localllm.engine.scheduler import Chunk
from localllm.engine.sequence import Sequence
from localllm.engine.speculation.twin import Twin, split_state
from localllm.engine.worker import Switch
from localllm.errors import LocalLLMError, NativeError
from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Context, Model, Sampler, Text
from localllm.native.memory import memory_of, with_draft


class Answer:
    """The native side of one sequence's answer, and the row that lm_step reads and writes for it."""

    def __init__(self, model: Model, sequence: Sequence, limit: int, n_draft: int) -> None:
        request = sequence.request
        params = request.sampling
        self.sampler = Sampler(model, {**sampler_options(params, limit), **request.grammar})
        self.text = Text(
            model,
            {
                "stop": list(request.stop),
                "stop_tokens": list(request.stop_tokens),
                "visible_tokens": list(request.visible_tokens),
                "special": request.special,
            },
        )
        window = params.window
        prompt = request.prompt if window < 0 else request.prompt[-window:]
        self.sampler.accept(tuple(token for token in prompt if token >= 0), generated=False)
        self.seed = self.sampler.seed
        self.wants_probs = params.logprobs or params.n_probs > 0
        self._tokens = (llama_h.llama_token * (1 + n_draft))()
        self._draft: Any = (llama_h.llama_token * max(1, n_draft))()
        self._logprobs = (ctypes.c_float * (1 + n_draft))()
        self._top = (llama_h.llama_token_data * max(1, params.n_probs * (1 + n_draft)))()
        self.row = localllm_h.lm_row()
        self.row.sampler = self.sampler.pointer
        self.row.text = self.text.pointer
        self.row.tokens = self._tokens
        self.row.draft = self._draft
        if self.wants_probs:
            self.row.logprobs = self._logprobs
            self.row.top = self._top
            self.row.n_top = params.n_probs
        self.row.sampled_probs = params.sampled_probs
        # The last token of a full context cannot be computed, but it can still be chosen. lm_run counts down from here.
        room = limit - len(request.prompt) + 1 if request.context_shift is None else 2**31 - 1
        self.row.max_tokens = room if request.max_tokens is None else min(room, request.max_tokens)

    def place(self, index: int, draft: tuple[int, ...]) -> None:
        """Where the last known token is in the batch, and the draft that stands behind it."""
        self.row.index = index
        self.row.n_draft = len(draft)
        self._draft[: len(draft)] = draft

    def probabilities(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens of the last step."""
        row, piece = self.row, self.text.model.piece
        n_top = row.n_top
        return tuple(
            TokenLogprob(
                row.tokens[at],
                row.logprobs[at],
                tuple(
                    TopToken(entry.id, entry.logit, piece(entry.id))
                    for entry in row.top[at * n_top : (at + 1) * n_top]
                    if entry.id != llama_h.LLAMA_TOKEN_NULL
                ),
                piece(row.tokens[at]),
            )
            for at in range(row.n_tokens)
        )

    def close(self) -> None:
        self.sampler.close()
        self.text.close()


@dataclass(frozen=True)
class Sampled:
    """What one step gave a sequence: tokens, text to show, an lm_finish, how many of the tokens were drafted; or an error."""

    sequence: Sequence
    tokens: list[int]
    text: str
    finish: int
    logprobs: tuple[TokenLogprob, ...] = ()
    n_accepted: int = 0
    error: Exception | None = None


def _is_cuttable(model: Model, config: ContextConfig) -> bool:
    """Whether the end of a sequence's state can be removed: not for recurrent states, nor for windows that have moved on."""
    native, pointer = model.native, model.pointer
    if native.llama_model_is_recurrent(pointer) or native.llama_model_is_hybrid(pointer):
        return False
    return config.swa_full or native.llama_model_n_swa(pointer) == 0


class Rates:
    """How fast this machine computes prompts and copies states, from what was measured so far.

    Attributes:
        tokens_per_second, bytes_per_second: float; careful guesses at first.
        saved_bytes, save_seconds, restored_bytes, restore_seconds: what was copied out of the context and back, in all.
    """

    def __init__(self) -> None:
        self.tokens_per_second = 200.0
        self.bytes_per_second = 1e9
        self.saved_bytes = self.restored_bytes = 0
        self.save_seconds = self.restore_seconds = 0.0

    def computed(self, n_tokens: int, seconds: float) -> None:
        """A batch was decoded; small ones say nothing about prompts."""
        if n_tokens >= 64 and seconds > 0:
            self.tokens_per_second += 0.2 * (n_tokens / seconds - self.tokens_per_second)

    def saved(self, n_bytes: int, seconds: float) -> None:
        """A state was copied out."""
        self.saved_bytes += n_bytes
        self.save_seconds += seconds
        self._copied(n_bytes, seconds)

    def restored(self, n_bytes: int, seconds: float) -> None:
        """A state was copied back."""
        self.restored_bytes += n_bytes
        self.restore_seconds += seconds
        self._copied(n_bytes, seconds)

    def _copied(self, n_bytes: int, seconds: float) -> None:
        if seconds > 0:
            self.bytes_per_second += 0.2 * (n_bytes / seconds - self.bytes_per_second)

    def restoring_pays(self, n_bytes: int, n_tokens: int) -> bool:
        """Whether copying so many bytes is quicker than computing so many tokens."""
        return n_bytes / self.bytes_per_second < n_tokens / self.tokens_per_second


class Runner:
    """Owns the context, that of a draft if there is one, and the arrays of its batch.

    Args:
        model: Model.
        config: ContextConfig, in which no kind of speculation is "auto".
        draft: Model that drafts, where a kind needs one; `model` itself for its own heads.

    Attributes:
        twin: Twin, the draft's context; None without one.
        places: Places of the slots' tokens.
        seconds, follow_seconds: float, what the last batch took, and taking it into the draft's context.
        rollbacks: what the last `apply` took to take back what was wrong, in seconds by slot.
    """

    def __init__(self, model: Model, config: ContextConfig, draft: Model | None = None) -> None:
        self.native = model.native
        self.model = model
        self._config, self._draft = config, draft
        self._params = context_params(self.native, config, self.native.llama_model_n_ctx_train(model.pointer))
        self.cuttable = _is_cuttable(model, config)
        self.n_slots = config.parallel + (config.kept_sequences if config.prefix_cache else 0)
        assert isinstance(config.speculation, SpeculationConfig)
        self._n_draft = config.speculation.most if config.speculation.kind != "none" else 0
        self._recurrent = bool(
            self.native.llama_model_is_recurrent(model.pointer) or self.native.llama_model_is_hybrid(model.pointer)
        )
        if self._n_draft and self._recurrent:
            self._params.n_rs_seq = config.speculation.snapshots
            # Somewhere to keep the state from before a draft.
            self.n_slots = min(self.n_slots + config.parallel, self.native.llama_max_parallel_sequences())
        self._params.n_seq_max = self.n_slots
        # llama.cpp wants room for one output of each, whether or not they ever share a batch.
        self._params.n_outputs_max = max(self._params.n_batch, self.n_slots)
        self.switch = Switch(self.native)
        rope = self.native.llama_model_rope_type(model.pointer)
        self.places = Places(rope in (llama_h.LLAMA_ROPE_TYPE_MROPE, llama_h.LLAMA_ROPE_TYPE_IMROPE))
        self.twin: Twin | None = None
        self._new_context()
        # llama.cpp rounds the number of cells up; what was asked for is the limit all the same.
        self.n_ctx: int = min(self._params.n_ctx, self.native.llama_n_ctx(self.context.pointer))
        self._n_positions = model.n_positions
        self.n_batch: int = self.native.llama_n_batch(self.context.pointer)
        self.n_ubatch: int = self.native.llama_n_ubatch(self.context.pointer)
        self._batch = Batch(self.n_batch, output=False)
        self._row_batch: RowBatch | None = None
        self._row_width: int = self.native.llama_model_n_embd_inp(model.pointer)
        self.rates = Rates()
        self._rows = (ctypes.POINTER(localllm_h.lm_row) * config.parallel)()
        self._last_outputs: list[tuple[Sequence, int, tuple[int, ...]]] = []
        self.seconds = self.follow_seconds = 0.0
        self.rollbacks: dict[int, float] = {}

    @property
    def limit(self) -> int:
        """Most tokens of a sequence: all cells, or as many as the model has learned positions for."""
        return min(self.n_ctx, self._n_positions or self.n_ctx)

    @property
    def can_shift(self) -> bool:
        """Whether tokens can be dropped from the middle of a sequence: not where their positions are part of the state."""
        memories = [self.context.memory, *([self.twin.context.memory] if self.twin else ())]
        return not self._n_positions and all(self.native.llama_memory_can_shift(memory) for memory in memories)

    @property
    def n_rollback(self) -> int | None:
        """Computed tokens that can be cut off a sequence again right after their batch; None: any number."""
        return int(self.native.llama_n_rs_seq(self.context.pointer)) if self._recurrent else None

    def _new_context(self) -> None:
        self.places = Places(self.places.bent)
        self.context = Context(self.model, self._params)
        try:
            if self._draft is not None:
                n_ctx = self.native.llama_n_ctx(self.context.pointer)
                self.twin = Twin(self.context, self._draft, self._config, n_ctx, self.n_slots, self.places)
        except BaseException:
            self.context.close()
            raise
        self.memory = memory_of(self.context)
        if self.twin:
            own = self._draft is not self.model
            self.memory = with_draft(self.memory, memory_of(self.twin.context), own_weights=own)
        self.switch.fit(self.context)

    def start(self, sequence: Sequence) -> None:
        """Makes the native side of a sequence's answer, once."""
        if sequence.answer is None:
            sequence.answer = Answer(self.model, sequence, self.limit, self._n_draft if sequence.request.speculate else 0)

    def apply(
        self, actions: list[Action], read: Callable[[Entry], Any], keep: Callable[[Action, Any, int], None]
    ) -> list[Action]:
        """Carries out what the cache has decided about slots, in order.

        Args:
            actions: from Residents.
            read: gives the bytes of an entry's copy, None if there are none any more.
            keep: takes a "save", the bytes of its slot and their number.

        Returns:
            The restorations that failed.
        """
        failed: list[Action] = []
        self.rollbacks = {}
        for action in actions:
            if action.kind == "restore":
                assert action.entry is not None
                if not self.restore(action.slot, read(action.entry), action.length):
                    failed.append(action)
            elif action.kind == "save":
                data = self.save(action.slot)
                keep(action, data, len(data))
            elif action.kind != "cut" or all(action.slot != other.slot for other in failed):
                begin = time.perf_counter()
                self._act(action)
                if action.kind == "cut":
                    self.rollbacks[action.slot] = time.perf_counter() - begin
        return failed

    def _act(self, action: Action) -> None:
        memory, places = self.context.memory, self.places
        if action.kind == "forget":
            self.native.llama_memory_seq_rm(memory, action.slot, -1, -1)
            places.clear(action.slot)
        elif action.kind == "cut":
            self._cut(action.slot, action.length)
        elif action.kind == "shift":
            self._shift(action.slot, action.length, action.count)
        else:
            # A state that cannot be cut is copied whole; the cache asks for it only where it ends.
            end = places.position(action.source, action.length) if self.cuttable else -1
            self.native.llama_memory_seq_cp(memory, action.source, action.slot, -1, end)
            places.fork(action.source, action.slot, action.length)
        if self.twin:
            self.twin.apply(action)

    def save(self, slot: int) -> Any:
        """A copy of a slot's state, the draft's included, as a ctypes array of bytes."""
        size = ctypes.c_size_t()
        begin = time.perf_counter()
        tail = (self.twin.save(slot) if self.twin else b"") + self.places.pack(slot)
        self.native.check(self.native.lm_state_save(self.context.pointer, slot, None, ctypes.byref(size)))
        data = (ctypes.c_uint8 * (size.value + len(tail)))()
        self.native.check(self.native.lm_state_save(self.context.pointer, slot, data, ctypes.byref(size)))
        memoryview(data).cast("B")[size.value :] = tail
        self.rates.saved(len(data), time.perf_counter() - begin)
        return data

    def restore(self, slot: int, data: Any, length: int) -> bool:
        """Puts a copied state of so many tokens into an empty slot; false, and the slot is empty, if llama.cpp refuses it."""
        if data is None:
            return False
        begin = time.perf_counter()
        try:
            data = self.places.unpack(slot, memoryview(data).cast("B"))
            state, *rest = split_state(data) if self.twin else (data,)
            buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
            self.native.check(self.native.lm_state_load(self.context.pointer, slot, buffer, len(state)))
        except (LocalLLMError, ValueError) as error:
            logs.logger.warning("a cached state was of no use: %s", error)
            self.places.clear(slot)
            return False
        if self.twin:
            self.twin.restore(slot, length, *rest)
        self.rates.restored(len(data), time.perf_counter() - begin)
        return True

    def _cut(self, slot: int, length: int) -> None:
        if not self.native.llama_memory_seq_rm(self.context.memory, slot, self.places.position(slot, length), -1):
            raise NativeError(f"llama.cpp could not cut sequence {slot} back to {length} tokens")
        self.places.cut(slot, length)

    def _shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        memory, end = self.context.memory, n_keep + n_discard
        if not self.native.llama_memory_seq_rm(memory, slot, n_keep, end):
            raise NativeError(f"llama.cpp could not drop tokens {n_keep} to {end} of sequence {slot}")
        self.native.llama_memory_seq_add(memory, slot, end, -1, -n_discard)

    def reset(self) -> None:
        """A new context in place of one whose state is unknown after a failure."""
        self.close()
        self._new_context()

    def run(self, chunks: list[Chunk]) -> list[Sampled]:
        """Decodes one batch and samples every sequence whose chunk reaches its end.

        The sequences are left as they are; moving them on is the caller's.

        Raises:
            NativeError: llama_decode failed; its status says how much of the context can still be used.
        """
        run = chunks[0].run
        outputs = self._fill(chunks) if run is None else self._fill_rows(chunks[0], run)
        batch = self._batch if run is None or self._row_batch is None else self._row_batch
        begin = time.perf_counter()
        status = self._decode(batch.reference, len(outputs), causal=run is None or run.causal)
        self.seconds = time.perf_counter() - begin
        self.rates.computed(batch.n_tokens, self.seconds)
        if self.native.lm_log_pending():
            logs.forward(self.native)
        if status:
            self.native.check(status)
        results = [self._result(sequence, draft) for sequence, _, draft in outputs]
        if self.twin:
            self._follow(self.twin, batch.reference, chunks, results)
        if run is not None and chunks[0].start + chunks[0].count == run.end:
            self.places.passed(chunks[0].sequence.slot, run.end, run.n_tokens, run.n_positions)
            chunks[0].sequence.rows = None
        return results

    def _decode(self, batch: Any, n_outputs: int, causal: bool) -> int:
        context = self.context.pointer
        if causal:
            return int(self.native.lm_run(context, batch, self._rows, n_outputs))
        self.native.llama_set_causal_attn(context, False)
        try:
            return int(self.native.lm_run(context, batch, self._rows, n_outputs))
        finally:
            self.native.llama_set_causal_attn(context, True)

    def _follow(self, twin: Twin, batch: Any, chunks: list[Chunk], results: list[Sampled]) -> None:
        begin = time.perf_counter()
        twin.follow(batch, [chunk.sequence.slot for chunk in chunks])
        accepted = {result.sequence: result.n_accepted for result in results}
        for chunk in chunks:
            if chunk.draft:
                twin.accept(chunk.sequence.slot, accepted[chunk.sequence])
        self.follow_seconds = time.perf_counter() - begin

    def _fill(self, chunks: list[Chunk]) -> list[tuple[Sequence, int, tuple[int, ...]]]:
        """Writes the batch and the rows; returns each sequence that samples with the index of its last token and its draft."""
        at = 0
        outputs = []
        for chunk in chunks:
            sequence, start = chunk.sequence, chunk.start
            tokens = sequence.tokens[start : start + chunk.count]
            last = at + chunk.count - 1
            first = self.places.position(sequence.slot, start)
            end = self._batch.put(at, [*tokens, *chunk.draft] if chunk.draft else tokens, first, sequence.slot)
            self._batch.outputs[at:end] = bytes(end - at)
            if chunk.sample:
                self._batch.outputs[last:end] = [1] * (end - last)
                outputs.append((sequence, last, chunk.draft))
            at = end
        self._batch.n_tokens = at
        self._place(outputs)
        return outputs

    def _fill_rows(self, chunk: Chunk, run: MediaRun) -> list[tuple[Sequence, int, tuple[int, ...]]]:
        """The same for rows of a picture or sound, which are a batch of their own."""
        sequence = chunk.sequence
        assert sequence.rows is not None
        rows = sequence.rows.data
        if len(rows) != run.n_tokens * self._row_width:
            raise NativeError(f"media {run.medium}: {len(rows)} floats for {run.n_tokens} rows of {self._row_width}")
        if self._row_batch is None:
            self._row_batch = RowBatch(self.n_batch, 4 if self.places.bent else 1)
        base = self.places.position(sequence.slot, run.start)
        self._row_batch.put(run, rows, chunk.start - run.start, chunk.count, base, sequence.slot)
        self._row_batch.outputs[: chunk.count] = bytes(chunk.count)
        outputs: list[tuple[Sequence, int, tuple[int, ...]]] = []
        if chunk.sample:
            self._row_batch.outputs[chunk.count - 1] = 1
            outputs.append((sequence, chunk.count - 1, ()))
        self._place(outputs)
        return outputs

    def _place(self, outputs: list[tuple[Sequence, int, tuple[int, ...]]]) -> None:
        if outputs != self._last_outputs:
            # Seldom: while the same answers go on, neither rows nor indices change.
            for place, (sequence, index, draft) in enumerate(outputs):
                sequence.answer.place(index, draft)
                self._rows[place] = ctypes.pointer(sequence.answer.row)
            self._last_outputs = outputs

    def _result(self, sequence: Sequence, draft: tuple[int, ...]) -> Sampled:
        answer = sequence.answer
        row = answer.row
        if row.status:
            error = self.native.error(row.status, row.error.decode(errors="replace"))
            return Sampled(sequence, [], "", localllm_h.LM_FINISH_NONE, error=error)
        text = ctypes.string_at(row.bytes, row.size).decode() if row.size else ""
        probabilities = answer.probabilities() if answer.wants_probs else ()
        tokens = row.tokens[: row.n_tokens]
        return Sampled(sequence, tokens, text, row.finish, probabilities, common_prefix(tokens, draft))

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended: what its request refers to is the program's again."""
        if any(last is sequence for last, _, _ in self._last_outputs):
            self._last_outputs = []

    def close(self) -> None:
        if self.twin:
            self.twin.close()
        self.context.close()
