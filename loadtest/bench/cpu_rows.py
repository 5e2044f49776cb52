"""Rows 1–3: CPU time of each proxy per request, contenders taking turns in every round on the same bodies."""

import asyncio
import gc
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.bench.accounting import cpu_seconds
from loadtest.bench.bodies import KINDS, Kind, bodies
from loadtest.bench.load import LoadFailed, LoadResult, percentile, request_bytes, run_load
from loadtest.bench.machine import busy_cpu_s
from loadtest.bench.results import Results, median_figure
from loadtest.bench.servers import HOST, Running

CPU = "CPU per request"


@dataclass(frozen=True)
class CpuRow:
    """One traffic shape and how much of it a round sends. `repeat` sends the same bodies in every round (all seen before)."""

    name: str
    title: str
    kind: Kind
    requests: int
    quick_requests: int
    concurrency: int = 16
    pause_s: float = 0.0  # each connection's rest after an answer; 0 drives the contender as fast as it goes
    repeat: bool = False

    def bodies(self, round_number: int, *, quick: bool) -> list[bytes]:
        count = self.quick_requests if quick else self.requests
        return bodies(self.kind, count, seed=0 if self.repeat else round_number)


ROWS = (
    CpuRow("chat2k", "2 KB chat", KINDS["chat2k"], requests=4000, quick_requests=1500),
    CpuRow("paced2k", "2 KB chat, about 1,400/s", KINDS["chat2k"], requests=1000, quick_requests=500, pause_s=0.01),
    CpuRow("repeat2k", "2 KB chat, repeated prompts", KINDS["chat2k"], requests=2000, quick_requests=800, repeat=True),
    CpuRow("chat100k", "100 KB chat", KINDS["chat100k"], requests=400, quick_requests=150),
    CpuRow("stream64", "64-event stream", KINDS["stream64"], requests=240, quick_requests=96),
)


@dataclass
class Round:
    """What one contender used in one round."""

    cpu_us: float
    rate: float
    first_byte_p50_ms: float
    foreign_cpu_share: float  # CPU used by other processes than ours, as a share of one core


def foreign_share(before: tuple[float, float], after: tuple[float, float], wall_s: float) -> float:
    """`before` and `after` are (CPU of the whole machine, CPU of us and our children)."""
    machine_s, ours_s = after[0] - before[0], after[1] - before[1]
    return max(0.0, machine_s - ours_s) / wall_s if wall_s else 0.0


async def send(server: Running, row: CpuRow, requests: Sequence[bytes]) -> LoadResult:
    return await run_load(
        HOST, server.port, requests, concurrency=row.concurrency, is_stream=row.kind.stream, pause_s=row.pause_s
    )


async def measure(server: Running, row: CpuRow, made: Sequence[bytes]) -> Round:
    """One load run; CPU is read right before the first request and right after the last answer."""
    requests = [request_bytes(f"{HOST}:{server.port}", body) for body in made]
    gc.collect()
    ours, machine = cpu_seconds(os.getpid()), busy_cpu_s()
    before_s = cpu_seconds(server.pid)
    result = await send(server, row, requests)
    used_s = cpu_seconds(server.pid) - before_s
    foreign = foreign_share((machine, ours), (busy_cpu_s(), cpu_seconds(os.getpid())), result.wall_s)
    if row.kind.stream and set(result.events) != {64}:
        raise LoadFailed(f"streams of {sorted(result.events)} events instead of 64")
    return Round(
        cpu_us=used_s / result.requests * 1e6,
        rate=result.requests / result.wall_s,
        first_byte_p50_ms=percentile(result.first_byte_ms(), 0.5),
        foreign_cpu_share=foreign,
    )


async def warm_up(server: Running, row: CpuRow, made: Sequence[bytes]) -> None:
    """Connections, caches and allocators settle: not counted."""
    await send(server, row, [request_bytes(f"{HOST}:{server.port}", body) for body in made])


async def run_row(
    row: CpuRow, servers: Sequence[Running], rounds: int, results: Results, step: Callable[[str], None], *, quick: bool
) -> None:
    """All rounds of a row. A contender that fails is left out of the row, with the reason."""
    alive = {server.name: server for server in servers}
    taken: dict[str, list[Round]] = {name: [] for name in alive}
    for round_number in range(rounds + 1):  # round 0 warms up
        made = await asyncio.to_thread(row.bodies, round_number, quick=quick)
        names = list(alive)
        turn = round_number % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            step(f"{row.title}: {name}")
            try:
                if round_number == 0:
                    await warm_up(alive[name], row, made)
                else:
                    taken[name].append(await measure(alive[name], row, made))
            except LoadFailed as error:
                results.absent[f"{row.name}/{name}"] = str(error)
                del alive[name], taken[name]
    for name, measured in taken.items():
        results.figures.append(
            median_figure(
                row.name, CPU, name, "µs", [r.cpu_us for r in measured],
                requests_per_s=statistics.median(r.rate for r in measured),
                first_byte_p50_ms=statistics.median(r.first_byte_p50_ms for r in measured),
                foreign_cpu_share=statistics.median(r.foreign_cpu_share for r in measured),
            )
        )  # fmt: skip
