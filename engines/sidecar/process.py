"""The sidecar as a process of its own: watches engines and publishes what it sees of them to a pool's Redis."""

import asyncio
import logging
import signal
import time
from dataclasses import replace

import uvloop

from engines.shared_answers import SharedAnswers
from engines.sidecar.watch import shared_by_ranks, watch
from router.core.cache_delta import CacheDelta
from router.core.types import Lifecycle, WorkerId, WorkerReport
from router.redis_url import parse_redis
from router.settings import EngineSpec, Settings
from router.state.contract import SnapshotSource
from router.state.redis_health import RedisHealth
from router.state.redis_publisher import RedisPublisher

LOG = logging.getLogger("warmline.sidecar")


class Sidecar:
    """Reports of all its engines until `stop`; then it says of each that it is draining, and ends."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for an unreadable TLS file."""
        self._settings = settings
        health = RedisHealth(parse_redis(settings.state.redis), settings.state.redis_timeout_s)
        self._publisher = RedisPublisher(settings.state, settings.fleet, health)
        self._last: dict[str, WorkerReport] = {}
        self._count = sum(engine.ranks for engine in settings.engines)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._publisher.run())
            watches = [
                group.create_task(self._watch(rank, shared))
                for spec in self._settings.engines
                for shared in [shared_by_ranks(spec, self._settings.fleet, time.monotonic)]
                for rank in spec.by_rank()
            ]
            LOG.info("publishing %d engines to Redis, pool %s", len(watches), self._settings.state.pool_name)
            await self._stop.wait()
            for task in watches:
                task.cancel()
            for report in self._last.values():
                self._publisher.report(leaving(report, time.monotonic()))
            self._publisher.finish()
            await writing
        LOG.info("stopped")

    def stop(self) -> None:
        self._stop.set()

    async def _watch(self, spec: EngineSpec, shared: SharedAnswers | None) -> None:
        settings, count = self._settings, self._count
        await watch(spec, settings.fleet, settings.events, self, time.monotonic, lambda: count, shared=shared)

    # A StatePublisher that remembers the last reports

    def report(self, report: WorkerReport) -> None:
        self._last[report.worker] = report
        self._publisher.report(report)

    def delta(self, delta: CacheDelta) -> None:
        self._publisher.delta(delta)

    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None:
        self._publisher.follow(worker, snapshot)

    def leave(self, worker: WorkerId) -> None:
        self._publisher.leave(worker)


def leaving(report: WorkerReport, now_s: float) -> WorkerReport:
    """The last word on an engine: no new requests, because nobody will tell when it goes."""
    lifecycle = Lifecycle.DRAINING if report.lifecycle is Lifecycle.READY else report.lifecycle
    return replace(report, lifecycle=lifecycle, detail="its sidecar stops", reported_at_s=now_s)


def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT; the exit status."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(settings))
    return 0


async def _main(settings: Settings) -> None:
    sidecar = Sidecar(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sidecar.stop)
    await sidecar.run()
