"""What sidecars and other routers tell this router, taken into its fleet and its placement."""

import logging
from collections.abc import Callable
from typing import TypeVar

from router.core.cache_delta import CacheDelta, CacheSnapshot, RouterLoad
from router.core.fleet import Fleet
from router.core.placement import Placement
from router.core.types import Lifecycle, WorkerId, WorkerReport
from router.errors import SettingsError
from router.settings import EngineSpec

log = logging.getLogger("warmline")
MAX_REMEMBERED = 1024  # removed workers, and those that cannot join


class Intake:
    """A StateListener for workers that the fleet knows. `went_down` hears of those that stopped being reachable."""

    def __init__(
        self, fleet: Fleet, placement: Placement, clock: Callable[[], float], went_down: Callable[[WorkerId], None]
    ) -> None:
        self._fleet = fleet
        self._placement = placement
        self._clock = clock
        self._went_down = went_down

    def report(self, report: WorkerReport) -> None:
        for change in self._fleet.apply(report, self._clock()):
            if change.worker.lifecycle is Lifecycle.DOWN:
                self._went_down(change.worker.id)

    def delta(self, delta: CacheDelta) -> bool:
        return self._placement.cache_truth.delta(delta)

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        self._placement.cache_truth.snapshot(snapshot)

    def lost(self, worker: WorkerId, reason: str) -> None:
        self._placement.cache_truth.lost(worker)
        if self._fleet.mark_down(worker, reason, self._clock()):
            log.warning("worker %s: %s", worker, reason)
            self._went_down(worker)

    def router_load(self, load: RouterLoad) -> None:
        self._placement.shared_load.heard(load, self._clock())


class PoolIntake:
    """A StateListener for what comes from other processes: workers join the fleet as they are reported.

    They leave it when nobody reported them for `forget_s`. What others say of a worker that this router watches itself
    (`watch`), or that an operator removed (`drop`), is passed by. `forget` removes a worker from the fleet.
    """

    def __init__(
        self,
        intake: Intake,
        fleet: Fleet,
        clock: Callable[[], float],
        forget_s: float,
        forget: Callable[[WorkerId], None],
    ) -> None:
        self.watched: set[WorkerId] = set()
        self.refused = 0  # reports of workers that cannot join
        self._intake = intake
        self._fleet = fleet
        self._clock = clock
        self._forget_s = forget_s
        self._forget = forget
        self._lost: dict[WorkerId, float] = {}  # workers without a report → since when
        self._dropped: dict[WorkerId, None] = {}  # the oldest first
        self._refusals: dict[WorkerId, str] = {}  # what was told of them

    def watch(self, worker: WorkerId) -> None:
        """From now on the router looks at it itself."""
        self.watched.add(worker)
        self._lost.pop(worker, None)
        self._dropped.pop(worker, None)

    def drop(self, worker: WorkerId) -> None:
        """An operator removed it. It stays away while it is reported; after a silence it may come again."""
        self.watched.discard(worker)
        self._lost.pop(worker, None)
        bounded(self._dropped)[worker] = None

    def report(self, report: WorkerReport) -> None:
        worker = report.worker
        if worker in self.watched or worker in self._dropped:
            return
        self._lost.pop(worker, None)
        known = self._fleet.get(worker)
        if known is not None and (known.kind, known.spec.url) != (report.kind, report.url):
            self._forget(worker)  # its sidecar was given another kind or address
            known = None
        if known is not None or self._adopt(report):
            self._intake.report(report)

    def delta(self, delta: CacheDelta) -> bool:
        return delta.worker in self.watched or self._intake.delta(delta)

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        if snapshot.worker not in self.watched:
            self._intake.snapshot(snapshot)

    def lost(self, worker: WorkerId, reason: str) -> None:
        self._dropped.pop(worker, None)
        if worker not in self.watched and self._fleet.get(worker) is not None:
            self._lost.setdefault(worker, self._clock())
            self._intake.lost(worker, reason)

    def router_load(self, load: RouterLoad) -> None:
        self._intake.router_load(load)

    def forget_lost(self) -> None:
        """Workers that were not reported for `forget_s` leave the fleet."""
        now_s = self._clock()
        for worker in [worker for worker, since_s in self._lost.items() if now_s - since_s >= self._forget_s]:
            del self._lost[worker]
            self._forget(worker)

    def _adopt(self, report: WorkerReport) -> bool:
        """False where it cannot join: what is reported comes over the network and may be anything."""
        try:
            spec = EngineSpec(report.kind, report.url, rank=rank_of(report.worker))
            if spec.worker_id != report.worker:
                raise ValueError(f"its address is {spec.worker_id}")
            self._fleet.add(spec, self._clock())
        except (SettingsError, ValueError) as error:
            self.refused += 1
            if self._refusals.get(report.worker) != str(error):
                bounded(self._refusals)[report.worker] = str(error)
                log.warning("worker %s is reported and cannot join: %s", report.worker, error)
            return False
        log.info("worker %s joins as %s: a sidecar reports it", report.worker, report.kind)
        return True


def rank_of(worker: WorkerId) -> int | None:
    """The data-parallel rank that its name ends in (`EngineSpec.worker_id`). Raises ValueError where that is no number."""
    _, mark, rank = worker.rpartition("#")
    return int(rank) if mark else None


T = TypeVar("T")


def bounded(kept: dict[WorkerId, T]) -> dict[WorkerId, T]:
    """The dict, with room for one more: the oldest entry goes."""
    if len(kept) >= MAX_REMEMBERED:
        del kept[next(iter(kept))]
    return kept
