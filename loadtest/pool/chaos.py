"""What happens to requests when something happens to Redis: real routers of a pool beside one that needs no Redis.

All get the same steady requests at the same time. After each thing that happens, the time until the pool's routers know
the state again is taken: every worker ready with a report of the last second, its cache as it was half a second ago.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.crc import key_slot

from loadtest.bench.bodies import KINDS, bodies
from loadtest.bench.servers import fake_engines
from loadtest.demo.router_process import LocalRouter, start_router
from loadtest.pool.requests import Flow, latencies
from loadtest.pool.sidecars import REMEMBERED, STEP_S, SidecarFleet, SimulatedSidecar
from loadtest.pool.stage import Failed, Stage
from loadtest.redis_cluster import move_slot, redis_cluster, url_of
from loadtest.redis_server import RedisServer
from loadtest.tcp_front import TcpFront
from router.core.types import Truth
from router.settings import StateSettings
from router.state.redis_keys import Keys, lane_of

ENGINES: Final = 3
BLOCKS_PER_S: Final = 100  # of each
ROUTERS: Final = 2
RATE: Final = 100.0  # requests a second to each router
RIGHT_WITHIN_S: Final = 3.0
FRESH_S: Final = 0.5  # the state that a router must know is as old as that, or newer
READY_S: Final = 20.0
NEVER_BEFORE: Final = 1 << 30  # a cache that only grows: what is known of it tells when that was
MAX_ADDED_P99_MS: Final = 1.0

Happening = Callable[["Pool"], Awaitable[None]]


class Pool:
    """Simulated sidecars in this process, over `path` to a Redis; routers as processes of their own."""

    def __init__(self, servers: Sequence[RedisServer], path: TcpFront, fleet: SidecarFleet, hold: float) -> None:
        self.servers = servers
        self.path = path
        self.fleet = fleet
        self.hold = hold  # how long things last, as a part of what they last when measured
        self.routers: list[LocalRouter] = []
        self._held: dict[str, list[tuple[float, int]]] = {}

    async def remember(self) -> None:
        """What each cache held when, until cancelled."""
        while True:
            for sidecar in self.fleet.sidecars:
                told = self._held.setdefault(sidecar.worker, [])
                told.append((time.monotonic(), sidecar.held))
                del told[:-REMEMBERED]
            await asyncio.sleep(STEP_S / 2)

    async def comes_right(self, within_s: float) -> float | None:
        """Seconds until all routers know the state; None when that takes too long."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + within_s:
            rows = [await asyncio.to_thread(router.workers) for router in self.routers]
            if all(self._is_right(row) for of_router in rows for row in of_router) and all(map(len, rows)):
                return time.monotonic() - began_s
            await asyncio.sleep(0.05)
        return None

    def _is_right(self, row: dict[str, Any]) -> bool:
        told = self._held.get(row["id"], [])
        least = max((held for at_s, held in told if at_s <= time.monotonic() - FRESH_S), default=1)
        is_fresh = row["report_age_s"] is not None and row["report_age_s"] < 1.0
        return row["lifecycle"] == "ready" and row["truth"] == Truth.EXACT and is_fresh and row["blocks_held"] >= least

    async def lasts(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.hold)


async def nothing(pool: Pool) -> None:
    await pool.lasts(5.0)


async def killed(pool: Pool) -> None:
    """And started again, empty."""
    pool.servers[0].kill()
    await pool.lasts(3.0)
    await asyncio.to_thread(pool.servers[0].start)


async def paused(pool: Pool) -> None:
    """Connections stay, nothing is answered."""
    pool.servers[0].pause()
    await pool.lasts(5.0)
    pool.servers[0].resume()


async def flushed(pool: Pool) -> None:
    for _ in range(4):
        await asyncio.to_thread(command, pool.servers[0], "FLUSHALL")
        await pool.lasts(0.5)


async def full(pool: Pool) -> None:
    """Writes are refused, for longer than reports live."""
    await asyncio.to_thread(command, pool.servers[0], "CONFIG", "SET", "maxmemory", "1")
    await pool.lasts(5.0)
    await asyncio.to_thread(command, pool.servers[0], "CONFIG", "SET", "maxmemory", "0")


async def far(pool: Pool) -> None:
    """200 ms more, each way."""
    pool.path.delay_s = 0.2
    await pool.lasts(5.0)
    pool.path.delay_s = 0.0


async def slot_moved(pool: Pool) -> None:
    slot = key_slot(Keys("default").tag(lane_of(pool.fleet.sidecars[0].worker)).encode())
    await asyncio.to_thread(move_slot, slot, list(pool.servers), 2.0 * pool.hold)


def command(server: RedisServer, *words: str) -> None:
    with Redis(port=server.port) as client:
        client.execute_command(*words)


ALONE: Final[tuple[Happening, ...]] = (nothing, killed, paused, flushed, full, far, nothing)
CLUSTER: Final[tuple[Happening, ...]] = (nothing, slot_moved, nothing)


async def measure(hold: float = 1.0, rate: float = RATE, *, cluster: bool = False) -> dict[str, Any]:
    """One row per happening, and what all requests came to. Raises Failed."""
    async with AsyncExitStack() as exits:
        stage = exits.enter_context(Stage())
        servers = exits.enter_context(redis_cluster()) if cluster else [stage.redis]
        path = TcpFront(stage.redis.port)
        await exits.enter_async_context(path.open())
        redis = url_of(servers) if cluster else f"redis://127.0.0.1:{path.port}"
        engines = [f"http://127.0.0.1:{port}" for port in stage.enter(fake_engines(ENGINES, stage.folder)).ports]
        rng = random.Random(1)
        fleet = SidecarFleet(StateSettings(redis=redis), [SimulatedSidecar(url, rng, NEVER_BEFORE) for url in engines])
        fleet.blocks_per_s = BLOCKS_PER_S
        pool = Pool(servers, path, fleet, hold)
        group = await exits.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(part) for part in (fleet.run(), pool.remember())]
        try:
            return await under_requests(pool, engines, redis, stage, rate, CLUSTER if cluster else ALONE)
        finally:
            for task in tasks:
                task.cancel()


async def under_requests(
    pool: Pool, engines: list[str], redis: str, stage: Stage, rate: float, happenings: Sequence[Happening]
) -> dict[str, Any]:
    for number in range(ROUTERS):
        pool.routers.append(await started([], stage.folder / f"pool-{number}.log", "--redis", redis, stage=stage))
    plain = await started([f"vllm={url}" for url in engines], stage.folder / "plain.log", stage=stage)
    if await pool.comes_right(READY_S) is None:
        raise Failed(f"the routers do not know the state: {pool.routers[0].workers()}")
    await asyncio.to_thread(plain.await_workers, ENGINES, READY_S)
    sent = bodies(KINDS["chat2k"], 500, seed=1)
    flows = [Flow(router.url, sent, rate) for router in (*pool.routers, plain)]
    begun: list[tuple[str, float, float | None]] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(flow.run()) for flow in flows]
        await asyncio.sleep(1.0)
        for happening in happenings:
            began_s = time.monotonic()
            await happening(pool)
            begun.append((happening.__name__, began_s, await pool.comes_right(READY_S)))
            await pool.lasts(1.0)
        begun.append(("", time.monotonic(), None))
        for task in tasks:
            task.cancel()
    return figures(flows, begun)


async def started(engines: Sequence[str], log: Path, *flags: str, stage: Stage) -> LocalRouter:
    router = await asyncio.to_thread(start_router, engines, log, "--no-access-log", *flags)
    return stage.enter(router)


def figures(flows: Sequence[Flow], begun: Sequence[tuple[str, float, float | None]]) -> dict[str, Any]:
    """`begun`: what, when, and seconds until all was right; the last one is the end."""
    rows = []
    for (name, began_s, right_s), (_, ends_s, _) in pairwise(begun):
        pooled, plain = latencies(flows[:-1], began_s, ends_s), latencies(flows[-1:], began_s, ends_s)
        added_ms = round(pooled.p99_ms - plain.p99_ms, 2)
        right_s = None if right_s is None else round(right_s, 2)
        rows.append(
            {"what": name, "pool": asdict(pooled), "plain": asdict(plain), "added_p99_ms": added_ms, "right_after_s": right_s}
        )
    pooled, plain = (latencies(part, begun[0][1], begun[-1][1]) for part in (flows[:-1], flows[-1:]))
    return {
        "happenings": rows,
        "all": {"pool": asdict(pooled), "plain": asdict(plain), "added_p99_ms": round(pooled.p99_ms - plain.p99_ms, 2)},
        "failures": {
            "pool": dict(sum((flow.failures for flow in flows[:-1]), Counter())),
            "plain": dict(flows[-1].failures),
        },
    }


def show(found: dict[str, Any]) -> str:
    """For people, with the budgets."""
    lines = [
        f"requests while Redis …: none fails, added p99 at most {MAX_ADDED_P99_MS:g} ms, right within {RIGHT_WITHIN_S:g} s",
        f"  {'':10} {'requests':>8} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}  {'plain p99':>9} {'added':>6}  right after",
    ]
    for row in [*found["happenings"], {"what": "all", "right_after_s": "", **found["all"]}]:
        pool, plain = row["pool"], row["plain"]
        lines.append(
            f"  {row['what']:10} {pool['requests']:8} {pool['p50_ms']:7.2f} {pool['p99_ms']:7.2f} {pool['max_ms']:7.2f}  "
            f"{plain['p99_ms']:9.2f} {row['added_p99_ms']:6.2f}  {row['right_after_s']} s"
        )
    lines.append(
        f"  failed: {found['failures']['pool'] or 'none'} of the pool's, {found['failures']['plain'] or 'none'} of the plain"
    )
    return "\n".join(lines)
