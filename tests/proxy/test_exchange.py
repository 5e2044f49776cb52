"""The life of a request on real sockets: bytes, retries, failures in every phase, and nothing left behind."""

import asyncio
import contextlib
import gzip
import hashlib
import os
import random

import orjson
import pytest

from router.core.types import Lifecycle
from tests.proxy.rig import (
    STREAM_HEAD,
    EngineRequest,
    Script,
    answer_ok,
    chat,
    chunks,
    error_of,
    event,
    joined_chunks,
    post,
    rig,
    sized,
    split_answer,
    until,
    until_closed,
)


async def echo(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(request.body))


@pytest.mark.parametrize("size", [0, 1, 70_000, 20_000_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_request_and_answer_bodies_are_byte_identical(size: int, chunked: bool) -> None:
    """The engine reads what the client wrote and the client what the engine wrote, sized or chunked (hash compared)."""
    content = random.Random(size).randbytes(size)
    digest = hashlib.sha256(content).hexdigest()
    seen: list[str] = []

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(hashlib.sha256(request.body).hexdigest())
        if chunked:
            pieces = [content[i : i + 65_536] for i in range(0, size, 65_536)]
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(*pieces) + b"0\r\n\r\n")
        else:
            writer.write(sized(content))

    async with rig(script, max_body_bytes=32_000_000) as made:
        path = b"POST /tokenize HTTP/1.1\r\nHost: r\r\nConnection: close\r\n"
        if chunked:
            pieces = [content[i : i + 50_000] for i in range(0, size, 50_000)]
            data = path + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(*pieces) + b"0\r\n\r\n"
        else:
            data = path + b"Content-Length: %d\r\n\r\n" % size + content
        _, _, body = split_answer(await made.send(data))
        assert seen == [digest]
        assert hashlib.sha256(body).hexdigest() == digest
        assert made.nothing_left()


async def test_unknown_json_fields_and_odd_formatting_reach_the_engine() -> None:
    """The body is forwarded, not re-made: spacing, key order, escapes, big numbers and unknown fields survive (P23)."""
    body = (
        b'{ "model":"m",\n "x_unknown": {"a":[1e400, 123456789012345678901234567890]},'
        b' "messages":[{"role":"user","content":"\\u00e9"}]}'
    )
    async with rig(echo) as made:
        assert split_answer(await made.post(body))[2] == body
        assert made.engines[0].requests[0].body == body


async def test_gzip_answers_pass_untouched() -> None:
    """An encoded body keeps its encoding header and its bytes (P27)."""
    packed = gzip.compress(os.urandom(1000) * 20)

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(packed, "Content-Encoding: gzip", "Content-Type: application/json"))

    async with rig(script) as made:
        _, headers, body = split_answer(await made.post(chat(), "/v1/chat/completions", "Accept-Encoding: gzip"))
        assert body == packed and headers["content-encoding"] == "gzip"
        assert made.engines[0].requests[0].header("accept-encoding") == "gzip"


async def test_headers_reach_the_engine_and_come_back() -> None:
    """Only hop-by-hop headers are dropped; Host names the engine; the request id is the same everywhere."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b"{}", "X-Engine: 1", "X-engine: 2", "Keep-Alive: timeout=5", "Server: uvicorn"))

    async with rig(script) as made:
        sent = ("Authorization: Bearer k", "X-Custom: a, b", "X-Request-Id: my-id", "Keep-Alive: 3", "TE: trailers", "X-Hop: 1")
        answer = await made.send(post(chat(), "/v1/chat/completions?q=1", *sent, "Connection: close, X-Hop"))
        request = made.engines[0].requests[0]
        assert request.target == "/v1/chat/completions?q=1"
        assert request.names == ["Host", "Authorization", "X-Custom", "X-Request-Id", "Content-Length"]
        assert request.header("host") == made.engines[0].worker_id and request.header("x-request-id") == "my-id"
        assert b"X-Engine: 1\r\nX-engine: 2\r\n" in answer and b"Server: uvicorn" in answer
        assert b"X-Request-Id: my-id" in answer and b"timeout=5" not in answer


async def test_an_unsafe_request_id_is_replaced() -> None:
    """An id that could break a log line is not passed on."""
    async with rig() as made:
        answer = await made.post(chat(), "/v1/chat/completions", 'X-Request-Id: a"b c')
        given = split_answer(answer)[1]["x-request-id"]
        assert given.startswith("wl-") and made.engines[0].requests[0].header("x-request-id") == given


async def test_head_requests() -> None:
    """HEAD: the head of the answer, no body, and the connection goes on."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.method == "HEAD":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        else:
            await answer_ok(request, reader, writer)

    async with rig(script) as made:
        head = b"HEAD /v1/completions HTTP/1.1\r\nHost: r\r\n\r\n"
        answer = await made.send(head + post(chat(), "/v1/chat/completions", "Connection: close"))
        first, _, rest = answer.partition(b"\r\n\r\n")
        assert b"Content-Length: 500" in first and rest.startswith(b"HTTP/1.1 200 OK")
        assert made.nothing_left()


async def test_interim_answers_pass() -> None:
    """103 reaches an HTTP/1.1 client before the final answer; 100 does not."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + sized(b"ok"))

    async with rig(script) as made:
        answer = await made.post(chat())
        assert answer.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK")


async def test_bodyless_statuses_and_closing_engines() -> None:
    """204 has no body; a body ended by closing is passed whole and its connection is not used again."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"none" in request.body:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\npart one, ")
        await writer.drain()
        writer.write(b"part two")
        await writer.drain()
        writer.close()

    async with rig(script) as made:
        assert (await made.post(chat("none"))).startswith(b"HTTP/1.1 204 No Content\r\n")
        assert split_answer(await made.post(chat()))[2] == b"part one, part two"
        assert made.engines[0].connections == 1 and made.nothing_left()


async def test_streams_pass_event_by_event() -> None:
    """Each event reaches the client when the engine sends it, not at the end."""
    gate = asyncio.Event()

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunks(event("one")))
        await writer.drain()
        await gate.wait()
        usage = {
            "choices": [],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
        }
        writer.write(chunks(event("two"), b"data: " + orjson.dumps(usage) + b"\n\n", b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with rig(script) as made:
        reader, writer = await made.connect()
        writer.write(post(chat(stream=True), "/v1/chat/completions", "Connection: close"))
        first = await asyncio.wait_for(reader.readuntil(event("one")), 5)
        assert b"text/event-stream" in first
        gate.set()
        rest = await asyncio.wait_for(reader.read(), 5)
        assert joined_chunks(rest[2:]).endswith(b"data: [DONE]\n\n")
        entry = made.log.entries[-1]
        assert (entry.actual_cached_tokens, entry.outcome, entry.worker) == (3, "ok", made.engines[0].worker_id)
        assert entry.ttft_s is not None and entry.ttft_s <= entry.duration_s
        assert made.nothing_left()


@pytest.mark.parametrize("cut", [1, 3, 7, 40, 61, 62, 63, 64, 65, 10_000])
async def test_streams_are_whole_however_they_are_cut(cut: int) -> None:
    """Chunks and reads that fall apart anywhere give the same events; parsed and unparsed chunks mix freely."""
    events = [event(f"token {i} ") for i in range(12)]
    stream = STREAM_HEAD + chunks(*events) + chunks(b"".join(events[:3]), b"data: [DO", b"NE]\n\n") + b"0\r\n\r\n"

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(stream), cut):
            writer.write(stream[start : start + cut])
            await writer.drain()
            await asyncio.sleep(0)

    async with rig(script) as made:
        for _ in range(2):
            body = split_answer(await made.post(chat(stream=True)))[2]
            assert body == b"".join(events) + b"".join(events[:3]) + b"data: [DONE]\n\n"
        assert made.nothing_left()


async def test_a_refusing_worker_is_marked_down_and_another_serves() -> None:
    """Connection refused: the request goes to another worker, the dead one gets nothing until a report says ready."""
    async with rig(answer_ok, answer_ok) as made:
        await made.engines[0].stop()
        for _ in range(6):
            assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        assert made.worker(0).lifecycle is Lifecycle.DOWN
        assert len(made.engines[1].requests) == 6
        assert made.plane.stats.retries.total() <= 1 and made.nothing_left()


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


@pytest.mark.parametrize(
    ("body", "path", "status", "code"),
    [
        (b"{", "/v1/chat/completions", 400, "malformed_json"),
        (b"", "/v1/chat/completions", 400, "malformed_json"),
        (b"[1]", "/v1/chat/completions", 400, "invalid_field"),
        (b"\xff\xfe", "/v1/chat/completions", 400, "malformed_json"),
        (b"[" * 100_000, "/v1/chat/completions", 400, "malformed_json"),
        (b'{"model":"m"}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":"hi"}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[{"content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[{"role":"user","content":5}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":7,"messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"stream":"yes","messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"nope","messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 404, "model_not_found"),
        (b'{"model":"m","prompt":[1,"a"]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":[-1]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":[true]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":{}}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m"}', "/v1/load_lora_adapter", 404, "path_not_found"),
        (b"{}", "/slots/0?action=erase", 404, "path_not_found"),
    ],
)  # fmt: skip
async def test_bad_input(body: bytes, path: str, status: int, code: str) -> None:
    """A clear error in the envelope with a request id; no worker sees the request; the router serves on."""
    async with rig() as made:
        assert error_of(await made.post(body, path)) == (status, code)
        assert made.engines[0].requests == [] and made.nothing_left()
        assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"


async def test_local_answers() -> None:
    """/health and /v1/models are the router's own; the list is the union over workers."""
    async with rig(answer_ok, answer_ok) as made:
        get = b"GET %s HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"
        assert split_answer(await made.send(get % b"/health"))[2] == b'{"status":"ok"}'
        models = orjson.loads(split_answer(await made.send(get % b"/v1/models"))[2])
        assert [model["id"] for model in models["data"]] == ["m"]
        assert orjson.loads(split_answer(await made.send(get % b"/v1/models/m"))[2])["id"] == "m"
        assert error_of(await made.send(get % b"/v1/models/x")) == (404, "model_not_found")
        made.report(0, Lifecycle.LOADING)
        made.report(1, Lifecycle.DOWN)
        assert error_of(await made.send(get % b"/health")) == (503, "no_worker")
        assert error_of(await made.post(chat())) == (503, "no_worker")
        made.plane.draining = True
        assert error_of(await made.send(get % b"/health")) == (503, "shutting_down")
        assert made.nothing_left()


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
