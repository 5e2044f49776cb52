"""What routers of one fleet tell each other of their load: requests and uncached tokens in flight, worker by worker.

Own side: workers whose load moved are noted as it moves, and told with their new totals; now and then everything is told,
which mends what got lost. Other side: the totals of other routers are added up in each worker's load; those of a router
that is silent for the TTL are taken off again.
"""

from typing import Final

from router.core.cache_delta import RouterLoad
from router.core.fleet import Fleet, Worker
from router.core.load import FleetLoad, Load
from router.core.types import WorkerId

MAX_ROUTERS: Final = 64  # others; further ones are not listened to
MAX_TOLD: Final = 1_000_000_000  # requests or tokens on one worker that are believed

Told = tuple[Load, int, int]  # requests and tokens of one other router that are counted in this load


class OtherRouter:
    """What one told last, as far as it concerns workers of this fleet."""

    __slots__ = ("heard_s", "seq", "told")

    def __init__(self) -> None:
        self.seq = -1
        self.heard_s = 0.0
        self.told: dict[WorkerId, Told] = {}


class SharedLoad:
    """`changed` is written by Placement: the workers whose load is another than was told."""

    def __init__(self, router: str, fleet: Fleet, load: FleetLoad, ttl_s: float) -> None:
        self.router = router
        self.changed: dict[Worker, None] = {}
        self.stale = 0  # messages that came too late
        self.refused = 0  # of routers beyond MAX_ROUTERS
        self._fleet = fleet
        self._load = load
        self._ttl_s = ttl_s
        self._seq = 0
        self._others: dict[str, OtherRouter] = {}

    def __len__(self) -> int:
        """Other routers that are heard."""
        return len(self._others)

    def message(self) -> RouterLoad | None:
        """What changed since the last message; None if nothing did."""
        if not self.changed:
            return None
        return self._told(False, list(self.changed))

    def full_message(self) -> RouterLoad:
        """All of it; workers that are left out have nothing."""
        return self._told(True, [w for w in self._fleet.workers if w.load.in_flight or w.load.pending_tokens])

    def heard(self, message: RouterLoad, now_s: float) -> None:
        """Takes in what another router tells; own messages that come back are left out."""
        if message.router == self.router:
            return
        other = self._others.get(message.router)
        if other is None:
            if len(self._others) >= MAX_ROUTERS:
                self.refused += 1
                return
            other = self._others[message.router] = OtherRouter()
        elif message.seq <= other.seq:
            self.stale += 1
            return
        other.seq, other.heard_s = message.seq, now_s
        if message.full:
            for worker_id in [name for name in other.told if name not in message.workers]:
                self._count(other, worker_id, 0, 0)
        for worker_id, (requests, tokens) in message.workers.items():
            self._count(other, worker_id, min(max(requests, 0), MAX_TOLD), min(max(tokens, 0), MAX_TOLD))
        self._load.other_routers = len(self._others)

    def expire(self, now_s: float) -> None:
        """Routers that were not heard for the TTL have nothing in flight any more, as far as anybody knows."""
        for name in [name for name, other in self._others.items() if now_s - other.heard_s > self._ttl_s]:
            other = self._others.pop(name)
            for worker_id in list(other.told):
                self._count(other, worker_id, 0, 0)
            self._load.other_routers = len(self._others)

    def _told(self, full: bool, workers: list[Worker]) -> RouterLoad:
        self._seq += 1
        self.changed.clear()
        totals = {worker.id: (worker.load.in_flight, worker.load.pending_tokens) for worker in workers}
        return RouterLoad(self.router, self._seq, full, totals)

    def _count(self, other: OtherRouter, worker_id: WorkerId, requests: int, tokens: int) -> None:
        """Sets one router's totals on one worker, in place of those before; a worker that came back has a load of its own."""
        before = other.told.pop(worker_id, None)
        if before is not None:
            load, old_requests, old_tokens = before
            load.other_requests -= old_requests
            load.other_tokens -= old_tokens
            self._load.other_requests -= old_requests
        worker = self._fleet.get(worker_id)
        if worker is not None and (requests or tokens):
            worker.load.other_requests += requests
            worker.load.other_tokens += tokens
            self._load.other_requests += requests
            other.told[worker_id] = (worker.load, requests, tokens)
