"""Makes room: what nobody needs any more, then what was not used for the longest time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localllm.hub.contents import disk_bytes
from localllm.hub.entry import Entry
from localllm.hub.inventory import models_here
from localllm.hub.options import check_number, check_whole
from localllm.hub.removal import InUse, carry_out, used_file
from localllm.hub.removal_plan import RemovalPlan, Sweep, files_of, planned
from localllm.hub.store import Store

_LONGEST_SECONDS = 1e30


@dataclass(frozen=True)
class Collected:
    """What was, or would be, removed to make room.

    Attributes:
        removal: RemovalPlan.
        reasons: reference -> why the model goes, one phrase.
        models_bytes: int, what the models with records take on the disk afterwards.
        is_enough: bool, False if that is more than was asked for, because what is left is pinned or in use.
    """

    removal: RemovalPlan
    reasons: dict[str, str]
    models_bytes: int
    is_enough: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs."""
        facts = {"reasons": self.reasons, "models_bytes": self.models_bytes, "is_enough": self.is_enough}
        return self.removal.to_json() | facts


def gc(
    store: Store,
    *,
    max_bytes: int | None = None,
    older_than_seconds: float | None = None,
    partials: bool = True,
    dry_run: bool = False,
    in_use: InUse | None = None,
) -> Collected:
    """Removes older commits of branches, what interrupted downloads and killed programs left and contents that nothing leads to;
    then, if limits are given, models that were not used for long. Never what is pinned, in use, being downloaded or written, or
    was brought by other programs.

    Args:
        store: Store.
        max_bytes: int, that the models with records may take together; those that were not used for the longest time go first.
        older_than_seconds: float, models that were not used for so long go.
        partials: bool, interrupted downloads and damaged copies go, too; without it they can be continued.
        dry_run: bool, only tell.
        in_use: tells whether a program uses a file; None: none does.

    Raises:
        InvalidRequestError: A limit is no number, less than 0 or without end.
        HubError: The cache or the folder of records cannot be written.
    """
    if max_bytes is not None:
        check_whole("max_bytes", max_bytes, 0)
    if older_than_seconds is not None:
        check_number("older_than_seconds", older_than_seconds, most=_LONGEST_SECONDS, zero=True)
    if dry_run:
        return _plan(store, max_bytes, older_than_seconds, partials, in_use)
    with store.changing():
        found = _plan(store, max_bytes, older_than_seconds, partials, in_use)
        return dataclasses.replace(found, removal=carry_out(store, found.removal))


def _plan(
    store: Store, max_bytes: int | None, older_than_seconds: float | None, partials: bool, in_use: InUse | None
) -> Collected:
    entries = models_here(store)
    own = [one for one in entries if one.manifest is not None]
    may_go = [one for one in own if not one.pinned and used_file(one, in_use) is None]
    reasons = {one.reference: "a newer commit is here" for one in may_go if one.state == "superseded"}
    if older_than_seconds is not None:
        oldest = time.time() - older_than_seconds
        reasons |= {one.reference: _unused(one) for one in may_go if _used_at(one) < oldest and one.reference not in reasons}
    if max_bytes is not None:
        reasons |= _over(max_bytes, [one for one in own if one.reference not in reasons], may_go)
    staying = [one for one in own if one.reference not in reasons]
    removal = planned(store, [one for one in own if one.reference in reasons], entries, Sweep(partials))
    models_bytes = _disk_bytes(staying)
    return Collected(removal, reasons, models_bytes, max_bytes is None or models_bytes <= max_bytes)


def _over(max_bytes: int, staying: list[Entry], may_go: Sequence[Entry]) -> dict[str, str]:
    """Who goes so that the others take no more than they may: those first that were used least recently."""
    found = {}
    for one in sorted((one for one in staying if one in may_go), key=_used_at):
        if _disk_bytes(staying) <= max_bytes:
            break
        staying.remove(one)
        found[one.reference] = f"{_unused(one)}, and the limit is exceeded"
    return found


def _disk_bytes(entries: Sequence[Entry]) -> int:
    return disk_bytes(path for one in entries for path in files_of(one))


def _used_at(entry: Entry) -> float:
    return entry.used_at or 0.0


def _unused(entry: Entry) -> str:
    return f"not used for {max(0.0, time.time() - _used_at(entry)) / 86400:.0f} days"
