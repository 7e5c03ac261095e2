"""Drafts by a model of its own, or by heads of the target, whose context follows the target's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localllm.native.bindings import llama as llama_h
from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Context, Owned, to_json

LILICORR = "draft-lilicorr"


@dataclass(frozen=True)
class DraftRequest:
    """A draft for the sequence of a slot: the target has computed `n_past` tokens of it, and `last` is the next."""

    slot: int
    n_past: int
    last: int
    n_max: int


@dataclass(frozen=True)
class Carried:
    """What is known of a sequence's last token: its position, and bytes that only the kind of draft understands."""

    position: int
    data: bytes


#: Nothing is known, or the kind needs nothing.
NOTHING = Carried(-1, b"")


@dataclass(frozen=True)
class FollowerTimes:
    """Where the time of a follower went since it was made, in microseconds, and what it was spent on.

    `candidates_us` and `head_us` are 0 but for "draft-lilicorr". `n_followed` counts tokens, `n_proposals` drafts asked for.
    """

    follow_us: int
    draft_us: int
    candidates_us: int
    head_us: int
    n_followed: int
    n_proposals: int


class Follower:
    """An lm_follower.

    What becomes of a sequence of the target (cut, copied, shifted, restored) has to become of it in the draft's context as well.

    Args:
        target: Context.
        draft: Context of the draft's model, made with the target as `ctx_other`, with a sequence more than `n_slots` (but for
            "draft-simple"); for "draft-mtp" one of the type for heads.
        options: dict, the fields that lm_follower_create documents; the "head" of "draft-lilicorr" is the draft's own file if
            none is named.
        n_slots: int, sequences of both contexts.

    Attributes:
        n_max: int, most tokens of a draft; a kind may have learned fewer than were asked for.
        lag: int, positions by which the draft's state of a sequence has to end before the target's, where it goes on with what
            was carried.

    Raises:
        InvalidRequestError: A field is unknown or out of range, or head, draft and target do not go together.
        ModelError: The file of the head has none, or is damaged.
        NativeError: The draft does not go with the target.
    """

    def __init__(self, target: Context, draft: Context, options: dict[str, Any], n_slots: int) -> None:
        self.native = target.native
        self.target, self.draft = target, draft  # it must not outlive them
        if options.get("kind") == LILICORR and "head" not in options:
            options = {**options, "head": draft.model.path}
        out = localllm_h.lm_follower_p()
        pointers = (target.pointer, draft.pointer)
        self.native.check(self.native.lm_follower_create(*pointers, to_json(options), n_slots, ctypes.byref(out)))
        address = ctypes.cast(out, ctypes.c_void_p).value
        assert address
        self._owned = Owned(self, address, self.native.lm_follower_free, "follower", at_exit=False)
        n_max = ctypes.c_int32()
        self.native.check(self.native.lm_follower_n_max(self._owned.pointer, ctypes.byref(n_max)))
        self.n_max = n_max.value
        self.native.check(self.native.lm_follower_lag(self._owned.pointer, ctypes.byref(n_max)))
        self.lag = n_max.value
        self._rows = (localllm_h.lm_draft_request * n_slots)()
        # "Any": ctypes takes any sequence for a slice, its type stubs only lists.
        self._drafts: list[Any] = [(llama_h.llama_token * max(1, self.n_max))() for _ in range(n_slots)]
        for row, tokens in zip(self._rows, self._drafts, strict=True):
            row.draft = tokens

    def follow(self, batch: Any) -> None:
        """Takes in a batch that the target has just decoded.

        Args:
            batch: reference of a llama_batch; tokens of a sequence stand side by side.

        Raises:
            NativeError: The draft's context has no room for it.
        """
        self.native.check(self.native.lm_follower_follow(self._owned.pointer, batch))

    def accept(self, slot: int, n_accepted: int) -> None:
        """So many tokens of the draft that was in the last batch were right."""
        self.native.check(self.native.lm_follower_accept(self._owned.pointer, slot, n_accepted))

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """A draft for each request, in their order, all in the same batches; [] where it knows none."""
        for row, request in zip(self._rows, requests, strict=False):
            row.slot, row.n_past, row.last = request.slot, request.n_past, request.last
            row.n_max = min(request.n_max, self.n_max)
        self.native.check(self.native.lm_follower_propose(self._owned.pointer, self._rows, len(requests)))
        return [self._drafts[at][: self._rows[at].n_draft] for at in range(len(requests))]

    def carry(self, slot: int) -> Carried:
        """What has to be known of a slot's last token besides its state, for a slot that goes on from there."""
        size, position = ctypes.c_size_t(), llama_h.llama_pos()
        read, pointer = self.native.lm_follower_carry, self._owned.pointer
        self.native.check(read(pointer, slot, ctypes.byref(position), None, ctypes.byref(size)))
        data = (ctypes.c_uint8 * size.value)()
        if size.value:
            self.native.check(read(pointer, slot, ctypes.byref(position), data, ctypes.byref(size)))
        return Carried(position.value, bytes(data))

    def set_carry(self, slot: int, carried: Carried = NOTHING) -> None:
        """The slot goes on from where that was carried; NOTHING: it is empty, or nothing is known.

        Raises:
            InvalidRequestError: That is nothing that this kind carries.
        """
        data = carried.data
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data) if data else None
        status = self.native.lm_follower_set_carry(self._owned.pointer, slot, carried.position, buffer, len(data))
        self.native.check(status)

    def times(self) -> FollowerTimes:
        found = localllm_h.lm_follower_times()
        self.native.check(self.native.lm_follower_get_times(self._owned.pointer, ctypes.byref(found)))
        return FollowerTimes(*(getattr(found, name) for name in FollowerTimes.__dataclass_fields__))

    def close(self) -> None:
        self._owned.close()
