"""A router's part in a pool, over a real Redis."""

import asyncio
import contextlib
import random
import time
from array import array
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from loadtest.redis_server import RedisServer, redis_server
from router import shared_pool
from router.catch_up import CatchUp
from router.core.cache_delta import CacheDelta, CacheSnapshot, Stored
from router.core.fleet import Fleet
from router.core.placement import Placement
from router.core.stats import Stats
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.intake import Intake
from router.redis_url import parse_redis
from router.settings import FleetSettings, Settings, StateSettings
from router.shared_pool import SharedPool
from router.state.cache_codec import encode_delta
from router.state.frame import HEAD, seal
from router.state.redis_health import RedisHealth
from router.state.redis_keys import Keys
from router.state.redis_publisher import RedisPublisher
from router.state.report_codec import encode_left
from tests.core.builders import prompt
from tests.state.rig import eventually, running

WORKER = WorkerId("10.0.0.1:8000")
BLOCKS = 100_000


class Member:
    """One router's part."""

    def __init__(self, redis: RedisServer, **state: float) -> None:
        self.settings = Settings(state=StateSettings(redis=redis.url, **state))  # type: ignore[arg-type]
        self.fleet = Fleet(self.settings.fleet)
        self.placement = Placement(self.settings.routing, self.settings.cache, self.fleet, Stats(), random.Random(1))
        intake = Intake(self.fleet, self.placement, time.monotonic, lambda worker: None)
        self.pool = SharedPool(self.settings, self.fleet, self.placement, intake, self.remove)
        self.catch_up = CatchUp(self.placement, time.monotonic, self.pool.follower.want_snapshot)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pool.run())
            group.create_task(self.catch_up.run())

    def remove(self, worker: WorkerId) -> None:
        self.fleet.remove(worker)

    def choose(self) -> None:
        self.placement.choose(
            "r", None, prompt(range(4)), self.fleet.candidates(None), now_s=time.monotonic(), wall_s=time.time()
        )

    @property
    def other_requests(self) -> list[int]:
        return [worker.load.other_requests for worker in self.fleet.workers]


def report(state: Lifecycle = Lifecycle.READY, truth: Truth = Truth.MODELLED) -> WorkerReport:
    return WorkerReport(WORKER, "vllm", f"http://{WORKER}", "g1", state, time.monotonic(), models=("m",), truth=truth)


async def publish(publisher: RedisPublisher, truth: Truth = Truth.MODELLED) -> None:
    while True:
        publisher.report(report(truth=truth))
        await asyncio.sleep(0.1)


class Publishing:
    """A sidecar of one worker."""

    def __init__(self, redis: RedisServer, truth: Truth = Truth.MODELLED, blocks: int = 0) -> None:
        state = StateSettings(redis=redis.url)
        self.publisher = RedisPublisher(state, FleetSettings(), RedisHealth(parse_redis(state.redis), 1.0))
        self._truth = truth
        rng = random.Random(7)
        keys = array("Q", [rng.getrandbits(64) for _ in range(blocks)])
        self.keys = keys
        if blocks:
            self.publisher.report(report(truth=truth))
            self.publisher.follow(WORKER, lambda: CacheSnapshot(WORKER, "g1", 0, (Stored(None, keys),)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.publisher.run())
            group.create_task(publish(self.publisher, self._truth))


async def test_routers_see_workers_and_each_others_load() -> None:
    """Two routers that know no engine: both adopt the reported one, and each counts what the other sends there."""
    with redis_server() as redis:
        one, two = Member(redis), Member(redis)
        async with running(Publishing(redis), one, two):
            assert await one.pool.caught_up(one.catch_up) and await two.pool.caught_up(two.catch_up)
            await eventually(lambda: [w.lifecycle for w in two.fleet.workers] == [Lifecycle.READY], 2.0)
            await eventually(lambda: one.pool.loads.routers == two.pool.loads.routers == 1, 3.0)
            one.choose()
            one.choose()
            two.choose()
            await eventually(lambda: (one.other_requests, two.other_requests) == ([1], [2]), 1.0)


async def test_new_router_has_the_whole_index_before_its_first_decision() -> None:
    """After `caught_up` a snapshot of 100,000 blocks is in the index."""
    with redis_server() as redis:
        sidecar = Publishing(redis, Truth.EXACT, BLOCKS)
        async with running(sidecar):
            await asyncio.sleep(1.0)  # until it is written
            late = Member(redis)
            async with running(late):
                assert await late.pool.caught_up(late.catch_up, 5.0)
                (worker,) = late.fleet.workers
                assert worker.truth is Truth.EXACT
                assert late.placement.blocks_held(worker) == BLOCKS


async def test_workers_that_stay_away_are_forgotten() -> None:
    """A worker without reports is down at once and leaves the fleet in the end."""
    with redis_server() as redis:
        member = Member(redis, leftover_ttl_s=10.0)
        async with running(member):
            async with running(Publishing(redis)):
                await eventually(lambda: [w.lifecycle for w in member.fleet.workers] == [Lifecycle.READY], 3.0)
            await eventually(lambda: [w.lifecycle for w in member.fleet.workers] == [Lifecycle.DOWN], 6.0)
            member.pool.intake._lost[WORKER] -= 100.0
            await eventually(lambda: not member.fleet.workers, 3.0)


async def test_without_redis_a_router_starts_all_the_same() -> None:
    """Waiting for the picture ends in time where there is none."""
    with redis_server() as redis:
        member = Member(redis)
        redis.kill()
        async with running(member):
            began_s = time.monotonic()
            assert not await member.pool.caught_up(member.catch_up, 30.0)
            assert time.monotonic() - began_s < 5.0


async def test_a_surprise_does_not_end_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody expected, in what others told or in forgetting workers, is counted and logged."""
    with redis_server() as redis:
        member = Member(redis)
        monkeypatch.setattr(shared_pool, "FORGET_S", 0.01)

        def surprising(worker: WorkerId) -> None:
            raise RuntimeError("surprise")

        monkeypatch.setattr(member.pool.intake, "forget_lost", lambda: surprising(WORKER))
        async with running(member) as tasks:
            await eventually(lambda: member.pool.surprises > 1, 2.0)
            assert not tasks[0].done()


def spoilt(rng: random.Random, valid: list[bytes]) -> bytes:
    """Random bytes; a real message cut, damaged, of another worker; or a right frame around anything."""
    message = rng.choice(valid)
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(80))
        case 1:
            return message[: rng.randrange(len(message))]
        case 2:
            damaged = bytearray(message)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            return bytes(damaged)
        case 3:
            return message
    body = bytearray(message[HEAD.size :])
    body[rng.randrange(len(body))] = rng.randrange(256)
    return seal(message[2], bytes(body[: rng.randrange(len(body) + 1)] if rng.random() < 0.5 else body))


def vandalise(client: Any, rng: random.Random, valid: list[bytes]) -> None:
    """Writes one thing that is none under a name of its own, or where all are listed or heard."""
    worker = rng.choice(("10.0.0.2:8000", "10.0.0.3:8000#1", "x", ""))
    keys, data = Keys("default").of(WorkerId(worker)), spoilt(rng, valid)
    client.zadd(Keys("default").workers, {rng.choice((worker.encode(), rng.randbytes(5))): rng.randrange(1 << 40)})
    client.publish(Keys("default").load, data)
    key = rng.choice((keys.report, keys.stream, keys.snapshot, keys.new_snapshot))
    if rng.random() < 0.2:
        client.unlink(key)
        return
    with contextlib.suppress(ResponseError):  # it is of another type by now
        if key == keys.stream:
            client.xadd(
                key, {rng.choice((b"d", b"x")): data}, id=rng.choice(("*", f"{rng.randrange(1 << 45)}-{rng.randrange(9)}"))
            )
        elif key == keys.report:
            client.set(key, data)
        else:
            client.rpush(key, data)


@pytest.mark.parametrize("seed", range(3))
async def test_hostile_values_in_redis_harm_nobody_else(seed: int) -> None:
    """Random, truncated and forged values in all places: no loop raises anything, and a good worker's cache stays right."""
    rng = random.Random(seed)
    with redis_server() as redis:
        sidecar, member = Publishing(redis, Truth.EXACT, 500), Member(redis)
        async with running(sidecar, member) as tasks:
            await eventually(lambda: bool(member.fleet.workers) and member.fleet.workers[0].truth is Truth.EXACT, 3.0)
            with Redis(port=redis.port) as client:
                keys = Keys("default").of(WORKER)
                pieces: Any = client.lrange(keys.snapshot, 0, -1)
                valid = [*pieces, bytes(client.get(keys.report) or b""), encode_left(WORKER)]
                valid.append(encode_delta(CacheDelta(WorkerId("x"), "g1", 1, (Stored(None, sidecar.keys[:9]),))))
                for _ in range(150):
                    vandalise(client, rng, valid)
                    await asyncio.sleep(0.01)
            worker = member.fleet.get(WORKER)
            assert worker is not None and (worker.lifecycle, worker.truth) == (Lifecycle.READY, Truth.EXACT)
            assert member.placement.blocks_held(worker) == 500
            assert not any(task.done() for task in tasks)
        assert member.pool.follower.counts.bad_messages > 0
        assert (member.pool.follower.counts.surprises, member.pool.surprises, member.catch_up.surprises) == (0, 0, 0)
