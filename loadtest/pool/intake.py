"""Many simulated sidecars into one Redis and real routers that serve requests: what intake costs, and what requests notice.

Times with cache events and times without take turns, so that the cost of events is a difference within one run. Machines
have few cores, and the publishing of all sidecars runs on them too: shares of a core are told of each process, and beside
the routers runs one that has no Redis. What its requests notice of events is the machine's doing, not that of intake.
"""

import asyncio
import json
import subprocess
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from loadtest.bench.accounting import cpu_seconds, resident_bytes
from loadtest.bench.bodies import KINDS, bodies
from loadtest.bench.servers import clean_environment, die_with_parent, fake_engines, same_python
from loadtest.demo.router_process import LocalRouter, start_router
from loadtest.pool.requests import Flow, latencies
from loadtest.pool.stage import Stage

ROUTERS: Final = 2
RATE: Final = 50.0  # requests a second to each router
TURNS: Final = 2  # without events, then with
READY_S: Final = 60.0
SETTLE_S: Final = 2.0  # after each change
MAX_INTAKE_SHARE: Final = 0.5
MAX_BYTES_PER_BLOCK: Final = 100.0
COUNTS: Final = {
    "blocks": "warmline_state_blocks_total",
    "gaps": "warmline_state_gaps_total",
    "snapshots": "warmline_state_snapshots_total",
    "event_blocks": "warmline_index_event_blocks",
    "index_bytes": "warmline_index_bytes",
    "refused_blocks": "warmline_index_refused_blocks_total",
    "exact_workers": "warmline_exact_workers",
    "feed_gaps": "warmline_cache_feed_gaps_total",
}


class Sidecars:
    """The process of `loadtest.pool.sidecars`."""

    def __init__(self, redis: str, engine: str, count: int) -> None:
        command = [*same_python(), "-m", "loadtest.pool.sidecars", "--redis", redis, "--engine", engine]
        self._process = subprocess.Popen(
            [*command, "--sidecars", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            preexec_fn=die_with_parent,
        )
        self.pid = self._process.pid

    def store(self, blocks_per_s: float) -> None:
        self._say(str(blocks_per_s))

    def told(self) -> tuple[list[tuple[int, int]], int]:
        """(monotonic ns, blocks told so far) of the last steps, and the blocks held now."""
        self._say("told")
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        return found["told"], found["held"]

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> "Sidecars":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def counts_of(router: LocalRouter) -> dict[str, float]:
    """Numbers of its metrics page, and when it was asked for, in ns."""
    at_ns = time.monotonic_ns()
    with urllib.request.urlopen(router.admin_url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples if not s.labels}
    return {"at_ns": at_ns, **{name: found[metric] for name, metric in COUNTS.items()}}


def lag_ms(told: Sequence[tuple[int, int]], at_ns: float, blocks: float) -> float:
    """How long ago the sidecars had told as much as a router has taken in: the age of the oldest that is missing."""
    place = bisect_left([total for _, total in told], blocks)
    return max(at_ns - told[min(place, len(told) - 1)][0], 0) / 1e6


class Meter:
    """CPU of processes by name, from one `read` to the next."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._at_s, self._cpu_s = self._now()

    def read(self) -> dict[str, float]:
        """Shares of a core since the last time."""
        (since_s, before), (self._at_s, self._cpu_s) = (self._at_s, self._cpu_s), self._now()
        return {name: round((cpu_s - before[name]) / (self._at_s - since_s), 3) for name, cpu_s in self._cpu_s.items()}

    def _now(self) -> tuple[float, dict[str, float]]:
        return time.monotonic(), {name: cpu_seconds(pid) for name, pid in self._pids.items()}


async def measure(sidecars: int, blocks_per_s: float, seconds: float) -> dict[str, Any]:
    """`seconds`: of each turn."""
    with ExitStack() as exits:
        stage = exits.enter_context(Stage())
        engines = stage.enter(fake_engines(1, stage.folder))
        publishing = exits.enter_context(Sidecars(stage.redis.url, engines.urls[0], sidecars))
        routers = []
        for number in range(ROUTERS):
            flags = ("--redis", stage.redis.url, "--no-access-log", "--max-workers", str(sidecars + 8))
            router = await asyncio.to_thread(start_router, [], stage.folder / f"router-{number}.log", *flags)
            routers.append(stage.enter(router))
        for router in routers:
            await asyncio.to_thread(router.await_workers, sidecars, READY_S)
        spec = f"openai={engines.urls[0]}"
        bystander = stage.enter(
            await asyncio.to_thread(start_router, [spec], stage.folder / "bystander.log", "--no-access-log")
        )
        pids = {f"router_{number}": router.process.pid for number, router in enumerate(routers)}
        meter = Meter(
            {
                **pids,
                "bystander": bystander.process.pid,
                "sidecars": publishing.pid,
                "redis": stage.redis.pid,
                "engine": engines.pid,
            }
        )
        sent = bodies(KINDS["chat2k"], 500, seed=1)
        flows = [Flow(router.url, sent, RATE) for router in [*routers, bystander]]
        turns: list[dict[str, Any]] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(flow.run()) for flow in flows]
            for turn in range(2 * TURNS):
                publishing.store(blocks_per_s * (turn % 2))
                await asyncio.sleep(SETTLE_S)
                turns.append(await one_turn(publishing, routers, flows, meter, seconds, has_events=turn % 2 == 1))
            for task in tasks:
                task.cancel()
        publishing.store(0)
        await asyncio.sleep(SETTLE_S)
        _, held = publishing.told()
        ended = [await asyncio.to_thread(counts_of, router) for router in routers]
        resident_mb = {name: round(resident_bytes(pid) / 1e6, 1) for name, pid in {**pids, "redis": stage.redis.pid}.items()}
    return {
        "turns": turns,
        "failures": [dict(flow.failures) for flow in flows],
        **summed(turns, ended, held),
        "resident_mb": resident_mb,
    }


async def one_turn(
    publishing: Sidecars,
    routers: Sequence[LocalRouter],
    flows: Sequence[Flow],
    meter: Meter,
    seconds: float,
    *,
    has_events: bool,
) -> dict[str, Any]:
    """Metrics pages are asked for outside of what is measured: a thousand workers make long ones."""
    before = [await asyncio.to_thread(counts_of, router) for router in routers]
    await asyncio.sleep(0.5)
    meter.read()
    began_s = time.monotonic()
    await asyncio.sleep(seconds)
    *of_pool, bystander = flows
    ended_s = time.monotonic()
    cpu = meter.read()
    after = [await asyncio.to_thread(counts_of, router) for router in routers]
    told, _ = publishing.told()
    took_s = [(now["at_ns"] - then["at_ns"]) / 1e9 for then, now in zip(before, after, strict=True)]
    return {
        "events": has_events,
        "requests": asdict(latencies(of_pool, began_s, ended_s)),
        "bystander": asdict(latencies([bystander], began_s, ended_s)),
        "cpu_shares": cpu,
        "blocks_per_s": [round((b["blocks"] - a["blocks"]) / s) for a, b, s in zip(before, after, took_s, strict=True)],
        "lag_ms": [round(lag_ms(told, now["at_ns"], now["blocks"]), 1) for now in after] if has_events else [],
    }


def summed(turns: Sequence[dict[str, Any]], ended: Sequence[dict[str, float]], held: int) -> dict[str, Any]:
    """What the turns with events cost beyond those without, and how the routers' indexes ended."""

    def mean(has_events: bool, name: str) -> float:
        values = [turn["cpu_shares"][name] for turn in turns if turn["events"] is has_events]
        return float(sum(values)) / len(values)

    names = [f"router_{number}" for number in range(len(ended))]
    return {
        "intake_cpu_shares": [round(mean(True, name) - mean(False, name), 3) for name in names],
        "held_by_sidecars": held,
        "routers": [
            {
                "event_blocks": int(counts["event_blocks"]),
                "bytes_per_block": round(counts["index_bytes"] / max(counts["event_blocks"], 1), 1),
                **{name: int(counts[name]) for name in ("exact_workers", "gaps", "feed_gaps", "snapshots", "refused_blocks")},
            }
            for counts in ended
        ],
    }


def show(figures: dict[str, Any]) -> str:
    """For people, with the budgets."""
    lines = [f"intake: at most {MAX_INTAKE_SHARE:.0%} of a core, index at most {MAX_BYTES_PER_BLOCK:g} bytes a block"]
    for turn in figures["turns"]:
        requests = turn["requests"]
        lines.append(
            f"  {'with events' if turn['events'] else 'without':11}  p50 {requests['p50_ms']:.2f} p99 {requests['p99_ms']:.2f} "
            f"max {requests['max_ms']:.2f} ms of {requests['requests']} (bystander p50 {turn['bystander']['p50_ms']:.2f} "
            f"p99 {turn['bystander']['p99_ms']:.2f})  blocks/s {turn['blocks_per_s']} "
            f"lag {turn['lag_ms']} ms  cores {turn['cpu_shares']}"
        )
    lines.append(f"  intake {figures['intake_cpu_shares']} of a core; sidecars hold {figures['held_by_sidecars']} blocks")
    lines += [f"  router: {row}" for row in figures["routers"]]
    lines.append(f"  failed: {figures['failures']}; resident MB {figures['resident_mb']}")
    return "\n".join(lines)
