"""A StatePublisher of whose words only the reports are passed on."""

from collections.abc import Callable

from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId, WorkerReport
from router.state.contract import SnapshotSource


class Heard:
    def __init__(self, report: Callable[[WorkerReport], None]) -> None:
        self._report = report

    def report(self, report: WorkerReport) -> None:
        self._report(report)

    def delta(self, delta: CacheDelta) -> None: ...
    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None: ...
    def leave(self, worker: WorkerId) -> None: ...
