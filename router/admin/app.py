"""The admin port: metrics, health, workers and decisions. It listens apart from traffic and shares only the event loop."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import orjson
from aiohttp import web

from router.admin.exposition import CONTENT_TYPE, pieces
from router.admin.figures import Bound, IndexFigures, ModelFigures, SharedFigures, WorkerFigures, decision_row
from router.admin.metrics import RouterCollector
from router.admin.recording_stream import stream_recording
from router.admin.recordings import Recordings
from router.admin.replies import (
    DecisionNotFound,
    WorkerExists,
    WorkerNotFound,
    json_reply,
    refuse_other_sites,
    with_request_id,
)
from router.core.stats import Stats
from router.core.types import Decision, Lifecycle
from router.errors import InvalidField, MalformedJson, SettingsError
from router.settings import EngineSpec, parse_engine

MAX_BODY_BYTES = 64 * 1024
MAX_LISTED_DECISIONS = 200
LISTED_DECISIONS = 20
SHOWN_REASONS = 20


class View(Protocol):
    """What the admin port reads. All of it is in memory: nothing waits."""

    def workers(self) -> Sequence[WorkerFigures]: ...

    def decision(self, request_id: str) -> Decision | None: ...

    def latest_decisions(self, limit: int) -> Sequence[Decision]:
        """The newest first."""

    def index(self) -> IndexFigures: ...

    def models(self) -> Sequence[ModelFigures]: ...

    def key_sources(self) -> Iterable[tuple[str, str, str]]:
        """(model, shape of prompt, what such prompts are keyed from) of each model with a tokenizer."""

    def bounds(self) -> Iterable[Bound]: ...

    def shared(self) -> SharedFigures | None:
        """None where no Redis is used."""

    def policy(self) -> str:
        """How workers are chosen."""

    def closing(self) -> bool:
        """True once the router has begun to shut down."""


class Control(Protocol):
    """What the admin port changes."""

    def add_worker(self, spec: EngineSpec) -> None:
        """Joins the fleet and is watched from now on. ValueError when there is no room for it."""

    def remove_worker(self, worker_id: str) -> None:
        """Gone for new requests at once; those it is answering go on."""

    def drain_worker(self, worker_id: str) -> None: ...

    def resume_worker(self, worker_id: str) -> None: ...


def make_app(view: View, control: Control, stats: Stats, recordings: Recordings) -> web.Application:
    """The aiohttp application; whoever runs it opens and closes its port. Closing it ends recordings."""
    app = web.Application(middlewares=[with_request_id], client_max_size=MAX_BODY_BYTES)
    routes = AdminRoutes(view, control, stats, recordings)

    async def end_recordings(_: web.Application) -> None:
        recordings.closing.set()

    app.on_shutdown.append(end_recordings)
    app.add_routes(
        [
            web.get("/metrics", routes.metrics),
            web.get("/healthz", routes.healthz),
            web.get("/readyz", routes.readyz),
            web.get("/models", routes.list_models),
            web.get("/workers", routes.list_workers),
            web.post("/workers", routes.add_worker),
            web.post("/workers/{id:.+}/drain", routes.drain_worker),
            web.post("/workers/{id:.+}/resume", routes.resume_worker),
            web.get("/workers/{id:.+}", routes.show_worker),
            web.delete("/workers/{id:.+}", routes.remove_worker),
            web.get("/decisions", routes.list_decisions),
            web.get("/decisions/{id:.+}", routes.show_decision),
            web.get("/recording", routes.record, allow_head=False),
        ]
    )
    return app


class AdminRoutes:
    """One method per route; RouterError becomes the JSON answer."""

    def __init__(self, view: View, control: Control, stats: Stats, recordings: Recordings) -> None:
        self._view = view
        self._control = control
        self._recordings = recordings
        self._collector = RouterCollector(stats, view.workers, view.bounds, view.index, view.key_sources, view.shared)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Written piece by piece: a page of a thousand workers would otherwise hold the event loop for long."""
        page = bytearray()
        for piece in pieces(self._collector.collect()):
            page += piece
            await asyncio.sleep(0)
        return web.Response(body=bytes(page), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return json_reply({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        workers = self._view.workers()
        states = Counter(worker.lifecycle for worker in workers)
        closing = self._view.closing()
        ready = states[Lifecycle.READY] > 0 and not closing
        answer = {"ready": ready, "workers": {state.value: states[state] for state in Lifecycle}}
        if not ready:
            answer["reasons"] = reasons(workers, closing)
        return json_reply(answer, 200 if ready else 503)

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """Models with a tokenizer: whether its tokens are the engines', and from what prompts are keyed."""
        return json_reply({"models": self._view.models()})

    async def list_workers(self, request: web.Request) -> web.StreamResponse:
        return json_reply({"workers": self._view.workers()})

    async def show_worker(self, request: web.Request) -> web.StreamResponse:
        return json_reply(self._worker(request))

    async def add_worker(self, request: web.Request) -> web.StreamResponse:
        """201 with the worker's row (a list of them where it has ranks); 400 says what is wrong with the text; 409 when it,
        or one of its ranks, is there already."""
        spec = await read_engine(request)
        ids = [rank.worker_id for rank in spec.by_rank()]
        for worker in self._view.workers():
            if worker.id in ids:
                raise WorkerExists(f"Worker {worker.id} is in the fleet already", param="engine")
        try:
            self._control.add_worker(spec)
        except (ValueError, SettingsError) as error:
            raise InvalidField(str(error), param="engine") from error
        added = [worker for worker in self._view.workers() if worker.id in ids]
        return json_reply({"workers": added} if len(ids) > 1 else added[0] if added else {"id": ids[0]}, 201)

    async def remove_worker(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        self._control.remove_worker(worker.id)
        return json_reply({"id": worker.id, "removed": True, "in_flight": worker.in_flight})

    async def drain_worker(self, request: web.Request) -> web.StreamResponse:
        """No new requests from now on; the answer's in_flight says how many it is still working on."""
        self._control.drain_worker(self._worker(request).id)
        return json_reply(self._worker(request))

    async def resume_worker(self, request: web.Request) -> web.StreamResponse:
        self._control.resume_worker(self._worker(request).id)
        return json_reply(self._worker(request))

    async def list_decisions(self, request: web.Request) -> web.StreamResponse:
        limit = read_limit(request.query.get("limit"))
        return json_reply({"decisions": [decision_row(one) for one in self._view.latest_decisions(limit)]})

    async def show_decision(self, request: web.Request) -> web.StreamResponse:
        request_id = request.match_info["id"]
        decision = self._view.decision(request_id)
        if decision is None:
            raise DecisionNotFound(f"No decision for request {request_id}; only the latest are kept (decision_log_size)")
        return json_reply(decision_row(decision))

    async def record(self, request: web.Request) -> web.StreamResponse:
        """A line for each request that ends from now on, without text or names, until the client leaves."""
        refuse_other_sites(request)
        return await stream_recording(request, self._recordings, self._view.workers, self._view.policy(), time.time())

    def _worker(self, request: web.Request) -> WorkerFigures:
        """Ids are HOST:PORT[/PREFIX], percent-encoded or not."""
        worker_id = request.match_info["id"]
        for worker in self._view.workers():
            if worker.id == worker_id:
                return worker
        raise WorkerNotFound(f"No worker {worker_id}")


async def read_engine(request: web.Request) -> EngineSpec:
    """`{"engine": "KIND=URL[,key=value…]"}`, the text of `--engine`."""
    try:
        body: Any = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        raise MalformedJson('The body is not JSON like {"engine": "KIND=URL"}') from None
    text = body.get("engine") if isinstance(body, dict) else None
    if not isinstance(text, str):
        raise InvalidField('The body is not an object like {"engine": "KIND=URL"}', param="engine")
    try:
        return parse_engine(text)
    except SettingsError as error:
        raise InvalidField(str(error), param="engine") from None


def read_limit(text: str | None) -> int:
    if text is None:
        return LISTED_DECISIONS
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_LISTED_DECISIONS):
        raise InvalidField(f"limit is not a number from 1 to {MAX_LISTED_DECISIONS}", param="limit")
    return int(text)


def reasons(workers: Sequence[WorkerFigures], closing: bool) -> list[str]:
    """Why no request can be served, in words."""
    if closing:
        return ["the router is shutting down"]
    if not workers:
        return ["no workers"]
    return [
        f"{worker.id} is {worker.lifecycle}" + (f": {worker.why}" if worker.why else "") for worker in workers[:SHOWN_REASONS]
    ]
