"""engines.sidecar.watch: the loop around the rounds, in real time over real sockets."""

import asyncio
import time

import pytest

from engines.sidecar.watch import watch
from router.core.types import Lifecycle, WorkerReport
from router.settings import EventSettings, FleetSettings
from tests.engines.fake_engine import FakeEngine, Reply, as_json
from tests.engines.sidecar.heard import Heard

EVENTS = EventSettings()
SETTINGS = FleetSettings(probe_interval_s=0.05, probe_timeout_s=0.2, scrape_interval_s=0.05)
ROUTES = {"/health": Reply(), "/v1/models": as_json({"data": [{"id": "m"}]})}


async def next_where(reports: "asyncio.Queue[WorkerReport]", lifecycle: Lifecycle) -> WorkerReport:
    async with asyncio.timeout(5):
        while True:
            report = await reports.get()
            if report.lifecycle is lifecycle:
                return report


async def test_follows_an_engine_until_cancelled() -> None:
    """Ready, killed, back: each shows within a few intervals; cancelling ends the loops."""
    reports: asyncio.Queue[WorkerReport] = asyncio.Queue()
    ignored: list[WorkerReport] = []
    async with FakeEngine(dict(ROUTES)) as engine, FakeEngine(dict(ROUTES)) as other:
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(watch(engine.spec("vllm"), SETTINGS, EVENTS, Heard(reports.put_nowait), time.monotonic)),
                group.create_task(watch(other.spec("openai"), SETTINGS, EVENTS, Heard(ignored.append), time.monotonic)),
            ]
            first = await next_where(reports, Lifecycle.READY)
            assert first.models == ("m",)
            await engine.stop()
            await next_where(reports, Lifecycle.DOWN)
            await engine.start()
            back = await next_where(reports, Lifecycle.READY)
            assert back.generation != first.generation
            assert back.reported_at_s > first.reported_at_s
            for loop in loops:
                loop.cancel()
        assert all(loop.cancelled() for loop in loops)
        assert {report.lifecycle for report in ignored} == {Lifecycle.READY}


async def test_late_engine_does_not_spin_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still or jumps does not make the loop ask without a pause."""
    async with FakeEngine(dict(ROUTES)) as engine:
        jumps = iter(range(0, 10_000, 10))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await watch(engine.spec("openai"), SETTINGS, EVENTS, Heard(lambda report: None), lambda: float(next(jumps)))
        assert len(engine.asked) <= 41
