"""The fake engine: fixed answers over real sockets, streams event by event."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from loadtest.bench.fake_engine import CHAT_ANSWER, stream_writes, wants_stream
from tests.loadtest.bench_rig import HOST, engine


async def exchange(port: int, request: bytes) -> bytes:
    """Everything the engine sends until it closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


def post(body: bytes, *, close: bool = True) -> bytes:
    connection = b"Connection: close\r\n" if close else b""
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: e\r\n%sContent-Length: %d\r\n\r\n%s" % (connection, len(body), body)


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b'{"stream":true}', True),
        (b'{"stream": true, "n": 1}', True),
        (b'{"stream":false}', False),
        (b'{"messages":[]}', False),
        (b'{"content":"say \\"stream\\" twice","stream" :true}', True),
        (b'{"stream_options":{"include_usage":true}}', False),
    ],
)
def test_stream_is_found_without_parsing(body: bytes, stream: bool) -> None:
    """The last `"stream"` key decides, whatever spaces a proxy put around it."""
    assert wants_stream(body) is stream


def test_a_stream_is_one_write_per_event() -> None:
    """64 events are 64 writes, the last with [DONE] and the end of the chunked body."""
    writes = stream_writes(64)
    assert len(writes) == 64
    assert all(write.count(b"data: {") == 1 for write in writes)
    assert writes[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    with pytest.raises(ValueError, match="first and a last"):
        stream_writes(1)


async def test_chat_is_answered_with_the_fixed_text_on_one_connection() -> None:
    """Keep-alive: two requests on one connection get two whole answers."""
    async with engine() as (port,):
        answer = await exchange(port, post(b"{}", close=False) + post(b"{}"))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(CHAT_ANSWER) == 2


async def test_a_request_behind_a_stream_waits_for_its_end() -> None:
    """Answers come in the order of requests, also when the first is a stream."""
    async with engine(events=5) as (port,):
        answer = await exchange(port, post(b'{"stream":true}', close=False) + post(b"{}"))
    assert answer.count(b"data: {") == 5
    assert answer.index(b"[DONE]") < answer.index(CHAT_ANSWER)


async def test_a_client_that_leaves_ends_its_stream() -> None:
    """A connection that is gone takes no further steps, and others go on."""
    async with engine(events=1000, step_s=0.001) as (port,):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(post(b'{"stream":true}'))
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        running = b"1"
        while running != b"0":
            text = await exchange(port, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
            running = text.partition(b'num_requests_running{engine="0",model_name="bench"} ')[2].split()[0]


async def test_pages_that_routers_ask_for() -> None:
    """Health, models and metrics answer; anything else is 404, garbage is 400."""
    async with engine() as (port,):
        pages = {}
        for path in (b"/health", b"/v1/models", b"/metrics", b"/nothing"):
            pages[path] = await exchange(port, b"GET %s HTTP/1.1\r\nConnection: close\r\n\r\n" % path)
        garbage = await exchange(port, b"nonsense\r\n\r\n")
    assert pages[b"/health"].startswith(b"HTTP/1.1 200")
    assert json.loads(pages[b"/v1/models"].partition(b"\r\n\r\n")[2])["data"][0]["id"] == "bench"
    assert b"vllm:num_requests_waiting" in pages[b"/metrics"]
    assert pages[b"/nothing"].startswith(b"HTTP/1.1 404")
    assert garbage.startswith(b"HTTP/1.1 400")


async def test_arrivals_are_told_once() -> None:
    """Each posted request is listed with its size and times, and forgotten when read."""
    ask = b"GET /arrivals HTTP/1.1\r\nConnection: close\r\n\r\n"
    async with engine() as (port,):
        await exchange(port, post(b'{"a":1}'))
        first = json.loads((await exchange(port, ask)).partition(b"\r\n\r\n")[2])
        second = json.loads((await exchange(port, ask)).partition(b"\r\n\r\n")[2])
    ((first_byte_s, last_byte_s, size),) = first
    assert size == 7 and first_byte_s <= last_byte_s
    assert second == []


def test_the_command_prints_its_ports_and_ends_on_sigterm() -> None:
    """`python -m loadtest.bench.fake_engine` tells its ports in its first line and exits 0 when told to stop."""
    command = [sys.executable, "-m", "loadtest.bench.fake_engine", "--ports", "0,0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())["ports"]
            assert len(set(ports)) == 2
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
