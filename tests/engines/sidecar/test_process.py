"""The sidecar process: what it publishes while it runs and when it stops."""

import asyncio

import pytest

from engines.sidecar.process import Sidecar, leaving
from loadtest.redis_server import redis_server
from router.core.types import Lifecycle, WorkerId, WorkerReport
from router.settings import Settings, StateSettings
from tests.engines.fake_engine import FakeEngine, Reply, as_json
from tests.state.rig import RouterProcess, eventually, running

ROUTES = {"/health": Reply(), "/v1/models": as_json({"data": [{"id": "m"}]})}


async def test_reports_until_it_stops() -> None:
    """A router hears of a ready engine within a second; at the end the last word is that it drains."""
    with redis_server() as redis:
        state = StateSettings(redis=redis.url)
        router = RouterProcess(state)
        async with FakeEngine(dict(ROUTES)) as engine, running(router):
            sidecar = Sidecar(Settings(state=state, engines=(engine.spec("openai"),)))
            process = asyncio.create_task(sidecar.run())  # noqa: TID251 - the test is its group
            await eventually(lambda: [r.lifecycle for r in router.picture.reports.values()] == [Lifecycle.READY], 3.0)
            sidecar.stop()
            await process
            await eventually(lambda: [r.lifecycle for r in router.picture.reports.values()] == [Lifecycle.DRAINING], 2.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Lifecycle.READY, Lifecycle.DRAINING),
        (Lifecycle.DOWN, Lifecycle.DOWN),
        (Lifecycle.LOADING, Lifecycle.LOADING),
        (Lifecycle.DRAINING, Lifecycle.DRAINING),
    ],
)
def test_last_word(before: Lifecycle, after: Lifecycle) -> None:
    """Only a ready engine drains; others are not made better by their sidecar's end."""
    report = WorkerReport(WorkerId("a:1"), "vllm", "http://a:1", "g", before, 1.0)
    last = leaving(report, 2.0)
    assert (last.lifecycle, last.reported_at_s, last.generation) == (after, 2.0, "g")
