"""Routers tell each other what they have in flight."""

import asyncio
import logging
import time
from array import array

import pytest

from loadtest.redis_server import RedisServer
from router.core.cache_delta import Mark, RouterLoad
from router.core.types import WorkerId
from router.state import redis_loads
from router.state.load_codec import encode_load
from router.state.redis_keys import Keys
from tests.state.rig import RouterProcess, admin, eventually, running, state_of

A, B = WorkerId("a"), WorkerId("b")


def summed(router: RouterProcess, worker: WorkerId) -> tuple[int, int]:
    """What it heard of a worker from all others together."""
    told: dict[str, dict[WorkerId, tuple[int, int]]] = {}
    for load in router.picture.loads:
        told[load.router] = {**({} if load.full else told.get(load.router, {})), **load.workers}
    counts = [workers.get(worker, (0, 0)) for workers in told.values()]
    return sum(requests for requests, _ in counts), sum(tokens for _, tokens in counts)


async def test_changes_arrive_at_once_and_everything_each_second(redis: RedisServer) -> None:
    """A change within milliseconds, to all others and not to itself; a router that comes later hears it all."""
    settings = state_of(redis)
    one, two = RouterProcess(settings, "1"), RouterProcess(settings, "2")
    async with running(one, two):
        await eventually(lambda: one.loads.routers == two.loads.routers == 1, 3.0)
        lags_s = []
        for requests in range(1, 20):
            one.put_load("a", requests, 100 * requests)
            lags_s.append(await eventually(lambda: summed(two, A) == one.own_loads[A], 1.0))
        assert sorted(lags_s)[len(lags_s) // 2] < 0.05
        one.put_load("b", 1, 1)
        one.put_load("a", 0, 0)
        await eventually(lambda: (summed(two, A), summed(two, B)) == ((0, 0), (1, 1)), 1.0)
        late = RouterProcess(settings, "3")
        async with running(late):
            await eventually(lambda: summed(late, B) == (1, 1), 2.0)
        assert not [load for load in one.picture.loads if load.router == "1"]
        assert one.loads.gaps == two.loads.gaps == 0


async def test_touches_of_a_moment_are_one_message(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a touch without a change is none."""
    monkeypatch.setattr(redis_loads, "FULL_S", 60.0)
    settings = state_of(redis, load_interval_s=0.05)
    one = RouterProcess(settings, "1")
    async with running(one):
        await eventually(lambda: one.loads.told == 1, 1.0)
        for number in range(100):
            one.put_load("a", number, 0)
            one.loads.touch(B)
        await eventually(lambda: one.loads.told == 2, 2.0)
        one.loads.touch(A)
        await asyncio.sleep(0.2)
        assert one.loads.told == 2


async def test_marks_are_told_once(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the load that moved, or alone where it did not; of more than a message has room for, the newest."""
    monkeypatch.setattr(redis_loads, "MAX_MARKS", 3)
    settings = state_of(redis)
    one, two = RouterProcess(settings, "1"), RouterProcess(settings, "2")
    marks = [Mark(A, depth, 1000 + depth) for depth in range(1, 6)]
    keys = array("Q", (mark.key for mark in marks))
    async with running(one, two):
        await eventually(lambda: two.loads.routers == 1, 3.0)
        one.loads.mark(A, keys[:2], 0)
        one.put_load("a", 1, 10)
        one.loads.mark(A, keys, 2)
        await eventually(lambda: any(load.marks for load in two.picture.loads), 1.0)
        one.loads.mark(A, keys[:1], 0)
        one.loads.touch(A)
        await eventually(lambda: one.loads.told_marks == 4, 1.0)
        await eventually(lambda: two.loads.heard == one.loads.told, 1.0)
    assert [load.marks for load in two.picture.loads if load.marks] == [tuple(marks[2:]), tuple(marks[:1])]
    assert one.loads.dropped_marks == 2


async def test_a_router_that_is_gone_has_nothing_in_flight(redis: RedisServer) -> None:
    """After its time to live, by an empty full count; also while Redis itself is gone."""
    settings = state_of(redis, load_ttl_s=1.5)
    one, two = RouterProcess(settings, "1"), RouterProcess(settings, "2")
    async with running(two):
        async with running(one):
            one.put_load("a", 3, 30)
            await eventually(lambda: summed(two, A) == (3, 30), 2.0)
        redis.kill()
        began_s = time.monotonic()
        await eventually(lambda: summed(two, A) == (0, 0), 2.5)
        assert time.monotonic() - began_s > 0.4 and two.loads.routers == 0
        redis.start()
        async with running(one):
            await eventually(lambda: summed(two, A) == (3, 30), 3.0)


async def test_what_is_no_load_is_passed_over(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, old numbers, gaps, and more routers than there may be are counted."""
    monkeypatch.setattr(redis_loads, "MAX_ROUTERS", 1)
    settings = state_of(redis)
    router = RouterProcess(settings, "1")
    channel = Keys(settings.pool_name).load
    async with running(router):
        with admin(redis) as client:
            await eventually(lambda: client.pubsub_numsub(channel)[0][1] == 1, 2.0)
            for data in (
                b"nonsense",
                encode_load(RouterLoad("2", 5, True, {A: (1, 1)})),
                encode_load(RouterLoad("2", 4, True, {A: (9, 9)})),
                encode_load(RouterLoad("2", 8, False, {A: (2, 2)})),
                encode_load(RouterLoad("3", 1, True, {A: (1, 1)})),
            ):
                client.publish(channel, data)
        loads = router.loads
        await eventually(lambda: loads.refused == 1, 1.0)
        assert (loads.bad_messages, loads.gaps, loads.heard, summed(router, A)) == (1, 2, 2, (2, 2))


async def test_a_silent_channel_is_begun_anew(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router hears itself; where it does not, the connection is taken for dead, and the health says so."""
    monkeypatch.setattr(redis_loads, "ECHO_S", 0.5)
    one = RouterProcess(state_of(redis), "1")
    async with running(one):
        await eventually(lambda: one.loads.told > 0, 1.0)
        monkeypatch.setattr(one.loads, "_take", lambda data: False)
        await eventually(lambda: one.health.errors["timeout"] > 0, 3.0)


async def test_a_fault_of_the_router_ends_nothing(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A load that cannot be told, and one that cannot be found out."""
    one = RouterProcess(state_of(redis), "1")
    async with running(one) as tasks:
        one.put_load("a", -1, 0)
        await eventually(lambda: one.loads.surprises == 1, 1.0)
        one.put_load("a", 1, 0)
        await eventually(lambda: one.loads.told >= 2, 2.0)
        assert not any(task.done() for task in tasks)


async def test_a_fault_of_the_listener_ends_nothing(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and counted."""
    settings = state_of(redis)
    one, two = RouterProcess(settings, "1"), RouterProcess(settings, "2")

    def broken(load: RouterLoad) -> None:
        raise KeyError("fault")

    one.picture.router_load = broken  # type: ignore[method-assign]
    async with running(one, two):
        await eventually(lambda: one.loads.surprises > 0, 3.0)
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
