"""Shared state under load: many simulated sidecars, one real Redis, several followers, each in a process of its own.

`python -m loadtest.state_load [--sidecars 1000] [--blocks-per-s 200] [--routers 2] [--seconds 10] [--out DIR]`
prints how many blocks each follower takes in, how late, and the share of a core that every process uses.
What a router does with the blocks (its index) is not part of it.
"""

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from loadtest.bench.accounting import cpu_seconds, resident_bytes
from loadtest.bench.machine import run_facts
from loadtest.bench.servers import clean_environment, die_with_parent, same_python
from loadtest.redis_server import redis_server
from router.core.cache_delta import CacheDelta, CacheSnapshot, Removed, RouterLoad, Stored
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.redis_url import parse_redis
from router.settings import FleetSettings, StateSettings
from router.state.redis_follower import RedisFollower
from router.state.redis_health import RedisHealth
from router.state.redis_loads import RedisLoads
from router.state.redis_publisher import RedisPublisher

STEP_S: Final = 0.1  # a sidecar passes on its engine's events this often
REPORT_S: Final = 0.25
CACHE_RUNS: Final = 100  # an engine's cache; then each new run of blocks drives out the oldest
START_S: Final = 30.0
LOAD_CHANGES_PER_S: Final = 200


class SimulatedSidecar:
    """Stores a run of blocks each step; the last key of a run is the time it was made, in ns."""

    def __init__(self, name: str, blocks_per_step: int, rng: random.Random) -> None:
        self.worker = WorkerId(name)
        self.seq = 0
        self._rng = rng
        self._blocks = blocks_per_step
        self._runs: deque[array[int]] = deque()

    def step(self) -> CacheDelta:
        run = array("Q", self._rng.randbytes(8 * self._blocks))
        run[-1] = time.monotonic_ns()
        self._runs.append(run)
        self.seq += 1
        stored = Stored(None, run)
        gone = (Removed(self._runs.popleft()),) if len(self._runs) > CACHE_RUNS else ()
        return CacheDelta(self.worker, "1", self.seq, (stored, *gone))

    def snapshot(self) -> CacheSnapshot:
        return CacheSnapshot(self.worker, "1", self.seq, tuple(Stored(None, run) for run in self._runs))

    def report(self) -> WorkerReport:
        return WorkerReport(
            self.worker, "vllm", f"http://{self.worker}", "1", Lifecycle.READY, time.monotonic(), ("some/model-7b",), (), (),
            16, 400_000, self._rng.randrange(50), self._rng.randrange(9), None, self._rng.random(), Truth.EXACT,
            extra={"prompt_tokens": self._rng.random() * 1e6, "generation_tokens": self._rng.random() * 1e6},
        )  # fmt: skip


class CountingListener:
    """Takes in everything and keeps the lag of every run."""

    def __init__(self) -> None:
        self.stored = 0
        self.removed = 0
        self.reports = 0
        self.snapshots = 0
        self.loads = 0
        self.lost_workers = 0
        self.lags_ns: array[int] = array("q")

    def report(self, report: WorkerReport) -> None:
        self.reports += 1

    def delta(self, delta: CacheDelta) -> bool:
        now_ns = time.monotonic_ns()
        for change in delta.changes:
            if isinstance(change, Stored):
                self.stored += len(change.keys)
                self.lags_ns.append(now_ns - change.keys[-1])
            elif isinstance(change, Removed):
                self.removed += len(change.keys)
        return True

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        self.snapshots += 1

    def lost(self, worker: WorkerId, reason: str) -> None:
        self.lost_workers += 1

    def router_load(self, load: RouterLoad) -> None:
        self.loads += 1


async def run_sidecars(settings: StateSettings, fleet: FleetSettings, sidecars: int, blocks_per_s: int) -> None:
    """All in one process with one publisher, until it is ended."""
    publisher = RedisPublisher(settings, fleet, make_health(settings))
    rng = random.Random(1)
    names = [f"10.0.{number // 250}.{number % 250}:8000" for number in range(sidecars)]
    simulated = [SimulatedSidecar(name, max(round(blocks_per_s * STEP_S), 1), rng) for name in names]
    for sidecar in simulated:
        publisher.report(sidecar.report())
        publisher.follow(sidecar.worker, sidecar.snapshot)
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        began_s = time.monotonic()
        step = 0
        while True:
            for sidecar in simulated:
                publisher.delta(sidecar.step())
            every = round(REPORT_S / STEP_S * 2)
            for sidecar in simulated[step * 2 % every :: every] + simulated[(step * 2 + 1) % every :: every]:
                publisher.report(sidecar.report())
            step += 1
            await asyncio.sleep(max(began_s + step * STEP_S - time.monotonic(), 0))


async def run_router(settings: StateSettings, fleet: FleetSettings, name: str, seconds: float) -> dict[str, Any]:
    """A follower and its exchange of loads; what it took in within `seconds`, begun when it had caught up."""
    gc.freeze()
    gc.set_threshold(5_000, 10, 1_000_000)  # as a router does, see router/app.py
    listener = CountingListener()
    health = make_health(settings)
    follower = RedisFollower(settings, fleet, listener, health)
    loads = RedisLoads(settings, name, lambda worker: (random.randrange(9), random.randrange(9999)), listener, health)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in (follower, loads)]
        began_s = time.monotonic()
        if not await follower.caught_up(START_S):
            raise RuntimeError("the follower did not catch up")
        caught_up_s = time.monotonic() - began_s
        await asyncio.sleep(1.0)
        start = (listener.stored, listener.removed, listener.reports, listener.loads, len(listener.lags_ns))
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        slowest_s = 0.0
        while time.monotonic() - began_s < seconds:
            before_s = time.monotonic()
            await asyncio.sleep(1 / LOAD_CHANGES_PER_S)
            slowest_s = max(slowest_s, time.monotonic() - before_s - 1 / LOAD_CHANGES_PER_S)
            loads.touch(WorkerId(f"10.0.0.{random.randrange(250)}:8000"))
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        for task in tasks:
            task.cancel()
    lags_ms = sorted(lag / 1e6 for lag in listener.lags_ns[start[4] :]) or [0.0]
    return {
        "caught_up_s": round(caught_up_s, 3),
        "stored_blocks_per_s": round((listener.stored - start[0]) / took_s),
        "removed_blocks_per_s": round((listener.removed - start[1]) / took_s),
        "reports_per_s": round((listener.reports - start[2]) / took_s),
        "loads_heard_per_s": round((listener.loads - start[3]) / took_s),
        "lag_p50_ms": round(lags_ms[len(lags_ms) // 2], 1),
        "lag_p99_ms": round(lags_ms[len(lags_ms) * 99 // 100], 1),
        "longest_wait_of_loop_ms": round(slowest_s * 1e3, 1),
        "cpu_share": round(cpu_s / took_s, 3),
        "gaps": follower.counts.gaps,
        "snapshots": listener.snapshots,
        "lost": listener.lost_workers,
        "errors": dict(health.errors),
    }


def make_health(settings: StateSettings) -> RedisHealth:
    return RedisHealth(parse_redis(settings.redis), settings.redis_timeout_s)


def measure(sidecars: int, blocks_per_s: int, routers: int, seconds: float) -> dict[str, Any]:
    """Runs everything and returns the figures of each process."""
    with redis_server() as server:
        common = [*same_python(), "-m", "loadtest.state_load", "--redis", server.url, "--sidecars", str(sidecars)]
        publisher = launch([*common, "--role", "sidecars", "--blocks-per-s", str(blocks_per_s)])
        followers: list[subprocess.Popen[str]] = []
        try:
            time.sleep(2.0)
            command = [*common, "--role", "router", "--seconds", str(seconds)]
            followers += [launch([*command, "--name", f"router-{number}"]) for number in range(routers)]
            time.sleep(2.0)
            before = {"sidecars": cpu_seconds(publisher.pid), "redis": cpu_seconds(server.pid)}
            began_s = time.monotonic()
            time.sleep(seconds * 0.8)
            took_s = time.monotonic() - began_s
            after = {"sidecars": cpu_seconds(publisher.pid), "redis": cpu_seconds(server.pid)}
            redis_mb = resident_bytes(server.pid) / 1e6
            answers = [follower.communicate(timeout=START_S + seconds)[0] for follower in followers]
        finally:
            for process in (publisher, *followers):
                process.kill()
                process.communicate()
    return {
        "routers": [json.loads(answer.splitlines()[-1]) for answer in answers],
        "sidecars_cpu_share": round((after["sidecars"] - before["sidecars"]) / took_s, 3),
        "redis_cpu_share": round((after["redis"] - before["redis"]) / took_s, 3),
        "redis_resident_mb": round(redis_mb, 1),
    }


def launch(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment(), preexec_fn=die_with_parent)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.state_load", description=__doc__.split("\n\n")[0])
    parser.add_argument("--sidecars", type=int, default=1000)
    parser.add_argument("--blocks-per-s", type=int, default=200, help="new cached blocks of each sidecar")
    parser.add_argument("--routers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="folder for the results as JSON")
    parser.add_argument("--role", choices=("all", "sidecars", "router"), default="all", help=argparse.SUPPRESS)
    parser.add_argument("--redis", default="", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="router", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    settings, fleet = StateSettings(redis=arguments.redis), FleetSettings(max_workers=max(arguments.sidecars, 1))
    if arguments.role == "sidecars":
        uvloop.run(run_sidecars(settings, fleet, arguments.sidecars, arguments.blocks_per_s))
    elif arguments.role == "router":
        print(json.dumps(uvloop.run(run_router(settings, fleet, arguments.name, arguments.seconds))))
    else:
        figures = measure(arguments.sidecars, arguments.blocks_per_s, arguments.routers, arguments.seconds)
        show_and_keep(figures, vars(arguments), arguments.out)
    return 0


def show_and_keep(figures: dict[str, Any], arguments: dict[str, Any], out: Path | None) -> None:
    facts = run_facts({})
    asked = {name: arguments[name] for name in ("sidecars", "blocks_per_s", "routers", "seconds")}
    text = json.dumps({**facts, "asked": asked, **figures}, indent=1) + "\n"
    print(json.dumps(figures, indent=1))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        name = str(facts["commit"])[:12] + ("-dirty" if facts["dirty"] else "")
        (out / f"state-{name}.json").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
