"""Sidecars and router in one process: what is published is heard before the call returns."""

from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId, WorkerReport
from router.state.contract import SnapshotSource, StateListener


class MemoryState:
    """A StatePublisher joined to one StateListener."""

    def __init__(self, listener: StateListener) -> None:
        self._listener = listener
        self._sources: dict[WorkerId, SnapshotSource] = {}

    def report(self, report: WorkerReport) -> None:
        self._listener.report(report)

    def delta(self, delta: CacheDelta) -> None:
        if not self._listener.delta(delta):
            self.want_snapshot(delta.worker)

    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None:
        self._sources[worker] = snapshot
        self.want_snapshot(worker)

    def leave(self, worker: WorkerId) -> None:
        self._sources.pop(worker, None)
        self._listener.lost(worker, "it is not watched any more")

    def want_snapshot(self, worker: WorkerId) -> None:
        """The listener can use one, if the worker is followed and its cache known."""
        source = self._sources.get(worker)
        snapshot = source() if source is not None else None
        if snapshot is not None:
            self._listener.snapshot(snapshot)
