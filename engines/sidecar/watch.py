"""The loop that watches one engine for as long as it is not cancelled."""

import asyncio
from collections.abc import Callable

import aiohttp

from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.shared_answers import SharedAnswers
from engines.sidecar.watcher import Watcher
from router.core.types import WorkerReport
from router.settings import EngineSpec, FleetSettings

SHORTEST_PAUSE_S = 0.005  # an engine that answers late must not turn the loop into a spin


async def watch(
    spec: EngineSpec,
    settings: FleetSettings,
    session: aiohttp.ClientSession,
    publish: Callable[[WorkerReport], None],
    clock: Callable[[], float],
    fleet_size: Callable[[], int] = lambda: 1,
    shared: SharedAnswers | None = None,
) -> None:
    """Probes and scrapes until cancelled; holds nothing that would need closing.

    `clock` is monotonic and stamps the reports. `fleet_size` stretches the intervals of a large fleet. `shared` is the one
    of all ranks of an engine, each of which is watched on its own.
    """
    adapter = adapter_of(spec.kind, EngineHttp(session, spec, settings.probe_timeout_s, shared))
    watcher = Watcher(spec, settings, adapter, publish, clock, fleet_size)
    while True:
        await watcher.round()
        await asyncio.sleep(max(watcher.pause_s(), SHORTEST_PAUSE_S))
