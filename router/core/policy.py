"""The policies: which of the priced candidates gets the request, and the reason to remember.

A policy may *nominate* a worker before anything is priced (it then is among the candidates) and *picks* one of them.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from router.core.fleet import Worker
from router.core.load import FleetLoad
from router.core.prefix_index import Level
from router.core.ring import Ring, load_bound
from router.core.types import Priced

MATCHED: Final = 1  # places in Priced
PREFILL_S: Final = 2
COST_S: Final = 5
EXACT_SUM = 64  # pools up to this size have their requests in flight counted, larger ones take the fleet's
HOME_TIE = 0.1  # of the prompt's own prefill: how much cheaper the second home must be than the first
HOME_MARGIN = 0.25  # of the prompt's own prefill: how much cheaper a stranger must be than a home on the ring


class Random(Protocol):
    """The part of random.Random that placement needs."""

    def random(self) -> float: ...


class Pool:
    """The workers that may serve a request, with what is derived from them once per fleet epoch."""

    __slots__ = ("mask", "ring", "total_weight", "workers")

    def __init__(self, workers: Sequence[Worker], ring: Ring) -> None:
        self.workers = workers
        self.ring = ring  # may have more members than the pool
        self.mask = 0
        self.total_weight = 0.0
        for worker in workers:
            self.mask |= worker.bit
            self.total_weight += worker.weight


class Question:
    """Everything a policy may look at in one choice. `candidates`, `priced` and `costs` run in parallel."""

    __slots__ = (
        "candidates", "costs", "hint", "homes", "levels", "nominee", "now_s", "pool", "priced",
        "ring_key",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, levels: Sequence[Level], ring_key: int | None, hint: Worker | None, now_s: float
    ) -> None:  # fmt: skip
        self.pool = pool
        self.levels = levels  # who holds how much of the prompt
        self.ring_key = ring_key  # None: the prompt has no keys
        self.hint = hint  # the worker of the client's session
        self.now_s = now_s
        self.nominee: Worker | None = None  # the policy's own, see Policy.nominate
        self.candidates: Sequence[Worker] = pool.workers
        self.priced: Sequence[Priced] = ()
        self.costs: Sequence[float] = ()  # of `priced`, less the session credit
        self.homes: Sequence[Worker] = ()


class Policy(Protocol):
    """What `Placement` asks of a policy. State (a round-robin counter, say) is its own."""

    def nominate(self, q: Question, fleet: "FleetView") -> Worker | None:
        """A worker of the pool that must be among the candidates; None if the policy has no opinion yet."""

    def pick(self, q: Question, fleet: "FleetView") -> tuple[int, str]:
        """(place in q.candidates, reason)."""


class FleetView:
    """What stays the same from choice to choice: workers by slot, chance, the ring's bound."""

    __slots__ = ("load", "load_factor", "rng", "slots")

    def __init__(self, slots: Sequence[Worker | None], load: FleetLoad, load_factor: float, rng: Random) -> None:
        self.slots = slots
        self.load = load
        self.load_factor = load_factor
        self.rng = rng


class Warm:
    """Least steer cost. Where nobody holds the first block, a home on the ring unless a stranger is much cheaper."""

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        return None

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        best = cheapest(q.costs, fleet.rng)
        worker = q.candidates[best]
        if q.ring_key is None:
            if worker is q.hint:
                return best, "session"  # all that is known of such a prompt
            return least_queue(q.candidates, q.now_s, fleet.rng), "least_queue"
        if worker is q.hint and min(priced[COST_S] for priced in q.priced) < q.priced[best][COST_S]:
            return best, "session"
        if q.levels:
            if q.levels[0][1] & worker.bit:
                return best, "warm_prefix"
            most = max(priced[MATCHED] for priced in q.priced)
            if most:
                return best, "warm_prefix" if q.priced[best][MATCHED] == most else "holder_busy"
        return self._unseen(q, fleet, best)

    def _unseen(self, q: Question, fleet: FleetView, best: int) -> tuple[int, str]:
        q.homes = q.homes or ring_homes(q, fleet)
        if not q.homes:
            return best, "least_cost"
        home, costs = q.candidates.index(q.homes[0]), q.costs
        for worker in q.homes[1:]:
            other = q.candidates.index(worker)
            # Not on any difference: small errors of learned speeds would send all new prompts to the same few workers.
            if costs[home] - costs[other] > HOME_TIE * q.priced[home][PREFILL_S]:
                home = other
        if costs[home] - costs[best] > HOME_MARGIN * q.priced[home][PREFILL_S]:
            return best, "least_cost"
        return home, "ring_home"


class BoundedRing:
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


class LeastQueue:
    """Fewest requests in flight per weight, then fewest waiting; ties at random. Of a large pool, the shortlist's."""

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        return None

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        return least_queue(q.candidates, q.now_s, fleet.rng), "least_queue"


class RoundRobin:
    """Each worker of a pool in turn; one turn counter for all pools."""

    def __init__(self) -> None:
        self._turn = -1

    def nominate(self, q: Question, fleet: FleetView) -> Worker | None:
        self._turn += 1
        return q.pool.workers[self._turn % len(q.pool.workers)]

    def pick(self, q: Question, fleet: FleetView) -> tuple[int, str]:
        assert q.nominee is not None
        return q.candidates.index(q.nominee), "round_robin"


class Uniform:
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


def cheapest(costs: Sequence[float], rng: Random) -> int:
    """Place of the least cost, ties at random."""
    low = min(costs)
    if costs.count(low) == 1:
        return costs.index(low)
    ties = [i for i, cost in enumerate(costs) if cost == low]
    return ties[int(rng.random() * len(ties))]


def least_queue(workers: Sequence[Worker], now_s: float, rng: Random) -> int:
    """Place of the worker with the fewest requests in flight per weight, then requests waiting, ties at random."""
    queues = [(worker.load.in_flight / worker.weight, worker.load.waiting_at(now_s)) for worker in workers]
    low = min(queues)
    ties = [i for i, queue in enumerate(queues) if queue == low]
    return ties[int(rng.random() * len(ties))]


def ring_homes(q: Question, fleet: FleetView, count: int = 2) -> list[Worker]:
    """The first workers of the pool clockwise from the prompt's ring key, those at their bound left out."""
    assert q.ring_key is not None
    pool, slots = q.pool, fleet.slots
    total = sum(worker.load.in_flight for worker in pool.workers) if len(pool.workers) <= EXACT_SUM else fleet.load.in_flight

    def has_room(slot: int) -> bool:
        worker = slots[slot]
        return (
            worker is not None
            and pool.mask & worker.bit != 0
            and worker.load.in_flight < load_bound(fleet.load_factor, total, worker.weight / pool.total_weight)
        )

    return [worker for slot in pool.ring.homes(q.ring_key, count, has_room) if (worker := slots[slot]) is not None]


def shortlist(q: Question, fleet: FleetView, limit: int) -> list[Worker]:
    """At most `limit` workers of a large pool, so that a choice costs the same in a fleet of any size.

    The session's worker; a quarter of the places for the deepest holders; homes on the ring where nobody holds
    anything; and, a quarter of the places times, the less loaded of two drawn at random. (With half the places for
    holders a choice among 1,000 workers took 2.2 times that among 8; with a quarter 1.8.)
    """
    pool, rng = q.pool, fleet.rng
    chosen: dict[Worker, None] = {} if q.hint is None else {q.hint: None}
    seen = 0
    for _, mask in q.levels:
        new = mask & pool.mask & ~seen
        seen |= mask
        for slot in some_slots(new, max(1, limit // 4) - len(chosen), int(rng.random() * len(fleet.slots))):
            worker = fleet.slots[slot]
            assert worker is not None  # the pool's mask has only slots in use
            chosen[worker] = None
    if not seen & pool.mask and q.ring_key is not None:
        q.homes = q.homes or ring_homes(q, fleet)
        chosen.update(dict.fromkeys(q.homes))
    workers, size = pool.workers, len(pool.workers)
    for _ in range(max(1, limit // 4)):
        one, other = workers[int(rng.random() * size)], workers[int(rng.random() * size)]
        chosen[one if one.load.in_flight * other.weight <= other.load.in_flight * one.weight else other] = None
    return list(chosen)[:limit]


def some_slots(mask: int, count: int, turn: int) -> list[int]:
    """Up to `count` slots of a mask, from slot `turn` upwards and around."""
    slots: list[int] = []
    high = mask >> turn << turn
    for part in (high, mask ^ high):
        while part and len(slots) < count:
            low = part & -part
            slots.append(low.bit_length() - 1)
            part ^= low
    return slots
