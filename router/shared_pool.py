"""A router's part in a pool that shares its state through Redis: workers of sidecars, loads of other routers."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable

from router.core.fleet import Fleet
from router.core.placement import Placement
from router.core.types import WorkerId
from router.intake import Intake, PoolIntake
from router.redis_url import parse_redis
from router.settings import Settings
from router.state.redis_follower import RedisFollower
from router.state.redis_health import RedisHealth
from router.state.redis_loads import RedisLoads

CATCH_UP_S = 0.02  # between two looks for what waits to be taken in
FORGET_S = 1.0  # and for workers that were lost long ago
START_S = 2.0  # that a router waits at its start for the picture of its pool


class SharedPool:
    """Connects when `run` runs. `remove` forgets a worker of the fleet."""

    def __init__(
        self, settings: Settings, fleet: Fleet, placement: Placement, intake: Intake, remove: Callable[[str], None]
    ) -> None:
        state = settings.state
        self.name = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}"
        self.health = RedisHealth(parse_redis(state.redis), state.redis_timeout_s)
        self.intake = PoolIntake(intake, fleet, time.monotonic, state.leftover_ttl_s)
        self.follower = RedisFollower(state, settings.fleet, self.intake, self.health, is_own=self.intake.watched.__contains__)
        self.loads = RedisLoads(state, self.name, self._load_of, self.intake, self.health)
        self._fleet = fleet
        self._placement = placement
        self._remove = remove
        placement.share_load(self.loads)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run())
            group.create_task(self.loads.run())
            group.create_task(self._catch_up_forever())
            group.create_task(self._forget_forever())

    async def caught_up(self, limit_s: float = START_S) -> bool:
        """Waits until the pool's workers are known with their caches; False when that takes longer than `limit_s`."""
        ends_s = time.monotonic() + limit_s
        if not await self.follower.caught_up(limit_s):
            return False
        while self._placement.catch_up(time.monotonic()):
            if time.monotonic() > ends_s:
                return False
            await asyncio.sleep(0)
        return True

    def _load_of(self, worker_id: WorkerId) -> tuple[int, int]:
        worker = self._fleet.get(worker_id)
        return (worker.load.in_flight, worker.load.pending_tokens) if worker is not None else (0, 0)

    async def _catch_up_forever(self) -> None:
        while True:
            is_busy = self._placement.catch_up(time.monotonic())
            await asyncio.sleep(0 if is_busy else CATCH_UP_S)

    async def _forget_forever(self) -> None:
        while True:
            await asyncio.sleep(FORGET_S)
            for worker_id in self.intake.long_lost():
                self._remove(worker_id)
