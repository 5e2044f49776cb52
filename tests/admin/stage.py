"""A view and controls over a real fleet and placement, and an admin port on a free loopback port."""

import random
from array import array
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from router.admin.app import make_app
from router.admin.figures import Bound, IndexFigures, ModelFigures, ShapeFigures, SharedFigures, WorkerFigures, WorkerTokens
from router.admin.recordings import Recordings
from router.core.fleet import Fleet
from router.core.placement import Lease, Placement
from router.core.stats import Stats
from router.core.types import Decision, Lifecycle, PromptKeys, Truth, WorkerReport
from router.settings import CacheSettings, EngineSpec, FleetSettings, RoutingSettings

NOW_S = 100.0


def figures(worker_id: str = "10.0.0.1:8000", **changes: Any) -> WorkerFigures:
    """One ready worker with every number known."""
    known: dict[str, Any] = {
        "id": worker_id,
        "url": f"http://{worker_id}",
        "kind": "vllm",
        "weight": 1.0,
        "lifecycle": Lifecycle.READY,
        "why": "",
        "models": ("m",),
        "generation": "17.0",
        "truth": Truth.MODELLED,
        "truth_reason": "",
        "in_flight": 2,
        "pending_prefill_tokens": 900,
        "running": 3,
        "waiting": 1,
        "waiting_tokens": 500,
        "kv_used_ratio": 0.25,
        "report_age_s": 0.125,
        "capacity_tokens": 16000,
        "block_tokens": 16,
        "blocks_held": 40,
        "prefill_tokens_per_s": 2500.0,
        "predicted_cached_tokens": 64.0,
        "actual_cached_tokens": 60.0,
        "cached_tokens_error": 4.0,
        "tokens_match": True,
        "told_truth": Truth.MODELLED,
        "demotions": 3,
        "other_requests": 8,
        "other_prefill_tokens": 70,
        "engine": {"probe_failures": 5.0, "scrape_failures": 6.0, "slots": 4.0, "kv_blocks": 9.0, "kv_losses": 2.0},
    }
    return WorkerFigures(**{**known, **changes})


class Stage:
    """Reads and changes a real Fleet; remembers which engines it was asked to watch."""

    def __init__(self, max_workers: int = 4) -> None:
        self.stats = Stats()
        self.fleet = Fleet(FleetSettings(max_workers=max_workers))
        self.placement = Placement(RoutingSettings(), CacheSettings(), self.fleet, self.stats, random.Random(1))
        self.watched: list[EngineSpec] = []
        self.is_closing = False
        self.listens = False
        self.now_s = NOW_S
        self.recordings = Recordings(64 * 1024, self.stats, lambda: self.now_s, self._listen)

    def _listen(self, listens: bool) -> None:
        self.listens = listens

    # What the port reads

    def workers(self) -> Sequence[WorkerFigures]:
        return [
            figures(
                worker.id,
                url=worker.spec.url,
                kind=worker.kind,
                lifecycle=worker.lifecycle,
                why=worker.down_reason,
                models=None if worker.models is None else tuple(sorted(worker.models)),
                in_flight=worker.load.in_flight,
            )
            for worker in self.fleet.workers
        ]

    def decision(self, request_id: str) -> Decision | None:
        return self.placement.decision(request_id)

    def latest_decisions(self, limit: int) -> Sequence[Decision]:
        return self.placement.latest_decisions(limit)

    def index(self) -> IndexFigures:
        return IndexFigures(self.placement.index.blocks, self.placement.index.bytes, self.placement.index.evictions)

    def models(self) -> Sequence[ModelFigures]:
        worker = WorkerTokens("10.0.0.1:8000", "vllm", False, "the chat template differs", 0.25)
        shape = ShapeFigures("chat", "engine", "worker 10.0.0.1:8000 (vllm): the chat template differs", (worker,))
        return [ModelFigures("m", "llama", (shape,))]

    def key_sources(self) -> Iterable[tuple[str, str, str]]:
        return [("m", "chat", "engine")]

    def bounds(self) -> Iterable[Bound]:
        return [Bound("max_workers", len(self.fleet), 4)]

    def shared(self) -> SharedFigures | None:
        return None

    def policy(self) -> str:
        return "warm"

    def closing(self) -> bool:
        return self.is_closing

    # What the port changes

    def add_worker(self, spec: EngineSpec) -> None:
        for rank in spec.by_rank():
            self.fleet.add(rank, NOW_S)
        self.watched.append(spec)

    def remove_worker(self, worker_id: str) -> None:
        self.fleet.remove(worker_id)

    def drain_worker(self, worker_id: str) -> None:
        self.fleet.drain(worker_id)

    def resume_worker(self, worker_id: str) -> None:
        self.fleet.resume(worker_id)

    # What tests do

    def ready(self, url: str = "http://10.0.0.1:8000", lifecycle: Lifecycle = Lifecycle.READY, detail: str = "") -> str:
        """A worker that reported; its id."""
        spec = EngineSpec("vllm", url, api_key="s3cret")
        if self.fleet.get(spec.worker_id) is None:
            self.add_worker(spec)
        worker = self.fleet.get(spec.worker_id)
        assert worker is not None
        report = WorkerReport(worker.id, "vllm", url, "g", lifecycle, NOW_S + 1, models=("m",), detail=detail)
        self.fleet.apply(report, NOW_S + 1)
        return worker.id

    def send(self, request_id: str) -> Lease:
        """One request of 100 tokens, chosen for and in flight."""
        prompt = PromptKeys(array("Q", range(1, 7)), 100)
        return self.placement.choose(
            request_id, "m", prompt, self.fleet.candidates("m"), now_s=NOW_S + 2, wall_s=1_785_000_000.0, session="s"
        )


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str
    body: Any


class AdminClient:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, method: str, path: str, *, data: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        url = URL(self._url + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=headers) as answer:
            is_json = answer.content_type == "application/json"
            return Answer(answer.status, answer.headers, await answer.text(), await answer.json() if is_json else None)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def post(self, path: str, value: bytes | None = None, **headers: str) -> Answer:
        return await self.ask("POST", path, data=value, headers=headers)


@asynccontextmanager
async def admin_port(stage: Stage) -> AsyncIterator[AdminClient]:
    runner = web.AppRunner(make_app(stage, stage, stage.stats, stage.recordings), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            yield AdminClient(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
