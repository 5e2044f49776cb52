"""engines.http_connection: one kept connection, whatever comes over it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from engines.fetch import EngineHttp
from engines.http_connection import ConnectionGone, HttpConnection, NotHttp, TooLarge
from router.settings import EngineSpec

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(answers: list[bytes], close_after: int = 10) -> AsyncIterator[tuple[int, list[int]]]:
    """(port, requests of each connection so far): answers its requests in order, then closes."""
    taken: list[int] = []
    talks: set[asyncio.Task[None] | None] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        taken.append(0)
        mine = len(taken) - 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while taken[mine] < close_after:
                await reader.readuntil(b"\r\n\r\n")
                taken[mine] += 1
                writer.write(answers[min(sum(taken), len(answers)) - 1])
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    running = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1], taken
    finally:
        running.close()
        await running.wait_closed()
        async with asyncio.timeout(2):  # a connection that a test left open shows here
            await asyncio.gather(*(talk for talk in talks if talk is not None))


async def connect(port: int) -> HttpConnection:
    _, connection = await asyncio.get_running_loop().create_connection(HttpConnection, "127.0.0.1", port)
    return connection


WHOLE: list[tuple[bytes, int, bytes]] = [
    (OK, 200, b"ok"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
    (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n1\r\n!\r\n0\r\n\r\n", 404, b"no!"),
    (b"HTTP/1.1 204 None\r\n\r\n", 204, b""),
]


@pytest.mark.parametrize(("answer", "status", "body"), WHOLE)
async def test_answers_of_every_framing(answer: bytes, status: int, body: bytes) -> None:
    """Sized, chunked, empty, behind an interim answer: read whole, and the connection serves the next question."""
    async with server([answer]) as (port, taken):
        connection = await connect(port)
        for _ in range(3):
            assert await connection.ask(GET, 100) == body
            assert (connection.status, connection.is_open) == (status, True)
        connection.close()
        assert taken == [3]


async def test_body_until_close() -> None:
    """An answer without a length ends with its connection."""
    async with server([b"HTTP/1.0 200 OK\r\n\r\nall of it"], close_after=1) as (port, _):
        connection = await connect(port)
        assert await connection.ask(GET, 100) == b"all of it"
        assert not connection.is_open


BROKEN: list[tuple[bytes, type[Exception]]] = [
    (b"SSH-2.0\r\n\r\n", NotHttp),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, NotHttp),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, TooLarge),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", ConnectionGone),
    (b"", ConnectionGone),
]


@pytest.mark.parametrize(("answer", "error"), BROKEN)
async def test_broken_answers_close_the_connection(answer: bytes, error: type[Exception]) -> None:
    """After anything but a whole answer nothing more is asked over the connection."""
    async with server([answer], close_after=1) as (port, _):
        connection = await connect(port)
        with pytest.raises(error) as caught:
            await connection.ask(GET, 100)
        assert not connection.is_open
        if isinstance(caught.value, ConnectionGone):
            assert caught.value.before_answer is (answer == b"")
        with pytest.raises(ConnectionGone):
            await connection.ask(GET, 100)


async def test_unasked_bytes_close_the_connection() -> None:
    """Bytes behind an answer never meet the next question."""
    async with server([OK + OK]) as (port, _):
        connection = await connect(port)
        assert await connection.ask(GET, 100) == b"ok"
        assert not connection.is_open


async def test_cancelled_question_closes_the_connection() -> None:
    """A late answer never meets the next question."""
    async with server([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]) as (port, _):
        connection = await connect(port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.ask(GET, 100)
        assert not connection.is_open


async def test_kept_connection_that_was_closed_is_replaced() -> None:
    """An engine may close an idle connection at any time: the question is asked again over a new one."""
    async with server([OK], close_after=1) as (port, taken):
        http = EngineHttp(EngineSpec("openai", f"http://127.0.0.1:{port}"), 2.0)
        for _ in range(3):
            assert (await http.get("/")).body == b"ok"
        assert taken == [1, 1, 1]
        http.close()


async def test_connection_is_kept_between_questions() -> None:
    """Questions in turn go over one connection; `close` closes it."""
    async with server([OK]) as (port, taken):
        http = EngineHttp(EngineSpec("openai", f"http://127.0.0.1:{port}"), 2.0)
        for _ in range(3):
            assert (await http.get("/")).body == b"ok"
        http.close()
        assert taken == [3]
