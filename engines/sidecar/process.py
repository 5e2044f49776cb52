"""The sidecar as a process of its own: watches engines and publishes what it sees of them to a pool's Redis."""

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import uvloop

from engines.sidecar.watch import shared_by_ranks, watch
from router.core.types import Lifecycle, WorkerReport
from router.redis_url import parse_redis
from router.settings import Settings
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
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._publisher.run())
            watches = [group.create_task(watching) for watching in self._watches()]
            LOG.info("publishing %d engines to Redis, pool %s", len(watches), self._settings.state.pool_name)
            await self._stop.wait()
            for task in watches:
                task.cancel()
            for report in self._publisher.reports():
                self._publisher.report(leaving(report, time.monotonic()))
            self._publisher.finish()
            await writing
        LOG.info("stopped")

    def stop(self) -> None:
        self._stop.set()

    def _watches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """One for each rank of each engine."""
        fleet, events = self._settings.fleet, self._settings.events
        count = sum(engine.ranks for engine in self._settings.engines)
        for spec in self._settings.engines:
            shared = shared_by_ranks(spec, fleet, time.monotonic)
            for rank in spec.by_rank():
                yield watch(rank, fleet, events, self._publisher, time.monotonic, lambda: count, shared=shared)


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
