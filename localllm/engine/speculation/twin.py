"""The context of a draft, kept in step with the target's: what happens to a sequence there happens to it here as well."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

from localllm.engine.cache.resident import Action
from localllm.engine.config import ContextConfig, SpeculationConfig
from localllm.engine.params import context_params
from localllm.engine.places import Places
from localllm.errors import LocalLLMError, ModelLoadError, UnsupportedModelError
from localllm.native import logs
from localllm.native.bindings import llama as llama_h
from localllm.native.follower import NOTHING, Carried, DraftRequest, Follower
from localllm.native.handles import Context, Model

# At the end of a saved state: bytes of the draft's state and of what is carried beside it, and whose position that is.
_PARTS = struct.Struct("<QQi")


class Twin:
    """A draft's context and its follower.

    Args:
        target: Context.
        model: Model, the draft's; the target's own for heads in its file.
        config: ContextConfig of the target, with a SpeculationConfig of which one kind is a model's.
        n_ctx: int, cells of the target.
        n_slots: int, sequences of the target.
        places: Places of the target's tokens.

    Attributes:
        n_max: int, most tokens of a draft.

    Raises:
        UnsupportedModelError: The draft does not go with the target, or cannot be taken back.
    """

    def __init__(self, target: Context, model: Model, config: ContextConfig, n_ctx: int, n_slots: int, places: Places) -> None:
        assert isinstance(config.speculation, SpeculationConfig)
        self.native = target.native
        self._places = places
        options = config.speculation.model_options()
        self._kind = options["kind"]
        if self._kind != "draft-mtp":  # whose heads have a memory of their own
            _require_cuttable(model)
        params = context_params(self.native, config, 0)
        # Drafts stand behind what the target knows, for a moment.
        block = max(options["n_max"] + 1, _block_tokens(model))
        params.n_ctx = n_ctx + config.parallel * (block + 1)
        # One more to put a state aside; llama.cpp's draft-simple wants exactly as many as it knows.
        params.n_seq_max = n_slots + (self._kind != "draft-simple")
        params.n_batch = max(params.n_batch, config.parallel * block)
        params.n_outputs_max = max(params.n_batch, params.n_seq_max)
        if self._kind == "draft-lilicorr":
            params.n_outputs_max_per_seq = _block_tokens(model)
        params.swa_full = True
        params.ctx_other = target.pointer
        if self._kind == "draft-mtp":
            params.ctx_type = llama_h.LLAMA_CONTEXT_TYPE_MTP
        try:
            self.context = Context(model, params)
        except ModelLoadError as error:
            raise UnsupportedModelError(f"{model.path}: no {self._kind} for this model: {error}") from error
        try:
            self.follower = Follower(target, self.context, options, n_slots)
        except LocalLLMError as error:
            self.context.close()
            raise UnsupportedModelError(f"{model.path}: no {self._kind} for {target.model.path}: {error}") from error
        self.n_max = self.follower.n_max

    def apply(self, action: Action) -> None:
        """Does to a slot what was done to it in the target's context, just before; not for "save" and "restore"."""
        memory, slot = self.context.memory, action.slot
        length = self._places.position(slot, action.length)
        if action.kind == "forget":
            self._empty(slot)
        elif action.kind == "cut":
            self._end_at(slot, length)
        elif action.kind == "shift":
            end = action.length + action.count
            self.native.llama_memory_seq_rm(memory, slot, action.length, end)
            self.native.llama_memory_seq_add(memory, slot, end, -1, -action.count)
            carried = self.follower.carry(slot)
            moved = replace(carried, position=carried.position - action.count)
            self.follower.set_carry(slot, moved if carried.position >= end else NOTHING)
        else:
            self.native.llama_memory_seq_cp(memory, action.source, slot, -1, length)
            self.follower.set_carry(slot, self.follower.carry(action.source))
            self._end_at(slot, length)

    def save(self, slot: int) -> bytes:
        """The state of a slot, to go behind the target's."""
        size = ctypes.c_size_t()
        self.native.check(self.native.lm_state_save(self.context.pointer, slot, None, ctypes.byref(size)))
        data = (ctypes.c_uint8 * size.value)()
        self.native.check(self.native.lm_state_save(self.context.pointer, slot, data, ctypes.byref(size)))
        carried = self.follower.carry(slot)
        return bytes(data) + carried.data + _PARTS.pack(len(data), len(carried.data), carried.position)

    def restore(self, slot: int, length: int, state: Any, carried: Carried) -> bool:
        """The reverse, into an empty slot, for so many tokens; False, and it stays empty, if llama.cpp refuses it."""
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        try:
            self.native.check(self.native.lm_state_load(self.context.pointer, slot, buffer, len(state)))
            self.follower.set_carry(slot, carried)
        except LocalLLMError as error:
            logs.logger.warning("a cached state of a draft was of no use: %s", error)
            self._empty(slot)
            return False
        self._end_at(slot, self._places.position(slot, length))
        return True

    def follow(self, batch: Any, slots: Items[int]) -> None:
        """Takes in a batch that the target has decoded, of these slots.

        If that fails, their drafts begin anew where they are: worse ones, for a while.
        """
        try:
            self.follower.follow(batch)
        except LocalLLMError as error:
            logs.logger.warning("a draft's context lost %d sequences: %s", len(slots), error)
            for slot in slots:
                self._empty(slot)

    def accept(self, slot: int, n_accepted: int) -> None:
        """So many tokens of the draft in the last batch were right."""
        self.follower.accept(slot, n_accepted)

    def propose(self, requests: list[DraftRequest]) -> list[list[int]]:
        """A draft for each request, whose `n_past` counts tokens; [] where there is none."""
        places = [replace(one, n_past=self._places.position(one.slot, one.n_past)) for one in requests]
        try:
            return self.follower.propose(places)
        except LocalLLMError as error:
            logs.logger.warning("no drafts: %s", error)
            for request in requests:
                self._empty(request.slot)
            return [[] for _ in requests]

    def close(self) -> None:
        self.follower.close()
        self.context.close()

    # ---- inside

    def _empty(self, slot: int) -> None:
        self.native.llama_memory_seq_rm(self.context.memory, slot, -1, -1)
        self.follower.set_carry(slot)

    def _end_at(self, slot: int, length: int) -> None:
        """Cuts a slot back to where the target has so many positions, less what is carried of the last one."""
        known = self.follower.carry(slot).position == length - 1
        if not known:
            self.follower.set_carry(slot)
        end = length - self.follower.lag if known else length
        self.native.llama_memory_seq_rm(self.context.memory, slot, end, -1)


def split_state(data: Any) -> tuple[Any, Any, Carried]:
    """The target's part of a saved state, the draft's, and what was carried.

    Raises:
        ValueError: It is none that `Twin.save` has ended.
    """
    view = memoryview(data).cast("B")
    if len(view) < _PARTS.size:
        raise ValueError("shorter than its end")
    n_state, n_carried, position = _PARTS.unpack_from(view, len(view) - _PARTS.size)
    at = len(view) - _PARTS.size - n_carried - n_state
    if at < 0:
        raise ValueError("its parts are longer than the whole")
    carried = Carried(position, bytes(view[at + n_state : at + n_state + n_carried]))
    return view[:at], view[at : at + n_state], carried


def _block_tokens(model: Model) -> int:
    return int(model.metadata().get("dflash.block_size", "1"))


def _require_cuttable(model: Model) -> None:
    native, pointer = model.native, model.pointer
    if native.llama_model_is_recurrent(pointer) or native.llama_model_is_hybrid(pointer):
        raise UnsupportedModelError(f"{model.path}: its state cannot be cut back, as drafts have to be; take another draft")
