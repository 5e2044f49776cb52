"""Redis killed, paused, flushed, full, slow: nobody is lost, nothing raises, all is right within 3 s of recovery."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from loadtest.redis_server import RedisServer, redis_server
from loadtest.tcp_front import TcpFront
from router.redis_url import parse_redis
from router.settings import StateSettings
from router.state.redis_health import BACK_AFTER_S
from tests.state.rig import RouterProcess, SidecarProcess, admin, changes_of_state, comes_right, eventually, running, state_of

RECOVERY_S = 3.0


class Pool:
    """A sidecar with three engines, two routers, all of them at work."""

    def __init__(self, settings: StateSettings) -> None:
        self.shown = parse_redis(settings.redis).shown
        self.sidecar = SidecarProcess(settings, "a", "b", "c")
        self.routers = (RouterProcess(settings, "1"), RouterProcess(settings, "2"))
        self.processes = (self.sidecar, *self.routers)

    async def comes_right(self) -> None:
        await comes_right(self.sidecar, *self.routers, within_s=RECOVERY_S)

    def assert_kept(self) -> None:
        """What routers knew they still know."""
        for router in self.routers:
            assert not router.picture.lost_workers and len(router.picture.reports) == 3
            counts = router.follower.counts
            assert (counts.bad_messages, counts.surprises) == (0, 0)

    async def all_back(self) -> None:
        await eventually(lambda: not any(process.health.is_lost for process in self.processes), BACK_AFTER_S + 3)


@asynccontextmanager
async def working_pool(settings: StateSettings, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Pool]:
    """Right before, and after the block right again, still without a lost worker."""
    caplog.set_level(logging.INFO, "warmline.state")
    pool = Pool(settings)
    async with running(*pool.processes) as tasks:
        await comes_right(pool.sidecar, *pool.routers, within_s=10.0)
        yield pool
        await pool.comes_right()
        pool.assert_kept()
        assert not any(task.done() for task in tasks)


def assert_one_line_per_change(caplog: pytest.LogCaptureFixture, pool: Pool, problem: str) -> None:
    """One process each, first lost, then back."""
    lines = [line for line in changes_of_state(caplog) if pool.shown in line]
    lost, back = [line for line in lines if problem in line], [line for line in lines if "is back after" in line]
    assert len(lost) == len(back) == len(pool.processes) and len(lines) == len(lost) + len(back), lines


async def killed_and_started_empty(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Everything that was in it is gone, and what happened meanwhile was never in it."""
    async with working_pool(state_of(redis), caplog) as pool:
        redis.kill()
        await asyncio.sleep(1.0)
        pool.assert_kept()
        redis.start()
        await pool.comes_right()
        late = RouterProcess(state_of(redis), "late")
        async with running(late):
            await comes_right(pool.sidecar, late, within_s=RECOVERY_S)
        await pool.all_back()
    assert_one_line_per_change(caplog, pool, "going on with what is known")


async def paused_for_five_seconds(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It holds connections and answers nothing, for longer than reports live."""
    async with working_pool(state_of(redis), caplog) as pool:
        redis.pause()
        await asyncio.sleep(5.0)
        pool.assert_kept()
        stale_s = pool.routers[0].follower.stale_s
        assert stale_s is not None and stale_s > 4.0
        redis.resume()
        await pool.comes_right()
        await pool.all_back()
    assert_one_line_per_change(caplog, pool, "no answer within 1 s")


async def flushed(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """While it works: no failure to see, only that everything is gone."""
    async with working_pool(state_of(redis), caplog) as pool:
        for _ in range(3):
            with admin(redis) as client:
                client.flushall()
            await asyncio.sleep(0.3)
        await pool.comes_right()
        await asyncio.sleep(1.5)
        late = RouterProcess(state_of(redis), "late")
        async with running(late):
            await comes_right(pool.sidecar, late, within_s=RECOVERY_S)
        assert not any(pool.shown in line for line in changes_of_state(caplog))


async def full(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It answers reads and refuses writes, for longer than reports live: they run out, and nobody is lost for that."""
    async with working_pool(state_of(redis), caplog) as pool:
        with admin(redis) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")
            await asyncio.sleep(3.6)
            pool.assert_kept()
            assert all(process.health.errors["full"] for process in pool.processes)
            client.config_set("maxmemory", "0")
        await pool.comes_right()
        await pool.all_back()
    assert_one_line_per_change(caplog, pool, "it takes no writes")


async def far_away(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """200 ms each way: everything is later, nothing is lost or refused."""
    path = TcpFront(redis.port, delay_s=0.2)
    async with path.open():
        settings = StateSettings(redis=f"redis://127.0.0.1:{path.port}")
        async with working_pool(settings, caplog) as pool:
            await asyncio.sleep(1.0)
            await pool.comes_right()
            pool.assert_kept()
            assert all(router.follower.counts.gaps == 0 for router in pool.routers)
            assert not any(pool.shown in line for line in changes_of_state(caplog))


async def restarted_with_an_older_state(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """What it saved a while ago: deltas that it had taken since are missing from it."""
    async with working_pool(state_of(redis), caplog) as pool:
        with admin(redis) as client:
            client.save()
        await asyncio.sleep(0.5)
        redis.kill()
        redis.start()
        await pool.comes_right()
        await asyncio.sleep(1.2)
        late = RouterProcess(state_of(redis), "late")
        async with running(late):
            await comes_right(pool.sidecar, late, within_s=RECOVERY_S)


SCENARIOS = (killed_and_started_empty, paused_for_five_seconds, flushed, full, far_away, restarted_with_an_older_state)


async def test_pools_survive_what_happens_to_redis(caplog: pytest.LogCaptureFixture) -> None:
    """Each scenario has a pool and a Redis of its own; all at the same time, as they mostly wait."""
    with ExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for scenario in SCENARIOS:
                group.create_task(scenario(stack.enter_context(redis_server()), caplog))
