"""The loops that watch one engine for as long as they are not cancelled."""

import asyncio
from collections.abc import Callable

import aiohttp

from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.sidecar.kv.follower import CacheFollower, CachePublisher
from engines.sidecar.watcher import Watcher
from router.core.types import WorkerReport
from router.settings import EngineSpec, EventSettings, FleetSettings

SHORTEST_PAUSE_S = 0.005  # an engine that answers late must not turn the loop into a spin


async def watch(
    spec: EngineSpec,
    settings: FleetSettings,
    session: aiohttp.ClientSession,
    publish: Callable[[WorkerReport], None],
    clock: Callable[[], float],
    fleet_size: Callable[[], int] = lambda: 1,
    *,
    cache: CachePublisher | None = None,
    events: EventSettings | None = None,
    rank: int | None = None,
) -> None:
    """Probes and scrapes until cancelled; holds nothing that would need closing.

    `clock` is monotonic and stamps the reports. `fleet_size` stretches the intervals of a large fleet. With `cache` the
    engine's KV events are followed as well and told there; reports then say how far they can be trusted. `rank` is the
    engine's data-parallel rank where it is one of several. Whoever cancels this tells `cache` that the worker is gone.
    """
    http = EngineHttp(session, spec, settings.probe_timeout_s)
    if cache is None:
        await look(Watcher(spec, settings, adapter_of(spec.kind, http), publish, clock, fleet_size))
        return
    events = events if events is not None else EventSettings()
    patient_http = EngineHttp(session, spec, events.self_test_timeout_s)
    follower = CacheFollower(spec, rank, events, http, patient_http, publish, cache, clock)
    watcher = Watcher(spec, settings, adapter_of(spec.kind, http), follower.report, clock, fleet_size)
    async with asyncio.TaskGroup() as group:
        group.create_task(follower.run())
        await look(watcher)


async def look(watcher: Watcher) -> None:
    """Round after round."""
    while True:
        await watcher.round()
        await asyncio.sleep(max(watcher.pause_s(), SHORTEST_PAUSE_S))
