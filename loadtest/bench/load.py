"""The load generator: keep-alive HTTP/1.1 connections on asyncio protocols, requests prepared before the clock starts.

Run alone: `python -m loadtest.bench.load --url http://127.0.0.1:8080 --requests 2000 --concurrency 16 --kind chat2k
[--pid PID]`; with `--pid` it prints the CPU time of that process tree per request too.
"""

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop

from loadtest.bench.accounting import cpu_seconds
from loadtest.bench.bodies import KINDS, bodies

PATH = "/v1/chat/completions"
HEAD = (
    "POST {path} HTTP/1.1\r\n"
    "Host: {authority}\r\n"
    "Accept-Encoding: gzip, deflate\r\n"
    "Connection: keep-alive\r\n"
    "Accept: application/json\r\n"
    "Content-Type: application/json\r\n"
    "User-Agent: OpenAI/Python 2.0.0\r\n"
    "X-Stainless-Lang: python\r\n"
    "X-Stainless-Package-Version: 2.0.0\r\n"
    "X-Stainless-Os: Linux\r\n"
    "X-Stainless-Arch: x64\r\n"
    "X-Stainless-Runtime: CPython\r\n"
    "X-Stainless-Async: false\r\n"
    "X-Stainless-Retry-Count: 0\r\n"
    "Content-Length: {length}\r\n\r\n"
)


class LoadFailed(Exception):
    """The load did not run to its end: no connection, a deadline, or answers that are not what the engine sent."""


@dataclass(slots=True)
class Sample:
    """One request's times, seconds on the monotonic clock."""

    sent_s: float
    first_byte_s: float
    end_s: float


@dataclass
class LoadResult:
    """What one run of the load saw."""

    wall_s: float
    samples: list[Sample]
    statuses: Counter[int]
    events: Counter[int] = field(default_factory=Counter)  # events in an answer → answers

    @property
    def requests(self) -> int:
        return len(self.samples)

    def first_byte_ms(self) -> list[float]:
        return [(sample.first_byte_s - sample.sent_s) * 1e3 for sample in self.samples]


def request_bytes(authority: str, body: bytes, path: str = PATH) -> bytes:
    """A whole request with the headers that an OpenAI SDK sends."""
    return HEAD.format(path=path, authority=authority, length=len(body)).encode() + body


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, nearest rank; ValueError when there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


class Work:
    """The requests of one run, taken by the connections in order, and what came of them."""

    def __init__(self, requests: Sequence[bytes], *, is_stream: bool, pause_s: float, stop: asyncio.Event | None) -> None:
        self.requests = requests
        self.is_stream = is_stream
        self.pause_s = pause_s
        self.stop = stop
        self.next = 0
        self.open = 0
        self.samples: list[Sample] = []
        self.statuses: Counter[int] = Counter()
        self.events: Counter[int] = Counter()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bytes | None:
        """The next request; None when there is no more or the run was told to stop."""
        if self.next >= len(self.requests) or (self.stop is not None and self.stop.is_set()):
            return None
        self.next += 1
        return self.requests[self.next - 1]

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadFailed(reason))

    def ended(self) -> None:
        """One connection has nothing left to do."""
        self.open -= 1
        if self.open == 0 and not self.done.done():
            self.done.set_result(None)


class ClientConnection(asyncio.Protocol):
    """Sends the next request as soon as the answer to the last one is complete."""

    transport: asyncio.Transport

    def __init__(self, work: Work) -> None:
        self.work = work
        self.parser = httptools.HttpResponseParser(self)
        self.busy = False
        self.finished = False
        self.body: list[bytes] = []
        self.sample = Sample(0.0, 0.0, 0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy and not self.finished:
            self.work.fail(f"connection lost during a request: {exc or 'closed by the server'}")

    def send_next(self) -> None:
        work = self.work
        request = work.take()
        if request is None:
            self.finished = True
            self.transport.close()
            work.ended()
            return
        self.busy = True
        self.body = []
        self.sample = Sample(time.monotonic(), 0.0, 0.0)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.busy and self.sample.first_byte_s == 0.0:
            self.sample.first_byte_s = time.monotonic()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.work.fail(f"unreadable answer: {error}")
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.sample.end_s = time.monotonic()
        work = self.work
        work.samples.append(self.sample)
        work.statuses[self.parser.get_status_code()] += 1
        if work.is_stream:
            text = b"".join(self.body)
            complete = text.rstrip().endswith(b"data: [DONE]")
            work.events[text.count(b"data: {") if complete else -1] += 1
        self.busy = False
        if self.parser.should_keep_alive():
            # a fresh parser: httptools keeps the upgrade/close state of the last message
            self.parser = httptools.HttpResponseParser(self)
            loop = asyncio.get_running_loop()
            if work.pause_s:
                loop.call_later(work.pause_s, self.send_next)
            else:
                loop.call_soon(self.send_next)
        else:
            work.fail("the server closes connections: not comparable")


async def run_load(
    host: str,
    port: int,
    requests: Sequence[bytes],
    *,
    concurrency: int,
    is_stream: bool = False,
    pause_s: float = 0.0,
    stop: asyncio.Event | None = None,
    deadline_s: float = 120.0,
) -> LoadResult:
    """Send every request once over `concurrency` connections; LoadFailed on any answer that is not a complete 200.

    `pause_s` is each connection's rest after an answer. Once `stop` is set nothing further is sent.
    """
    work = Work(requests, is_stream=is_stream, pause_s=pause_s, stop=stop)
    loop = asyncio.get_running_loop()
    connections = []
    try:
        async with asyncio.timeout(deadline_s):
            for _ in range(min(concurrency, len(requests))):
                _, connection = await loop.create_connection(lambda: ClientConnection(work), host, port)
                connections.append(connection)
            work.open = len(connections)
            started_s = time.monotonic()
            for connection in connections:
                connection.send_next()
            await work.done
            wall_s = time.monotonic() - started_s
    except TimeoutError:
        raise LoadFailed(f"{len(work.samples)} of {len(requests)} requests answered within {deadline_s:g} s") from None
    except OSError as error:
        raise LoadFailed(f"cannot reach {host}:{port}: {error}") from None
    finally:
        for connection in connections:
            connection.transport.abort()
    if set(work.statuses) - {200}:
        raise LoadFailed(f"answers other than 200: {dict(work.statuses)}")
    if work.events[-1]:
        raise LoadFailed(f"{work.events[-1]} streams without [DONE]")
    return LoadResult(wall_s, work.samples, work.statuses, work.events)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.load", description="send prepared chats, print times")
    parser.add_argument("--url", required=True, help="http://HOST:PORT of a proxy or an engine")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--kind", choices=sorted(KINDS), default="chat2k")
    parser.add_argument("--seed", type=int, default=time.monotonic_ns(), help="same seed, same bodies; default: fresh tails")
    parser.add_argument("--pid", type=int, help="print the CPU time of this process and its children per request")
    arguments = parser.parse_args(argv)
    parts = urlsplit(arguments.url)
    kind = KINDS[arguments.kind]
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    requests = [request_bytes(f"{host}:{port}", body) for body in bodies(kind, arguments.requests, arguments.seed)]
    gc.freeze()
    before_s = cpu_seconds(arguments.pid) if arguments.pid else 0.0
    try:
        result = uvloop.run(run_load(host, port, requests, concurrency=arguments.concurrency, is_stream=kind.stream))
    except LoadFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    first = result.first_byte_ms()
    whole = [(sample.end_s - sample.sent_s) * 1e3 for sample in result.samples]
    print(f"{result.requests} requests of {arguments.kind} in {result.wall_s:.2f} s: {result.requests / result.wall_s:.0f}/s")
    for name, values in (("first byte", first), ("whole answer", whole)):
        print(f"{name:12} p50 {percentile(values, 0.5):.3f} ms  p99 {percentile(values, 0.99):.3f} ms")
    if kind.stream:
        print(f"events per stream: {dict(result.events)}")
    if arguments.pid:
        print(f"CPU of {arguments.pid}: {(cpu_seconds(arguments.pid) - before_s) / result.requests * 1e6:.1f} µs per request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
