"""What the other routers of the pool have in flight, added up per worker."""

from typing import Final

from router.core.cache_delta import RouterLoad
from router.core.types import WorkerId

NOTHING: Final = (0, 0)


class PeerLoads:
    """Takes in what each router says of itself. Bounded by `max_routers` times `max_workers`."""

    def __init__(self, max_routers: int, max_workers: int) -> None:
        self._max_routers = max_routers
        self._max_workers = max_workers
        self._by_router: dict[str, dict[WorkerId, tuple[int, int]]] = {}
        self._totals: dict[WorkerId, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Routers that have something in flight."""
        return len(self._by_router)

    def of(self, worker: WorkerId) -> tuple[int, int]:
        """(requests before their end, uncached tokens before their first token) at all other routers together."""
        return self._totals.get(worker, NOTHING)

    def apply(self, load: RouterLoad) -> bool:
        """False when there is no room for it; then nothing of it is kept that was not known before."""
        known = self._by_router.get(load.router)
        if known is None:
            if len(self._by_router) >= self._max_routers:
                return False
            known = self._by_router[load.router] = {}
        if load.full:
            for worker in [worker for worker in known if worker not in load.workers]:
                self._put(known, worker, NOTHING)
        fits = True
        for worker, counts in load.workers.items():
            if worker in known or len(known) < self._max_workers:
                self._put(known, worker, counts)
            else:
                fits = False
        if not known:
            del self._by_router[load.router]
        return fits

    def _put(self, known: dict[WorkerId, tuple[int, int]], worker: WorkerId, counts: tuple[int, int]) -> None:
        before = known.get(worker, NOTHING)
        total = self._totals.get(worker, NOTHING)
        requests = total[0] + counts[0] - before[0]
        tokens = total[1] + counts[1] - before[1]
        if counts[0] or counts[1]:
            known[worker] = counts
        else:
            known.pop(worker, None)
        if requests or tokens:
            self._totals[worker] = (requests, tokens)
        else:
            self._totals.pop(worker, None)
