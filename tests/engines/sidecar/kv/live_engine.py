"""An engine for tests: HTTP routes of vLLM, a prefix cache of blocks, and KV events over real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from aiohttp import web

from engines.sidecar.watch import watch
from router.core.cache_delta import CacheDelta, CacheSnapshot
from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm, Truth, WorkerId, WorkerReport
from router.settings import EventSettings, FleetSettings
from tests.engines.fake_engine import FakeEngine, Reply, as_json
from tests.engines.sidecar.kv.naive_cache import Block, StrictRouter
from tests.engines.sidecar.kv.publisher import EnginePublisher, removed_map, stored_map

FLEET = FleetSettings(probe_interval_s=0.1, probe_timeout_s=1.0, scrape_interval_s=0.05)
EVENTS = EventSettings(replay_timeout_s=0.5, event_check_s=0.2, self_test_timeout_s=0.4, self_test_retry_s=0.3)
MODEL = "m"


class LiveEngine(FakeEngine):
    """Caches what it is sent in blocks of `size` tokens and tells of it through `publisher`, unless told otherwise."""

    def __init__(self, publisher: EnginePublisher, size: int = 16) -> None:
        super().__init__({"/health": Reply(), "/v1/models": as_json({"data": [{"id": MODEL}]})})
        self.publisher = publisher
        self.size = size
        self.cached: set[Block] = set()
        self.caches = True
        self.tells = True
        self.shift = 0  # added to each token before it is cached, as by an engine with another tokenizer
        self.counted_more = 0  # tokens in its usage beyond those sent
        self.waiting = 0
        self.probes: list[list[int]] = []
        self.started_at = 100.0
        self.show_sources()

    def show_sources(self, **changes: Any) -> None:
        config = {"endpoint": self.publisher.events, "replay_endpoint": self.publisher.replay, "topic": "", **changes}
        self.routes["/kv_event_sources"] = as_json({"0": config})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            self.routes["/metrics"] = Reply(self._page())
        if request.path == "/v1/completions" and "/v1/completions" not in self.routes:
            prompt = orjson.loads(await request.read())["prompt"]
            self.probes.append(prompt)
            cached = self.compute(prompt)
            usage = {"prompt_tokens": len(prompt) + self.counted_more, "prompt_tokens_details": {"cached_tokens": cached}}
            self.headers.append(dict(request.headers))
            return web.json_response({"choices": [{"text": "x"}], "usage": usage})
        return await super()._answer(request)

    def _page(self) -> bytes:
        text = f"vllm:num_requests_waiting {self.waiting}\nprocess_start_time_seconds {self.started_at}\n"
        return (text + f'vllm:cache_config_info{{block_size="{self.size}",num_gpu_blocks="100"}} 1\n').encode()

    def blocks_of(self, tokens: list[int]) -> list[Block]:
        blocks: list[Block] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            shifted = tuple(token + self.shift for token in tokens[end - self.size : end])
            blocks.append(Block(blocks[-1] if blocks else None, shifted))
        return blocks

    def compute(self, tokens: list[int]) -> int:
        """Tokens that were cached already; the others are from now on."""
        blocks = self.blocks_of(tokens)
        if not self.caches:
            return 0
        new = [block for block in blocks if block not in self.cached]
        self.cached.update(new)
        if new and self.tells:
            self.publisher.publish(stored_map(new))
        return (len(blocks) - len(new)) * self.size

    def evict(self, tokens: list[int], blocks: int) -> None:
        """The last so many blocks of a prompt go."""
        gone = self.blocks_of(tokens)[-blocks:][::-1]
        self.cached.difference_update(gone)
        self.publisher.publish(*map(removed_map, gone))

    async def restart(self, *, marker: bool = True) -> None:
        """Another process on the same ports. Without `marker` only its events show that."""
        self.cached.clear()
        self.publisher.restart()
        if marker:
            self.started_at += 1.0


class Listener:
    """A router's side for one worker: reports, and the cache as deltas make it, each of them checked."""

    def __init__(self) -> None:
        self.reports: list[WorkerReport] = []
        self.deltas: list[CacheDelta] = []
        self.router = StrictRouter()
        self.generation = ""
        self.source: Callable[[], CacheSnapshot | None] = lambda: None
        self.breaks = False  # whether the next delta raises
        self.news = asyncio.Event()

    def report(self, report: WorkerReport) -> None:
        self.reports.append(report)
        self.news.set()

    def delta(self, delta: CacheDelta) -> None:
        if delta.generation != self.generation:
            assert delta.seq == 1
            self.generation, self.router = delta.generation, StrictRouter()
        else:
            assert delta.seq == self.deltas[-1].seq + 1
        self.deltas.append(delta)
        self.router.apply(delta.changes)
        self.news.set()
        if self.breaks:
            self.breaks = False
            raise RuntimeError("nobody thought of this")

    def follow(self, worker: WorkerId, snapshot: Callable[[], CacheSnapshot | None]) -> None:
        assert snapshot() is None
        self.source = snapshot

    def leave(self, worker: WorkerId) -> None:
        raise AssertionError("whoever cancels a watch tells that")

    @property
    def last(self) -> WorkerReport:
        return self.reports[-1]

    def held(self, tokens: list[int]) -> int:
        """Leading keys of a prompt that are cached."""
        keys = chain(tokens_le(tokens), root(MODEL, None, None, KeyForm.TOKENS))
        return next((count for count, key in enumerate(keys) if key not in self.router.keys), len(keys))

    async def until(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not self.reports or not holds():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            last = self.reports[-1] if self.reports else None
            raise AssertionError(f"did not come to hold; last report {last}, {len(self.router.keys)} keys") from None

    async def exact(self) -> WorkerReport:
        await self.until(lambda: self.last.truth is Truth.EXACT)
        return self.last

    async def untrusted(self, words: str) -> WorkerReport:
        await self.until(lambda: self.last.truth is Truth.UNTRUSTED and words in self.last.truth_reason)
        return self.last


@asynccontextmanager
async def watched(
    engine: LiveEngine, limits: EventSettings = EVENTS, kind: str = "vllm", **options: Any
) -> AsyncIterator[Listener]:
    """The engine under watch, and what a router hears of it."""
    listener = Listener()
    async with engine:
        spec = engine.spec(kind, **options)
        task = asyncio.ensure_future(watch(spec, FLEET, limits, listener, time.monotonic))
        try:
            yield listener
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
