"""Routers that read a real Redis."""

import asyncio
import logging
import time
from array import array

import pytest

from loadtest.redis_server import RedisServer
from router.core.types import WorkerId
from router.settings import FleetSettings
from router.state.redis_follower import RedisFollower
from router.state.redis_keys import Keys
from tests.state.rig import RouterProcess, SidecarProcess, admin, comes_right, eventually, running, state_of


async def test_two_routers_see_what_one_sidecar_tells(redis: RedisServer) -> None:
    """Reports, caches, restarts of engines, and leaving; deltas are followed, not loaded again and again."""
    settings = state_of(redis)
    sidecar, one, two = SidecarProcess(settings, "a", "b"), RouterProcess(settings, "1"), RouterProcess(settings, "2")
    async with running(sidecar, one, two):
        assert await one.follower.caught_up(2.0) and await two.follower.caught_up(2.0)
        await asyncio.sleep(0.5)
        await comes_right(sidecar, one, two, within_s=1.0)
        assert [router.follower.counts.gaps for router in (one, two)] == [0, 0]
        assert all(len(router.picture.snapshots) == 2 for router in (one, two))
        report = one.picture.reports[WorkerId("a")]
        assert -1.5 < report.reported_at_s - time.monotonic() < 0 and report.models == ("m",)
        sidecar.engines[0].restart()
        await comes_right(sidecar, one, two, within_s=1.0)
        gone = sidecar.engines.pop()
        sidecar.publisher.leave(gone.worker)
        await comes_right(sidecar, one, two, within_s=1.0)
        assert one.picture.lost_workers == [(gone.worker, "it is not watched any more")]
        assert one.follower.stale_s is not None and one.follower.stale_s < 1.0
        await eventually(lambda: not one.follower.waiting_for_snapshots, 1.0)


async def test_a_router_that_starts_loads_a_large_cache_fast(redis: RedisServer) -> None:
    """100 k blocks from the snapshot within a second, several pieces of a larger one too, and then it has caught up."""
    settings = state_of(redis)
    sidecar = SidecarProcess(settings, "a", "b")
    for engine, blocks in zip(sidecar.engines, (100_000, 400_000), strict=True):
        for _ in range(blocks // 100):
            engine.chains.append(array("Q", engine.rng.randbytes(800)))
    async with running(sidecar):
        await eventually(lambda: sum(post.written_snapshots for post in sidecar.publisher.posts) >= 2, 5.0)
        sidecar.is_busy = False
        await asyncio.sleep(0.3)
        router = RouterProcess(settings)
        async with running(router):
            began_s = time.monotonic()
            assert await router.follower.caught_up(2.0)
            took_s = time.monotonic() - began_s
            assert router.picture.is_right(*sidecar.engines)
    assert took_s < 1.0


async def test_a_sidecar_that_dies_is_lost_after_its_time(redis: RedisServer) -> None:
    """Without a word: 3 s later, not earlier, and what it left in Redis is forgotten there in the end."""
    settings = state_of(redis, leftover_ttl_s=10.0)
    sidecar, router = SidecarProcess(settings, "a"), RouterProcess(settings)
    async with running(router):
        async with running(sidecar):
            await comes_right(sidecar, router)
        took_s = await eventually(lambda: bool(router.picture.lost_workers), 4.0)
        assert 2.5 < took_s < 3.6 and router.picture.lost_workers == [(WorkerId("a"), "no report for 3 s")]
    with admin(redis) as client:
        assert all(client.pttl(key) > 0 for key in client.scan_iter())


async def test_the_registry_is_cleaned_of_the_long_gone(redis: RedisServer) -> None:
    """Of names that never report, and of those that are no text; more than max_workers are not looked at."""
    now_s = [0.0]
    settings = state_of(redis, leftover_ttl_s=10.0)
    router = RouterProcess(settings, max_workers=3)
    follower = RedisFollower(settings, FleetSettings(max_workers=3), router.picture, router.health, lambda: now_s[0])
    workers = Keys(settings.pool_name).workers
    with admin(redis) as client:
        client.zadd(workers, {b"\xff": 9, "gone": 8, "late": 7, "beyond": 1})
        async with running(follower):
            await eventually(follower._caught_up.is_set, 1.0)
            now_s[0] = 11.0
            await eventually(lambda: client.zcard(workers) == 2, 2.0)
            now_s[0] = 12.5
            await eventually(lambda: not client.zscore(workers, "beyond") or client.zcard(workers) == 2, 2.0)
        assert client.zscore(workers, "gone") is None and follower.counts.bad_messages > 0


async def test_own_workers_are_left_out(redis: RedisServer) -> None:
    """What a router hears of directly it does not read."""
    settings = state_of(redis)
    sidecar, router = SidecarProcess(settings, "a", "b"), RouterProcess(settings, own="a")
    async with running(sidecar, router):
        await eventually(lambda: WorkerId("b") in router.picture.keys, 2.0)
        await asyncio.sleep(0.3)
        assert set(router.picture.reports) == {WorkerId("b")}


async def test_workers_are_bounded(redis: RedisServer) -> None:
    """However many names the registry gets: those announced last, and those that are still known."""
    settings = state_of(redis)
    router = RouterProcess(settings, max_workers=2)
    workers = Keys(settings.pool_name).workers
    with admin(redis) as client:
        async with running(router.follower):
            for number in range(40):
                client.zadd(workers, {f"w{number}": number})
                await asyncio.sleep(0.03)
                assert sum(len(lane.feeds) for lane in router.follower._lanes) <= 4


async def test_not_caught_up_where_there_is_no_redis() -> None:
    """The answer is no after the limit; the loop goes on."""
    nowhere = RedisServer.__new__(RedisServer)
    nowhere.port = 1
    router = RouterProcess(state_of(nowhere))
    async with running(router) as tasks:
        assert not await router.follower.caught_up(0.3)
        assert not any(task.done() for task in tasks) and router.follower.stale_s is None
        assert router.health.errors["connection"] > 0


async def test_a_surprise_in_a_round_ends_nothing(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and counted, and the next round comes."""
    router = RouterProcess(state_of(redis))
    plan = router.follower._lanes[0].plan

    def broken(*_: object) -> None:
        router.follower._lanes[0].plan = plan  # type: ignore[method-assign]
        raise KeyError("fault")

    router.follower._lanes[0].plan = broken  # type: ignore[method-assign, assignment]
    async with running(router):
        assert await router.follower.caught_up(2.0)
    assert router.follower.counts.surprises == 1
    assert [record.levelno for record in caplog.records if "surprise" in record.message] == [logging.ERROR]


async def test_a_worker_too_large_to_be_known_is_told_of(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Its reports arrive; its cache is not known, and the sidecar says which setting stands in the way."""
    settings = state_of(redis, max_snapshot_blocks=1024)
    sidecar, router = SidecarProcess(settings, "a"), RouterProcess(settings)
    sidecar.is_busy = False
    sidecar.engines[0].chains.append(array("Q", range(2000)))
    async with running(sidecar, router):
        await eventually(lambda: bool(router.picture.reports), 2.0)
        await asyncio.sleep(0.3)
    assert not router.picture.keys
    assert "its 2000 cached blocks are more than max_snapshot_blocks" in caplog.text
