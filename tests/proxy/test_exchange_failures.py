"""When things go wrong in mid-request: retries, limits, deaths in every phase, and nothing left behind."""

import asyncio
import contextlib
import os
import random
import resource

import orjson
import pytest

from router.core.types import Lifecycle
from router.settings import EngineSpec
from tests.proxy.rig import (
    STREAM_HEAD,
    EngineRequest,
    Script,
    answer_ok,
    chat,
    chunks,
    error_of,
    event,
    post,
    rig,
    sized,
    split_answer,
    until,
    until_closed,
)


async def test_a_refusing_worker_is_marked_down_and_another_serves() -> None:
    """Connection refused: the request goes to another worker, the dead one gets nothing until a report says ready."""
    async with rig(answer_ok, answer_ok) as made:
        await made.engines[0].stop()
        for _ in range(6):
            assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        assert made.worker(0).lifecycle is Lifecycle.DOWN
        assert len(made.engines[1].requests) == 6
        assert sum(made.plane.stats.retries.values()) <= 1 and made.nothing_left()


async def crash(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def garbage(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def switch(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")


async def endless_head(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 200_000)


@pytest.mark.parametrize("failing", [crash, garbage, switch, endless_head])
async def test_a_failure_before_the_first_byte_is_retried_elsewhere(failing: Script) -> None:
    """Whatever a worker does instead of answering, another one answers; it is never tried twice (P32)."""
    async with rig(failing, answer_ok, policy="round-robin") as made:
        for _ in range(4):
            assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        assert 1 <= len(made.engines[0].requests) <= 4
        assert made.nothing_left()


async def test_a_stream_without_an_event_yet_is_retried_elsewhere() -> None:
    """An engine that sent the head of a stream and died in its prefill sent nothing of the answer."""

    async def dies_in_prefill(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"20\r\ndata: half")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def streams(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunks(event("whole")) + b"0\r\n\r\n")

    async with rig(dies_in_prefill, streams, policy="round-robin") as made:
        for _ in range(3):
            assert split_answer(await made.post(chat(stream=True)))[2] == event("whole")
        assert made.plane.stats.retries["upstream_closed"] >= 1 and made.nothing_left()


async def test_silence_before_the_first_event_is_a_first_byte_timeout() -> None:
    """The head of a stream alone does not start the shorter clock of a running answer: 504 in the envelope."""

    async def head_only(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await until_closed(reader)

    async with rig(head_only, first_byte_timeout_s=0.3, idle_timeout_s=0.05) as made:
        assert error_of(await made.post(chat(stream=True))) == (504, "upstream_timeout")
        assert made.nothing_left()


async def test_when_every_worker_fails_the_client_is_told() -> None:
    """502 in the envelope after each worker was tried once."""
    async with rig(crash, crash) as made:
        assert error_of(await made.post(chat())) == (502, "upstream_closed")
        assert [len(engine.requests) for engine in made.engines] == [1, 1]
        assert made.nothing_left()


async def test_retries_are_limited_per_request() -> None:
    """max_retries bounds the workers tried."""
    async with rig(crash, crash, crash, crash, max_retries=1) as made:
        assert error_of(await made.post(chat()))[0] == 502
        assert sum(len(engine.requests) for engine in made.engines) == 2


async def test_a_stale_connection_gets_one_free_retry_on_the_same_worker() -> None:
    """An engine that closes a pooled connection as it is reused is not at fault (P26)."""
    served = 0

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        if served == 2:
            writer.transport.abort()
        else:
            await answer_ok(request, reader, writer)

    async with rig(script, max_retries=0) as made:
        for _ in range(3):
            assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        stats = made.plane.stats
        assert stats.stale_connection_retries == 1 and not stats.upstream_failures and made.nothing_left()


async def test_a_stream_that_breaks_ends_in_an_error_event() -> None:
    """The client reads whole events, then an error event, then a proper end: never a fake finish (P25)."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunks(event("one"), event("two") + b'data: {"half'))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with rig(script, answer_ok) as made:
        made.report(1, Lifecycle.DOWN)
        made.worker(1)
        body = split_answer(await made.post(chat(stream=True)))[2]
        events = body.split(b"\n\n")
        assert body.startswith(event("one") + event("two")) and events[-1] == b""
        error = orjson.loads(events[-2].removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream_broken" and b"[DONE]" not in body and b"half" not in body
        assert made.engines[1].requests == []
        assert made.log.entries[-1].outcome == "upstream_broken" and made.nothing_left()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_plain_answer_that_breaks_is_cut(head: bytes) -> None:
    """Without an event stream the connection is cut in mid-body, so the client cannot take it for complete."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with rig(script) as made:
        reader, writer = await made.connect()
        writer.write(post(chat()))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            answer = await asyncio.wait_for(reader.readuntil(b"half"), 5)
            assert answer.startswith(b"HTTP/1.1 200")
            await asyncio.wait_for(reader.readexactly(97), 5)
        await made.settled()
        assert made.nothing_left()


async def hang(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await until_closed(reader)


async def stall(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + chunks(event("one")))
    await until_closed(reader)


async def test_first_byte_timeout() -> None:
    """A worker that never answers: 504, its connection closed, no lease left."""
    async with rig(hang, first_byte_timeout_s=0.2) as made:
        assert error_of(await made.post(chat())) == (504, "upstream_timeout")
        await asyncio.wait_for(made.engines[0].hung_up.wait(), 5)
        assert made.nothing_left()


async def test_idle_timeout_in_a_stream() -> None:
    """Silence in mid-stream ends it with an error event."""
    async with rig(stall, idle_timeout_s=0.2) as made:
        body = split_answer(await made.post(chat(stream=True)))[2]
        assert (body.startswith(event("one")) and b'"upstream_broken"' in body) or b'"upstream_timeout"' in body
        assert made.nothing_left()


async def test_total_timeout() -> None:
    """A stream that never ends is ended at the total limit though it is never silent."""

    async def endless(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunks(event("x")))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with rig(endless, total_timeout_s=0.3) as made:
        body = split_answer(await made.post(chat(stream=True)))[2]
        assert b'"upstream_timeout"' in body and made.nothing_left()


async def test_extra_bytes_behind_an_answer_never_reach_a_client() -> None:
    """A second answer nobody asked for closes the connection instead of meeting the next request."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b"first") + sized(b"smuggled"))

    async with rig(script) as made:
        for _ in range(2):
            assert split_answer(await made.post(chat()))[2] == b"first"
        assert made.engines[0].connections == 2 and made.nothing_left()


async def test_connections_to_a_worker_are_bounded() -> None:
    """At max_connections_per_worker a request gets 429 with Retry-After instead of waiting."""
    async with rig(hang, max_connections_per_worker=2) as made:
        for _ in range(2):
            _, writer = await made.connect()
            writer.write(post(chat()))
        await until(lambda: len(made.engines[0].requests) == 2)
        answer = await made.post(chat())
        assert error_of(answer) == (429, "overloaded") and "retry-after" in split_answer(answer)[1]


async def test_requests_in_flight_are_bounded() -> None:
    """Above max_requests_in_flight a request gets 503 with Retry-After."""
    async with rig(hang, max_requests_in_flight=1) as made:
        _, writer = await made.connect()
        writer.write(post(chat()))
        await until(lambda: made.engines[0].requests)
        answer = await made.post(chat())
        assert error_of(answer) == (503, "router_full") and split_answer(answer)[1]["retry-after"] == "1"


async def test_random_endings_leave_nothing_behind() -> None:
    """Leases, requests and buffered bytes return to zero under random ends, errors and cancels (P3)."""
    rng = random.Random(7)
    seed_note = "seed 7"

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        choice = rng.randrange(6)
        if choice == 0:
            writer.transport.abort()
        elif choice == 1:
            writer.write(STREAM_HEAD + chunks(event("a")))
            await writer.drain()
            writer.transport.abort()
        elif choice == 2:
            writer.write(b"nonsense\r\n\r\n")
        elif choice == 3:
            writer.write(STREAM_HEAD + chunks(event("a"), event("b")) + b"0\r\n\r\n")
        elif choice == 4:
            await asyncio.sleep(rng.random() * 0.05)
            await answer_ok(request, reader, writer)
        else:
            await answer_ok(request, reader, writer)

    async def one(made: object) -> None:
        reader, writer = await made.connect()  # type: ignore[attr-defined]
        writer.write(post(chat(str(rng.random())), "/v1/chat/completions", "Connection: close"))
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.02)
            writer.transport.abort()
        else:
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()

    async with rig(script, script, script, policy="warm") as made:
        for _ in range(20):
            await asyncio.gather(*(one(made) for _ in range(15)))
            for index in range(3):
                made.report(index)
        await made.settled()
        assert made.nothing_left(), seed_note
        assert sum(made.plane.stats.requests.values()) >= 300


async def test_an_answer_before_the_request_was_read_ends_the_connection() -> None:
    """An engine that refuses a large body early leaves bytes unsent: they must not meet the next request."""

    async def refuses(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b"{}"))

    serving = 0

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal serving
        serving += 1
        if b"20000000" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(sized(b"too large", status="413 Content Too Large"))
        else:
            writer.write(sized(b"fine"))
        await asyncio.sleep(0.1)
        with contextlib.suppress(ConnectionError):
            await until_closed(reader)
        writer.close()
        serving -= 1

    async with rig(refuses) as made:
        server = await asyncio.start_server(early, "127.0.0.1", 0)
        made.plane.fleet.remove(made.engines[0].worker_id)
        made.engines[0].port = server.sockets[0].getsockname()[1]
        made.plane.fleet.add(EngineSpec("openai", f"http://{made.engines[0].worker_id}"), 0.0)
        made.report(0)
        large = await made.send(post(b"x" * 20_000_000, "/tokenize", "Connection: close"))
        assert split_answer(large)[2] == b"too large"
        assert split_answer(await asyncio.wait_for(made.post(b"{}", "/tokenize"), 1))[2] == b"fine"
        made.plane.pool.close()
        await until(lambda: not serving)
        server.close()


async def test_our_own_want_of_descriptors_is_not_the_workers_fault() -> None:
    """When no socket can be made, the request gets 503, and the worker stays ready."""
    async with rig() as made:
        reader, writer = await made.connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"}"), 5)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        fillers = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.open("/dev/null", os.O_RDONLY))
            writer.write(post(chat()))
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        assert answer.startswith(b"HTTP/1.1 503")
        assert made.worker().lifecycle is Lifecycle.READY
        assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK" and made.nothing_left()


async def test_a_late_death_on_a_reused_connection_is_no_free_retry() -> None:
    """A connection that dies after the engine worked on the request was not dead before: another worker gets it."""
    count = 0

    async def dies_late(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count == 1:
            await answer_ok(request, reader, writer)
        else:
            await asyncio.sleep(0.7)
            writer.transport.abort()

    async with rig(dies_late, answer_ok) as made:
        made.report(1, Lifecycle.DOWN)
        assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        made.report(1)
        made.plane.fleet.drain(made.engines[1].worker_id)
        pending = asyncio.ensure_future(made.post(chat()))
        await until(lambda: count == 2)
        made.plane.fleet.resume(made.engines[1].worker_id)
        assert split_answer(await pending)[0] == b"HTTP/1.1 200 OK"
        assert count == 2 and len(made.engines[1].requests) == 1
        assert made.plane.stats.stale_connection_retries == 0
