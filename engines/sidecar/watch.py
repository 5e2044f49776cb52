"""The loop that watches one engine for as long as it is not cancelled."""

import asyncio
import secrets
from collections.abc import Callable

from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.shared_answers import SharedAnswers
from engines.sidecar.watcher import Watcher
from router.core.types import WorkerReport
from router.settings import EngineSpec, FleetSettings

UNMARKED = f"start-{secrets.token_hex(4)}"  # another one in each process
SHORTEST_PAUSE_S = 0.005  # an engine that answers late must not turn the loop into a spin


async def watch(
    spec: EngineSpec,
    settings: FleetSettings,
    publish: Callable[[WorkerReport], None],
    clock: Callable[[], float],
    fleet_size: Callable[[], int] = lambda: 1,
    *,
    closely: bool = False,
    shared: SharedAnswers | None = None,
) -> None:
    """Probes and scrapes until cancelled.

    `clock` is monotonic and stamps the reports. `fleet_size` stretches the intervals of a large fleet.
    `closely` looks at the load each scrape interval even while nothing waits there. `shared` is the one of all ranks of
    an engine, each of which is watched on its own.
    """
    http = EngineHttp(spec, settings.probe_timeout_s, shared)
    watcher = Watcher(
        spec, settings, adapter_of(spec.kind, http), publish, clock, fleet_size, closely=closely, unmarked=UNMARKED
    )
    try:
        while True:
            await watcher.round()
            await asyncio.sleep(max(watcher.pause_s(), SHORTEST_PAUSE_S))
    finally:
        http.close()
