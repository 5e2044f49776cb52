"""A data plane on a real port in front of engines whose answers a test writes byte by byte."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from router.core.fleet import Fleet
from router.core.placement import Placement
from router.core.stats import Stats
from router.core.types import Lifecycle, WorkerId, WorkerReport
from router.log import AccessEntry
from router.proxy.listener import Listener
from router.proxy.plane import DataPlane
from router.settings import EngineSpec, Settings
from router.tokens.book import TokenizerBook
from router.tokens.keyer import Keyer

MODEL = "m"


@dataclass
class EngineRequest:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.headers]


Script = Callable[[EngineRequest, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sized(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + b"\n\n"


async def answer_ok(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(b'{"ok":true}', "Content-Type: application/json"))


class ScriptedEngine:
    """An HTTP/1.1 server that reads whole requests and leaves every byte of the answer to `script`."""

    def __init__(self, script: Script = answer_ok) -> None:
        self.script = script
        self.requests: list[EngineRequest] = []
        self.connections = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.hung_up = asyncio.Event()  # a client of this engine closed its connection
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a killed process: the port closes and connections are reset."""
        assert self._server is not None
        self._server.close()
        for writer in list(self.open):
            writer.transport.abort()

    @property
    def worker_id(self) -> WorkerId:
        return WorkerId(f"127.0.0.1:{self.port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                await self.script(request, reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(writer)
            self.hung_up.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> EngineRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = [(name, value.lstrip()) for name, _, value in (line.partition(":") for line in lines)]
    method, target, _ = first.split(" ")
    request = EngineRequest(method, target, headers, b"")
    length = request.header("content-length")
    if length is not None:
        request.body = await reader.readexactly(int(length))
    return request


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Wait for the other side to close, as an engine that is busy generating does."""
    while await reader.read(65536):
        pass


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Returns once `condition` holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is a number of the router's, it has no event
            await asyncio.sleep(0.005)


class ListSink:
    def __init__(self) -> None:
        self.entries: list[AccessEntry] = []

    def write(self, entry: AccessEntry) -> None:
        self.entries.append(entry)


@dataclass
class Rig:
    plane: DataPlane
    engines: list[ScriptedEngine]
    port: int
    log: ListSink
    listener: Listener
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**26)
        self.writers.append(writer)
        return reader, writer

    async def send(self, data: bytes) -> bytes:
        """Everything the router answers to `data` until it closes; `data` should end with a closing request."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()

    async def post(self, body: bytes, path: str = "/v1/chat/completions", *headers: str) -> bytes:
        return await self.send(post(body, path, *headers, "Connection: close"))

    def worker(self, index: int = 0) -> Any:
        return self.plane.fleet.get(self.engines[index].worker_id)

    def report(self, index: int, lifecycle: Lifecycle = Lifecycle.READY, generation: str = "1") -> None:
        engine = self.engines[index]
        now_s = time.monotonic()
        report = WorkerReport(
            engine.worker_id, "openai", f"http://{engine.worker_id}", generation, lifecycle, now_s, models=(MODEL,)
        )
        self.plane.fleet.apply(report, now_s)

    async def settled(self) -> None:
        """Wait until no request is in flight."""
        await until(lambda: not self.plane.stats.requests_in_flight)

    def nothing_left(self) -> bool:
        """No lease, no request, no body held: the state every request must leave behind."""
        stats = self.plane.stats
        loads = [worker.load.in_flight for worker in self.plane.fleet.workers]
        return stats.requests_in_flight == 0 and stats.buffered_bytes == 0 and not any(loads)


def post(body: bytes, path: str = "/v1/chat/completions", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: router", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(text: str = "hello", **more: object) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], **more})


def changed(settings: Settings, **knobs: Any) -> Settings:
    """Settings with some knobs of any section changed."""
    for section in ("limits", "upstream", "routing", "tokens"):
        part = getattr(settings, section)
        chosen = {name: value for name, value in knobs.items() if hasattr(part, name)}
        settings = replace(settings, **{section: replace(part, **chosen)})
    return settings


@asynccontextmanager
async def rig(*scripts: Script, **knobs: Any) -> AsyncIterator[Rig]:
    """A router in front of one engine per script, all ready and serving model "m"."""
    settings = changed(Settings(), **{"policy": "least-queue", **knobs})
    engines = [ScriptedEngine(script) for script in scripts or (answer_ok,)]
    stats, clock = Stats(), time.monotonic
    fleet = Fleet(settings.fleet)
    placement = Placement(settings.routing, settings.cache, fleet, stats, random.Random(1))
    keyer = Keyer(settings.tokens, TokenizerBook(settings.tokens), stats)
    log = ListSink()
    plane = DataPlane(settings, stats, fleet, placement, keyer, log, clock, time.time)
    listener = Listener(plane)
    loop = asyncio.get_running_loop()
    for engine in engines:
        await engine.start()
        fleet.add(EngineSpec("openai", f"http://{engine.worker_id}"), clock())
    server = await loop.create_server(listener.protocol, "127.0.0.1", 0)
    made = Rig(plane, engines, server.sockets[0].getsockname()[1], log, listener)
    for index in range(len(engines)):
        made.report(index)
    async with asyncio.TaskGroup() as group:
        plane.pool.start(group)
        sweeper = group.create_task(listener.sweep_forever(clock))
        try:
            yield made
        finally:
            sweeper.cancel()
            server.close()
            listener.abort_all()
            plane.pool.close()
            for writer in made.writers:
                writer.close()
            for engine in engines:
                await engine.stop()
            keyer.close()


def split_answer(answer: bytes) -> tuple[bytes, dict[str, str], bytes]:
    """(status line, headers by lower-case name, body) of one answer; a chunked body is joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = {name.decode().lower(): value.decode().strip() for name, _, value in (line.partition(b":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = joined_chunks(body)
    return status, headers, body


def joined_chunks(body: bytes) -> bytes:
    """The payload of a complete chunked body; raises ValueError when its last chunk is missing."""
    payload = b""
    while True:
        size, separator, rest = body.partition(b"\r\n")
        if not separator:
            raise ValueError("chunked body was cut")
        length = int(size, 16)
        if length == 0:
            return payload
        payload, body = payload + rest[:length], rest[length + 2 :]


def error_of(answer: bytes) -> tuple[int, str]:
    """(status, code) of an error in the OpenAI envelope; checks the envelope and that a request id is there."""
    status, headers, body = split_answer(answer)
    error = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert headers["x-request-id"] and headers["content-type"] == "application/json"
    return int(status.split()[1]), error["code"]


def lowered(*headers: tuple[bytes, bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """Headers as an IncomingRequest holds them: the lower-case name in front."""
    return [(name.lower(), name, value) for name, value in headers]
