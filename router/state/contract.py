"""What sidecars tell and what routers hear, whichever way it goes between them.

Calls on both sides are synchronous and never wait: a publisher keeps what it could not pass on yet, within bounds, and
a listener takes in what it is told. Clocks are monotonic seconds of the process that is called.
"""

from collections.abc import Callable
from typing import Protocol

from router.core.cache_delta import CacheDelta, CacheSnapshot, RouterLoad
from router.core.types import WorkerId, WorkerReport

SnapshotSource = Callable[[], CacheSnapshot | None]


class StatePublisher(Protocol):
    """A sidecar's side."""

    def report(self, report: WorkerReport) -> None:
        """The newest word on a worker; only the newest need arrive."""

    def delta(self, delta: CacheDelta) -> None:
        """A change of a worker's cache. Where deltas are lost on the way, a snapshot makes up for it."""

    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None:
        """Deltas of the worker will come. `snapshot` gives all that is cached as of the last delta that was passed here.

        None while it does not know; it is asked again.
        """

    def leave(self, worker: WorkerId) -> None:
        """The worker is not watched any more: routers lose it at once."""


class StateListener(Protocol):
    """A router's side. Deltas and snapshots of a worker come after its first report."""

    def report(self, report: WorkerReport) -> None:
        """`reported_at_s` is this process's clock, never later than the look behind the report."""

    def delta(self, delta: CacheDelta) -> bool:
        """False when it does not follow on what is known: then a snapshot will come."""

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        """All that is cached, in place of what was known."""

    def lost(self, worker: WorkerId, reason: str) -> None:
        """There is no valid report any more. A later report makes it known again, and a snapshot its cache."""

    def router_load(self, load: RouterLoad) -> None:
        """What another router has in flight. An empty full one when that router is gone."""
