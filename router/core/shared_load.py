"""What the other routers of a pool have in flight, added up in each worker's load."""

from typing import Final

from router.core.cache_delta import RouterLoad
from router.core.elsewhere import SentElsewhere
from router.core.fleet import Fleet
from router.core.load import FleetLoad, Load
from router.core.speed import FleetSpeed
from router.core.types import WorkerId

MAX_TOLD: Final = 1_000_000_000  # requests or tokens on one worker that are believed

Told = tuple[Load, int, int]  # requests and tokens of one other router that are counted in this load


class SharedLoad:
    """Which routers are heard, in what order and for how long is for the caller to say."""

    def __init__(self, fleet: Fleet, load: FleetLoad, speed: FleetSpeed, sent: SentElsewhere) -> None:
        self._fleet = fleet
        self._speed = speed
        self._sent = sent
        self._load = load
        self._others: dict[str, dict[WorkerId, Told]] = {}  # what each told last, of workers of this fleet

    def heard(self, message: RouterLoad, now_s: float) -> None:
        """Takes in what another router tells. An empty full message: it has nothing in flight, or is gone."""
        told = self._others.setdefault(message.router, {})
        if message.full:
            for worker_id in [name for name in told if name not in message.workers]:
                self._count(told, worker_id, 0, 0, now_s)
        for worker_id, (requests, tokens) in message.workers.items():
            self._count(told, worker_id, min(max(requests, 0), MAX_TOLD), min(max(tokens, 0), MAX_TOLD), now_s)
        if message.full and not told:
            del self._others[message.router]
        self._load.other_routers = len(self._others)
        if message.marks:
            self._sent.heard(message.marks, now_s)

    def _count(self, told: dict[WorkerId, Told], worker_id: WorkerId, requests: int, tokens: int, now_s: float) -> None:
        """Sets one router's totals on one worker, in place of those before; a worker that came back has a load of its own."""
        before, old_requests, old_tokens = told.pop(worker_id, (None, 0, 0))
        self._load.other_requests -= old_requests
        worker = self._fleet.get(worker_id)
        if worker is None:
            return
        if worker.load is not before:
            old_requests = old_tokens = 0
        if requests or tokens or old_requests or old_tokens:
            s_per_token = self._speed.of(worker.speed)
            worker.load.hear_others(requests - old_requests, tokens - old_tokens, now_s, s_per_token)
        if requests or tokens:
            self._load.other_requests += requests
            told[worker_id] = (worker.load, requests, tokens)
