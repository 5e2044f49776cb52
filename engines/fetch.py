"""One bounded request to an engine: a deadline, the engine's own key, and a limit on what is read."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from engines.http_connection import ConnectionGone, HttpConnection, NotHttp, TooLarge
from router.settings import EngineSpec

if TYPE_CHECKING:
    from engines.shared_answers import SharedAnswers

JSON_LIMIT_BYTES = 1024 * 1024
METRICS_LIMIT_BYTES = 8 * 1024 * 1024
KEEPALIVE_S = 4.0  # engines close idle connections after 5 s (user-pain P26)


class EngineError(Exception):
    """A look at an engine that failed; the text is shown to people and never holds a key."""


class Refused(EngineError):
    """Nothing listens there: no connection, or no such host."""


class NoAnswer(EngineError):
    """Connected, but silent beyond the deadline or closed before the answer was whole."""


class BadAnswer(EngineError):
    """An answer that is not what the route should give: not HTTP, too large, not JSON, an unexpected shape."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of any status; names of headers in lower case."""

    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def unknown_route(self) -> bool:
        """The engine has no such route, or it is switched off (llama.cpp says 501)."""
        return self.status in (404, 405, 501)

    @property
    def refuses_key(self) -> bool:
        return self.status in (401, 403)

    def json(self) -> Any:
        """The body as JSON; BadAnswer when it is none (HTML, broken, not UTF-8)."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise BadAnswer(f"{self.path} answered {self.status} with a body that is not JSON") from None


class EngineHttp:
    """Requests to one engine over kept connections. Every failure is an EngineError (Refused, NoAnswer, BadAnswer).

    Any status is an answer; redirects are answers, not followed. `shared`: the ranks of one engine ask for the same things,
    see there.
    """

    def __init__(self, spec: EngineSpec, timeout_s: float, shared: "SharedAnswers | None" = None) -> None:
        key = f"Authorization: Bearer {spec.api_key}\r\n" if spec.api_key is not None else ""
        self._engine = Site(spec.url, key, timeout_s)
        self.metrics_url = spec.metrics
        self.rank = spec.rank
        self._metrics = Site(spec.metrics, "", timeout_s) if spec.metrics is not None else None
        self._shared = shared

    async def get(self, path: str, limit_bytes: int = JSON_LIMIT_BYTES) -> Answer:
        return await self._get(self._engine, path, limit_bytes)

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None, *, limit_bytes: int = JSON_LIMIT_BYTES
    ) -> Answer:
        """A JSON body. The engine may get it twice: not for what changes anything there."""
        further = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        return await self._engine.ask("POST", path, body, limit_bytes, further)

    async def page(self, path: str = "/metrics") -> Answer:
        """The Prometheus page: the one that `metrics=` names, to which the engine's key is not sent, else that path."""
        if self._metrics is not None:
            return await self._get(self._metrics, "", METRICS_LIMIT_BYTES)
        return await self.get(path, METRICS_LIMIT_BYTES)

    def close(self) -> None:
        """Closes the connections that wait for the next question."""
        self._engine.close()
        if self._metrics is not None:
            self._metrics.close()

    async def _get(self, site: "Site", path: str, limit_bytes: int) -> Answer:
        def ask() -> Awaitable[Answer]:
            return site.ask("GET", path, b"", limit_bytes)

        return await (ask() if self._shared is None else self._shared.get(path, ask))


class Site:
    """An address, and the connections to it that wait for the next question."""

    def __init__(self, url: str, headers: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._root = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_s = timeout_s
        self._idle: list[HttpConnection] = []
        self._is_closed = False
        self._headers = f"Host: {parts.netloc}\r\nAccept-Encoding: identity\r\nUser-Agent: warmline\r\n{headers}"

    def close(self) -> None:
        """What is being asked ends; its connection is closed then."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def ask(self, method: str, path: str, body: bytes, limit_bytes: int, further: str = "") -> Answer:
        """`further`: header lines."""
        framing = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        request = f"{method} {self._root + path or '/'} HTTP/1.1\r\n{self._headers}{framing}{further}\r\n".encode() + body
        path = path or self._root
        try:
            async with asyncio.timeout(self._timeout_s):
                answered = await self._over_some_connection(request, limit_bytes)
        except TimeoutError:
            raise NoAnswer(f"{path}: no answer within {self._timeout_s:g} s") from None
        except ConnectionGone:
            raise NoAnswer(f"{path}: closed before the answer was whole") from None
        except NotHttp:
            raise BadAnswer(f"{path}: not an HTTP answer") from None
        except TooLarge:
            raise BadAnswer(f"{path} answered more than {limit_bytes} bytes") from None
        except (OSError, UnicodeError) as error:
            raise Refused(f"no connection: {reason_of(error)}") from None
        status, headers, content = answered
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise BadAnswer(f"{path} answered in an encoding that it was not asked for")
        return Answer(path, status, headers, content)

    async def _over_some_connection(self, request: bytes, limit_bytes: int) -> tuple[int, dict[str, str], bytes]:
        """Over a kept connection, or over a new one where there is none or it was closed before it answered."""
        while (kept := self._take_idle()) is not None:
            try:
                return await self._over(kept, request, limit_bytes)
            except ConnectionGone as error:
                if not error.before_answer:
                    raise
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(HttpConnection, self._host, self._port)
        return await self._over(connection, request, limit_bytes)

    async def _over(self, connection: HttpConnection, request: bytes, limit_bytes: int) -> tuple[int, dict[str, str], bytes]:
        content = await connection.ask(request, limit_bytes)
        if self._is_closed:
            connection.close()
        elif connection.is_open:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return connection.status, connection.headers, content

    def _take_idle(self) -> HttpConnection | None:
        oldest_s = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
        return None


def reason_of(error: OSError | UnicodeError) -> str:
    """`connection refused` and the like: the system's words for the number, without the address."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "no such host"
    return "refused" if error.errno is None else os.strerror(error.errno).lower()
