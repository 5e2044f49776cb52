"""The load generator: every request once, complete answers only, times that make sense."""

import asyncio

import pytest

from loadtest.bench.bodies import KINDS, bodies
from loadtest.bench.fake_engine import sized_answer
from loadtest.bench.load import LoadFailed, percentile, request_bytes, run_load
from tests.loadtest.bench_rig import HOST, engine


def requests(kind: str, count: int) -> list[bytes]:
    return [request_bytes(f"{HOST}:1", body) for body in bodies(KINDS[kind], count, seed=1)]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.99, 4), (0.0, 1), (1.0, 4), (0.25, 1)])
def test_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    """A percentile is one of the values, never between two."""
    assert percentile([4, 1, 3, 2], share) == expected


def test_percentile_of_nothing_is_an_error() -> None:
    """No value means no percentile, not zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


async def test_every_request_is_sent_once_and_timed() -> None:
    """All requests are answered, and each sample's times are in order."""
    async with engine() as (port,):
        result = await run_load(HOST, port, requests("chat2k", 50), concurrency=7)
    assert result.requests == 50
    assert result.statuses == {200: 50}
    assert all(s.sent_s <= s.first_byte_s <= s.end_s for s in result.samples)


async def test_long_bodies_and_streams_arrive_whole() -> None:
    """A 100 KB body goes through back-pressure; streams are counted event by event."""
    async with engine() as (port,):
        long = await run_load(HOST, port, requests("chat100k", 4), concurrency=2)
        streams = await run_load(HOST, port, requests("stream64", 6), concurrency=3, is_stream=True)
    assert long.statuses == {200: 4}
    assert streams.events == {64: 6}


async def test_stop_ends_a_paced_run() -> None:
    """Once `stop` is set, what was sent is finished and nothing further goes out."""
    stop = asyncio.Event()
    async with engine() as (port,), asyncio.TaskGroup() as tasks:
        run = tasks.create_task(run_load(HOST, port, requests("chat2k", 1000), concurrency=1, pause_s=0.001, stop=stop))
        asyncio.get_running_loop().call_later(0.03, stop.set)
    assert 0 < run.result().requests < 1000


class Scripted(asyncio.Protocol):
    """Answers every bunch of bytes with the same text, then closes if told to."""

    def __init__(self, answer: bytes, *, close: bool) -> None:
        self.answer, self.close = answer, close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        if self.answer:
            self.transport.write(self.answer)
        if self.close:
            self.transport.close()


BAD_ANSWERS = [
    (sized_answer(b"503 Service Unavailable", b"text/plain", b"no"), False, "other than 200"),
    (b"", True, "connection lost"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", True, "connection lost"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", False, "closes connections"),
    (b"not http at all\r\n\r\n", False, "unreadable"),
    (b"", False, "0 of 1 requests answered"),
    (sized_answer(b"200 OK", b"text/event-stream", b"data: {}\n\n"), False, "without .DONE."),
]


@pytest.mark.parametrize(("answer", "close", "message"), BAD_ANSWERS)
async def test_anything_but_a_complete_answer_fails_the_run(answer: bytes, close: bool, message: str) -> None:
    """A refused, cut, closed, garbled or late answer is never counted as a measurement."""
    server = await asyncio.get_running_loop().create_server(lambda: Scripted(answer, close=close), HOST, 0)
    port = server.sockets[0].getsockname()[1]
    stream = b"event-stream" in answer
    try:
        with pytest.raises(LoadFailed, match=message):
            await run_load(HOST, port, requests("chat2k", 1), concurrency=1, is_stream=stream, deadline_s=0.2)
    finally:
        server.close()


async def test_nobody_listening_fails_the_run() -> None:
    """A port without a server is a failed run with the address in it."""
    with pytest.raises(LoadFailed, match=r"cannot reach 127\.0\.0\.1:1"):
        await run_load(HOST, 1, requests("chat2k", 1), concurrency=1)
