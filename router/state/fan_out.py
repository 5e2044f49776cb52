"""One publisher in front of several: a router with engines of its own tells itself at once, and the others through Redis."""

from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId, WorkerReport
from router.state.contract import SnapshotSource, StatePublisher


class FanOut:
    """A StatePublisher that passes everything on to each of `publishers`, in their order."""

    def __init__(self, *publishers: StatePublisher) -> None:
        self._publishers = publishers

    def report(self, report: WorkerReport) -> None:
        for publisher in self._publishers:
            publisher.report(report)

    def delta(self, delta: CacheDelta) -> None:
        for publisher in self._publishers:
            publisher.delta(delta)

    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None:
        for publisher in self._publishers:
            publisher.follow(worker, snapshot)

    def leave(self, worker: WorkerId) -> None:
        for publisher in self._publishers:
            publisher.leave(worker)
