"""Sidecars and routers as processes have them, against a real Redis, all in one event loop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from loadtest.redis_server import RedisServer
from router.core.types import WorkerId
from router.redis_url import parse_redis
from router.settings import FleetSettings, StateSettings
from router.state.redis_follower import RedisFollower
from router.state.redis_health import RedisHealth
from router.state.redis_loads import RedisLoads
from router.state.redis_publisher import RedisPublisher
from tests.state.engine import Engine, Picture

WORK_S = 0.05  # between two things that engines do


class SidecarProcess:
    """A publisher with engines that work all the time."""

    def __init__(self, settings: StateSettings, *engines: str) -> None:
        self.health = RedisHealth(parse_redis(settings.redis), settings.redis_timeout_s)
        self.publisher = RedisPublisher(settings, FleetSettings(), self.health)
        self.engines = [Engine(name, self.publisher, time.monotonic) for name in engines]
        self.is_busy = True
        for engine in self.engines:
            engine.post()
            engine.follow()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.publisher.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            for engine in self.engines:
                engine.post()
                if self.is_busy:
                    engine.work()
            await asyncio.sleep(WORK_S)


class RouterProcess:
    """A follower, a load board, and what they tell."""

    def __init__(self, settings: StateSettings, name: str = "router", max_workers: int = 1024, own: str = "") -> None:
        self.health = RedisHealth(parse_redis(settings.redis), settings.redis_timeout_s)
        self.picture = Picture()
        self.own_loads: dict[WorkerId, tuple[int, int]] = {}
        fleet = FleetSettings(max_workers=max_workers)
        self.follower = RedisFollower(settings, fleet, self.picture, self.health, is_own=lambda worker: worker == own)
        self.loads = RedisLoads(settings, name, lambda w: self.own_loads.get(w, (0, 0)), self.picture, self.health)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run())
            group.create_task(self.loads.run())

    def put_load(self, worker: str, requests: int, tokens: int) -> None:
        self.own_loads[WorkerId(worker)] = (requests, tokens)
        self.loads.touch(WorkerId(worker))


@contextlib.asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Everything with a `run` runs until the end of the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in parts]
        yield tasks
        for task in tasks:
            task.cancel()


async def eventually(is_so: Callable[[], bool], within_s: float, what: str = "") -> float:
    """Seconds until it is so. Fails when that takes longer."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < within_s, f"not so within {within_s} s: {what or is_so}"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


async def comes_right(sidecar: SidecarProcess, *routers: RouterProcess, within_s: float = 3.0) -> float:
    """Seconds until every router knows what the engines have, from when they stop to work."""
    sidecar.is_busy = False
    try:
        return await eventually(
            lambda: all(router.picture.is_right(*sidecar.engines) for router in routers), within_s, "the pictures are right"
        )
    finally:
        sidecar.is_busy = True


def state_of(server: RedisServer, **settings: Any) -> StateSettings:
    return StateSettings(redis=server.url, **settings)


@contextlib.contextmanager
def admin(server: RedisServer) -> Iterator[Any]:
    """A client of the test's own, synchronous; what it answers has too many types to be told."""
    with Redis(port=server.port) as client:
        yield client


def changes_of_state(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines that say that Redis is lost or back, in order."""
    return [record.getMessage() for record in caplog.records if "Redis at" in record.getMessage()]
