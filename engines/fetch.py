"""One bounded request to an engine: a deadline, the engine's own key, and a limit on what is read."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from router.settings import EngineSpec

JSON_LIMIT_BYTES = 1024 * 1024
METRICS_LIMIT_BYTES = 8 * 1024 * 1024
CONNECTIONS_PER_ENGINE = 4
KEEPALIVE_S = 4.0  # engines close idle connections after 5 s (user-pain P26)
CHUNK_BYTES = 64 * 1024


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
    """A whole answer of any status."""

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
    """Requests to one engine. Every failure is an EngineError (Refused, NoAnswer, BadAnswer); any status is an answer.

    Redirects are answers, not followed.
    """

    def __init__(self, session: aiohttp.ClientSession, spec: EngineSpec, timeout_s: float) -> None:
        self._session = session
        self._root = spec.url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "warmline"}
        if spec.api_key is not None:
            self._headers["Authorization"] = f"Bearer {spec.api_key}"

    async def get(self, path: str, limit_bytes: int = JSON_LIMIT_BYTES) -> Answer:
        return await self._ask("GET", path, self._root + path, self._headers, None, limit_bytes)

    async def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """With `value` as a JSON body."""
        headers = {**self._headers, **(headers or {}), "Content-Type": "application/json"}
        return await self._ask("POST", path, self._root + path, headers, orjson.dumps(value), JSON_LIMIT_BYTES)

    async def _ask(
        self, method: str, path: str, address: str, headers: Mapping[str, str], body: bytes | None, limit_bytes: int
    ) -> Answer:
        url = URL(address, encoded=True)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                body = await read_bounded(response, path, limit_bytes)
                return Answer(path, response.status, response.headers, body)
        except TimeoutError:
            raise NoAnswer(f"{path}: no answer within {self._timeout.total:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Refused(f"no connection: {reason_of(error.os_error)}") from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientOSError):
            raise NoAnswer(f"{path}: closed before the answer was whole") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise BadAnswer(f"{path}: not an HTTP answer ({type(error).__name__})") from None


def reason_of(error: OSError) -> str:
    """`connection refused` and the like: the system's words for the number, without the address."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return "no such host" if isinstance(error, socket.gaierror) else "refused"
    return os.strerror(error.errno).lower()


async def read_bounded(response: aiohttp.ClientResponse, path: str, limit_bytes: int) -> bytes:
    """The body; BadAnswer, and the connection closed, as soon as it is longer than the limit."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(CHUNK_BYTES):
        size += len(piece)
        if size > limit_bytes:
            response.close()
            raise BadAnswer(f"{path} answered more than {limit_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def open_session() -> aiohttp.ClientSession:
    """The one session that all sidecar loops share; whoever opens it closes it. No cookies, no proxy from the environment."""
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS_PER_ENGINE, keepalive_timeout=KEEPALIVE_S)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
