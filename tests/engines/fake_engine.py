"""An engine of scripted answers on a free loopback port, for tests of adapters and sidecar loops."""

import asyncio
import json
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from engines.fetch import EngineHttp
from engines.shared_answers import SharedAnswers
from router.settings import EngineSpec


@dataclass
class Reply:
    """What one route answers; `hangs` never does."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(json.dumps(value).encode(), status, {"Content-Type": "application/json"})


HANGS = Reply(hangs=True)


class FakeEngine:
    """Answers `routes` (path with query, or path alone) and 404 for the rest; remembers who asked for what."""

    def __init__(self, routes: dict[str, Reply]) -> None:
        self.routes = routes
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """On a free port the first time, on the same one after a stop."""
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """From now on connections are refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        reply = self.routes.get(request.path_qs) or self.routes.get(request.path) or as_json({"detail": "Not Found"}, 404)
        if reply.hangs:
            await asyncio.Event().wait()
        return web.Response(body=reply.body, status=reply.status, headers=reply.headers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spec(self, kind: str, **options: Any) -> EngineSpec:
        return EngineSpec(kind, self.url, **options)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Connected:
    """Questions to one fake engine; its connections are closed at the end."""

    def __init__(self, engine: FakeEngine, timeout_s: float = 2.0, shared: SharedAnswers | None = None, **options: Any) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._shared = shared
        self._options = options

    async def __aenter__(self) -> EngineHttp:
        self._http = EngineHttp(self._engine.spec("vllm", **self._options), self._timeout_s, self._shared)
        return self._http

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
