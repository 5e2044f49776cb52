"""A steady flow of requests to one router: each is sent when it is due, however long those before it take."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from loadtest.bench.load import percentile, request_bytes

MAX_CONNECTIONS: Final = 64
END_S: Final = 5.0  # that is waited for the last answers


@dataclass(frozen=True, slots=True)
class Answer:
    due_s: float
    took_s: float


@dataclass
class Latencies:
    """Of the requests that were due within some time; milliseconds."""

    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass
class Flow:
    """`rate` requests a second. `failures` counts by what came instead of an answer with status 200."""

    url: str
    bodies: Sequence[bytes]
    rate: float
    answers: list[Answer] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self._address = (parts.hostname or "", parts.port or 80)
        authority = f"{self._address[0]}:{self._address[1]}"
        self._requests = [request_bytes(authority, body) for body in self.bodies]
        self._sent = 0
        self._waiting: deque[float] = deque()  # requests that were due and find no connection
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def run(self) -> None:
        """Until cancelled; then the last answers are waited for."""
        try:
            began_s = time.monotonic()
            number = 0
            while True:
                number += 1
                await self._send(time.monotonic())
                await asyncio.sleep(max(began_s + number / self.rate - time.monotonic(), 0))
        finally:
            await self._end()

    async def _send(self, due_s: float) -> None:
        if self._idle:
            self._idle.pop().send(self._next(), due_s)
        elif len(self._open) >= MAX_CONNECTIONS:
            self._waiting.append(due_s)
        else:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(self), *self._address)
            except OSError as error:
                self.failures[f"no connection: {error.strerror}"] += 1
                return
            self._open.add(connection)
            connection.send(self._next(), due_s)

    def _next(self) -> bytes:
        self._sent += 1
        return self._requests[self._sent % len(self._requests)]

    async def _end(self) -> None:
        ends_s = time.monotonic() + END_S
        while any(connection.due_s for connection in self._open) and time.monotonic() < ends_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.01)
        self.failures["no answer"] += len(self._waiting) + sum(connection.due_s > 0 for connection in self._open)
        for connection in list(self._open):
            connection.due_s = 0.0
            connection.transport.abort()
        self.failures += Counter()  # leaves out what did not happen

    def answered(self, connection: "Connection", status: int) -> None:
        if status == 200:
            self.answers.append(Answer(connection.due_s, time.monotonic() - connection.due_s))
        else:
            self.failures[f"status {status}"] += 1
        connection.due_s = 0.0
        if self._waiting:
            connection.send(self._next(), self._waiting.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: "Connection") -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.due_s:
            self.failures["connection lost"] += 1


class Connection(asyncio.Protocol):
    """`due_s` is when its request was due, 0 while it has none."""

    transport: asyncio.Transport

    def __init__(self, flow: Flow) -> None:
        self.due_s = 0.0
        self._flow = flow
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._flow.lost(self)

    def send(self, request: bytes, due_s: float) -> None:
        self.due_s = due_s
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_complete(self) -> None:
        self._flow.answered(self, self._parser.get_status_code())


def latencies(flows: Sequence[Flow], begin_s: float, end_s: float) -> Latencies:
    took_ms = [answer.took_s * 1e3 for flow in flows for answer in flow.answers if begin_s <= answer.due_s < end_s] or [0.0]
    p50, p99 = (round(percentile(took_ms, share), 2) for share in (0.5, 0.99))
    return Latencies(len(took_ms), p50, p99, round(max(took_ms), 2))
