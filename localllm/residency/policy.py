"""Which idle models make way, and which have been idle for long enough. Pure: no clock, no native calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Bytes by the place where they lie: TOTAL for all of them together, HOST for what the machine's own memory cannot do without
# (weights that are mapped from a file can leave it), and the names of devices with memory of their own.
Use = Mapping[str, int]
TOTAL, HOST = "total", "host"


@dataclass(frozen=True)
class Holding:
    """A context that is loaded.

    Attributes:
        id: object, what tells it from others.
        use: Use of the context alone.
        weights: object, what tells its weights from others.
        last_used: float, seconds of whatever clock.
        evictable: bool, idle and not pinned.
    """

    id: object
    use: Use
    weights: object
    last_used: float
    evictable: bool


@dataclass(frozen=True)
class Term:
    """What is known of a model that is to be unloaded when idle.

    Attributes:
        id: object, what tells it from others.
        idle: bool, it can be unloaded now.
        last_used: float, seconds of whatever clock.
        keep_alive: float, seconds that it stays after that.
        kept_until: float, it stays until then in any case.
    """

    id: object
    idle: bool
    last_used: float
    keep_alive: float
    kept_until: float = field(default=0.0)

    @property
    def ends(self) -> float:
        return max(self.last_used + self.keep_alive, self.kept_until)


def add(*uses: Use) -> dict[str, int]:
    """Several uses together."""
    places = {place for use in uses for place in use}
    return {place: sum(use.get(place, 0) for use in uses) for place in places}


def lacking(needed: Use, room: Use) -> dict[str, int]:
    """What there is too little of, and how much; a place that `room` does not name has no limit."""
    return {place: n_bytes - room[place] for place, n_bytes in needed.items() if place in room and n_bytes > room[place]}


def victims(
    holdings: Sequence[Holding], weights: Mapping[object, Use], needed: Use, room: Use, kept: object = None
) -> list[object] | None:
    """What has to make way for something new, least recently used first.

    Args:
        holdings: everything that is loaded.
        weights: Use of weights by what tells them from others; they go with the last context over them.
        needed: Use of what is to be loaded.
        room: Use that is possible now, with everything that is loaded.
        kept: the weights that the new one shares, which therefore stay.

    Returns:
        ids of holdings, [] if there is room already; None if there is not enough whatever makes way.
    """
    chosen: list[object] = []
    left = list(holdings)
    freed: Use = {}
    for victim in sorted((one for one in holdings if one.evictable), key=lambda one: one.last_used):
        if not lacking(needed, add(room, _only(freed, room))):
            break
        chosen.append(victim.id)
        left.remove(victim)
        freed = add(freed, victim.use)
        if victim.weights != kept and all(other.weights != victim.weights for other in left):
            freed = add(freed, weights.get(victim.weights, {}))
    return None if lacking(needed, add(room, _only(freed, room))) else chosen


def next_on_device(holdings: Sequence[Holding], weights: Mapping[object, Use], kept: object = None) -> list[object]:
    """The idle one that was used least recently of those that take memory of a device of its own; the weights `kept` stay.

    Returns:
        ids of holdings, at most one.
    """

    def takes(one: Holding) -> bool:
        use = one.use if one.weights == kept else add(one.use, weights.get(one.weights, {}))
        return any(n_bytes > 0 for place, n_bytes in use.items() if place not in (TOTAL, HOST))

    idle = [one for one in holdings if one.evictable and takes(one)]
    return [one.id for one in sorted(idle, key=lambda one: one.last_used)[:1]]


def _only(use: Use, room: Use) -> Use:
    return {place: n_bytes for place, n_bytes in use.items() if place in room}


def expired(terms: Iterable[Term], now: float) -> tuple[list[object], float | None]:
    """What has been idle for as long as it may.

    Returns:
        ids, and the seconds until the next one is due; None: none will be, as far as is known.
    """
    idle = [term for term in terms if term.idle]
    over = [term.id for term in idle if term.ends <= now]
    return over, min((term.ends - now for term in idle if term.ends > now), default=None)
