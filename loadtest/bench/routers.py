"""The router's deciding parts, put together in this process without sockets, for timing decisions alone."""

import asyncio
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from router.core.fleet import Fleet, Worker
from router.core.load import Lease
from router.core.placement import Placement
from router.core.stats import Stats
from router.core.types import Lifecycle, PromptKeys, WorkerId, WorkerReport
from router.settings import CacheSettings, EngineSpec, FleetSettings, RoutingSettings, TokenSettings
from router.tokens.book import TokenizerBook
from router.tokens.keyer import Keyer
from router.tokens.keying import Keying

PATH = "/v1/chat/completions"
MODEL = "bench"
TAIL_DEADLINE_S = 60.0
INDEX_BYTES = 1 << 36  # nothing is evicted by the byte bound while measuring


def ready_fleet(workers: int, capacity_tokens: int, now_s: float) -> Fleet:
    """A fleet of ready workers that all serve one model."""
    fleet = Fleet(FleetSettings(max_workers=max(1, workers)))
    for number in range(workers):
        url = f"http://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000"
        worker = fleet.add(EngineSpec("vllm", url, capacity_tokens=capacity_tokens), now_s)
        report = WorkerReport(
            WorkerId(worker.id), "vllm", url, "1", Lifecycle.READY, now_s + 0.001, models=(MODEL,), running=0, waiting=0
        )
        fleet.apply(report, now_s + 0.001)
    return fleet


def placement_over(fleet: Fleet, stats: Stats) -> Placement:
    return Placement(RoutingSettings(), CacheSettings(index_bytes=INDEX_BYTES), fleet, stats, random.Random(1))


@dataclass(slots=True)
class Dispatched:
    """A request that was given a worker."""

    lease: Lease
    keying: Keying


class DecidingRouter:
    """Read, key, choose; then first token and finish. A context manager: it owns the keyer's threads."""

    def __init__(self, workers: int, tokenizer: str | None) -> None:
        self.settings = TokenSettings(tokenizer=(tokenizer,) if tokenizer else ())
        self.stats = Stats()
        self.fleet = ready_fleet(workers, capacity_tokens=1 << 30, now_s=time.monotonic())
        self.placement = placement_over(self.fleet, self.stats)
        self.keyer = Keyer(self.settings, TokenizerBook(self.settings), self.stats)
        self.decided = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.keyer.close()

    async def decide(self, path: str, body: bytes) -> Dispatched:
        """What happens between a request's last byte and its dispatch."""
        call = self.keyer.read(path, body, None)
        keying = self.keyer.start(call, self.placement.is_held)
        if keying.waiting is not None:
            await asyncio.wait((keying.waiting,), timeout=self.settings.key_deadline_s)
        workers: tuple[Worker, ...] = self.fleet.candidates(call.model)
        self.decided += 1
        lease = self.placement.choose(
            f"r{self.decided}",
            call.model or "",
            keying.keys,
            workers,
            session=call.session,
            now_s=time.monotonic(),
            wall_s=time.time(),
        )
        return Dispatched(lease, keying)

    async def end(self, dispatched: Dispatched) -> int:
        """The rest of the request: its tail is keyed, it runs and ends. Its prompt tokens as far as known."""
        lease, keying = dispatched.lease, dispatched.keying
        keys: PromptKeys = keying.keys
        if not keys.complete:
            finished: asyncio.Future[PromptKeys] = asyncio.get_running_loop().create_future()
            keying.finish(finished.set_result)
            async with asyncio.timeout(TAIL_DEADLINE_S):
                keys = await finished
            self.placement.extend(lease, keys)
        now_s = time.monotonic()
        self.placement.first_token(lease, now_s)
        self.placement.finish(lease, now_s, None, "ok", 200)
        return keys.prompt_tokens
