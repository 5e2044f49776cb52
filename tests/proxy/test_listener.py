"""Client connections: order, limits, framing, half-close, going away. Real sockets; limits are short, nothing sleeps."""

import asyncio
import contextlib
import http.client
import time

import pytest

from tests.proxy.rig import (
    STREAM_HEAD,
    EngineRequest,
    Rig,
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

GET_MODELS = b"GET /v1/models HTTP/1.1\r\nHost: r\r\n"


async def healthy(made: Rig) -> bool:
    """The router still serves a normal request, and nothing of earlier ones is left."""
    answer = await made.post(chat())
    return split_answer(answer)[0] == b"HTTP/1.1 200 OK" and made.nothing_left()


HOST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
BAD_FRAMING = {
    "both lengths": HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, other order": HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length list": HOST + b"Content-Length: 3, 3\r\n\r\nabc",
    "negative length": HOST + b"Content-Length: -3\r\n\r\nabc",
    "hex length": HOST + b"Content-Length: 0x3\r\n\r\nabc",
    "huge length": HOST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "unknown coding": HOST + b"Transfer-Encoding: xchunked\r\n\r\nabc",
    "chunked not last": HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip coding": HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "space before colon": HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": HOST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "folded header": HOST + b"X: a\r\n b\r\n\r\n",
    "bare LF": b"POST /v1/chat/completions HTTP/1.1\nHost: r\n\n",
    "bare CR in value": HOST + b"X: a\rb\r\n\r\n",
    "NUL in value": HOST + b"X: a\x00b\r\n\r\n",
    "bad chunk size": HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "negative chunk": HOST + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "chunk overflow": HOST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n",
    "LF after chunk size": HOST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "chunk data too long": HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "unknown method": b"FROB /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32,
    "not HTTP": b"hello there\r\n\r\n",
    "space in target": b"GET /v1/models x HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD_FRAMING.values(), ids=BAD_FRAMING.keys())
async def test_ambiguous_or_broken_framing_is_refused_and_closed(data: bytes) -> None:
    """400 in the envelope, the connection closed, nothing sent to a worker, the router healthy afterwards."""
    async with rig() as made:
        assert error_of(await made.send(data))[0] in (400, 413)
        assert made.engines[0].requests == []
        assert await healthy(made)


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9"])
async def test_other_versions_are_refused(version: bytes) -> None:
    """Only HTTP/1.0 and 1.1 are spoken."""
    async with rig() as made:
        assert error_of(await made.send(b"GET /v1/models " + version + b"\r\nHost: a\r\n\r\n")) in (
            (505, "http_version_not_supported"),
            (400, "bad_framing"),
        )


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Answers follow the order of requests though a later one could be ready sooner."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"slow" in request.body:
            await asyncio.sleep(0.05)
        writer.write(sized(request.body))

    async with rig(script) as made:
        bodies = [chat("slow 0"), chat("1"), chat("2")]
        data = b"".join(post(body) for body in bodies) + GET_MODELS + b"Connection: close\r\n\r\n"
        answer = await made.send(data)
        assert all(body in answer for body in bodies)
        positions = [answer.index(body) for body in bodies]
        assert positions == sorted(positions)
        assert answer.rindex(b'"list"') > positions[-1]
        assert made.nothing_left()


async def test_pipelining_is_bounded() -> None:
    """Far more pipelined requests than may wait are all answered: reading stops and goes on."""
    async with rig() as made:
        answer = await made.send(post(chat()) * 200 + post(chat(), "/v1/chat/completions", "Connection: close"))
        assert answer.count(b'{"ok":true}') == 201
        assert made.nothing_left()


async def test_an_error_behind_whole_requests_is_answered_last() -> None:
    """A valid request before garbage still gets its answer."""
    async with rig() as made:
        answer = await made.send(post(chat()) + b"garbage\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK") and b"HTTP/1.1 400 Bad Request" in answer


async def test_data_after_connection_close_is_ignored() -> None:
    """Nothing behind a closing request is answered."""
    async with rig() as made:
        answer = await made.send(GET_MODELS + b"Connection: close\r\n\r\n" + GET_MODELS + b"\r\n")
        assert answer.count(b"HTTP/1.1 200") == 1


async def test_expect_continue_is_answered_before_the_body() -> None:
    """A client that waits for 100 gets it at once, and the worker never sees Expect."""
    async with rig() as made:
        reader, writer = await made.connect()
        body = chat()
        writer.write(post(body, "/v1/chat/completions", "Expect: 100-continue").removesuffix(body))
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200 OK")
        assert made.engines[0].requests[0].body == body
        assert made.engines[0].requests[0].header("expect") is None


async def test_expect_continue_behind_a_pipelined_request() -> None:
    """The 100 of the second request comes after the first answer, never inside it."""
    async with rig() as made:
        reader, writer = await made.connect()
        body = chat()
        second = post(body, "/v1/chat/completions", "Expect: 100-continue", "Connection: close").removesuffix(body)
        writer.write(post(chat()) + second)
        await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 OK")


async def test_expect_continue_with_a_body_too_large() -> None:
    """413 instead of 100: the body need not be sent."""
    async with rig(max_body_bytes=1000) as made:
        head = post(b"x" * 1001, "/v1/chat/completions", "Expect: 100-continue").partition(b"\r\n\r\n")[0]
        assert error_of(await made.send(head + b"\r\n\r\n")) == (413, "body_too_large")


async def test_body_limit_holds_without_a_length() -> None:
    """A chunked body is refused once it passes the bound, and its bytes are given back."""
    async with rig(max_body_bytes=1000) as made:
        data = HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(b"x" * 600, b"y" * 600) + b"0\r\n\r\n"
        assert error_of(await made.send(data)) == (413, "body_too_large")
        assert await healthy(made)


async def test_bodies_of_all_clients_together_are_bounded() -> None:
    """Beyond max_buffered_bytes further bodies get 503 until some are answered."""
    async with rig(max_buffered_bytes=1000) as made:
        assert error_of(await made.post(b"x" * 1001)) == (503, "router_full")
        assert await healthy(made)


async def test_fifty_megabytes_of_headers() -> None:
    """431 after the bound, not after 50 MB; the client can read it though it is still sending."""
    async with rig() as made:
        reader, writer = await made.connect()
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n")
        line = b"X-Filler: " + b"a" * 1000 + b"\r\n"

        async def flood() -> None:
            for _ in range(50_000):
                writer.write(line)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            flooding = group.create_task(flood())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            flooding.cancel()
        assert answer.startswith(b"HTTP/1.1 431")
        assert await healthy(made)


async def test_one_endless_header_is_refused() -> None:
    """A header that never ends is cut off at the bound too."""
    async with rig(max_header_bytes=2000) as made:
        assert error_of(await made.send(b"GET /v1/models HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 5000)) == (431, "head_too_large")


async def test_many_small_headers_are_refused() -> None:
    """A complete head above the bound is refused as well."""
    async with rig(max_header_bytes=2000) as made:
        head = b"GET /v1/models HTTP/1.1\r\nHost: r\r\n" + b"X: y\r\n" * 500 + b"\r\n"
        assert error_of(await made.send(head)) == (431, "head_too_large")


async def test_slow_loris_is_timed_out() -> None:
    """A head that trickles in gets 408 when its time is over, however often a byte arrives."""
    async with rig(header_timeout_s=0.3) as made:
        reader, writer = await made.connect()

        async def trickle() -> None:
            for byte in GET_MODELS + b"X: " + b"a" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            trickling = group.create_task(trickle())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 3)
            trickling.cancel()
        assert answer.startswith(b"HTTP/1.1 408")
        assert await healthy(made)


async def test_a_stalled_body_is_timed_out() -> None:
    """A body that stops half-way gets 408 and gives its memory back."""
    async with rig(body_timeout_s=0.2) as made:
        assert error_of(await made.send(post(chat())[:-5])) == (408, "request_timeout")
        assert await healthy(made)


async def test_a_truncated_body_gets_an_error() -> None:
    """A client that closes its sending side too early is told so."""
    async with rig() as made:
        reader, writer = await made.connect()
        writer.write(post(chat())[:-5])
        writer.write_eof()
        assert error_of(await asyncio.wait_for(reader.read(), 5)) == (400, "bad_framing")
        assert await healthy(made)


async def test_a_silent_connection_is_closed() -> None:
    """A connection that never sends anything is closed without an answer; so is an idle one after a request."""
    async with rig(header_timeout_s=0.2, keepalive_timeout_s=0.2) as made:
        reader, _ = await made.connect()
        assert await asyncio.wait_for(reader.read(), 3) == b""
        reader, writer = await made.connect()
        writer.write(post(chat()))
        answer = await asyncio.wait_for(reader.read(), 3)
        assert answer.endswith(b'{"ok":true}')


async def test_half_closed_client_gets_its_answer() -> None:
    """EOF after a whole request is no abort: the answer, even a late one, still comes (openai_api §5)."""

    async def late(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.7)
        writer.write(sized(b"late"))

    async with rig(late) as made:
        reader, writer = await made.connect()
        writer.write(post(chat()))
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.endswith(b"late")
        assert answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200 OK")
        assert made.nothing_left()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_left_stops_its_engine_at_once(stream: bool) -> None:
    """The worker's connection closes within moments of the client's, streamed or not; no lease stays (P24, P3)."""
    started = asyncio.Event()

    async def busy(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stream:
            writer.write(STREAM_HEAD + chunks(event("a")))
        started.set()
        await until_closed(reader)

    async with rig(busy) as made:
        reader, writer = await made.connect()
        writer.write(post(chat(stream=stream)))
        await asyncio.wait_for(started.wait(), 5)
        if stream:
            await asyncio.wait_for(reader.readuntil(b"\n\n"), 5)
        assert made.worker().load.in_flight == 1
        writer.close()
        begun = time.monotonic()
        await asyncio.wait_for(made.engines[0].hung_up.wait(), 5)
        assert time.monotonic() - begun < 1.0
        await made.settled()
        assert made.nothing_left()
        assert made.log.entries[-1].outcome == "client_gone"
        assert made.plane.stats.client_gone == 1


async def test_old_clients_get_closed_bodies() -> None:
    """HTTP/1.0: no chunks, the end of the body is the end of the connection; HEAD and keep-alive work."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(b"abc", b"def") + b"0\r\n\r\n")

    async with rig(script) as made:
        body = chat()
        answer = await made.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, payload = answer.partition(b"\r\n\r\n")
        assert payload == b"abcdef" and b"chunked" not in head.lower()


def ask(port: int, count: int) -> list[tuple[int, bytes]]:
    """Requests of Python's own HTTP client over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    answers = []
    for _ in range(count):
        connection.request("POST", "/v1/chat/completions", chat())
        response = connection.getresponse()
        answers.append((response.status, response.read()))
    connection.close()
    return answers


async def test_keep_alive_with_an_ordinary_client() -> None:
    """Many requests over one client connection use one connection to the worker."""
    async with rig() as made:
        answers = await asyncio.get_running_loop().run_in_executor(None, ask, made.port, 20)
        assert answers == [(200, b'{"ok":true}')] * 20
        assert made.engines[0].connections == 1 and made.plane.stats.connections_total == 1


async def test_upgrade_requests_are_answered_without_upgrading() -> None:
    """A server may ignore Upgrade (RFC 9110 §7.8): h2c and websocket offers get a plain answer, then the close."""
    async with rig() as made:
        answer = await made.send(GET_MODELS + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0")
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"HTTP/1.1") == 1


async def test_connections_are_bounded() -> None:
    """One connection above the bound is closed at once and counted; the others are not disturbed."""
    async with rig(max_connections=2) as made:
        first, second = await made.connect(), await made.connect()
        third, _ = await made.connect()
        assert await asyncio.wait_for(third.read(), 5) == b""
        assert made.plane.stats.connections_refused == 1
        first[1].write(post(chat()))
        await asyncio.wait_for(first[0].readuntil(b'{"ok":true}'), 5)
        second[1].close()
        await until(lambda: made.plane.stats.connections_open <= 1)
        assert await healthy(made)


async def test_a_client_that_does_not_read_is_cut_and_holds_up_nobody() -> None:
    """Back-pressure: little is buffered for a slow reader, the engine is not read, and in time the client is cut."""
    sent = 0

    async def flood(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if b"small" in request.body:
            await answer_ok(request, reader, writer)
            return
        writer.write(STREAM_HEAD)
        for _ in range(2000):
            writer.write(chunks(event("x" * 32_000)))
            sent += 32_000
            await writer.drain()

    async with rig(flood, client_write_timeout_s=0.5) as made:
        _, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(chat("big", stream=True)))
        await until(lambda: sent)
        assert split_answer(await made.post(chat("small")))[0] == b"HTTP/1.1 200 OK"
        await made.settled()
        assert sent < 40_000_000, "the engine was read although the client did not read"
        assert made.log.entries[-1].outcome == "client_gone"
        assert made.nothing_left()


async def test_thousands_of_pipelined_answers_of_the_routers_own() -> None:
    """Answers that end at once are made in a loop: no depth of pipelining nests or is lost."""
    async with rig() as made:
        answer = await made.send((GET_MODELS + b"\r\n") * 3000 + GET_MODELS + b"Connection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK") == 3001
        assert made.nothing_left()


async def test_answers_that_nobody_reads_are_bounded() -> None:
    """A client that asks on and on and never reads costs little memory, and is cut at client_write_timeout_s."""
    async with rig(client_write_timeout_s=0.4) as made:
        _, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        asked = GET_MODELS + b"\r\n"
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(4):
                while True:
                    writer.write(asked * 500)
                    await writer.drain()
        assert made.plane.stats.requests[("/v1/models", "", 200)] < 200_000
        await until(lambda: made.plane.stats.connections_open == 0)
        assert made.nothing_left()


async def test_an_upload_in_progress_is_owed_an_answer() -> None:
    """While draining, a request whose body is still coming counts as owed; an idle connection does not."""
    async with rig() as made:
        reader, writer = await made.connect()
        body = chat()
        writer.write(post(body)[:-5])
        await until(lambda: made.plane.stats.buffered_bytes)
        assert made.listener.owes_answers()
        made.plane.draining = True
        made.listener.close_idle()
        writer.write(body[-5:])
        assert (await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)).startswith(b"HTTP/1.1 200 OK")
        writer.close()
        await until(lambda: not made.listener.owes_answers())


async def test_a_stray_line_end_between_requests_is_no_request() -> None:
    """Some clients send CRLF behind a body: it starts no clock and gets no answer (RFC 9112 §2.2)."""
    async with rig(header_timeout_s=0.2) as made:
        reader, writer = await made.connect()
        writer.write(post(chat()) + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)
        await asyncio.sleep(0.5)
        writer.write(post(chat()))
        await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)


async def test_a_dripping_body_ends_at_the_total_limit() -> None:
    """A body that never pauses long enough for body_timeout_s still ends at total_timeout_s."""
    async with rig(body_timeout_s=0.3, total_timeout_s=0.6) as made:
        reader, writer = await made.connect()
        data = post(chat("x" * 1000))
        writer.write(data[:200])

        async def drip() -> None:
            for at in range(200, 900):
                writer.write(data[at : at + 1])
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(drip())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 3)
            dripping.cancel()
        assert answer.startswith(b"HTTP/1.1 408")
        assert await healthy(made)
