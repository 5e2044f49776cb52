"""The footprint of a real `warmline sidecar` beside a busy engine: resident memory, share of a core, what it published.

The engine's HTTP routes are those of the bench's fake engine, its KV events those of `event_engine`.
"""

import json
import time
from typing import Any, Final

from redis import Redis

from engines.process import ChildProcess
from loadtest.bench.accounting import cpu_seconds, resident_bytes
from loadtest.bench.servers import fake_engines, same_python
from loadtest.pool.stage import Failed, Stage
from router.core.types import Truth, WorkerId
from router.state.redis_keys import Keys
from router.state.report_codec import PostedReport, decode_report

READY_S: Final = 20.0
MAX_RESIDENT_MB: Final = 60.0
MAX_CPU_SHARE: Final = 0.02
FULL_AFTER_S: Final = 4


def measure(seconds: float, blocks_per_s: int) -> dict[str, Any]:
    """`idle`: the same engine without any event. `filling`: its cache has room. `full`: each new block drives out another."""
    return {
        "idle": run(seconds, None, 1),
        "filling": run(seconds, blocks_per_s, 1 << 30),
        "full": run(seconds, blocks_per_s, blocks_per_s * FULL_AFTER_S),
    }


def run(seconds: float, blocks_per_s: int | None, capacity: int) -> dict[str, Any]:
    with Stage() as stage:
        (port,) = stage.enter(fake_engines(1, stage.folder)).ports
        engine = f"vllm=http://127.0.0.1:{port}"
        if blocks_per_s is not None:
            flags = ["--blocks-per-s", str(blocks_per_s), "--capacity", str(capacity)]
            _, line = stage.started([*same_python(), "-m", "loadtest.pool.event_engine", *flags], "events", reports=True)
            source = json.loads(line)
            engine += f",events={source['events']},replay={source['replay']}"
        flags = ["--engine", engine, "--redis", stage.redis.url, "--no-self-test"]
        sidecar, _ = stage.started([*same_python(), "-m", "router.cli", "sidecar", *flags], "sidecar")
        worker = WorkerId(f"127.0.0.1:{port}")
        wanted = Truth.MODELLED if blocks_per_s is None else Truth.EXACT
        with Redis(port=stage.redis.port) as client:
            begun = await_truth(client, worker, wanted, sidecar)
            time.sleep(FULL_AFTER_S)
            begun, cpu_s, began_s = report_of(client, worker) or begun, cpu_seconds(sidecar.pid), time.monotonic()
            time.sleep(seconds)
            cpu_s, took_s = cpu_seconds(sidecar.pid) - cpu_s, time.monotonic() - began_s
            ended = await_truth(client, worker, wanted, sidecar)
        return {
            "blocks_per_s": blocks_per_s or 0,
            "cpu_share": round(cpu_s / took_s, 4),
            "resident_mb": round(resident_bytes(sidecar.pid) / 1e6, 1),
            "truth": str(ended.report.truth),
            "batches_per_s": round((batches(ended) - batches(begun)) / took_s, 1),
            "cached_blocks": int(ended.report.extra.get("kv_blocks", 0)),
            "deltas_written": ended.seq - begun.seq,
        }


def batches(posted: PostedReport) -> float:
    return posted.report.extra.get("kv_batches", 0.0)


def report_of(client: Redis, worker: WorkerId) -> PostedReport | None:
    data = client.get(Keys("default").of(worker).report)
    return decode_report(data) if isinstance(data, bytes) else None


def await_truth(client: Redis, worker: WorkerId, truth: Truth, sidecar: ChildProcess) -> PostedReport:
    """The sidecar's report once it says so. Raises Failed."""
    ends_s = time.monotonic() + READY_S
    while (posted := report_of(client, worker)) is None or posted.report.truth is not truth:
        if time.monotonic() > ends_s or not sidecar.is_running:
            told = "nothing" if posted is None else f"{posted.report.truth} ({posted.report.truth_reason})"
            raise Failed(f"the sidecar tells {told}:\n{sidecar.log_tail()}")
        time.sleep(0.05)
    return posted


def show(figures: dict[str, Any]) -> str:
    """For people, with the budgets."""
    lines = [f"sidecar: at most {MAX_RESIDENT_MB:g} MB resident and {MAX_CPU_SHARE:.0%} of a core"]
    for name, row in figures.items():
        lines.append(f"  {name:8} {row['blocks_per_s']} blocks/s: {row['resident_mb']} MB, {row['cpu_share']:.2%} of a core")
    return "\n".join(lines)
