"""Rows 4 and 6: what a proxy adds to the first byte when idle, and what a never-seen long prompt delays."""

import asyncio
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence

from loadtest.bench.bodies import KINDS, bodies, unseen_body
from loadtest.bench.load import LoadFailed, percentile, request_bytes, run_load
from loadtest.bench.results import Figure, Results, median_figure
from loadtest.bench.servers import HOST

DIRECT = "direct"
FIRST_BYTE = "first byte"
ADDED = "added"
UNSEEN_SELF = "own delay on its way to an engine"
UNSEEN_OTHERS = "delay of small requests beside it"
BATCH = 50
GROUPS = 5
BATCH_WARM_UP = 5  # requests of each batch left out: its connection is new
UNSEEN_BYTES = 480_000  # about 100,000 tokens of English
WATCH_S = 0.7  # small requests are watched this long after a long prompt: its tail is tokenised meanwhile
PAUSE_S = 0.001


async def first_byte_row(ports: Mapping[str, int], batches: int, results: Results, step: Callable[[str], None]) -> None:
    """Sequential 2 KB chats, one contender after the other in small batches."""
    taken: dict[str, list[list[float]]] = {name: [] for name in ports}
    alive = dict(ports)
    for batch in range(batches):
        made = bodies(KINDS["chat2k"], BATCH, seed=10_000 + batch)
        for name, port in list(alive.items()):
            step(f"idle first byte: {name}")
            requests = [request_bytes(f"{HOST}:{port}", body) for body in made]
            try:
                result = await run_load(HOST, port, requests, concurrency=1)
            except LoadFailed as error:
                results.absent[f"first-byte/{name}"] = str(error)
                del alive[name], taken[name]
                continue
            taken[name].append(result.first_byte_ms()[BATCH_WARM_UP:])
    for name, values in taken.items():
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            results.figures += percentile_figures(
                name, label, group_percentiles(values, share), group_percentiles(taken[DIRECT], share)
            )


def group_percentiles(batches: Sequence[Sequence[float]], share: float) -> list[float]:
    """A percentile for each of about `GROUPS` runs of neighbouring batches, so that one burst of noise spoils one only."""
    size = max(1, len(batches) // GROUPS)
    groups = [batches[at : at + size] for at in range(0, len(batches) - size + 1, size)]
    return [percentile([value for batch in group for value in batch], share) for group in groups]


def percentile_figures(name: str, label: str, whole_ms: list[float], direct_ms: list[float]) -> list[Figure]:
    """The first byte's time and what is added to direct, group by group; medians over the groups."""
    added_ms = [ours - direct for ours, direct in zip(whole_ms, direct_ms, strict=True)]
    return [
        median_figure("first-byte", f"{FIRST_BYTE} {label}", name, "ms", whole_ms),
        median_figure("first-byte", f"{ADDED} {label}", name, "ms", added_ms),
    ]


async def read_arrivals(engine_ports: Sequence[int]) -> list[tuple[float, float, int]]:
    """Take (first byte, last byte, body bytes) of every request that reached the engines since the last call."""
    rows: list[tuple[float, float, int]] = []
    for port in engine_ports:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /arrivals HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)
        writer.close()
        rows += [tuple(row) for row in json.loads(answer.partition(b"\r\n\r\n")[2])]
    return rows


async def time_alone(port: int, engine_ports: Sequence[int], request: bytes) -> float:
    """Milliseconds from sending a never-seen long prompt to the arrival of its last byte at an engine."""
    await read_arrivals(engine_ports)
    sample = (await run_load(HOST, port, [request], concurrency=1, deadline_s=20)).samples[0]
    await asyncio.sleep(WATCH_S)
    arrived = [last for _, last, size in await read_arrivals(engine_ports) if size > UNSEEN_BYTES // 2]
    if not arrived:
        raise LoadFailed("the long prompt reached no engine")
    return (arrived[0] - sample.sent_s) * 1e3


async def slowest_beside(port: int, request: bytes, small: Sequence[bytes]) -> float:
    """Milliseconds of the slowest small request from a never-seen long prompt on until its tail must be done."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(run_load(HOST, port, small, concurrency=1, pause_s=PAUSE_S, stop=stop, deadline_s=30))
        await asyncio.sleep(0.1)
        try:
            long = (await run_load(HOST, port, [request], concurrency=1, deadline_s=20)).samples[0]
            await asyncio.sleep(WATCH_S)
        finally:
            stop.set()
    return max((s.end_s - s.sent_s) * 1e3 for s in beside.result().samples if s.end_s >= long.sent_s)


async def idle_small_ms(port: int, small: Sequence[bytes]) -> float:
    """Median time of a small request when nothing else runs."""
    result = await run_load(HOST, port, small[:100], concurrency=1, pause_s=PAUSE_S)
    return statistics.median((s.end_s - s.sent_s) * 1e3 for s in result.samples)


async def unseen_row(
    ports: Mapping[str, int], engine_ports: Sequence[int], prompts: int, results: Results, step: Callable[[str], None]
) -> None:
    """Never-seen 100 k-token prompts: their own way to an engine, alone, and the slowest small request beside another one."""
    alone: dict[str, list[float]] = {name: [] for name in ports}
    beside: dict[str, list[float]] = {name: [] for name in ports}
    small = [request_bytes(HOST, body) for body in bodies(KINDS["chat2k"], 1000, seed=77)]
    idle_ms = {name: await idle_small_ms(port, small) for name, port in ports.items()}
    seeds = itertools.count()
    for _ in range(prompts):
        for name, port in ports.items():
            step(f"never-seen long prompt: {name}")
            one, other = (request_bytes(HOST, unseen_body(UNSEEN_BYTES, next(seeds))) for _ in range(2))
            try:
                alone[name].append(await time_alone(port, engine_ports, one))
                beside[name].append(await slowest_beside(port, other, small) - idle_ms[name])
            except* LoadFailed as errors:
                results.absent.setdefault(f"unseen/{name}", str(errors.exceptions[0]))
    direct_ms = statistics.median(alone[DIRECT])
    for name in ports:
        if alone[name] and beside[name]:
            own_ms = [way_ms - direct_ms for way_ms in alone[name]]
            results.figures.append(median_figure("unseen", UNSEEN_SELF, name, "ms", own_ms, direct_ms=direct_ms))
            results.figures.append(median_figure("unseen", UNSEEN_OTHERS, name, "ms", beside[name], idle_ms=idle_ms[name]))
