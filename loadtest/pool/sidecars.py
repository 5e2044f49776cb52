"""Simulated sidecars that publish to a real Redis as real ones do, with caches whose content is known.

`python -m loadtest.pool.sidecars --redis URL --engine http://HOST:PORT --sidecars 1000` runs many in a process of its own. A
number on a line of standard input sets how many blocks each stores a second; `told` has one line of JSON written: what was
told in the last seconds, as (monotonic ns, blocks of all changes so far), and the blocks that are held now.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

import uvloop

from router.core.cache_delta import CacheDelta, CacheSnapshot, Removed, Stored
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.redis_url import parse_redis
from router.settings import FleetSettings, StateSettings
from router.state.redis_health import RedisHealth
from router.state.redis_publisher import RedisPublisher

STEP_S: Final = 0.1  # a sidecar passes on its engine's events this often
REPORT_S: Final = 0.2
CACHE_RUNS: Final = 100  # an engine's cache; then each new run of blocks drives out the oldest
MODEL: Final = "bench"  # of the bench's fake engines
REMEMBERED: Final = 200  # steps


class SimulatedSidecar:
    """Stores a run of blocks each step. Its engine answers at `url`."""

    def __init__(self, url: str, rng: random.Random, cache_runs: int = CACHE_RUNS) -> None:
        self.worker = WorkerId(url.partition("://")[2])
        self.seq = 0
        self.held = 0  # blocks
        self._url = url
        self._rng = rng
        self._cache_runs = cache_runs
        self._runs: deque[array[int]] = deque()

    def step(self, blocks: int) -> CacheDelta:
        run = array("Q", self._rng.randbytes(8 * blocks))
        self._runs.append(run)
        self.held += blocks
        self.seq += 1
        changes: list[Stored | Removed] = [Stored(None, run)]
        if len(self._runs) > self._cache_runs:
            changes.append(Removed(self._runs.popleft()))
            self.held -= len(changes[-1].keys)
        return CacheDelta(self.worker, "1", self.seq, tuple(changes))

    def snapshot(self) -> CacheSnapshot:
        return CacheSnapshot(self.worker, "1", self.seq, tuple(Stored(None, run) for run in self._runs))

    def report(self) -> WorkerReport:
        return WorkerReport(
            self.worker, "vllm", self._url, "1", Lifecycle.READY, time.monotonic(), (MODEL,), (), (),
            16, 400_000, 0, 0, None, self._rng.random(), Truth.EXACT,
            extra={"prompt_tokens": self._rng.random() * 1e6, "generation_tokens": self._rng.random() * 1e6},
        )  # fmt: skip


class SidecarFleet:
    """All in one process with one publisher. `blocks_per_s` of each sidecar may be changed at any time; 0: reports only."""

    def __init__(self, settings: StateSettings, sidecars: Sequence[SimulatedSidecar]) -> None:
        fleet = FleetSettings(max_workers=max(len(sidecars), 1))
        self.blocks_per_s = 0.0
        self.sidecars = sidecars
        self.told: deque[tuple[int, int]] = deque([(time.monotonic_ns(), 0)], maxlen=REMEMBERED)
        self._publisher = RedisPublisher(settings, fleet, RedisHealth(parse_redis(settings.redis), settings.redis_timeout_s))

    @property
    def held(self) -> int:
        return sum(sidecar.held for sidecar in self.sidecars)

    async def run(self) -> None:
        """Until cancelled."""
        for sidecar in self.sidecars:
            self._publisher.report(sidecar.report())
            self._publisher.follow(sidecar.worker, sidecar.snapshot)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run())
            began_s = time.monotonic()
            step = 0
            while True:
                self._step(step)
                step += 1
                await asyncio.sleep(max(began_s + step * STEP_S - time.monotonic(), 0))

    def _step(self, step: int) -> None:
        blocks = round(self.blocks_per_s * STEP_S)
        told = self.told[-1][1]
        for sidecar in self.sidecars if blocks else ():
            delta = sidecar.step(blocks)
            self._publisher.delta(delta)
            told += sum(len(change.keys) for change in delta.changes if isinstance(change, Stored | Removed))
        self.told.append((time.monotonic_ns(), told))
        every = round(REPORT_S / STEP_S)
        for sidecar in self.sidecars[step % every :: every]:
            self._publisher.report(sidecar.report())


def urls_below(engine: str, count: int) -> list[str]:
    """One engine under many names: the bench's fake engines take no notice of what is before the API's path."""
    return [f"{engine}/e{number}" for number in range(count)]


async def serve(settings: StateSettings, engine: str, count: int) -> None:
    rng = random.Random(1)
    fleet = SidecarFleet(settings, [SimulatedSidecar(url, rng) for url in urls_below(engine, count)])

    def read() -> None:
        line = sys.stdin.readline().strip()
        if line == "told":
            print(json.dumps({"told": list(fleet.told), "held": fleet.held}), flush=True)
        elif line:
            fleet.blocks_per_s = float(line)

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), read)
    await fleet.run()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pool.sidecars", description=__doc__.split("\n\n")[0])
    parser.add_argument("--redis", required=True)
    parser.add_argument("--engine", required=True, help="where requests for all of them go")
    parser.add_argument("--sidecars", type=int, default=1000)
    arguments = parser.parse_args(argv)
    uvloop.run(serve(StateSettings(redis=arguments.redis), arguments.engine, arguments.sidecars))
    return 0


if __name__ == "__main__":
    sys.exit(main())
