"""The loops that watch one engine for as long as they are not cancelled."""

import asyncio
import secrets
from collections.abc import Callable

from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.shared_answers import SharedAnswers
from engines.sidecar.kv.follower import CacheFollower
from engines.sidecar.watcher import Watcher
from router.kinds import KINDS
from router.settings import EngineSpec, EventSettings, FleetSettings
from router.state.contract import StatePublisher

UNMARKED = f"start-{secrets.token_hex(4)}"  # another one in each process
SHORTEST_PAUSE_S = 0.005  # an engine that answers late must not turn the loop into a spin


async def watch(
    spec: EngineSpec,
    fleet: FleetSettings,
    events: EventSettings,
    publisher: StatePublisher,
    clock: Callable[[], float],
    fleet_size: Callable[[], int] = lambda: 1,
    *,
    shared: SharedAnswers | None = None,
) -> None:
    """Probes, scrapes and follows the KV events of an engine that may have some, until cancelled.

    `clock` is monotonic and stamps the reports. `fleet_size` stretches the intervals of a large fleet. `shared` is the one
    of all ranks of an engine, each of which is watched on its own. Whoever cancels this tells the publisher that the
    worker is gone.
    """
    http = EngineHttp(spec, fleet.probe_timeout_s, shared)
    patient_http = EngineHttp(spec, events.self_test_timeout_s)
    follower: CacheFollower | None = None
    if spec.events is not None or KINDS[spec.kind].tells_events:
        follower = CacheFollower(spec, events, http, patient_http, publisher, clock)
    publish = publisher.report if follower is None else follower.report
    watcher = Watcher(spec, fleet, adapter_of(spec.kind, http), publish, clock, fleet_size, unmarked=UNMARKED)
    try:
        async with asyncio.TaskGroup() as group:
            if follower is not None:
                group.create_task(follower.run())
            await look(watcher)
    finally:
        http.close()
        patient_http.close()


async def look(watcher: Watcher) -> None:
    """Round after round."""
    while True:
        await watcher.round()
        await asyncio.sleep(max(watcher.pause_s(), SHORTEST_PAUSE_S))


def shared_by_ranks(spec: EngineSpec, fleet: FleetSettings, clock: Callable[[], float]) -> SharedAnswers | None:
    """What the ranks of this engine share; None where there is one only."""
    return SharedAnswers(fleet.scrape_interval_s / 2, clock) if spec.ranks > 1 else None
