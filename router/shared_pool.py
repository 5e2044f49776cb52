"""A router's part in a pool that shares its state through Redis: workers of sidecars, loads of other routers."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable

from router.catch_up import CatchUp
from router.core.fleet import Fleet
from router.core.placement import Placement
from router.core.types import WorkerId
from router.intake import Intake, PoolIntake
from router.redis_url import parse_redis
from router.settings import Settings
from router.state.redis_follower import RedisFollower
from router.state.redis_health import RedisHealth
from router.state.redis_loads import RedisLoads

log = logging.getLogger("warmline.state")
LOOK_S = 0.05  # at whether Redis answers, while the picture is waited for
FORGET_S = 1.0  # between two looks for workers that were lost long ago
BUSY_S = 1.0  # after the latest change of this router's load
START_S = 2.0  # that a router waits at its start for the picture of its pool


class SharedPool:
    """Connects when `run` runs. `remove` forgets a worker of the fleet. What is heard is taken in by the router's `CatchUp`."""

    def __init__(
        self, settings: Settings, fleet: Fleet, placement: Placement, intake: Intake, remove: Callable[[WorkerId], None]
    ) -> None:
        state = settings.state
        self.name = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}"
        self.health = RedisHealth(parse_redis(state.redis), state.redis_timeout_s)
        self.intake = PoolIntake(intake, fleet, time.monotonic, state.leftover_ttl_s, remove)
        self.loads = RedisLoads(state, self.name, self._load_of, self.intake, self.health)
        self.follower = RedisFollower(
            state,
            settings.fleet,
            self.intake,
            self.health,
            is_own=self.intake.watched.__contains__,
            is_busy=lambda: self.loads.changed_within(BUSY_S),
        )
        self.surprises = 0
        self._placement = placement
        placement.share_load(self.loads)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run())
            group.create_task(self.loads.run())
            group.create_task(self._forget_forever())

    async def caught_up(self, catch_up: CatchUp, limit_s: float = START_S) -> bool:
        """Waits until the pool's workers are known with their caches. False when that takes longer than `limit_s`, and at
        once where Redis does not answer."""
        ends_s = time.monotonic() + limit_s
        while not await self.follower.caught_up(LOOK_S):
            if self.health.is_lost or time.monotonic() > ends_s:
                return False
        while catch_up.step():
            if time.monotonic() > ends_s:
                return False
            await asyncio.sleep(0)
        return True

    def _load_of(self, worker_id: WorkerId) -> tuple[int, int]:
        return self._placement.own_load(worker_id, time.monotonic())

    async def _forget_forever(self) -> None:
        while True:
            await asyncio.sleep(FORGET_S)
            try:
                self.intake.forget_lost()
            except Exception:
                self.surprises += 1
                log.exception("surprise while forgetting workers that are gone")
