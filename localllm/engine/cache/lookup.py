"""Where the longest usable prefix of a prompt is, and why there is no longer one. Pure policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localllm.engine.cache.radix import Entry, Match, RadixTree

DEVICE, RAM, DISK = "device", "ram", "disk"
# The place of a prefix that another sequence has computed and goes on with.
RUNNING = "running"


@dataclass(frozen=True)
class Holder:
    """A slot that a running sequence computes in: the ids whose state it holds."""

    slot: int
    ids: Sequence[int]
    n_computed: int


@dataclass(frozen=True)
class Donor:
    """Where a prefix can be taken from: a slot (-1: a copy), how much of it, and its entry unless it is running."""

    slot: int
    length: int
    entry: Entry | None

    @property
    def tier(self) -> str:
        """ "device", "running", "ram" or "disk"."""
        return self.entry.tier if self.entry else RUNNING


@dataclass(frozen=True)
class Lookup:
    """What was found for a prompt.

    Attributes:
        donor: Donor, None if nothing is of use.
        missed: str, why it covers no more of the prompt; "": it covers all but the last token, which has to be computed. Else
            "off" (no cache), "new" (nothing known begins alike any further), "checkpoint" (something does, but its state can
            be continued only where it was kept, and that is elsewhere), "slow" (copying it back would take longer than
            computing it).
    """

    donor: Donor | None
    missed: str

    @property
    def length(self) -> int:
        """Tokens that need not be computed."""
        return self.donor.length if self.donor else 0


NO_CACHE = Lookup(None, "off")


def look_up(
    tree: RadixTree,
    wanted: tuple[int, ...],
    holders: Iterable[Holder],
    namespace: bytes,
    cuttable: bool,
    pays: Callable[[int, int], bool],
) -> Lookup:
    """The best place for `wanted`: what is in a slot costs nothing, a copy has to be worth its way back.

    Args:
        tree: RadixTree, all tiers.
        wanted: ids.
        holders: running sequences of the same namespace.
        namespace: bytes.
        cuttable: bool, whether the beginning of a state can be had by removing the rest.
        pays: tells whether restoring so many bytes is quicker than computing so many tokens.
    """
    best: Donor | None = None
    saved: Match | None = None
    for match in tree.matches(wanted, namespace):
        if match.entry.tier == DEVICE:
            best = Donor(match.entry.payload, match.length, match.entry)
            break
        saved = saved or match
    known = 0 if cuttable else tree.known(wanted, namespace)
    for holder in holders:
        length = common_prefix(holder.ids[: holder.n_computed], wanted)
        known = max(known, length)
        usable = length > 0 and (cuttable or length == holder.n_computed)
        if usable and (best is None or length > best.length):
            best = Donor(holder.slot, length, None)
    gained = saved.length - (best.length if best else 0) if saved else 0
    slow = False
    if saved and gained > 0:
        slow = not pays(saved.entry.n_bytes, gained)
        best = best if slow else Donor(-1, saved.length, saved.entry)
    length = best.length if best else 0
    if slow:
        return Lookup(best, "slow")
    if length == len(wanted):
        return Lookup(best, "")
    return Lookup(best, "checkpoint" if not cuttable and known > length else "new")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first items two sequences share. Compares slices, so the work is done in C."""
    one, other = list(one), list(other)
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
