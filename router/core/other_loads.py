"""What other routers have in flight, as they tell it: added up in each worker's load.

Whoever brings the messages keeps their order, leaves out own ones, and says for a router that fell silent that it has
nothing (an empty full load).
"""

from typing import Final

from router.core.cache_delta import RouterLoad
from router.core.fleet import Fleet
from router.core.load import FleetLoad, Load
from router.core.types import WorkerId

MAX_TOLD: Final = 1_000_000_000  # requests or tokens on one worker that are believed

Told = tuple[Load, int, int]  # requests and tokens of one router that are counted in this load


class OtherLoads:
    """Kept of a router: what it told of workers of this fleet, as long as that is not nothing."""

    def __init__(self, fleet: Fleet, load: FleetLoad) -> None:
        self._fleet = fleet
        self._load = load
        self._told: dict[str, dict[WorkerId, Told]] = {}

    def heard(self, message: RouterLoad) -> None:
        told = self._told.setdefault(message.router, {})
        if message.full:
            for worker_id in [name for name in told if name not in message.workers]:
                self._count(told, worker_id, 0, 0)
        for worker_id, (requests, tokens) in message.workers.items():
            self._count(told, worker_id, min(max(requests, 0), MAX_TOLD), min(max(tokens, 0), MAX_TOLD))
        if not told:
            del self._told[message.router]
        self._load.other_routers = len(self._told)

    def _count(self, told: dict[WorkerId, Told], worker_id: WorkerId, requests: int, tokens: int) -> None:
        """Sets one router's totals on one worker, in place of those before; a worker that came back has a load of its own."""
        before = told.pop(worker_id, None)
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
            told[worker_id] = (worker.load, requests, tokens)
