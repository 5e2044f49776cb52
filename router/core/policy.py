"""The policies: which of the priced candidates gets the request, and the reason to remember.

A policy may *nominate* a worker before anything is priced (it then is among the candidates) and *picks* one of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol

from router.core.cost import held_blocks
from router.core.fleet import Worker
from router.core.load import FleetLoad
from router.core.prefix_node import Level, slots_of
from router.core.ring import Ring, load_bound
from router.core.types import Priced

EXACT_SUM: Final = 64  # pools up to this size have their requests in flight counted, larger ones take the fleet's
HOME_TIE: Final = 0.1  # of the prompt's own prefill: how much cheaper the second home must be than the first
HOME_MARGIN: Final = 0.25  # of the prompt's own prefill: how much cheaper a stranger must be than a home on the ring
BITS_OF: Final = [[bit for bit in range(8) if octet >> bit & 1] for octet in range(256)]
NO_PRICES: Final[list[Priced]] = []
NO_HOMES: Final[list[Worker]] = []


class Random(Protocol):
    """The part of random.Random that placement needs."""

    def random(self) -> float: ...


class Pool:
    """The workers that may serve a request, with what is derived from them once per fleet epoch."""

    __slots__ = ("asked", "mask", "ring", "slots", "total_weight", "workers")

    def __init__(self, workers: Sequence[Worker], ring: Ring) -> None:
        self.asked = workers  # the very sequence that the caller has
        self.workers = list(workers)
        self.ring = ring  # may have more members than the pool
        self.slots = {worker.slot for worker in workers}
        self.mask = 0  # the same as bits
        self.total_weight = 0.0
        for worker in self.workers:
            self.mask |= worker.bit
            self.total_weight += worker.weight


class Question:
    """Everything a policy may look at in one choice. `candidates` and `priced` run in parallel."""

    __slots__ = ("candidates", "hint", "homes", "levels", "nominee", "now_s", "pool", "priced", "ring_key")

    def __init__(
        self, pool: Pool, levels: list[Level], ring_key: int | None, hint: Worker | None, now_s: float
    ) -> None:  # fmt: skip
        self.pool = pool
        self.levels = levels  # who holds how much of the prompt
        self.ring_key = ring_key  # None: the prompt has no keys
        self.hint = hint  # the worker of the client's session
        self.now_s = now_s
        self.nominee: Worker | None = None  # the policy's own, see Policy.nominate
        self.candidates = pool.workers
        self.priced = NO_PRICES
        self.homes = NO_HOMES


class FleetView:
    """What stays the same from choice to choice: workers by slot, chance, the ring's bound."""

    __slots__ = ("choice", "load", "load_factor", "rng", "slots")

    def __init__(self, slots: list[Worker | None], load: FleetLoad, load_factor: float, rng: Random) -> None:
        self.slots = slots
        self.load = load
        self.load_factor = load_factor
        self.rng = rng
        self.choice = 0  # number of the latest among large pools


class Policy(ABC):
    """What `Placement` asks of a policy. State (a round-robin counter, say) is its own."""

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        """A worker of the pool that must be among the candidates; None if the policy has no opinion yet."""
        return None

    @abstractmethod
    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        """(place in q.candidates, reason)."""


class Warm(Policy):
    """Least steer cost. Where nobody holds the first block, a home on the ring unless a stranger is much cheaper."""

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        priced = q.priced
        best = cheapest(priced, fleet.rng)
        worker, row = q.candidates[best], priced[best]
        if q.ring_key is None:
            if worker is q.hint:
                return best, "session"  # all that is known of such a prompt
            return least_queue(q.candidates, q.now_s, fleet.rng), "least_queue"
        if worker is q.hint and least_cost_s(priced) < row.cost_s:
            return best, "session"
        if q.levels:
            if worker.matched_blocks == q.levels[0].blocks:
                return best, "warm_prefix"
            most = most_matched_tokens(priced)
            if most:
                return best, "warm_prefix" if row.matched_tokens == most else "holder_busy"
        return self._unseen(q, fleet, best)

    def _unseen(self, q: Question, fleet: FleetView, best: int) -> tuple[int, str]:
        if not q.homes:
            q.homes = ring_homes(q, fleet)
            if not q.homes:
                return best, "least_cost"
        priced = q.priced
        home = q.candidates.index(q.homes[0])
        for worker in q.homes[1:]:
            other = q.candidates.index(worker)
            # Not on any difference: small errors of learned speeds would send all new prompts to the same few workers.
            if priced[home].bid_s - priced[other].bid_s > HOME_TIE * priced[home].prefill_s:
                home = other
        if priced[home].bid_s - priced[best].bid_s > HOME_MARGIN * priced[home].prefill_s:
            return best, "least_cost"
        return home, "ring_home"


class BoundedRing(Policy):
    """The first home of the prompt's leading blocks that is under the bound; least queue without keys."""

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        if q.ring_key is None:
            return None
        q.homes = ring_homes(q, fleet)
        return q.homes[0] if q.homes else None

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        if q.nominee is None:
            return least_queue(q.candidates, q.now_s, fleet.rng), "least_queue"
        return q.candidates.index(q.nominee), "ring_home"


class LeastQueue(Policy):
    """Fewest requests in flight per weight, then fewest waiting; ties at random. Of a large pool, the shortlist's."""

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        return least_queue(q.candidates, q.now_s, fleet.rng), "least_queue"


class RoundRobin(Policy):
    """Each worker of a pool in turn; one turn counter for all pools."""

    def __init__(self) -> None:
        self._turn = -1

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        self._turn += 1
        return q.pool.workers[self._turn % len(q.pool.workers)]

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        assert q.nominee is not None
        return q.candidates.index(q.nominee), "round_robin"


class Uniform(Policy):
    """Any worker of the pool with the same chance."""

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        return q.pool.workers[int(fleet.rng.random() * len(q.pool.workers))]

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        assert q.nominee is not None
        return q.candidates.index(q.nominee), "random"


def make_policy(name: str) -> Policy:
    """By its name in `settings.POLICIES`; KeyError for any other."""
    kinds: dict[str, type[Policy]] = {
        "warm": Warm,
        "ring": BoundedRing,
        "least-queue": LeastQueue,
        "round-robin": RoundRobin,
        "random": Uniform,
    }
    return kinds[name]()


def cheapest(priced: list[Priced], rng: Random) -> int:
    """Place of the least bid, ties at random."""
    best = ties = 0
    low = priced[0].bid_s
    for at, row in enumerate(priced):
        if row.bid_s < low:
            low = row.bid_s
            best, ties = at, 1
        elif row.bid_s == low:
            ties += 1
    if ties == 1:
        return best
    return [at for at, row in enumerate(priced) if row.bid_s == low][int(rng.random() * ties)]


def least_cost_s(priced: list[Priced]) -> float:
    low = priced[0].cost_s
    for row in priced:
        if row.cost_s < low:
            low = row.cost_s
    return low


def most_matched_tokens(priced: list[Priced]) -> int:
    most = 0
    for row in priced:
        if row.matched_tokens > most:
            most = row.matched_tokens
    return most


def least_queue(workers: list[Worker], now_s: float, rng: Random) -> int:
    """Place of the worker with the fewest requests in flight per weight, then requests waiting, ties at random."""
    ties: list[int] = []
    low, least = 0.0, 0
    for at, worker in enumerate(workers):
        queue = float(worker.load.requests()) / worker.weight
        if not ties or queue <= low:
            waiting = worker.load.waiting_at(now_s)
            if not ties or queue < low or waiting < least:
                low, least, ties = queue, waiting, [at]
            elif waiting == least:
                ties.append(at)
    return ties[int(rng.random() * len(ties))]


def ring_homes(q: Question, fleet: FleetView, count: int = 2) -> list[Worker]:
    """The first workers of the pool clockwise from the prompt's ring key, those at their bound left out."""
    assert q.ring_key is not None
    pool, slots = q.pool, fleet.slots
    total = fleet.load.in_flight + fleet.load.other_requests
    if len(pool.workers) <= EXACT_SUM:
        total = 0
        for worker in pool.workers:
            total += worker.load.requests()

    def has_room(slot: int) -> bool:
        worker = slots[slot]
        return (
            worker is not None
            and pool.mask & worker.bit != 0
            and worker.load.requests() < load_bound(fleet.load_factor, total, worker.weight / pool.total_weight)
        )

    return [home for slot in pool.ring.homes(q.ring_key, count, has_room) if (home := slots[slot]) is not None]


class Shortlist:
    """Some workers of a large pool, each once, with how much of the prompt each holds."""

    __slots__ = ("choice", "workers")

    def __init__(self, choice: int) -> None:
        self.choice = choice
        self.workers: list[Worker] = []

    def add(self, worker: Worker, matched_blocks: int) -> None:
        if worker.listed != self.choice:
            worker.listed = self.choice
            worker.matched_blocks = matched_blocks
            self.workers.append(worker)


def shortlist(q: Question, fleet: FleetView, limit: int, preferred: int = 0) -> list[Worker]:
    """At most `limit` workers of a large pool, so that a choice costs the same in a fleet of any size.

    The session's worker; an eighth of the places for the deepest holders; homes on the ring where nobody holds
    anything; an eighth of the places for any of `preferred`, a mask of slots; and, an eighth of the places times, the less
    loaded of two drawn at random. In simulated fleets of 100 and 1,000 eight candidates gave the same TTFT as all, within
    5 %, and a third less where all share one prefix: many who price the same few idle workers in the same moment herd.
    """
    fleet.choice += 1
    pool, levels, places = q.pool, q.levels, max(1, limit // 8)
    found = Shortlist(fleet.choice)
    if q.hint is not None:
        found.add(q.hint, held_blocks(q.hint, levels, 0))
    listed = add_holders(found, q, fleet, places)
    if q.ring_key is not None and len(found.workers) <= 1 and not (levels and levels[-1].mask & pool.mask):
        q.homes = (q.homes or ring_homes(q, fleet))[: limit - len(found.workers)]
        for home in q.homes:
            found.add(home, 0)
    preferred &= pool.mask
    if preferred:
        room = max(0, min(places, limit - len(found.workers)))
        for slot in some_slots(preferred, room, int(fleet.rng.random() * len(fleet.slots)))[:room]:
            worker = fleet.slots[slot]
            assert worker is not None  # the pool's mask has only slots in use
            found.add(worker, held_blocks(worker, levels, 0))
    workers, size = pool.workers, len(pool.workers)
    for _ in range(min(places, limit - len(found.workers))):
        drawn = fleet.rng.random() * size  # one number draws both: its rest has bits enough
        first = int(drawn)
        one, other = workers[first], workers[int((drawn - first) * size)]
        if float(one.load.requests()) * other.weight > float(other.load.requests()) * one.weight:
            one = other
        if one.listed != found.choice:
            found.add(one, held_blocks(one, levels, listed))
    return found.workers


def add_holders(found: Shortlist, q: Question, fleet: FleetView, places: int) -> int:
    """The deepest holders, until there are so many workers in all; returns how many levels were listed whole.

    Few operations on masks: with a thousand slots each costs as much as pricing a worker.
    """
    pool, slots = q.pool, fleet.slots
    listed = seen = 0
    for level in q.levels:
        mask = level.mask
        room = places - len(found.workers)
        top = slots[mask.bit_length() - 1]
        if room > 0 and top is not None and top.bit == mask:  # one holder, as of most conversations
            if top.slot in pool.slots:
                found.add(top, level.blocks)
        else:
            new = (mask ^ seen) & pool.mask  # masks grow from level to level
            if new.bit_count() > room:
                for slot in some_slots(new, room, int(fleet.rng.random() * len(slots)))[:room]:
                    add_slot(found, slots, slot, level.blocks)
                return listed
            for slot in slots_of(new):
                add_slot(found, slots, slot, level.blocks)
        seen = mask
        listed += 1
    return listed


def add_slot(found: Shortlist, slots: list[Worker | None], slot: int, matched_blocks: int) -> None:
    worker = slots[slot]
    assert worker is not None  # the pool's mask has only slots in use
    found.add(worker, matched_blocks)


def some_slots(mask: int, count: int, turn: int) -> list[int]:
    """At least `count` slots of a mask if it has as many, and hardly more, from slot `turn` upwards and around."""
    slots: list[int] = []
    octets = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    size, at, low = len(octets), turn // 8, turn % 8
    if at >= size:
        at = low = 0
    for visit in range(size + 1 if size else 0):
        if len(slots) >= count:
            break
        for bit in BITS_OF[octets[at]]:
            if bit >= low if visit == 0 else visit < size or bit < low:
                slots.append(at * 8 + bit)
        at += 1
        if at == size:
            at = 0
    return slots
